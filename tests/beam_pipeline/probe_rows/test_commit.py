"""The last two steps on `gs://`: their requests, attempts at once, and a worker of a lost run."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset import dead_letters, layout
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.dataset.manifest import DEAD_LETTER_FOLDER, INDEX_NAME, SPLITS
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import output_folder, output_lease
from beam_pipeline.jobs.frame import Commit, commit
from beam_pipeline.jobs.output_folder import TEMP_FOLDER, JobRun
from beam_pipeline.probe_rows.commit import write_dataset
from beam_pipeline.probe_rows.job import Job, Workspace
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.probe_rows.outcome import UnitSummary
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.shards import writing
from beam_pipeline.shards.letters import LetterPart
from beam_pipeline.shards.writing import (
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WrittenShard,
    shard_path,
)
from beam_pipeline.storage import gcs, many_files
from beam_pipeline.storage.files import digests_of
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import FaultyGcs, faulty

# --- what a large run leaves to its last two steps ------------------------------------------------

_LINES = pa.schema(list(INDEX_SCHEMA)[3:])


class StagedRun(NamedTuple):
    """What workers have written: shards of each split, and the dead letters of each unit."""

    job: Job
    shards: list[WrittenShard]
    summaries: list[UnitSummary]

    def rename_shards(self) -> list[ShardInfo]:
        """Does the step `Rename shards`."""
        targets = [self._target(split) for split in SPLITS]
        return list(Finalise(targets).process(b"", self.shards))

    def _target(self, split: str) -> ShardTarget:
        return ShardTarget(
            prefix=f"{self.job.run.output}/{split}/{split}_shard",
            suffix=".arrayrecord",
            shard_name_template="_SSSSS-of-NNNNN",
            open_writer=TFRecordWriter,
            temp_folder=self.job.workspace.below(split),
            index=RecordIndex(f"{self.job.run.output}/{split}/{INDEX_NAME}", _LINES),
            guard=self.job.run.guard,
        )

    def commit(self, shards: Sequence[ShardInfo]) -> None:
        """Does the step `Commit the dataset`."""
        planned = [(summary.unit, summary.planned_rows) for summary in self.summaries]
        last = Commit("Commit the dataset", partial(write_dataset, self.job, 1))
        commit(b"", self.job.run, last, planned, self.summaries, [], shards)


def staged_run(output: str, run: JobRun, num_shards: int, num_units: int) -> StagedRun:
    """Writes what a run leaves that has a dead letter in every unit; a tenth of shards is test."""
    options = Options(input=(f"{output}/in",), output=output)
    job = Job(
        run=run,
        command="command",
        read_options=options.read_options(),
        dataset_options=options.dataset_options(),
        inline_bytes=0,
    )
    counts = num_shards - num_shards // 10, num_shards // 10
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        shards = [
            shard
            for split, count in zip(SPLITS, counts, strict=True)
            for shard in pool.map(partial(_shard, job, split, count), range(count))
        ]
        per_unit = [num_shards * (n + 1) // num_units - num_shards * n // num_units
                    for n in range(num_units)]  # fmt: skip
        summaries = list(pool.map(partial(_unit, job.workspace), range(num_units), per_unit))
    return StagedRun(job, shards, summaries)


def _shard(job: Job, split: str, num_shards: int, shard: int) -> WrittenShard:
    folder = job.workspace.below(split)
    data = b"%d of %d\n" % (shard, num_shards)
    prefix = f"{job.run.output}/{split}/{split}_shard"
    path = shard_path(prefix, "_SSSSS-of-NNNNN", ".arrayrecord", shard, num_shards)
    info = ShardInfo(path, shard, num_shards, 1, *digests_of(data))
    src_addr = f"10.{SPLITS.index(split)}.{shard // 256}.{shard % 256}"
    lines: dict[str, Any] = dict.fromkeys(INDEX_SCHEMA.names, 0)
    lines |= {"shard": shard, "num_bytes": 100, "n_measurements": 1, "src_addr": src_addr}
    lines["src_id"] = layout.src_id(src_addr)
    table = pa.Table.from_pylist([lines], INDEX_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    temporary, index = f"{folder}/shard-{shard:05d}", f"{folder}/index-{shard:05d}"
    gcs.write_object(temporary, data, 0)
    gcs.write_object(index, sink.getvalue(), 0)
    return WrittenShard(SPLITS.index(split), temporary, index, info)


def _unit(workspace: Workspace, unit: int, num_measurements: int) -> UnitSummary:
    letter = DeadLetter("in", unit, "src_addr_invalid", "")
    data, path = dead_letters.to_parquet([letter]), workspace.below(f"{DEAD_LETTER_FOLDER}/{unit}")
    gcs.write_object(path, data, 0)
    part = LetterPart(path, *digests_of(data))
    num_rows = num_measurements + 1
    letters = {letter.reason: 1}
    return UnitSummary(unit, letters, [part], num_rows, num_rows, num_measurements)


# --- tests ----------------------------------------------------------------------------------------


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
    # A shard is renamed and its part of the index read; what is deleted, a hundred at a time.
    assert len(renaming.requests) <= 2 * 224 + 50
    assert len(committing.requests) <= 1750 + 100


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
