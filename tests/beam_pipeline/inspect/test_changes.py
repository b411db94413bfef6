"""What differs between two datasets or generations is what a plain comparison of dicts says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.manifest import Counts, Generation, write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect.comparison import (
    Changes,
    ProbeCounts,
    Side,
    compare_datasets,
    probe_changes,
)
from tests.support.helpers import YEAR_2024_US
from tests.support.inspected import HOUR_US, day_of_pings
from tests.support.probe_rows_on_disk import RowSpec, ipv4_probe, write_dataset


def shown_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert inspect.main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert inspect.main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


def write(folder: Path, sizes: dict[int, int], encoding: str = "compact") -> Path:
    """Writes a dataset of probes, by their numbers, with as many measurements each."""
    rows = [RowSpec(ipv4_probe(probe), day_of_pings(n, probe)) for probe, n in sizes.items()]
    return write_dataset(folder, rows[1:], encoding, 2, rows[:1])  # type: ignore[arg-type]


def state(probes: dict[int, tuple[int, int]]) -> Side:
    ids = np.array(sorted(probes), np.int64)
    values = np.array([probes[each] for each in ids.tolist()], np.int64).reshape(-1, 2)
    counts = Counts(1, 0, int(values[:, 1].sum()), {})
    columns = ProbeCounts(ids, values[:, 0].astype(np.int8), values[:, 1])
    return Side(
        *("rows", len(ids), len(ids), counts.measurements, None), counts=counts, probes=columns
    )


_PROBES = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 1), st.integers(1, 4)))


@given(before=_PROBES, now=_PROBES)
def test_probe_changes_equal_those_of_dicts(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> None:
    both = before.keys() & now.keys()
    groups = {
        "new": now.keys() - before.keys(),
        "grown": {p for p in both if now[p][1] > before[p][1]},
        "with as many measurements": {p for p in both if now[p][1] == before[p][1]},
        "with fewer measurements": {p for p in both if now[p][1] < before[p][1]},
        "no longer there": before.keys() - now.keys(),
        "of these, in the other split": {p for p in both if now[p][0] != before[p][0]},
    }
    wanted = [
        (
            *(what, len(probes), sum(before[p][1] for p in probes if p in before)),
            sum(now[p][1] for p in probes if p in now),
        )
        for what, probes in groups.items()
    ]
    assert probe_changes(Changes(state(before), state(now), [])) == wanted


def test_compare_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old", {1: 30, 2: 40, 3: 50}, "arrow")
    new = write(tmp_path / "new", {1: 30, 2: 90, 3: 50, 4: 25, 5: 5})
    shown = shown_by(capsys, str(new), f"--compare={old}")
    assert "80 measurements more than" in shown
    assert "2 new, 1 grown, 2 with as many measurements." in shown
    assert "measurements 120 200 +80" in shown and "probes 3 5 +2" in shown
    assert "grown 1 40 90" in shown
    assert "measurement_encoding arrow compact" in shown
    shown = shown_by(capsys, str(old), f"--compare={new}")
    assert "80 measurements fewer" in shown and "2 no longer there" in shown
    assert "Options that differ" not in shown_by(capsys, str(new), f"--compare={new}")


def test_different_anonymization_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / name, {1: 30, 2: 40}) for name in ("old", "new"))
    manifest = open_dataset(str(new)).manifest
    keyed = {**manifest.options, "anonymize_key_fingerprint": "00" * 8}
    write_success(str(new), replace(manifest, options=keyed).to_json())
    shown = shown_by(capsys, str(new), f"--compare={old}")
    assert "replaced with different keys" in shown and "grown" not in shown


def test_compare_generations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "rows", {1: 30, 2: 90, 3: 50})
    assert "has no list of generations" in refusal(capsys, str(rows), "--compare=1")
    manifest = open_dataset(str(rows)).manifest
    first = Generation(
        *("2026-11-01T00:00:00Z", ["a"], {"input_format": "auto"}, {"numpy": "1.0"}),
        *(Counts(2, 105, 100, {"rtt_null": 5}), 2, 2, YEAR_2024_US, YEAR_2024_US + HOUR_US),
    )
    second = replace(
        first, options={"input_format": "parquet"}, counts=Counts(1, 70, 70, {}),
        num_probes=3, num_records=3, last_us=YEAR_2024_US + 9 * HOUR_US,
    )  # fmt: skip
    grown = replace(manifest, counts=first.counts.plus(second.counts), versions={"numpy": "2.0"})
    write_success(str(rows), replace(grown, generations=[first, second]).to_json())
    shown = shown_by(capsys, str(rows), "--compare=1")
    assert "70 measurements more than generation 1 and 3 probes instead of 2." in shown
    assert "measurements 100 170 +70" in shown and "dead letters 5 5 +0" in shown
    assert "last measurement, UTC 2024-01-01 01:00 2024-01-01 23:" in shown
    assert "input_format auto parquet" in shown and "version of numpy 1.0 2.0" in shown
    assert "What was added" in shown and "2: 2026-11-01" in shown
    found = compare_datasets(open_dataset(str(rows)), "2")
    assert found.before.counts == found.now.counts and found.generations == []
    assert "has generations 1 to 2; write a folder" in refusal(capsys, str(rows), "--compare=3")
    line = refusal(capsys, str(rows), "--compare=1", "--html=page.html")
    assert "excludes --html, --row and --context" in line
