"""Waiting for programs under test: the limit is there for those that hang, on any machine."""

import time
from collections.abc import Callable

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
