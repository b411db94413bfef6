"""Runs a command; tells CPU seconds, wall seconds and peak memory of its whole process tree.

    python -m benchmarks.measure -- COMMAND ...

CPU is the kernel's own count (wait4), not a sample: this process becomes the reaper of whatever
the command leaves behind, so no descendant's time is lost. Memory is the larger of two: the sum
over the tree at some 20 Hz (RSS of a lone process, PSS where pages may be shared), and the
command's ru_maxrss, which sees peaks between samples. Linux only. The caller should be small:
ru_maxrss of a child starts at what its parent used.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

_SAMPLE_S = 0.05
_GRACE_S = 5.0  # for what the command leaves running
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Usage:
    """What a command took; `exit_code` is negative for a signal."""

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_mib: float


class _Waiter(threading.Thread):
    """Waits for a child, so that its end is noted when it happens, not at the next sample."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid = pid
        self.start()

    def run(self) -> None:
        _, status, self.usage = os.wait4(self.pid, 0)
        self.ended = time.perf_counter()
        self.exit_code = os.waitstatus_to_exitcode(status)


def measure(
    command: Sequence[str],
    output: IO[str] | int | None = None,
    cwd: Path | None = None,
) -> Usage:
    """Runs `command`, its stdout and stderr going to `output`, and returns what it took.

    Other threads of this process must not start children meanwhile: they would be taken for the
    command's.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {child.pid for child in psutil.Process().children()}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd)
    waiter = _Waiter(process.pid)
    peak_bytes = 0
    while waiter.is_alive():
        peak_bytes = max(peak_bytes, _tree_bytes(process.pid))
        waiter.join(_SAMPLE_S)
    process.returncode = waiter.exit_code  # or Popen would wait for it once more
    usage = waiter.usage
    left_cpu_s = _reap(before)
    return Usage(
        exit_code=waiter.exit_code,
        wall_s=waiter.ended - started,
        cpu_s=usage.ru_utime + usage.ru_stime + left_cpu_s,
        peak_mib=max(peak_bytes, usage.ru_maxrss * 1024) / 2**20,
    )


def last_line(text: str) -> str:
    """Returns what a process said last."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _tree_bytes(pid: int) -> int:
    """Returns the memory of a process and its descendants now; 0 if it has gone."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in tree:
        try:
            if len(tree) == 1:
                total += process.memory_info().rss
            else:
                total += process.memory_full_info().pss
        except psutil.Error:
            continue  # ended meanwhile
    return total


def _reap(known: set[int]) -> float:
    """Ends what the command left behind and returns the CPU seconds of it."""
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
    command = sys.argv[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: python -m benchmarks.measure -- COMMAND ...", file=sys.stderr)
        return 2
    usage = measure(command)
    print(json.dumps(asdict(usage)), file=sys.stderr)
    return usage.exit_code


if __name__ == "__main__":
    sys.exit(main())
