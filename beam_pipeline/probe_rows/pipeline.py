"""The chain from measurements to a committed dataset, readable from top to bottom.

  files -> WorkUnit -> GroupIntoRows -> CutRow      see `grouping`
                                           |  stage_row, StageRecords
                     one per split:  StagedRecord -> WriteShards -> ShardInfo
                                                                       |
       planned rows, UnitSummary ----------------------------------> Commit -> _SUCCESS

Whatever a worker writes goes to the job run's own folder first.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from array_record.python.array_record_module import ArrayRecordWriter

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import count_shards, row_key, split_of
from beam_pipeline.dataset.manifest import INDEX_NAME, SPLITS
from beam_pipeline.dataset.options import DatasetOptions, RowFormat
from beam_pipeline.dataset.row_codec import RowKey, count_ipv6, encode_row
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.errors import same_src_id
from beam_pipeline.jobs.messages import Message
from beam_pipeline.probe_rows.commit import Commit
from beam_pipeline.probe_rows.external_sort import as_array
from beam_pipeline.probe_rows.grouping import GroupIntoRows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.row_splitting import CutRow
from beam_pipeline.shards.staging import Record, StagedRecord, StageRecords
from beam_pipeline.shards.writing import RecordIndex, ShardTarget, WriteShards
from beam_pipeline.sources import inputs
from beam_pipeline.sources.inputs import InputFile, WorkUnit, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage.matching import FileVersion

# WriteShards adds shard, position and num_bytes before these.
_INDEX_SCHEMA = pa.schema(list(INDEX_SCHEMA)[3:])


class RowAttributes(Message, frozen=True):
    """What is known of a staged row without its measurements."""

    split: int  # an index into SPLITS
    is_wide: bool  # whether the payload is a WIDE run
    src_addr: str
    row_index: int
    n_measurements: int
    num_ipv6: int  # measurements with an IPv6 destination
    num_failed: int  # measurements without a reply
    first_timestamp: int  # µs since 1970
    last_timestamp: int


def stage_row(row: CutRow, options: DatasetOptions) -> Record:
    """Returns a row as it is staged: its run, and the key and attributes that place it."""
    run = as_array(row.is_wide, row.data)
    src_addr, row_index = row.key
    attributes = RowAttributes(
        split=split_of(src_addr, options.train_ratio, options.split_seed),
        is_wide=row.is_wide,
        src_addr=src_addr,
        row_index=row_index,
        n_measurements=len(run),
        num_ipv6=count_ipv6(run),
        num_failed=int(np.count_nonzero(run["rtt"] < 0)),
        first_timestamp=int(run["event_time"][0]),
        last_timestamp=int(run["event_time"][-1]),
    )
    key = row_key(addresses.src_id(src_addr), row_index)
    return Record(key, row.data, attributes.encode())


def encode(data: bytes, attributes: bytes, row_format: RowFormat) -> bytes:
    """Returns the record of a staged row."""
    row = RowAttributes.decode(attributes)
    # A copy, since the kernels are compiled for writable arrays.
    run, key = as_array(row.is_wide, data).copy(), RowKey(row.src_addr, row.row_index)
    return encode_row(run, key, row_format.encoding, row_format.record_encoding)


def index_table(attributes: Sequence[bytes]) -> pa.Table:
    """Returns the lines of rows.parquet for a shard, given RowAttributes for each record.

    Raises:
      ProbelineError: two probes have the same src_id.
    """
    rows = [RowAttributes.decode(line) for line in attributes]
    ids = [addresses.src_id(row.src_addr) for row in rows]
    for at in range(1, len(rows)):
        if (ids[at], rows[at].row_index) == (ids[at - 1], rows[at - 1].row_index):
            raise same_src_id(ids[at], rows[at - 1].src_addr, rows[at].src_addr)
    columns = [ids]
    columns += [[getattr(row, name) for row in rows] for name in _INDEX_SCHEMA.names[1:]]
    arrays = map(pa.array, columns, _INDEX_SCHEMA.types)
    return pa.Table.from_arrays(list(arrays), schema=_INDEX_SCHEMA)


# Inspected files, or matched ones, which workers then inspect.
InputFiles = Sequence[InputFile] | Sequence[FileVersion]


def build(pipeline: beam.Pipeline, files: InputFiles, job: Job) -> None:
    """Adds the whole job to a pipeline."""
    options, workspace = job.dataset_options, job.workspace
    units = _units(pipeline, files, job.read_options)
    planned = units | "Planned rows" >> beam.Map(lambda unit: (unit.index, unit.num_rows))
    rows = (
        units
        | "Spread units" >> beam.Reshuffle()
        | "Group into rows" >> GroupIntoRows(job.read_options, workspace, options.row_format)
    )
    stage = StageRecords(workspace.below("records"), workspace.inline_bytes)
    staged = [
        kind
        | f"Describe {name}" >> beam.Map(stage_row, options).with_output_types(Record)
        | f"Stage {name}" >> beam.ParDo(stage).with_output_types(StagedRecord)
        for name, kind in (("single rows", rows.single), ("split rows", rows.split))
    ]
    all_rows: Any = staged | "All rows" >> beam.Flatten()
    totals = all_rows | "Size of each" >> beam.Map(_size) | "Sizes" >> beam.CombineGlobally(_add_up)
    by_split = all_rows | "Split by probe" >> beam.Partition(_split, len(SPLITS))  # type: ignore[arg-type]
    shards = [
        part | f"Write {split}" >> _write_split(split, totals, job)
        for split, part in zip(SPLITS, by_split, strict=True)
    ]
    _ = (
        pipeline
        | "Finish" >> beam.Impulse()
        | "Commit the dataset"
        >> beam.ParDo(
            Commit(job, len(files)),
            beam.pvalue.AsList(planned),
            beam.pvalue.AsList(rows.summaries),
            *[beam.pvalue.AsList(part) for part in shards],
        )
    )


def _units(pipeline: beam.Pipeline, files: InputFiles, options: ReadOptions) -> beam.PCollection:
    """Returns the work units."""
    if files and isinstance(files[0], InputFile):
        return pipeline | "Units of work" >> beam.Create(plan_units(files), reshuffle=False)  # type: ignore[arg-type]
    # Grouping is a barrier: no row is read before every file has been inspected.
    return (
        pipeline
        | "Files" >> beam.Create(list(files), reshuffle=False)
        | "Spread files" >> beam.Reshuffle()
        | "Look at files" >> beam.Map(_inspect, options)
        | "Gather files" >> beam.GroupByKey()
        | "Plan units of work"
        >> beam.FlatMap(lambda group: plan_units(sorted(group[1]))).with_output_types(WorkUnit)
    )


def _inspect(file: FileVersion, options: ReadOptions) -> tuple[int, InputFile]:
    return 0, inputs.inspect(file, options)


def _split(record: StagedRecord, _: int) -> int:
    return RowAttributes.decode(record.attributes).split


def _size(record: StagedRecord) -> tuple[int, int, int]:
    """Returns the split, whether the row is its probe's first, and its size as a run."""
    row = RowAttributes.decode(record.attributes)
    # Counted per measurement: whether a run is wide may depend on how it was cut.
    return row.split, int(row.row_index == 0), 16 * row.n_measurements + 12 * row.num_ipv6


def _add_up(sizes: Iterable[Any]) -> list[tuple[int, int, int]]:
    """Adds up probes and bytes by split; takes its own results, too."""
    totals = [[0, 0] for _ in SPLITS]
    for size in sizes:
        for split, probes, num_bytes in [size] if isinstance(size, tuple) else size:
            totals[split][0] += probes
            totals[split][1] += num_bytes
    return [(split, probes, num_bytes) for split, (probes, num_bytes) in enumerate(totals)]


def _write_split(split: str, totals: Any, job: Job) -> WriteShards:
    """StagedRecord of one split → ShardInfo; writes rows.parquet beside the shards."""
    at, options = SPLITS.index(split), job.dataset_options
    num_shards: Any = totals | f"Number of {split} shards" >> beam.Map(
        lambda sizes: count_shards(sizes[at][1], sizes[at][2], options)
    )
    folder = FileSystems.join(job.output, split)
    target = ShardTarget(
        prefix=FileSystems.join(folder, f"{split}_shard"),
        suffix=options.shard_suffix,
        shard_name_template="_SSSSS-of-NNNNN",
        open_writer=TFRecordWriter
        if options.output_format == "tfrecord"
        else partial(ArrayRecordWriter, options=options.array_record_options),
        temp_folder=job.workspace.below(split),
        index=RecordIndex(FileSystems.join(folder, INDEX_NAME), _INDEX_SCHEMA, index_table),
        encode=partial(encode, row_format=options.row_format),
        guard=job.marker.check if job.marker else None,
    )
    return WriteShards(target, num_shards)
