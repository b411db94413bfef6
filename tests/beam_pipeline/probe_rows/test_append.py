"""Appending to a dataset writes what one job over all input writes (kills: jobs/test_kills.py)."""

import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.manifest import NEXT_FOLDER, write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.main import main
from beam_pipeline.storage.gcs import delete_object
from beam_pipeline.verify import __main__ as verify
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import measurements_table
from tests.support.job_runs import files_of, make_dataset, write_input
from tests.support.kills import kill_script
from tests.support.properties import num_examples
from tests.support.warm_python import warm_python

_GOOD = measurements_table(2400, seed=11, num_probes=12)
# A row that breaks a rule in each part.
_BAD = _GOOD.slice(0, 2).set_column(4, "rtt", pa.array([None, None], pa.float32()))
TOLD = ("README.md", "croissant.json", "manifest.json", "_SUCCESS")
OLD = pa.concat_tables([_GOOD.slice(0, 1500), _BAD.slice(0, 1)])
NEW = pa.concat_tables([_GOOD.slice(1500), _BAD.slice(1)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("append")


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
    old: Path, new_input: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
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


def test_verify_checks_that_generations_add_up(
    old: Path, new_input: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = copied(old, tmp_path)
    assert append(new_input, rows) == 0
    card = (rows / "README.md").read_text()
    assert "| 2: " in card and f"--input '{new_input.parent}/*.parquet'" in card
    values = json.loads((rows / "manifest.json").read_bytes())
    values["generations"][0]["counts"]["measurements"] -= 1
    write_success(str(rows), json.dumps(values).encode())
    assert verify.main([str(rows)]) == 1
    assert "its generations add up to" in capsys.readouterr().out


def test_the_same_files_are_added_once(old: Path, new_input: Path, tmp_path: Path) -> None:
    rows = copied(old, tmp_path)
    assert append(new_input, rows) == 0
    before = (rows / "manifest.json").read_bytes()
    assert append(new_input, rows) == 0
    assert (rows / "manifest.json").read_bytes() == before


@pytest.mark.slow
@settings(max_examples=num_examples(12, quick=2))
@given(
    cuts=st.lists(st.integers(0, 2400), min_size=1, max_size=4).map(sorted),
    form=st.sampled_from(["arrayrecord", "tfrecord"]),
)
def test_any_number_of_appends_is_one_job(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], form: str
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    flags = [f"--output_format={form}", "--max_row_size_mb=0.005", "--probes_per_shard=2"]
    flags += ["--measurement_encoding=arrow", "--train_ratio=0.6"]
    bounds = [0, *cuts, _GOOD.num_rows]
    rows = folder / "rows"
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        source = write_input(folder / f"in-{number}", _GOOD.slice(start, end - start))
        if number == 0:
            assert main([f"--input={source}", f"--output={rows}", *flags]) == 0
        else:
            assert append(source, rows) == 0
    source = write_input(folder / "all", _GOOD)
    assert main([f"--input={source}", f"--output={folder / 'whole'}", *flags]) == 0
    names = [f"*/*.{form}", "*/rows.parquet"]
    found, wanted = (
        {str(p.relative_to(each)): p.read_bytes() for name in names for p in each.glob(name)}
        for each in (rows, folder / "whole")
    )
    assert found == wanted


def test_nothing_is_added_by_files_without_rows(old: Path, tmp_path: Path) -> None:
    rows = copied(old, tmp_path)
    assert append(write_input(tmp_path / "empty", _GOOD.slice(0, 0)), rows) == 0
    assert files_of(rows) == files_of(old)
    assert len(open_dataset(str(rows)).manifest.generations) == 2
    assert verify.main([str(rows)]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train_ratio=0.5"], "train_ratio is 0.5, but"),
        (["--sample_probes=0.5"], "sample_probes is 0.5, but"),
        (["--split_seed=1"], "was written with 0: leave it out"),
        (["--overwrite"], "--append adds to a dataset and --overwrite replaces it: give one"),
    ],
)
def test_options_that_decide_bytes_are_those_of_the_dataset(
    old: Path,
    new_input: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    before = files_of(old)
    assert append(new_input, old, *flags) == 2
    assert message in error_line(capsys)
    assert files_of(old) == before and not (old / NEXT_FOLDER).exists()


def test_only_a_finished_dataset_is_added_to(
    old: Path, new_input: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert append(new_input, tmp_path / "nothing") == 2
    assert "--append adds to a finished dataset, but" in error_line(capsys)
    assert append(old, old) == 2
    assert "is among the files of --output" in error_line(capsys)


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
