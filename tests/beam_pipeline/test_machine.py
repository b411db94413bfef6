"""The memory that a worker has, in a container or not."""

import os
from pathlib import Path

import pytest

from beam_pipeline.machine import machine_memory_bytes

_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "limits, expected",
    [
        (["max\n", "2097152\n"], 2 << 20),
        (["9223372036854771712\n"], _MACHINE),  # version 1 without a limit
    ],
)
def test_a_control_group_may_have_less_than_the_machine(
    tmp_path: Path, limits: list[str], expected: int
) -> None:
    paths = [tmp_path / str(number) for number in range(len(limits))]
    for path, limit in zip(paths, limits, strict=True):
        path.write_text(limit)
    assert machine_memory_bytes((*paths, tmp_path / "missing")) == expected
