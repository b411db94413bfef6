"""Overlapping days and samples: a dataset that grows is what one job over all input writes."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from beam_pipeline.dataset.data_card import CARD_NAME
from beam_pipeline.dataset.manifest import write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.main import main
from beam_pipeline.probe_rows import grouping
from beam_pipeline.sources.options import time_text
from beam_pipeline.verify import __main__ as verify
from tests.support.engines import Flink
from tests.support.helpers import YEAR_2024_US, measurements_table, reference_rows
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input

_TABLE = measurements_table(1800, seed=21, num_probes=9)
# The second day has a third of the first again, and some of its own rows twice.
DAYS = [_TABLE.slice(0, 900), pa.concat_tables([_TABLE.slice(600), _TABLE.slice(1500, 100)])]
ALL = pa.concat_tables(DAYS)
_DROP = ["--duplicates=drop"]
_COMPACT = ["--measurement_encoding=compact"]
_SAMPLE = [
    "--sample_probes=0.7",
    "--sample_measurements=0.6",
    f"--since={time_text(YEAR_2024_US + 10**11)}",
    f"--until={time_text(YEAR_2024_US + 9 * 10**11)}",
]


@pytest.fixture(autouse=True)
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest histories go through the stateful cut, in several segments."""
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 8000)
    monkeypatch.setattr(grouping, "SEGMENT_BYTES", 1000)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    return [write_input(folder / f"day-{number}", day) for number, day in enumerate(DAYS)]


@pytest.fixture(scope="module")
def distinct(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All days in one job, without duplicates."""
    output = tmp_path_factory.mktemp("distinct") / "rows"
    return make_dataset(sources[0], output, f"--input={sources[1]}", *_DROP)


def grown(sources: list[Path], output: Path, *flags: str, later: tuple[str, ...] = ()) -> Path:
    """Returns a dataset of the first day to which the others were added, a day at a time."""
    make_dataset(sources[0], output, *flags)
    for source in sources[1:]:
        assert main([f"--input={source}", f"--output={output}", "--append", *later]) == 0
    assert verify.main([str(output)]) == 0
    return output


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    return line


def test_no_measurement_is_there_twice(distinct: Path) -> None:
    wanted = {source: sorted(set(rows)) for source, rows in reference_rows(ALL).items()}
    assert history(read_rows(distinct)) == wanted
    counts = open_dataset(str(distinct)).manifest.counts
    assert counts.measurements == sum(map(len, wanted.values()))
    assert counts.rows_read == ALL.num_rows == counts.measurements + counts.duplicates_dropped
    assert f"{counts.duplicates_dropped:,} duplicates" in (distinct / CARD_NAME).read_text()


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(_DROP, id="arrow", marks=pytest.mark.slow),
        pytest.param([*_DROP, *_COMPACT, *_SAMPLE], id="compact sample"),
        pytest.param([*_DROP, *_COMPACT], id="compact", marks=pytest.mark.slow),
        pytest.param(_SAMPLE, id="sample", marks=pytest.mark.slow),
    ],
)
def test_day_by_day_is_one_job(sources: list[Path], tmp_path: Path, flags: list[str]) -> None:
    rows = grown(sources, tmp_path / "grown", *flags)
    whole = make_dataset(sources[0], tmp_path / "whole", f"--input={sources[1]}", *flags)
    assert files_of(rows) == files_of(whole)
    told, wanted = (open_dataset(str(each)).manifest for each in (rows, whole))
    assert told.counts == wanted.counts and told.options == wanted.options
    first, second = told.generations
    assert first.counts.plus(second.counts) == told.counts
    assert (told.counts.duplicates_dropped > 0) == ("--duplicates=drop" in flags)
    assert (told.counts.rows_left_out > 0) == ("--sample_probes=0.7" in flags)


def test_the_same_day_again_adds_nothing(
    distinct: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Path(shutil.copytree(distinct, tmp_path / "rows"))
    again = write_input(tmp_path / "again", DAYS[0])
    assert main([f"--input={again}", f"--output={rows}", "--append"]) == 0
    assert "duplicates were dropped" in capsys.readouterr().out
    assert files_of(rows) == files_of(distinct)
    added = open_dataset(str(rows)).manifest.generations[-1].counts
    assert (added.measurements, added.duplicates_dropped) == (0, DAYS[0].num_rows)
    assert verify.main([str(rows)]) == 0
    assert inspect.main([str(rows)]) == 0
    assert "input rows equal another measurement" in " ".join(capsys.readouterr().out.split())


def test_datasets_that_overlap(sources: list[Path], distinct: Path, tmp_path: Path) -> None:
    flags = ["--output_format=tfrecord", "--record_encoding=tf_example", "--num_shards=2"]
    datasets = [tmp_path / f"day-{number}" for number in range(len(sources))]
    for source, dataset in zip(sources, datasets, strict=True):
        form = [*flags, "--measurement_encoding=arrow"]
        assert main([f"--input={source}", f"--output={dataset}", *form]) == 0
    inputs = [f"--input={dataset}" for dataset in datasets]
    merged = make_dataset(sources[1], tmp_path / "merged", *inputs, *_DROP)
    assert files_of(merged) == files_of(distinct)


def test_on_prism(sources: list[Path], distinct: Path, tmp_path: Path, prism: str) -> None:
    flags = ("--runner=PrismRunner", f"--prism_location={prism}")
    rows = grown(sources, tmp_path / "rows", *_DROP, later=flags)
    assert files_of(rows) == files_of(distinct)


def test_on_flink(sources: list[Path], distinct: Path, tmp_path: Path, flink: Flink) -> None:
    rows = grown(sources, tmp_path / "rows", *_DROP, later=tuple(flink.flags()))
    assert files_of(rows) == files_of(distinct)


def test_verify_finds_duplicates_where_there_must_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a row, and at the border of two; and such a dataset is not added to."""
    same = DAYS[0].slice(0, 1)
    source = write_input(tmp_path / "in", pa.concat_tables([same] * 700))
    rows = make_dataset(source, tmp_path / "rows")
    values = json.loads((rows / "manifest.json").read_bytes())
    assert values["splits"]["train"]["num_records"] + values["splits"]["test"]["num_records"] > 1
    values["options"]["duplicates"] = "drop"
    write_success(str(rows), json.dumps(values).encode())
    capsys.readouterr()
    assert verify.main([str(rows)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "measurement 1 equals the one before it" in shown
    assert "its first measurement equals the last one of" in shown
    before = files_of(rows)
    again = write_input(tmp_path / "again", same)
    assert main([f"--input={again}", f"--output={rows}", "--append"]) == 1
    assert "its option duplicates is drop: it was modified" in error_line(capsys)
    assert files_of(rows) == before and open_dataset(str(rows)).manifest.generations
