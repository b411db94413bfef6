"""The chain from input files to committed shards, readable from top to bottom.

  files -> WorkUnit -> StagedUnit      records in blocks, see `staging`
                           |  all of them: plan_shards
                       ShardPlan -> ConvertedShard      see `shards`
                                          |
  files, StagedUnit ------------------ commit -> `.SUCCESS`

Shards are ranges of all records in the order of the input: which worker read or wrote what changes
no byte. Whatever a worker writes goes to the job run's own folder first.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList

from beam_pipeline.convert.blocks import ShardPlan, plan_shards
from beam_pipeline.convert.commit import Job, commit
from beam_pipeline.convert.options import ConvertOptions
from beam_pipeline.convert.shards import ConvertedShard, WriteConvertedShard
from beam_pipeline.convert.staging import StagedUnit, StageUnit
from beam_pipeline.convert.units import InputFile, WorkUnit, cut_into_units
from beam_pipeline.jobs.frame import CheckRights


def build(
    pipeline: beam.Pipeline, files: Sequence[InputFile], options: ConvertOptions, job: Job
) -> None:
    """Adds the whole job to a pipeline."""
    folder = job.run.folder
    checked: Any = pipeline | "Check rights" >> CheckRights(folder)
    inputs: Any = pipeline | "Files" >> beam.Create(files, reshuffle=False).with_output_types(
        InputFile
    )
    staged = (
        inputs
        | "Spread files" >> beam.Reshuffle()
        | "Cut into work units" >> beam.FlatMap(cut_into_units).with_output_types(WorkUnit)
        | "Spread work units" >> beam.Reshuffle()
        | "Read and stage"
        >> beam.ParDo(StageUnit(options.record_options(), folder)).with_output_types(StagedUnit)
    )
    written = (
        pipeline
        | "Begin the shards" >> beam.Impulse()
        | "Plan shards"
        >> beam.FlatMap(
            _plan, AsList(staged), options.num_shards, options.shard_bytes
        ).with_output_types(ShardPlan)
        | "Spread shards" >> beam.Reshuffle()
        | "Write shards"
        >> beam.ParDo(
            WriteConvertedShard(job.layout, options.array_record_options, folder)
        ).with_output_types(ConvertedShard)
    )
    _ = checked | "Commit the records" >> beam.Map(
        commit, job, AsList(inputs), AsList(staged), AsList(written)
    )


def _plan(
    _: bytes, staged: Iterable[StagedUnit], num_shards: int, shard_bytes: int
) -> list[ShardPlan]:
    in_order = sorted(staged, key=lambda unit: (unit.file, unit.unit))
    blocks = [block for unit in in_order for block in unit.blocks]
    return plan_shards(blocks, num_shards, shard_bytes)
