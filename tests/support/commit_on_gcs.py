"""All that a large run of the probe-rows job leaves to its last two steps, on `gs://`, made up.

Shards hold a few bytes and have one row each, so that what counts is the number of objects.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset import dead_letters, layout
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.dataset.manifest import DEAD_LETTER_FOLDER, INDEX_NAME, SPLITS
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.jobs.frame import Commit, commit
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows.commit import write_dataset
from beam_pipeline.probe_rows.job import Job, Workspace
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.probe_rows.outcome import UnitSummary
from beam_pipeline.shards.letters import LetterPart
from beam_pipeline.shards.writing import (
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WrittenShard,
    shard_path,
)
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import digests_of

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
