"""The analysis of padding: what it measures is true, and its checks find faults."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from beam_pipeline import main as pipeline
from tests.support.damaged_dataset import DamagedDataset
from tests.support.damaged_dataset import arrow_dataset as arrow_dataset
from tests.support.damaged_dataset import compact_dataset as compact_dataset
from tests.support.damaged_dataset import copy as copy
from training.analyze_padding import main
from training.extent import AnalysisExtent
from training.rows.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.statistics import summary
from training.statistics.analysis import SMALL, draw_rows, measure
from training.statistics.summary import summarise
from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE

BRIEF = ("--max_rows=40", "--num_batches=4")


def dataset_of(folder: Path, counts: list[int], num_destinations: int) -> Path:
    """Writes a dataset of a probe for each number of measurements."""
    n = sum(counts)
    table = pa.table(
        {
            "event_time": pa.array(1_700_000_000 + 300 * np.arange(n), pa.timestamp("s")),
            "src_addr": np.repeat([f"192.0.2.{number}" for number in range(len(counts))], counts),
            "dst_addr": [f"198.51.100.{i % num_destinations}" for i in range(n)],
            "ip_version": pa.array([4] * n, pa.int8()),
            "rtt": pa.array(np.arange(n) / 7 + 1, pa.float32()),
        }
    )
    pq.write_table(table, folder / "in.parquet")
    flags = [f"--input={folder}/in.parquet", f"--output={folder}/rows"]
    assert pipeline.main([*flags, "--measurement_encoding=arrow"]) == 0
    return folder / "rows"


def analyse(folder: Path, output: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and what figures.json holds."""
    code = main([str(folder), f"--output={output}", *BRIEF, *flags])
    return code, json.loads((output / "figures.json").read_bytes())


def results(figures: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["result"] for check in figures["checks"]}


PICTURES = (*("padding.png", "modes.png", "repeats.png", "window_spans.png"),)


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty probes of 3 to 23 measurements: none has enough for a crop."""
    counts = [3 + number % 21 for number in range(50)]
    return dataset_of(tmp_path_factory.mktemp("padding"), counts, num_destinations=250)


@pytest.mark.slow
def test_good_dataset_passes(
    compact_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, figures = analyse(compact_dataset, tmp_path / "out")
    assert code == 0
    found = results(figures)
    assert found.pop("modes_small") in ("pass", "not applicable")
    assert set(found.values()) == {"pass"}
    out = capsys.readouterr().out
    for title in ("Padding", "Timestamp modes", "Checks", "rows read"):
        assert title in out
    for check in figures["checks"]:
        assert check["name"] in out and check["measured"]
    assert figures["sample"]["rows_read"] <= 40
    assert figures["sample"]["batches"] == 4
    assert figures["encoding"] == "compact"
    rows = figures["figures"]["rows"]
    assert sum(line["rows"] for line in rows) == figures["sample"]["rows"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*PICTURES, "figures.json"}
    for name in PICTURES:
        image = imread(tmp_path / "out" / name)
        assert 0.5 < (image[..., :3] == 1).all(axis=2).mean() < 0.99, name


def test_figures_of_small_rows_agree_with_the_sampler(small_dataset: Path) -> None:
    figures = measure(str(small_dataset), AnalysisExtent(seed=3, max_rows=30, num_batches=1))
    source, sampler = ProbeRowDataSource(str(small_dataset)), ProbeRowSampler(seed=3)
    padding, modes = [], []
    for number in figures.sampled.tolist():
        row = source[number]
        for epoch in range(figures.epochs.small):
            examples = list(sampler.examples(row, epoch))
            padding += [float((e["targets_segmentation"] == 0).mean()) for e in examples]
            if len(row["measurements"]) >= MIN_MEASUREMENTS_FOR_MODE:
                modes.append(sampler.contexts(row, epoch)[0].mode)  # drawn by the same key
    assert figures.padded["padding"].tolist() == padding
    lines = {line["mode"]: line for line in summarise(figures)["modes"]}
    assert len(modes) >= 1000
    for name in MODE_NAMES:
        assert lines[name]["small_share"] == pytest.approx(modes.count(name) / len(modes))


def test_figures_of_large_rows_agree_with_the_sampler(arrow_dataset: Path) -> None:
    figures = measure(str(arrow_dataset), AnalysisExtent(max_rows=12, num_batches=1))
    source, sampler = ProbeRowDataSource(str(arrow_dataset)), ProbeRowSampler(seed=0)
    spans = []
    for number in figures.sampled[figures.sizes[figures.sampled] != SMALL].tolist():
        row = source[number]
        for epoch in range(figures.epochs.large):
            for context in sampler.contexts(row, epoch):
                first = row["measurements"][context.first]["event_time"]
                last = row["measurements"][context.first + context.window - 1]["event_time"]
                spans.append((last - first) / timedelta(seconds=1))
    assert figures.contexts["span_seconds"].tolist() == pytest.approx(spans)
    line = next(x for x in summarise(figures)["spans"] if x["group"] == "all")
    assert line["median_seconds"] == pytest.approx(np.median(spans))


def test_rows_are_drawn_evenly_over_sizes_and_families() -> None:
    sizes = np.repeat([0, 1, 5], [900, 90, 10])
    families = np.tile([0, 1], 500)
    drawn = draw_rows(sizes, families, 100, seed=1)
    assert len(drawn) in (99, 100) and drawn[0] == 0 and (np.diff(drawn) > 0).all()
    counts = {
        (s, f): int(((sizes[drawn] == s) & (families[drawn] == f)).sum())
        for s in (0, 1, 5)
        for f in (0, 1)
    }
    assert counts[5, 0] == counts[5, 1] == 5
    assert all(20 <= counts[s, f] <= 25 for s in (0, 1) for f in (0, 1))
    assert np.array_equal(drawn, draw_rows(sizes, families, 100, seed=1))
    assert not np.array_equal(drawn, draw_rows(sizes, families, 100, seed=2))
    assert np.array_equal(draw_rows(sizes, families, 5000, seed=1), np.arange(1000))
    assert np.array_equal(draw_rows(sizes, families, 1, seed=1), [0])


def test_invalid_flags(compact_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        ([str(compact_dataset), "--max_rows=0"], "--max_rows=0 is under 1"),
        ([str(compact_dataset), "--crop_size=10"], "crop_size is 10: it must be an integer from"),
        (["nowhere"], "is not a finished dataset"),
        ([str(compact_dataset), "--output=/dev/null"], "cannot write into"),
    ):
        assert main(flags) == 2
        captured = capsys.readouterr()
        assert words in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_damaged_record(
    copy: DamagedDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard, at = copy.replace(copy.single(), b"no row at all", index=False)
    assert main([str(copy.folder), *BRIEF, "--max_rows=1000"]) == 2
    error = capsys.readouterr().err
    assert f"{shard} record {at}" in error and error.count("\n") == 1


def test_failed_checks(
    compact_dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = measure(str(compact_dataset), AnalysisExtent(max_rows=10, num_batches=1))

    def failed() -> list[str]:
        checks = summary.run_checks(measured, summarise(measured))
        return [check.name for check in checks if check.result == "FAIL"]

    assert failed() == []
    for expected, value, name in (
        ("MAX_CONTEXT_PADDING", 0.0, "context_padding"),
        ("MODE_SHARES", (0.6, 0.1, 0.3), "modes_large"),
        ("MAX_CONTEXTS", 2, "num_contexts"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(summary, expected, value)
            assert name in failed()
    monkeypatch.setattr(summary, "MAX_BATCH_PADDING", 0.0)
    assert main([str(compact_dataset), "--max_rows=1", "--num_batches=1"]) == 1
    assert "checks FAILED (batch_padding" in capsys.readouterr().out
