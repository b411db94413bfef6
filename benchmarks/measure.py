"""Runs a command and prints CPU seconds, wall seconds and peak memory of its process tree.

    python -m benchmarks.measure -- COMMAND ...

CPU is the kernel's own count (wait4), not a sample: this process becomes the reaper of whatever
the command leaves behind, so no descendant's time is lost. Memory is the larger of two: the sum
over the tree at some 20 Hz (RSS of a lone process, PSS where pages may be shared), and the
command's ru_maxrss, which sees peaks between samples. Linux only. The caller should be small:
ru_maxrss of a child starts at what its parent used.
"""

import contextlib
import ctypes
import json
import os
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
_GRACE_S = 5.0  # for what the command leaves running
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Usage:
    """What a command took; `exit_code` is negative for a signal."""

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(
    command: Sequence[str],
    output: IO[str] | int | None = None,
    cwd: Path | None = None,
) -> Usage:
    """Runs a command whose stdout and stderr go to `output`; returns what it took.

    Other threads of this process must not start children meanwhile: they would be taken for the
    command's.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = {child.pid for child in psutil.Process().children()}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd)
    peak_bytes = 0
    ended = os.pidfd_open(process.pid)  # readable when the command ends
    while not select.select([ended], [], [], _SAMPLE_S)[0]:
        peak_bytes = max(peak_bytes, _tree_bytes(process.pid))
    wall_s = time.perf_counter() - started
    os.close(ended)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait once more
    return Usage(
        exit_code=process.returncode,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime + _reap(before),
        peak_mib=max(peak_bytes, usage.ru_maxrss * 1024) / 2**20,
    )


def last_line(text: str) -> str:
    """Returns the last line that a process printed."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _tree_bytes(pid: int) -> int:
    """Returns the memory of a process and its descendants now; 0 if it has gone."""
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.Error):  # ended meanwhile
                if len(tree) == 1:
                    total += process.memory_info().rss
                else:
                    total += process.memory_full_info().pss
    return total


def _reap(known: set[int]) -> float:
    """Ends what the command left behind and returns its CPU seconds."""
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
