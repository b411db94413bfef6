"""Runs a command and prints CPU seconds, wall seconds and peak memory of its process tree.

    python -m benchmarks.measure -- COMMAND ...

CPU is the kernel's own count (wait4): this process becomes the reaper of all orphaned descendants,
so no time is lost. Memory is the larger of two: the sum over the tree at about 20 Hz (RSS of a lone
process, PSS where pages may be shared), and the command's ru_maxrss, which includes peaks between
samples. Reading PSS takes milliseconds of a busy machine, so it is read once a second, and whenever
the sum of RSS is 2 % above its previous maximum. Linux only. The caller should be small: ru_maxrss
of a child starts at its parent's use.
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

_SAMPLE_S = 0.05
_TREE_S, _PSS_S = 0.2, 1.0  # intervals of listing processes and reading PSS
_GRACE_S = 5.0  # for processes the command leaves running
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Usage:
    """The resources of a command; `exit_code` is negative for a signal."""

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(
    command: Sequence[str],
    output: IO[str] | int | None = None,
    cwd: Path | None = None,
) -> Usage:
    """Runs a command with stdout and stderr to `output`; returns its resources.

    Other threads of this process must not start children meanwhile: they would count as the
    command's.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {child.pid for child in psutil.Process().children()}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd)
    memory = _Memory()
    ended = os.pidfd_open(process.pid)  # becomes readable when the command ends
    while not select.select([ended], [], [], _SAMPLE_S)[0]:
        memory.look_at(process.pid)
    wall_s = time.perf_counter() - started
    os.close(ended)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait again
    return Usage(
        exit_code=process.returncode,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime + _reap(before),
        peak_mib=max(memory.peak_bytes, usage.ru_maxrss * 1024) / 2**20,
    )


def last_line(text: str) -> str:
    """Returns the last line that a process printed."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def memory_mib(field: str, pid: int | str = "self") -> float:
    """Returns a process's VmRSS, or its peak VmHWM, from the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status[field].removesuffix("kB")) / 1024


class _Memory:
    """The peak memory of a process and its descendants."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._tree: list[int] = []
        self._largest_rss = 0
        self._next_tree_s = self._next_pss_s = 0.0  # as `time.monotonic` has it

    def look_at(self, pid: int) -> None:
        """Takes a sample."""
        now_s = time.monotonic()
        if now_s >= self._next_tree_s:
            self._tree, self._next_tree_s = _tree(pid), now_s + _TREE_S
        rss = sum(map(_rss_bytes, self._tree))
        if len(self._tree) == 1:
            self.peak_bytes = max(self.peak_bytes, rss)
        elif rss > 1.02 * self._largest_rss or now_s >= self._next_pss_s:
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, self._tree)))
            self._largest_rss, self._next_pss_s = max(self._largest_rss, rss), now_s + _PSS_S


def _tree(pid: int) -> list[int]:
    """Returns a process and its descendants."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):  # ended meanwhile
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as children:
                    found += map(int, children.read().split())
    return found


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


def _reap(known: set[int]) -> float:
    """Ends the command's orphans and returns their CPU seconds."""
    cpu_s = 0.0
    deadline = time.monotonic() + _GRACE_S
    while orphans := [p for p in psutil.Process().children() if p.pid not in known]:
        for orphan in orphans:
            if time.monotonic() > deadline:
                orphan.kill()
            pid, _, usage = os.wait4(orphan.pid, os.WNOHANG)
            if pid:
                cpu_s += usage.ru_utime + usage.ru_stime
        time.sleep(_SAMPLE_S)
    return cpu_s


def main() -> int:
    command = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    if not command:
        print("usage: python -m benchmarks.measure -- COMMAND ...", file=sys.stderr)
        return 2
    usage = measure(command)
    print(json.dumps(asdict(usage)), file=sys.stderr)
    return usage.exit_code


if __name__ == "__main__":
    sys.exit(main())
