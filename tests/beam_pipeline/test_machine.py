"""The memory that a worker has, in a container or not."""

import os
from pathlib import Path

from beam_pipeline.machine import machine_memory_bytes

_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_control_group_may_have_less_than_the_machine(tmp_path: Path) -> None:
    none, first_version, limit = (tmp_path / name for name in ("none", "first_version", "limit"))
    none.write_text("max\n")
    first_version.write_text("9223372036854771712\n")  # without a limit
    limit.write_text("2097152\n")
    assert machine_memory_bytes((none, first_version, tmp_path / "missing")) == _MACHINE
    assert machine_memory_bytes((none, limit, tmp_path / "missing")) == 2 << 20
