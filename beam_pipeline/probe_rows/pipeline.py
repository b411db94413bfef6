"""The chain from measurements to a committed dataset, readable from top to bottom.

`build` adds it to a pipeline. Everything that a worker writes goes to the run's own folder
first; the last step alone gives files their names, writes the manifest and then `_SUCCESS`.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.array_record_io import ArrayRecordFraming
from beam_pipeline.dataset import addresses, manifest
from beam_pipeline.dataset.layout import DatasetOptions, count_shards, row_key, split_of
from beam_pipeline.dataset.row_codec import RowFormat, RowKey, count_ipv6, encode_row
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.errors import same_src_id
from beam_pipeline.jobs.output_folder import Run
from beam_pipeline.probe_rows.commit import Commit
from beam_pipeline.probe_rows.external_sort import as_run
from beam_pipeline.probe_rows.grouping import GroupIntoRows, Workspace
from beam_pipeline.probe_rows.row_splitting import CutRow
from beam_pipeline.shards.staging import Record, StagedRecord, StageRecords
from beam_pipeline.shards.tfrecord import TFRecordFraming
from beam_pipeline.shards.writing import Framing, RecordIndex, WriteShards
from beam_pipeline.sources import anonymize_key, inputs
from beam_pipeline.sources.inputs import InputFile, ReadOptions, Unit, plan_units

# split, is_wide, row_index, n, number of IPv6 destinations, of failed pings, first and last
# timestamp; src_addr follows.
_ATTRIBUTES = struct.Struct("<B?iiiiQQ")
_INDEX_SCHEMA = pa.schema(list(INDEX_SCHEMA)[3:])  # WriteShards adds shard, position, num_bytes


# --- pure functions --------------------------------------------------------------------------


def describe(row: CutRow, options: DatasetOptions) -> Record:
    """Returns a row as it is staged: its run, and the key and attributes that place it."""
    run = as_run(row.is_wide, row.data)
    src_addr, row_index = row.key
    attributes = _ATTRIBUTES.pack(
        split_of(src_addr, options.train_ratio, options.split_seed),
        row.is_wide,
        row_index,
        len(run),
        count_ipv6(run),
        int(np.count_nonzero(run["rtt"] < 0)),
        int(run["event_time"][0]),
        int(run["event_time"][-1]),
    )
    key = row_key(addresses.src_id(src_addr), row_index)
    return Record(key, row.data, attributes + src_addr.encode())


def encode(data: bytes, attributes: bytes, row_format: RowFormat) -> bytes:
    """Returns the record of a staged row."""
    _, is_wide, row_index, *_ = _ATTRIBUTES.unpack_from(attributes)
    src_addr = attributes[_ATTRIBUTES.size :].decode()
    # A copy, since the kernels are compiled for arrays that may be written to.
    run, key = as_run(is_wide, data).copy(), RowKey(src_addr, row_index)
    return encode_row(run, key, row_format.encoding, row_format.record_encoding)


def index_table(attributes: Sequence[bytes]) -> pa.Table:
    """Returns the lines of rows.parquet for the records of a shard, in its order.

    Raises:
      ProbelineError: two probes have the same src_id.
    """
    lines = [_ATTRIBUTES.unpack_from(line) for line in attributes]
    names = [line[_ATTRIBUTES.size :].decode() for line in attributes]
    ids = [addresses.src_id(name) for name in names]
    rows = [(src_id, line[2]) for src_id, line in zip(ids, lines, strict=True)]
    for at in range(1, len(rows)):
        if rows[at] == rows[at - 1]:
            raise same_src_id(ids[at], names[at - 1], names[at])
    _, _, row_index, counts, num_ipv6, num_failed, first, last = (
        zip(*lines, strict=True) if lines else [()] * 8
    )
    columns = [ids, names, row_index, counts, num_ipv6, num_failed, first, last]
    return pa.Table.from_arrays(
        [
            pa.array(values, field.type)
            for values, field in zip(columns, _INDEX_SCHEMA, strict=True)
        ],
        schema=_INDEX_SCHEMA,
    )


def framing_of(options: DatasetOptions) -> Framing:
    """Returns the file format of the shards."""
    if options.output_format == "tfrecord":
        return TFRecordFraming()
    return ArrayRecordFraming(options.array_record_options)


# --- the chain -------------------------------------------------------------------------------


def build(
    pipeline: beam.Pipeline,
    files: Sequence[InputFile] | Sequence[tuple[str, int]],
    output: str,
    run: Run,
    read_options: ReadOptions,
    options: DatasetOptions,
    inline_bytes: int,
    command: str,
    skip_bad_files: bool = False,
) -> None:
    """Adds the whole job to a pipeline.

    Args:
      files: the input, each looked at already, or (path, bytes), which workers then look at.
      output: the dataset's folder.
      run: which holds the output and has a folder of its own beside it.
      command: that makes the same dataset again, for the data card.
    """
    workspace = Workspace(run.folder, inline_bytes)
    rows = _units(pipeline, files, read_options) | "Group into rows" >> GroupIntoRows(
        read_options, workspace, options.row_format, skip_bad_files
    )
    stage = StageRecords(workspace.below("records"), inline_bytes)
    staged = [
        kind
        | f"Describe {name}" >> beam.Map(describe, options).with_output_types(Record)
        | f"Stage {name}" >> beam.ParDo(stage).with_output_types(bytes)
        for name, kind in (("single rows", rows.single), ("split rows", rows.split))
    ]
    all_rows: Any = staged | "All rows" >> beam.Flatten()
    totals = all_rows | "Size of each" >> beam.Map(_size) | "Sizes" >> beam.CombineGlobally(_add_up)
    by_split = all_rows | "Split by probe" >> beam.Partition(_side, len(manifest.SPLITS))  # type: ignore[arg-type]
    shards = [
        part | f"Write {split}" >> _write_split(split, totals, output, run, options)
        for split, part in zip(manifest.SPLITS, by_split, strict=True)
    ]
    shaping = {
        **vars(options),
        "atlas_source": read_options.atlas_source,
        **anonymize_key.as_options(read_options.anonymize),
    }
    _ = (
        pipeline
        | "Finish" >> beam.Impulse()
        | "Commit the dataset"
        >> beam.ParDo(
            Commit(output, run.folder, shaping, len(files), command, run.marker),
            beam.pvalue.AsList(rows.summaries),
            *[beam.pvalue.AsList(part) for part in shards],
        )
    )


def _units(
    pipeline: beam.Pipeline,
    files: Sequence[InputFile] | Sequence[tuple[str, int]],
    options: ReadOptions,
) -> beam.PCollection:
    """Returns the units of work, spread over the workers."""
    if files and isinstance(files[0], InputFile):
        units = pipeline | "Units of work" >> beam.Create(plan_units(files), reshuffle=False)  # type: ignore[arg-type]
    else:
        # Grouping is a barrier: no row is read before every file has been looked at.
        units = (
            pipeline
            | "Files" >> beam.Create(list(files), reshuffle=False)
            | "Spread files" >> beam.Reshuffle()
            | "Look at files" >> beam.Map(_look_at, options)
            | "Gather files" >> beam.GroupByKey()
            | "Plan units of work"
            >> beam.FlatMap(lambda group: plan_units(sorted(group[1]))).with_output_types(Unit)
        )
    return units | "Spread units" >> beam.Reshuffle()


def _look_at(file: tuple[str, int], options: ReadOptions) -> tuple[int, InputFile]:
    return 0, inputs.inspect(file[0], file[1], options)


def _side(value: bytes, _: int) -> int:
    return _attributes(value)[0]


def _attributes(value: bytes) -> tuple[int, ...]:
    return _ATTRIBUTES.unpack_from(StagedRecord.decode(value).attributes)


def _size(value: bytes) -> tuple[int, int, int]:
    """Returns the split, whether the row is its probe's first, and its size as a run."""
    # Counted per measurement: how wide a run happens to be may depend on how it was cut.
    side, _, row_index, num_measurements, num_ipv6, *_ = _attributes(value)
    return side, int(row_index == 0), 16 * num_measurements + 12 * num_ipv6


def _add_up(sizes: Iterable[Any]) -> list[tuple[int, int, int]]:
    """Adds up probes and bytes by split; takes its own results, too."""
    totals = [[0, 0] for _ in manifest.SPLITS]
    for size in sizes:
        for side, probes, num_bytes in [size] if isinstance(size, tuple) else size:
            totals[side][0] += probes
            totals[side][1] += num_bytes
    return [(side, probes, num_bytes) for side, (probes, num_bytes) in enumerate(totals)]


def _write_split(
    split: str, totals: Any, output: str, run: Run, options: DatasetOptions
) -> WriteShards:
    """StagedRecord, encoded, of one split → ShardInfo; writes rows.parquet beside the shards."""
    side = manifest.SPLITS.index(split)
    num_shards: Any = totals | f"Number of {split} shards" >> beam.Map(
        lambda sizes: count_shards(sizes[side][1], sizes[side][2], options)
    )
    folder = FileSystems.join(output, split)
    return WriteShards(
        prefix=FileSystems.join(folder, f"{split}_shard"),
        suffix=options.shard_suffix,
        shard_name_template="_SSSSS-of-NNNNN",
        framing=framing_of(options),
        temp_folder=f"{run.folder}/{split}",
        num_shards=num_shards,
        index=RecordIndex(
            FileSystems.join(folder, manifest.INDEX_NAME), _INDEX_SCHEMA, index_table
        ),
        encode=partial(encode, row_format=options.row_format),
        guard=run.marker.check if run.marker else None,
    )
