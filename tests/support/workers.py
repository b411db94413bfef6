"""Grain's worker processes, forked from a server that has imported what they need.

Grain spawns its workers, and each spends 4 CPU-seconds on imports. With the fixture `warm_workers`
they get their dataset in the same way, pickled, but start with the imports done. The server has the
environment of the first test that asks for it: tests that change variables for their workers, or
kill their parent, spawn real ones.
"""

import multiprocessing
import os
from multiprocessing import forkserver, util
from pathlib import Path

import pytest


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `get_context("spawn")`, which Grain asks for, give processes that are forked so."""
    multiprocessing.set_forkserver_preload(["pytest", "training.dataset"])
    original = multiprocessing.get_context

    def warm(method: str | None = None):
        return original("forkserver" if method == "spawn" else method)

    monkeypatch.setattr(multiprocessing, "get_context", warm)


def cpu_seconds() -> float:
    """Returns the CPU-seconds of the running server and of its workers that have ended."""
    server = forkserver._forkserver._forkserver_pid
    if server is None:
        return 0
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def stop() -> None:
    """Ends the server, so that its CPU time counts as ours, and removes its folder."""
    if forkserver._forkserver._forkserver_pid is not None:
        forkserver._forkserver._stop()
        util._run_finalizers(-100)
