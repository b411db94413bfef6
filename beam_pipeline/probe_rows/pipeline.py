"""The pipeline from measurements to a committed dataset, from top to bottom.

  files -> MeasurementUnit -> GroupIntoRows -> Packet -> WriteShards -> ShardInfo
             see `grouping`                    see `packets`              |
       planned rows, UnitSummary, duplicates -------------------> write_dataset -> _SUCCESS

Workers write everything to the job run's own folder first.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import AsList

from beam_pipeline.dataset.layout import DatasetOptions, count_shards
from beam_pipeline.dataset.manifest import INDEX_NAME, SPLITS
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.jobs.frame import Commit
from beam_pipeline.probe_rows.commit import write_dataset
from beam_pipeline.probe_rows.grouping import GroupIntoRows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.packets import LINE_SCHEMA, Packet, PacketShards
from beam_pipeline.shards.writing import RecordIndex, ShardTarget, WriteShards
from beam_pipeline.sources import inputs
from beam_pipeline.sources.inputs import MeasurementFile, MeasurementUnit, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage.array_record import open_writer
from beam_pipeline.storage.matching import FileVersion

# Inspected files, or matched ones that workers inspect.
MeasurementFiles = Sequence[MeasurementFile | FileVersion]


def build(pipeline: beam.Pipeline, files: MeasurementFiles, job: Job) -> Commit:
    """Adds the job's transforms to a pipeline."""
    options, workspace = job.dataset_options, job.workspace
    units = _units(pipeline, files, job.read_options)
    planned = units | "Planned rows" >> beam.Map(lambda unit: (unit.index, unit.num_rows))
    rows = (
        units
        | "Spread units" >> beam.Reshuffle()
        | "Group into rows" >> GroupIntoRows(job.read_options, workspace, options)
    )
    packets: Any = (rows.cut, rows.split) | "All rows" >> beam.Flatten()
    num_shards: Any = (
        packets
        | "Size of each" >> beam.Map(_size)
        | "Sizes" >> beam.CombineGlobally(_add_up)
        | "Numbers of shards" >> beam.Map(_count_shards, options)
    )
    shard_input = PacketShards(options.row_format, workspace.folder)
    targets = [_target(split, job) for split in SPLITS]
    shards = packets | "Write shards" >> WriteShards(shard_input, *targets, num_shards=num_shards)
    num_files = sum(not _is_of_output(file) for file in files)
    proofs: list[Any] = [planned, rows.summaries, rows.dropped, shards]
    if rows.names is not None:
        proofs.append(rows.names)
    write = partial(write_dataset, job, num_files)
    return Commit("Commit the dataset", write, list(map(AsList, proofs)), job.is_finished)


def _is_of_output(file: MeasurementFile | FileVersion) -> bool:
    return isinstance(file, MeasurementFile) and file.shard is not None and file.shard.is_of_output


def _units(
    pipeline: beam.Pipeline, files: MeasurementFiles, options: ReadOptions
) -> beam.PCollection:
    """Plans the work units, in the launcher if all files have been inspected there."""
    if all(isinstance(file, MeasurementFile) for file in files):
        return pipeline | "Units of work" >> beam.Create(plan_units(files), reshuffle=False)  # type: ignore[arg-type]
    # Grouping is a barrier: no row is read before every file has been inspected.
    return (
        pipeline
        | "Files" >> beam.Create(list(files), reshuffle=False)
        | "Spread files" >> beam.Reshuffle()
        | "Look at files" >> beam.Map(_inspect, options)
        | "Gather files" >> beam.GroupByKey()
        | "Plan units of work"
        >> beam.FlatMap(lambda group: plan_units(sorted(group[1]))).with_output_types(
            MeasurementUnit
        )
    )


def _inspect(
    file: MeasurementFile | FileVersion, options: ReadOptions
) -> tuple[int, MeasurementFile]:
    return 0, file if isinstance(file, MeasurementFile) else inputs.inspect(file, options)


def _size(packet: Packet) -> np.ndarray:
    """Returns the probes and the bytes of each split: int64 [splits, 2]."""
    totals = np.zeros((len(SPLITS), 2), np.int64)
    totals[packet.split] = packet.num_probes, packet.num_bytes
    return totals


def _add_up(sizes: Iterable[np.ndarray]) -> np.ndarray:
    return sum(sizes, np.zeros((len(SPLITS), 2), np.int64))


def _count_shards(sizes: np.ndarray, options: DatasetOptions) -> list[int]:
    return [count_shards(probes, num_bytes, options) for probes, num_bytes in sizes.tolist()]


def _target(split: str, job: Job) -> ShardTarget:
    """Returns the target of a split's shards, with rows.parquet beside them."""
    options, folder = job.dataset_options, FileSystems.join(job.folder, split)
    return ShardTarget(
        prefix=FileSystems.join(folder, f"{split}_shard"),
        suffix=options.shard_suffix,
        shard_name_template="_SSSSS-of-NNNNN",
        open_writer=TFRecordWriter
        if options.output_format == "tfrecord"
        else partial(open_writer, options=options.array_record_options),
        temp_folder=job.workspace.below(split),
        index=RecordIndex(FileSystems.join(folder, INDEX_NAME), LINE_SCHEMA),
        guard=job.run.check,
    )
