"""A ShardPlan to a file of ArrayRecord under a temporary name, its records counted again."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from array_record.python.array_record_module import (  # pyright: ignore[reportMissingTypeStubs]
    ArrayRecordReader,
    ArrayRecordWriter,
)

from beam_pipeline.convert.blocks import ShardPlan, read_part
from beam_pipeline.convert.layout import Layout
from beam_pipeline.dataset.rows import READER_OPTIONS
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.shards.writing import ShardInfo, write_records
from beam_pipeline.storage import files


class ConvertedShard(Message, frozen=True):
    """A shard with its temporary name."""

    temporary_path: str
    info: ShardInfo  # with the number of records that ArrayRecord's reader finds
    first_record: int  # of all
    num_planned: int


def write_shard(
    plan: ShardPlan, layout: Layout, writer_options: str, folder: str
) -> ConvertedShard:
    """Writes a shard to a file below a folder; ProbelineError if its records are not as staged."""
    final_path = layout.shard(plan.shard, plan.num_shards)
    temporary_path = files.unique_path(f"{folder}/shards", final_path.rpartition("/")[2])
    batches = (batch for part in plan.parts for batch in read_part(part))
    with files.local_file(temporary_path) as local_path:
        open_writer = partial(ArrayRecordWriter, options=writer_options)
        write_records(temporary_path, local_path, open_writer, batches)
        digests = files.file_digests(local_path)
        reader = ArrayRecordReader(local_path, options=READER_OPTIONS)
        num_records = reader.num_records()
        reader.close()
    info = ShardInfo(final_path, plan.shard, plan.num_shards, num_records, *digests)
    return ConvertedShard(temporary_path, info, plan.first_record, plan.num_records)


class WriteConvertedShard(beam.DoFn):
    """ShardPlan → ConvertedShard."""

    def __init__(self, layout: Layout, writer_options: str, folder: str):
        self._layout, self._writer_options, self._folder = layout, writer_options, folder
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")
        self._records = counter("records_written")

    def process(self, element: ShardPlan, *_: Any) -> Iterator[ConvertedShard]:
        with logged("Write shard", shard=element.shard):
            shard = write_shard(element, self._layout, self._writer_options, self._folder)
        self._shards.inc()
        self._records.inc(shard.info.num_records)
        self._bytes.inc(shard.info.num_bytes)
        yield shard
