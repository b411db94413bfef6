"""Sharded files whose bytes do not depend on the runner: group by shard, write, rename.

  | StagedRecord                  shard = hash(key)
  v  "Group by shard"
  | (shard, [entry])
  v  WriteShard                   sorts by key, reads the payloads, writes one file
  | WrittenShard                 under a temporary name
  v  Finalise                     renames all files; a second attempt changes nothing
  | ShardInfo

Nothing here depends on what a record means or on the file format. Bundles may be retried or run
twice at once: every attempt has files of its own, and only files named by the pipeline's elements
are read or renamed.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.errors import ProbelineError, explained_os_errors, one_line
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import counter, distribution, logged
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import StagedRecord
from beam_pipeline.storage import files

DEFAULT_SHARD_BYTES = 256 << 20
_RENAMES_AT_A_TIME = 16  # each waits for its storage three times


class ShardInfo(Message, frozen=True):
    """A shard with its final name; `crc32c` is that of the whole file."""

    path: str
    shard: int
    num_shards: int
    num_records: int
    num_bytes: int
    crc32c: int


class ShardEntry(Message, frozen=True):
    """What is grouped by shard; every shard has one entry without a record, so that it exists."""

    record: StagedRecord | None = None


class WrittenShard(Message, frozen=True):
    """A shard with its temporary name, and the file with its lines of the index."""

    temporary_path: str
    index_path: str | None
    info: ShardInfo


class RecordWriter(Protocol):
    """A local file of records, such as an ArrayRecordWriter."""

    def write(self, record: bytes) -> Any: ...
    def close(self) -> Any: ...


@dataclass(frozen=True)
class RecordIndex:
    """A Parquet file beside the shards with one line per record.

    Attributes:
      schema: the columns of `table`; shard, position and num_bytes are written before them.
      table: returns the lines of a shard, given the attributes of its records in order. It may
        raise ProbelineError to refuse them.
    """

    path: str
    schema: pa.Schema
    table: Callable[[Sequence[bytes]], pa.Table]

    @property
    def full_schema(self) -> pa.Schema:
        own = [("shard", pa.int32()), ("position", pa.int64()), ("num_bytes", pa.int64())]
        return pa.schema([*own, *self.schema])


@dataclass(frozen=True)
class ShardTarget:
    """The files to write.

    Attributes:
      prefix, suffix, shard_name_template: the parts of a shard's name, see `shard_path`.
      open_writer: creates a local file of the wanted format, given its path.
      temp_folder: a folder for this write alone, on the filesystem of `prefix`.
      index: a Parquet file that lists the records.
      encode: returns the record, given a staged payload and its attributes; by default the
        payload is the record. So payloads can be small, and the writers share the work.
      guard: called before files get their final names; raises if they must not.
    """

    prefix: str
    suffix: str
    shard_name_template: str
    open_writer: Callable[[str], RecordWriter]
    temp_folder: str
    index: RecordIndex | None = None
    encode: Callable[[bytes, bytes], bytes] | None = None
    guard: Callable[[], None] | None = None


def shard_path(prefix: str, template: str, suffix: str, shard: int, num_shards: int) -> str:
    """Returns the path of a shard: runs of S and N in `template` become its numbers."""
    numbers = {"S": shard, "N": num_shards}
    name = re.sub(r"S+|N+", lambda run: f"{numbers[run[0][0]]:0{len(run[0])}d}", template)
    return f"{prefix}{name}{suffix}"


class WriteShard(beam.DoFn):
    """(shard, [ShardEntry]) → WrittenShard: one file of records in the order of their keys."""

    def __init__(self, target: ShardTarget):
        self._target = target
        self._records, self._record_bytes = counter("records_written"), distribution("record_bytes")
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")

    def setup(self) -> None:
        self._reader = ClaimReader()

    def teardown(self) -> None:
        self._reader.close()

    def process(
        self, element: tuple[int, Iterable[ShardEntry]], num_shards: int
    ) -> Iterator[WrittenShard]:
        shard, entries = element
        with logged("Write shard", prefix=self._target.prefix, shard=shard):
            records = [entry.record for entry in entries if entry.record is not None]
            yield self._write_shard(shard, sorted(records, key=StagedRecord.order), num_shards)

    def _write_shard(
        self, shard: int, staged: Sequence[StagedRecord], num_shards: int
    ) -> WrittenShard:
        target = self._target
        final_path = shard_path(
            target.prefix, target.shard_name_template, target.suffix, shard, num_shards
        )
        temporary_path = files.unique_path(target.temp_folder, FileSystems.split(final_path)[1])
        lines, index_path = None, None
        if target.index:  # before any payload is read, since it may refuse the records
            lines = target.index.table([record.attributes for record in staged])
        record_bytes, (num_bytes, checksum) = self._write(temporary_path, staged)
        if target.index and lines is not None:
            index_path = files.unique_path(target.temp_folder, f"index-{shard:05d}")
            _write_index(index_path, target.index.full_schema, shard, record_bytes, lines)
        self._records.inc(len(staged))
        self._shards.inc()
        self._bytes.inc(num_bytes)
        info = ShardInfo(final_path, shard, num_shards, len(staged), num_bytes, checksum)
        return WrittenShard(temporary_path, index_path, info)

    def _write(
        self, path: str, staged: Sequence[StagedRecord]
    ) -> tuple[list[int], tuple[int, int]]:
        """Returns the size of each record, and the size and checksum of the file."""
        encode = self._target.encode
        record_bytes = []
        with files.local_file(path) as local_path:
            try:
                with contextlib.closing(self._target.open_writer(local_path)) as writer:
                    for record in staged:
                        data = self._reader.read(record.payload)
                        data = encode(data, record.attributes) if encode else data
                        writer.write(data)
                        record_bytes.append(len(data))
                        self._record_bytes.update(len(data))
            except RuntimeError as error:  # ArrayRecord's only kind; a full disk is among them
                raise ProbelineError(
                    f"cannot write {path}: {one_line(error)}; free some space or check the storage "
                    "behind it, then run the same command again"
                ) from error
            return record_bytes, files.size_and_checksum(local_path)


def _write_index(
    path: str, schema: pa.Schema, shard: int, record_bytes: list[int], lines: pa.Table
) -> None:
    place = [[shard] * len(record_bytes), range(len(record_bytes)), record_bytes]
    own = [pa.array(values, dtype) for values, dtype in zip(place, schema.types, strict=False)]
    with explained_os_errors("write", path), files.create_file(path) as file:
        pq.write_table(pa.Table.from_arrays([*own, *lines.columns], schema=schema), file)


class Finalise(beam.DoFn):
    """Renames all shards and joins the index: impulse → ShardInfo, in the order of the shards.

    An earlier attempt whose result was lost may have renamed any of them.
    """

    def __init__(self, target: ShardTarget):
        self._target = target

    def process(self, _: Any, written: Iterable[WrittenShard]) -> Iterator[ShardInfo]:
        with logged("Rename shards"):
            yield from self._finalise(sorted(written, key=lambda shard: shard.info.shard))

    def _finalise(self, written: Sequence[WrittenShard]) -> list[ShardInfo]:
        if self._target.guard is not None:
            self._target.guard()
        with ThreadPoolExecutor(_RENAMES_AT_A_TIME) as pool:
            list(pool.map(_rename, written))
        if self._target.index is not None:
            _join_index(written, self._target.index, self._target.temp_folder)
        return [shard.info for shard in written]


def _rename(shard: WrittenShard) -> None:
    info = shard.info
    files.move(shard.temporary_path, info.path, info.num_bytes, info.crc32c)


def _join_index(written: Sequence[WrittenShard], index: RecordIndex, temp_folder: str) -> None:
    temporary_path = files.unique_path(temp_folder, "index")
    with explained_os_errors("write", index.path), files.create_file(temporary_path) as file:
        with pq.ParquetWriter(file, index.full_schema, compression="zstd") as writer:
            for shard in written:
                assert shard.index_path is not None
                with files.open_file(shard.index_path) as lines:
                    table = pq.read_table(pa.PythonFile(lines, mode="r"))
                if table.num_rows:
                    writer.write_table(table)
    files.move(temporary_path, index.path, *files.size_and_checksum(temporary_path))


class WriteShards(beam.PTransform):
    """StagedRecord → ShardInfo, one per complete file with its final name.

    `num_shards` is a number, a PCollection of one, or 0 for shards of about DEFAULT_SHARD_BYTES.
    """

    def __init__(self, target: ShardTarget, num_shards: int | beam.PCollection = 0):
        super().__init__()
        self._target = target
        self._num_shards = num_shards

    def expand(self, staged: beam.PCollection) -> Any:
        impulse = staged.pipeline | "Start" >> beam.Impulse()
        num_shards = beam.pvalue.AsSingleton(self._counted_shards(staged))
        every_shard = impulse | "Every shard" >> beam.FlatMap(
            lambda _, count: [(shard, ShardEntry()) for shard in range(count)], num_shards
        ).with_output_types(tuple[int, ShardEntry])
        assigned = staged | "Assign to shards" >> beam.Map(
            lambda record, count: (shard_of(record.key, count), ShardEntry(record)), num_shards
        ).with_output_types(tuple[int, ShardEntry])
        written = (
            (every_shard, assigned)
            | "With empty shards" >> beam.Flatten()
            | "Group by shard" >> beam.GroupByKey()
            | "Write shard" >> beam.ParDo(WriteShard(self._target), num_shards)
        )
        return impulse | "Rename shards" >> beam.ParDo(
            Finalise(self._target), beam.pvalue.AsList(written)
        )

    def _counted_shards(self, staged: beam.PCollection) -> Any:
        if isinstance(self._num_shards, beam.PCollection):
            return self._num_shards
        if self._num_shards:
            return staged.pipeline | "Number of shards" >> beam.Create([self._num_shards])
        return (
            staged
            | "Size of each" >> beam.Map(lambda record: record.num_bytes)
            | "Size of all" >> beam.CombineGlobally(sum)
            | "Number of shards" >> beam.Map(lambda total: max(1, -(-total // DEFAULT_SHARD_BYTES)))
        )
