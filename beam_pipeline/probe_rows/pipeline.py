"""The pipeline from measurements to a committed dataset, from top to bottom.

  files -> MeasurementUnit -> GroupIntoRows -> CutRows      see `grouping`
                                           |  describe, StageRecords
                                    StagedRecords -> WriteShards -> ShardInfo
                                                                       |
       planned rows, UnitSummary, duplicates ----------------> write_dataset -> _SUCCESS

Workers write everything to the job run's own folder first.
"""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import AsList
from array_record.python.array_record_module import ArrayRecordWriter

from beam_pipeline.dataset import layout
from beam_pipeline.dataset.layout import DatasetOptions, RowFormat, count_shards, row_key, split_of
from beam_pipeline.dataset.manifest import INDEX_NAME, SPLITS
from beam_pipeline.dataset.row_codec import is_ipv6
from beam_pipeline.dataset.row_encoder import RowKeys, encode_rows
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.errors import same_src_id
from beam_pipeline.jobs.frame import Commit
from beam_pipeline.probe_rows.commit import write_dataset
from beam_pipeline.probe_rows.external_sort import as_array
from beam_pipeline.probe_rows.grouping import GroupIntoRows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.row_splitting import CutRows
from beam_pipeline.shards.staging import Records, StagedRecords, StageRecords, serialised
from beam_pipeline.shards.writing import RecordIndex, ShardTarget, WriteShards
from beam_pipeline.sources import inputs
from beam_pipeline.sources.inputs import MeasurementFile, MeasurementUnit, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage.matching import FileVersion

# WriteShards adds shard, position and num_bytes before these.
_INDEX_SCHEMA = pa.schema(list(INDEX_SCHEMA)[3:])


# Attributes of a staged row: its split as an index into SPLITS, kind of run, line of the index.
ATTRIBUTES = pa.schema([("split", pa.int8()), ("is_wide", pa.bool_()), *_INDEX_SCHEMA])


def describe(rows: CutRows, options: DatasetOptions) -> Records:
    """Returns rows ready to be staged: their runs, keys and attributes."""
    run, bounds = as_array(rows.is_wide, rows.data), np.cumsum([0, *rows.counts])
    starts, times = bounds[:-1], run["event_time"]
    src_addrs, row_indexes = zip(*rows.keys, strict=True)
    src_ids = [layout.src_id(src_addr) for src_addr in src_addrs]
    columns = [
        [split_of(src_addr, options.train_ratio, options.split_seed) for src_addr in src_addrs],
        np.full(len(starts), rows.is_wide),
        src_ids,
        src_addrs,
        row_indexes,
        rows.counts,
        np.add.reduceat(is_ipv6(run), starts, dtype=np.int64),
        np.add.reduceat(run["rtt"] < 0, starts, dtype=np.int64),
        times[starts],
        times[bounds[1:] - 1],
    ]
    lines = pa.RecordBatch.from_arrays(
        list(map(pa.array, columns, ATTRIBUTES.types)), schema=ATTRIBUTES
    )
    in_bytes = itertools.pairwise((bounds * run.itemsize).tolist())
    return Records(
        keys=list(map(row_key, src_ids, row_indexes)),
        payloads=[rows.data[start:end] for start, end in in_bytes],
        attributes=serialised(lines),
        stored=rows.stored,
    )


def encode(payloads: list[bytes], attributes: pa.Table, row_format: RowFormat) -> list[bytes]:
    """Encodes staged rows as records."""
    is_wide = attributes["is_wide"].to_numpy()
    records = np.empty(len(payloads), object)
    for wide in (False, True):
        rows = np.flatnonzero(is_wide == wide)
        if len(rows):
            lines = attributes.take(rows)
            src_ids, row_indexes, counts = (
                lines[name].to_numpy().astype(np.int64)
                for name in ("src_id", "row_index", "n_measurements")
            )
            keys = RowKeys(src_ids, lines["src_addr"].combine_chunks(), row_indexes)
            # The kernels are compiled for writable arrays.
            run = as_array(wide, bytearray().join(payloads[row] for row in rows.tolist()))
            bounds = np.append(0, np.cumsum(counts))
            records[rows] = encode_rows(run, bounds, keys, row_format)
    return records.tolist()


def index_table(attributes: pa.Table) -> pa.Table:
    """Returns a shard's lines of rows.parquet; ProbelineError if two probes share a src_id."""
    lines = attributes.select(_INDEX_SCHEMA.names)
    ids, indexes = lines["src_id"].to_numpy(), lines["row_index"].to_numpy()
    twice = np.flatnonzero((np.diff(ids) == 0) & (np.diff(indexes) == 0))
    if len(twice):
        one, other = lines["src_addr"].slice(twice[0], 2).to_pylist()
        raise same_src_id(int(ids[twice[0]]), one, other)
    return lines


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
    stage = StageRecords(workspace.below("records"), workspace.inline_bytes, ATTRIBUTES)
    staged = [
        kind
        | f"Describe {name}" >> beam.Map(describe, options).with_output_types(Records)
        | f"Stage {name}" >> beam.ParDo(stage).with_output_types(StagedRecords)
        for name, kind in (("rows", rows.cut), ("split rows", rows.split))
    ]
    all_rows: Any = staged | "All rows" >> beam.Flatten()
    num_shards: Any = (
        all_rows
        | "Size of each" >> beam.Map(_size)
        | "Sizes" >> beam.CombineGlobally(_add_up)
        | "Numbers of shards" >> beam.Map(_count_shards, options)
    )
    targets = [_target(split, job) for split in SPLITS]
    write = WriteShards(*targets, num_shards=num_shards, chosen_by="split")
    shards = all_rows | "Write shards" >> write
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


def _size(rows: StagedRecords) -> np.ndarray:
    """Returns the probes and the bytes of sorted runs of each split: int64 [splits, 2]."""
    split, row_index, count, num_ipv6 = (
        rows.batch(ATTRIBUTES)[name].to_numpy().astype(np.int64)
        for name in ("split", "row_index", "n_measurements", "num_ipv6")
    )
    # Counted per measurement: whether a run is wide may depend on how it was cut.
    sizes = np.stack([row_index == 0, 16 * count + 12 * num_ipv6], axis=1)
    totals = np.zeros((len(SPLITS), 2), np.int64)
    np.add.at(totals, split, sizes)
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
        else partial(ArrayRecordWriter, options=options.array_record_options),
        temp_folder=job.workspace.below(split),
        attributes=ATTRIBUTES,
        index=RecordIndex(FileSystems.join(folder, INDEX_NAME), _INDEX_SCHEMA, index_table),
        encode=partial(encode, row_format=options.row_format),
        guard=job.run.guard,
    )
