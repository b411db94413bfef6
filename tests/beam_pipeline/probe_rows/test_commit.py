"""The last two steps on `gs://`: their requests, attempts at once, and a worker of a lost run."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import output_folder, output_lease
from beam_pipeline.jobs.output_folder import TEMP_FOLDER
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.shards import writing
from beam_pipeline.storage import many_files
from tests.support.commit_on_gcs import StagedRun, staged_run
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import FaultyGcs, faulty

taken = partial(output_folder.taken, overwrite=False, files=DATASET_FILES)


@contextlib.contextmanager
def a_run(gcs: Gcs, num_shards: int, num_units: int) -> Iterator[StagedRun]:
    output = f"{gcs.make_bucket()}/out"
    with taken(output) as run:
        yield staged_run(output, run, num_shards, num_units)


# --- requests -----------------------------------------------------------------------------------


@contextlib.contextmanager
def counted(gcs: Gcs, monkeypatch: pytest.MonkeyPatch, delay_s: float) -> Iterator[FaultyGcs]:
    with faulty(gcs.endpoint, delay_s=delay_s) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


def test_a_shard_takes_two_requests_and_a_unit_with_dead_letters_one(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard is renamed and its part of the index read; what is deleted, a hundred at a time."""
    with a_run(gcs, num_shards=40, num_units=120) as staged:
        with counted(gcs, monkeypatch, 0) as renaming:
            shards = staged.rename_shards()
        with counted(gcs, monkeypatch, 0) as committing:
            staged.commit(shards)
        assert len(renaming.requests) <= 2 * 40 + 30
        assert len(committing.requests) <= 120 + 60
        manifest = open_dataset(staged.job.run.output).manifest
        assert manifest.counts.num_dead_letters == len(manifest.dead_letter_files) == 120


@pytest.mark.slow
def test_a_tenth_of_35_billion_measurements_waits_for_few_requests(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,400 requests, one after another, are two minutes at 50 ms: so many may the whole take."""
    with a_run(gcs, num_shards=224, num_units=1750) as staged:
        with counted(gcs, monkeypatch, 0.05) as renaming:
            shards = staged.rename_shards()
        with counted(gcs, monkeypatch, 0.05) as committing:
            staged.commit(shards)
    assert renaming.longest_chain() < 240 / 2
    assert committing.longest_chain() < 240


# --- two attempts -------------------------------------------------------------------------------


def before_moves(monkeypatch: pytest.MonkeyPatch, at: int, do: Callable[[], Any]) -> None:
    """Does something before the files of a call of `move_files` get their names, counted from 0."""
    move_files, calls = many_files.move_files, []

    def disturbed(moves: Any) -> None:
        calls.append(moves)
        if len(calls) == at + 1:
            do()
        move_files(moves)

    for module in (many_files, writing, output_folder):
        monkeypatch.setattr(module, "move_files", disturbed)


def test_two_attempts_at_renaming_are_both_right(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_run(gcs, num_shards=12, num_units=2) as staged:
        before_moves(monkeypatch, 0, staged.rename_shards)
        shards = staged.rename_shards()
        staged.commit(shards)
        assert open_dataset(staged.job.run.output).manifest.splits["train"].num_records == 11


@pytest.mark.parametrize("at", range(4), ids=["letters", "card", "manifest", "_SUCCESS"])
def test_two_attempts_at_the_commit_are_both_right(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The second one has committed the dataset, tidied up and released the marker."""
    with a_run(gcs, num_shards=12, num_units=2) as staged:
        shards = staged.rename_shards()
        before_moves(monkeypatch, at, lambda: staged.commit(shards))
        staged.commit(shards)
        open_dataset(staged.job.run.output)
        assert not any(TEMP_FOLDER in name for name in stored_objects(staged.job.run.output))


# --- a lost run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(5), ids=["shards", "letters", "card", "manifest", "_SUCCESS"])
def test_a_worker_of_a_lost_run_writes_nothing(
    gcs: Gcs, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It holds the marker when it looks, and its successor begins before its next request."""
    monkeypatch.setattr(output_lease, "LEASE_S", 0.0)
    with a_run(gcs, num_shards=12, num_units=2) as staged, contextlib.ExitStack() as successor:
        before_moves(monkeypatch, at, lambda: successor.enter_context(taken(staged.job.run.output)))
        with pytest.raises(ProbelineError, match=r"is gone and .* has other content"):
            staged.commit(staged.rename_shards())
        assert set(stored_objects(staged.job.run.output)) == {f"{TEMP_FOLDER}/lock.json"}
