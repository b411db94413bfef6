/* Faults of slow and network file systems, for a process that preloads this library.

   HOSTILE_IO="CALL ERRNO AT PREFIX" makes CALL fail with ERRNO from its AT-th use on paths below
   PREFIX on; ERRNO 0 makes each use slow (2 ms), -1 makes reads and writes short. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

static int uses;

static int fault(const char *call, const char *path, int fd) {
  char wanted[16], prefix[512], name[4096], link[32];
  int number, at;
  const char *setting = getenv("HOSTILE_IO");
  if (!setting || sscanf(setting, "%15s %d %d %511s", wanted, &number, &at, prefix) != 4) return 0;
  if (strcmp(wanted, call) && strcmp(wanted, "all")) return 0;
  if (!path) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) return 0;
    name[length] = 0;
    path = name;
  }
  if (strncmp(path, prefix, strlen(prefix))) return 0;
  if (!strncmp(path + strlen(prefix), "tmp", 3)) return 0; /* a local disk */
  if (number == 0) usleep(2000);
  if (number <= 0) return number;
  if (__sync_add_and_fetch(&uses, 1) < at) return 0;
  errno = number;
  return number;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(call, path, fd) if (fault(call, path, fd) > 0) return -1
#define SHORT(call, fd, n) int f = fault(call, 0, fd); if (f > 0) return -1; if (f < 0 && n > 1) n = (n + 1) / 2

#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
  FAIL(flags & (O_WRONLY | O_RDWR) ? "create" : "open", path, -1); return REAL(name)(path, flags, mode); }
OPEN(open)
OPEN(open64)
int openat(int folder, const char *path, int flags, ...) {
  va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);
  FAIL(flags & (O_WRONLY | O_RDWR) ? "create" : "open", path, -1);
  return REAL(openat)(folder, path, flags, mode);
}
ssize_t read(int fd, void *data, size_t n) { SHORT("read", fd, n); return REAL(read)(fd, data, n); }
ssize_t pread(int fd, void *data, size_t n, off_t at) { SHORT("read", fd, n); return REAL(pread)(fd, data, n, at); }
ssize_t pread64(int fd, void *data, size_t n, off64_t at) { SHORT("read", fd, n); return REAL(pread64)(fd, data, n, at); }
ssize_t write(int fd, const void *data, size_t n) { SHORT("write", fd, n); return REAL(write)(fd, data, n); }
int fsync(int fd) { FAIL("fsync", 0, fd); return REAL(fsync)(fd); }
int close(int fd) { int f = fault("close", 0, fd); int done = REAL(close)(fd); if (f > 0) { errno = f; return -1; } return done; }
int flock(int fd, int how) { FAIL("flock", 0, fd); return REAL(flock)(fd, how); }
int rename(const char *from, const char *to) { FAIL("rename", from, -1); return REAL(rename)(from, to); }
int link(const char *from, const char *to) { FAIL("link", from, -1); return REAL(link)(from, to); }
int unlink(const char *path) { FAIL("unlink", path, -1); return REAL(unlink)(path); }
int rmdir(const char *path) { FAIL("rmdir", path, -1); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { FAIL("mkdir", path, -1); return REAL(mkdir)(path, mode); }
