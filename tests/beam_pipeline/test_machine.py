"""The memory and threads that a process has, in a container or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline.machine import machine_memory_bytes

_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_control_group_may_have_less_than_the_machine(tmp_path: Path) -> None:
    none, first_version, limit = (tmp_path / name for name in ("none", "first_version", "limit"))
    none.write_text("max\n")
    first_version.write_text("9223372036854771712\n")  # without a limit
    limit.write_text("2097152\n")
    assert machine_memory_bytes((none, first_version, tmp_path / "missing")) == _MACHINE
    assert machine_memory_bytes((none, limit, tmp_path / "missing")) == 2 << 20


_SCRIPT = """
import resource
from beam_pipeline.storage.array_record import open_reader, open_writer
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
open_{}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("what", ["reader('/dev/null')", "writer('/dev/null', 'group_size:1')"])
def test_array_record_does_not_wait_for_threads_that_cannot_start(what: str) -> None:
    call = [sys.executable, "-c", _SCRIPT.format(what)]
    done = subprocess.run(call, timeout=60, stderr=subprocess.PIPE, text=True)
    assert "of 64 threads that it needs: raise its limit" in done.stderr
