"""Waiting for programs under test: the limit is there for those that hang, on any machine."""

import time
from collections.abc import Callable
from pathlib import Path

HANG_S = 1200  # more than ten times what anything that is waited for takes


def wait_until(
    is_done: Callable[[], object], is_alive: Callable[[], object] = lambda: True
) -> bool:
    """Waits; returns False if what is waited for has ended or hangs."""
    deadline = time.monotonic() + HANG_S
    while not is_done():
        if not is_alive() or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(process: int) -> bool:
    """Returns whether a process runs, by /proc."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
