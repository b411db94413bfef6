"""A dataset that grows, day by day, is what one job over all input writes (kills: jobs/)."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.croissant import CROISSANT_NAME, croissant
from beam_pipeline.dataset.data_card import CARD_NAME, read_totals
from beam_pipeline.dataset.layout import shard_of_row
from beam_pipeline.dataset.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    NEXT_FOLDER,
    Manifest,
    write_success,
)
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.export import __main__ as export
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.main import main
from beam_pipeline.probe_rows import commit, grouping
from beam_pipeline.probe_rows.commit import describe_split
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.sources.options import time_text
from beam_pipeline.storage.files import file_digests
from beam_pipeline.storage.gcs import delete_object
from beam_pipeline.verify import __main__ as verify
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import YEAR_2024_US, measurements_table, reference_rows
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input
from tests.support.kills import kill_script
from tests.support.probe_rows_on_disk import read_records, shard_paths, write_records
from tests.support.warm_python import warm_python


def as_version_1(dataset: Path) -> Path:
    """Rewrites a dataset as one of format version 1, with other shards and another order."""
    manifest = Manifest.from_json((dataset / MANIFEST_NAME).read_bytes())
    splits = {}
    for name, split in manifest.splits.items():
        lines = pq.read_table(dataset / name / INDEX_NAME).to_pylist()
        records = [record for path in shard_paths(dataset, name) for record in read_records(path)]
        count = len(split.shards)
        for line in lines:
            line["shard"] = shard_of_row(line["src_addr"], line["row_index"], count, 1)
        keys = [(line["shard"], line["src_id"], line["row_index"]) for line in lines]
        order = sorted(range(len(lines)), key=keys.__getitem__)
        own = [[records[at] for at in order if keys[at][0] == n] for n in range(count)]
        options = str(manifest.options["array_record_options"])
        for path, some in zip(shard_paths(dataset, name), own, strict=True):
            write_records(path, some, options)
        ordered = [lines[at] for at in order]
        for line, position in zip(ordered, (at for some in own for at in range(len(some)))):
            line["position"] = position
        pq.write_table(pa.Table.from_pylist(ordered, INDEX_SCHEMA), dataset / name / INDEX_NAME)
        infos = [
            ShardInfo(str(path), n, count, len(some), *file_digests(str(path)))
            for n, (path, some) in enumerate(zip(shard_paths(dataset, name), own, strict=True))
        ]
        splits[name] = describe_split(str(dataset), name, infos)
    told = dataclasses.replace(manifest, format_version=1, splits=splits)
    data, totals = told.to_json(), read_totals(str(dataset))

    def write(path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    write(f"{dataset}/{CROISSANT_NAME}", croissant(told, totals, data))
    write_success(str(dataset), data)
    return dataset


_GOOD = measurements_table(2400, seed=11, num_probes=12)
# A row that breaks a rule in each part.
_BAD = _GOOD.slice(0, 2).set_column(4, "rtt", pa.array([None, None], pa.float32()))
TOLD = ("README.md", "croissant.json", "manifest.json", "_SUCCESS")
OLD = pa.concat_tables([_GOOD.slice(0, 1500), _BAD.slice(0, 1)])
NEW = pa.concat_tables([_GOOD.slice(1500), _BAD.slice(1)])


@pytest.fixture(scope="module")
def old(folder: Path) -> Path:
    return make_dataset(write_input(folder / "in-old", OLD), folder / "old")


@pytest.fixture(scope="module")
def new_input(folder: Path) -> Path:
    return write_input(folder / "in-new", NEW)


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, bytes]:
    source = write_input(folder / "in-all", OLD, NEW)
    return files_of(make_dataset(source, folder / "whole"))


def copied(dataset: Path, folder: Path) -> Path:
    return Path(shutil.copytree(dataset, folder / "rows"))


def append(source: Path | str, output: Path, *flags: str) -> int:
    return main([f"--input={source}", f"--output={output}", "--append", *flags])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert len(errors) == 1, errors
    return errors[0]


def test_it_is_what_one_job_writes(
    old: Path,
    new_input: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same files are added once, and verify checks that generations add up."""
    rows = copied(old, tmp_path)
    assert append(new_input, rows) == 0
    assert files_of(rows) == whole
    assert verify.main([str(rows)]) == 0
    assert {path.name for path in rows.iterdir()} == {"train", "test", "dead_letter", *TOLD}
    told = open_dataset(str(rows)).manifest
    assert told.counts.dead_letters == {"rtt_null": 2}
    assert told.counts.input_files == 2
    letters = pa.concat_tables(map(pq.read_table, sorted(rows.glob("dead_letter/*"))))
    assert [Path(file).parent.name for file in letters["file"].to_pylist()] == ["in-old", "in-new"]
    first, second = told.generations
    assert first.counts.plus(second.counts) == told.counts
    assert second.input == [str(new_input)] and second.files[0].num_bytes > 0
    assert (second.num_probes, second.num_records) == (
        sum(split.num_probes for split in told.splits.values()),
        sum(split.num_records for split in told.splits.values()),
    )
    times = NEW["event_time"].cast(pa.int64()).to_pylist()[:-1]
    assert (second.first_us, second.last_us) == (min(times), max(times))
    before = (rows / "manifest.json").read_bytes()
    assert append(new_input, rows) == 0
    assert (rows / "manifest.json").read_bytes() == before
    values = json.loads(before)
    values["generations"][0]["counts"]["measurements"] -= 1
    write_success(str(rows), json.dumps(values).encode())
    capsys.readouterr()
    assert verify.main([str(rows)]) == 1
    assert "its generations add up to" in capsys.readouterr().out


def test_a_dataset_of_format_version_1_grows_into_one_of_version_2(
    old: Path, new_input: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    rows = as_version_1(copied(old, tmp_path))
    assert files_of(rows) != files_of(old)
    assert verify.main([str(rows)]) == 0
    assert history(read_rows(rows)) == history(read_rows(old))
    assert append(new_input, rows) == 0
    assert files_of(rows) == whole
    assert open_dataset(str(rows)).manifest.format_version == 2
    assert verify.main([str(rows)]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sample_probes=0.5"], "sample_probes is 0.5, but"),
        (["--split_seed=1"], "was written with 0: leave it out"),
        (["--overwrite"], "--append adds to a dataset and --overwrite replaces it: give one"),
    ],
)
def test_options_that_decide_bytes_are_those_of_the_dataset(
    old: Path, new_input: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    before = files_of(old)
    assert append(new_input, old, *flags) == 2
    assert message in error_line(capsys)
    assert files_of(old) == before and not (old / NEXT_FOLDER).exists()


@pytest.mark.parametrize("part", ["test/", "*/*"])
def test_a_part_is_not_a_dataset(
    old: Path, new_input: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    before, path = every_file(old), f"{old}/{part}"
    for program in (
        lambda given: append(new_input, given),
        lambda given: main(
            [f"--input={given}", f"--output={tmp_path}/x", "--input_format=probe_rows"]
        ),
        lambda given: export.main([given, f"--output={tmp_path}/x.csv"]),
        lambda given: inspect.main([given]),
        lambda given: inspect.main([str(old), f"--compare={given}"]),
        lambda given: verify.main([given]),
    ):
        assert program(path) == 2
        line = error_line(capsys).replace("/ is part", " is part")
        assert f"{path.rstrip('/')} is part of a dataset: give its folder, {old}" in line
    assert every_file(old) == before and list(tmp_path.iterdir()) == []
    assert verify.main([str(old)]) == 0


def test_only_a_finished_dataset_is_added_to(
    old: Path, new_input: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert append(new_input, tmp_path / "nothing") == 2
    assert "--append adds to a finished dataset, but" in error_line(capsys)
    assert append(old, old) == 2
    assert "is among the files of --output" in error_line(capsys)


# --- an old generation is lost only to a whole new one ------------------------------------------


@pytest.fixture(scope="module")
def committed(old: Path, new_input: Path, folder: Path) -> Path:
    """A dataset whose next generation is committed, by a run that ended before the switch."""

    def end(*_: object) -> None:
        raise ProbelineError("killed")

    (folder / "killed").mkdir()
    rows = copied(old, folder / "killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "switch", end)
        assert append(new_input, rows) == 1
    assert (rows / NEXT_FOLDER / "_SUCCESS").exists()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["byte", "gone", "cut"])
@pytest.mark.parametrize(
    "name", ["train/*-of-*.arrayrecord", "test/rows.parquet", "dead_letter/*.parquet"]
)
def test_a_damaged_next_generation_replaces_nothing(
    old: Path,
    committed: Path,
    new_input: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: str,
) -> None:
    rows = Path(shutil.copytree(committed, tmp_path / "rows"))
    path = max((rows / NEXT_FOLDER).glob(name), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    path.write_bytes(data[:-1] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    if damage == "gone":
        path.unlink()
    before = every_file(rows)
    for flag in ("--append", "--overwrite"):
        assert main([f"--input={new_input}", f"--output={rows}", flag]) == 1
        line = error_line(capsys)
        assert f"error: {path} {'is missing' if damage == 'gone' else 'has '}" in line
        assert every_file(rows) == before
    assert files_of(rows) == files_of(old)
    shutil.rmtree(re.findall(r"to keep it, remove (.*), then run the command again$", line)[0])
    assert append(new_input, rows) == 0
    assert files_of(rows) == whole and verify.main([str(rows)]) == 0


def test_a_switch_that_had_begun_is_not_called_harmless(
    committed: Path, new_input: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Path(shutil.copytree(committed, tmp_path / "rows"))
    shutil.copy(rows / NEXT_FOLDER / "manifest.json", rows)
    next((rows / NEXT_FOLDER).glob("train/*.arrayrecord")).unlink()
    assert append(new_input, rows) == 1
    remove = r"is replaced in part: remove (.*), then write it with (--overwrite)$"
    next_folder, flag = re.findall(remove, error_line(capsys))[0]
    shutil.rmtree(next_folder)
    assert main([f"--input={new_input}", f"--output={rows}", flag]) == 0
    assert verify.main([str(rows)]) == 0


def every_file(folder: Path) -> dict[str, bytes]:
    """Returns all files but the lock, which a run leaves."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("counts", "measurements"), "does not add up: rows_read is"),
        (("splits", "train", "num_records"), "does not add up: num_records of"),
        ((), "dead_letter_00000-of-00001.parquet is missing"),
    ],
)
def test_a_dataset_that_is_not_whole_is_not_read(
    old: Path,
    new_input: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    keys: tuple[str, ...],
    message: str,
) -> None:
    rows = copied(old, tmp_path)
    values = place = json.loads((rows / "manifest.json").read_bytes())
    for key in keys[:-1]:
        place = place[key]
    if keys:
        place[keys[-1]] += 1
        write_success(str(rows), json.dumps(values).encode())
    else:
        next(rows.glob("dead_letter/*")).unlink()
    before = every_file(rows)
    assert append(new_input, rows) == 1
    line = error_line(capsys)
    assert message in line and line.endswith("copy the dataset again as a whole")
    assert every_file(rows) == before


def test_a_filesystem_without_hard_links(
    old: Path,
    new_input: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    rows = copied(old, tmp_path)
    assert append(new_input, rows) == 0
    assert files_of(rows) == whole


def test_on_gs(
    old: Path, new_input: Path, whole: dict[str, bytes], gcs: Gcs, tmp_path: Path
) -> None:
    """A commit that is repeated, and a switch that is, change nothing."""
    bucket = gcs.make_bucket()
    gcs.upload(new_input.parent, f"{bucket}/in")
    gcs.upload(old, f"{bucket}/rows")
    source, rows = f"{bucket}/in/*.parquet", f"{bucket}/rows"
    script = kill_script("storage.gcs", "module", "copy", 14)
    flags = [f"--input={source}", f"--output={rows}", "--append"]
    process = subprocess.run([*warm_python(), "-c", script, *flags], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    left = open_dataset(rows)
    found = {name: data for name, data in stored_objects(left.path).items() if name in whole}
    is_old = len(left.manifest.generations) == 1
    assert found == (files_of(old) if is_old else whole)
    delete_object(f"{rows}/.probeline-temp/lock.json")
    assert main(flags) == 0
    found = stored_objects(rows)
    assert {n: d for n, d in found.items() if n.startswith("t")} == whole
    assert all(n in TOLD or n in whole or n.startswith("dead_letter/") for n in found), found
    assert verify.main([rows]) == 0


# --- days that overlap, and samples -------------------------------------------------------------

_TABLE = measurements_table(1800, seed=21, num_probes=9)
# The second day has a third of the first again, the third some of its own rows twice.
DAYS = [
    _TABLE.slice(0, 900),
    _TABLE.slice(600, 700),
    pa.concat_tables([_TABLE.slice(1300), _TABLE.slice(1500, 100)]),
]
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
    return make_dataset(sources[0], output, *(f"--input={day}" for day in sources[1:]), *_DROP)


def grown(sources: list[Path], output: Path, *flags: str) -> Path:
    """Returns a dataset of the first day to which the others were added, a day at a time."""
    make_dataset(sources[0], output, *flags)
    for source in sources[1:]:
        assert main([f"--input={source}", f"--output={output}", "--append"]) == 0
    assert verify.main([str(output)]) == 0
    return output


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
        pytest.param(["--output_format=tfrecord"], id="tfrecord", marks=pytest.mark.slow),
    ],
)
def test_day_by_day_is_one_job(sources: list[Path], tmp_path: Path, flags: list[str]) -> None:
    rows = grown(sources, tmp_path / "grown", *flags)
    inputs = [f"--input={day}" for day in sources[1:]]
    whole = make_dataset(sources[0], tmp_path / "whole", *inputs, *flags)
    assert files_of(rows) == files_of(whole)
    told, wanted = (open_dataset(str(each)).manifest for each in (rows, whole))
    assert told.counts == wanted.counts and told.options == wanted.options
    first, second, third = told.generations
    assert first.counts.plus(second.counts).plus(third.counts) == told.counts
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


def test_datasets_that_overlap(sources: list[Path], distinct: Path, tmp_path: Path) -> None:
    flags = ["--output_format=tfrecord", "--record_encoding=tf_example", "--num_shards=2"]
    datasets = [tmp_path / f"day-{number}" for number in range(len(sources))]
    for source, dataset in zip(sources, datasets, strict=True):
        form = [*flags, "--measurement_encoding=arrow"]
        assert main([f"--input={source}", f"--output={dataset}", *form]) == 0
    inputs = [f"--input={dataset}" for dataset in datasets]
    merged = make_dataset(sources[-1], tmp_path / "merged", *inputs, *_DROP)
    assert files_of(merged) == files_of(distinct)


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
