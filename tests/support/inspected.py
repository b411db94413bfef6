"""Datasets to inspect, and what the command prints."""

from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.sorted_run import NARROW, sort_groups
from beam_pipeline.inspect import __main__ as inspect
from tests.support.helpers import YEAR_2024_US
from tests.support.probe_rows_on_disk import RowSpec, ipv4_probe, write_dataset

HOUR_US = 3_600_000_000


def day_of_pings(
    n: int, seed: int, rtt_ms: float = 40.0, failed: float = 0.1, gap: bool = False
) -> np.ndarray:
    """Returns n measurements over one day to five destinations; `gap` leaves out 06:00 to 09:00."""
    rng = np.random.default_rng([n, seed])
    run = np.zeros(n, NARROW)
    times = rng.integers(0, 24 * HOUR_US, n)
    if gap:
        hours = times // HOUR_US
        times += np.where((hours >= 6) & (hours < 9), 9 * HOUR_US, 0)
    run["event_time"] = YEAR_2024_US + times
    run["dst_lo"] = (198 << 24) + (51 << 16) + (100 << 8) + 1 + rng.integers(0, 5, n)
    run["rtt"] = np.where(rng.random(n) < failed, -1, rng.lognormal(np.log(rtt_ms), 0.4, n))
    sort_groups(run, np.array([0, n]))
    return run


def many_probes(number: int, first: int, **how) -> list[RowSpec]:
    """Returns a row each of so many probes, of some hundred measurements."""
    return [
        RowSpec(ipv4_probe(i), day_of_pings(200 + 7 * (i % 31), i, **how))
        for i in range(first, first + number)
    ]


def write_alike(folder: Path) -> Path:
    """Writes 120 train and 60 test probes of one kind."""
    test = many_probes(60, 1000)
    return write_dataset(folder, many_probes(120, 0), "compact", 2, test)


def write_unlike(folder: Path) -> Path:
    """The same, but that the test probes are three times as far away and fail more often."""
    test = many_probes(60, 1000, rtt_ms=120.0, failed=0.4)
    return write_dataset(folder, many_probes(120, 0), "compact", 2, test)


# --- what the command prints ----------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert inspect.main(list(arguments)) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Returns the one line that a command which cannot be run ends with."""
    assert inspect.main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err
