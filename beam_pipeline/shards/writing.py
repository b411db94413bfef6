"""Sharded files whose bytes do not depend on the runner: stage, group by shard, write, commit.

  | StagedRecord   see `record_staging`
  v  WriteShards    shard = hash(key); GroupByKey on the shard; one writer sorts by key and writes
  | part of a shard, under a temporary name
  v                 one finaliser renames all parts; done twice, it finds its work done
  | ShardInfo

Knows nothing of what a record means, nor of a file format but its `Framing`. Bundles may be
retried or run twice at once: every attempt has files of its own, and only those that the
pipeline's own data name are ever read or renamed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.jobs.monitoring import counter, distribution, logged
from beam_pipeline.shards.claim_checks import (
    ClaimReader,
)
from beam_pipeline.shards.staging import StagedRecord
from beam_pipeline.storage.files import (
    create_file,
    local_file,
    move,
    open_file,
    size_and_checksum,
    unique_path,
)

DEFAULT_SHARD_BYTES = 256 << 20
_RENAMES_AT_A_TIME = 16  # each waits for its storage three times


class ShardInfo(NamedTuple):
    """One file of the result."""

    path: str
    shard: int
    num_shards: int
    num_records: int
    num_bytes: int
    crc32c: int


class _Part(NamedTuple):
    """A shard under its temporary name, and the part of the index that speaks of it."""

    temporary_path: str
    index_path: str | None
    info: ShardInfo


class RecordWriter(Protocol):
    def write(self, record: bytes) -> Any: ...
    def close(self) -> Any: ...


class Framing(Protocol):
    """A file format that holds records in order."""

    def open_writer(self, path: str) -> RecordWriter:
        """Opens a new local file."""
        ...


@dataclass(frozen=True)
class RecordIndex:
    """A Parquet file beside the shards, with a line for each record.

    Attributes:
      path: where it goes.
      schema: the columns that `table` gives; shard, position and num_bytes come first.
      table: makes them of the attributes of a shard's records, in the shard's order. It may
        raise ProbelineError to refuse them.
    """

    path: str
    schema: pa.Schema
    table: Callable[[Sequence[bytes]], pa.Table]

    @property
    def full_schema(self) -> pa.Schema:
        own = [("shard", pa.int32()), ("position", pa.int64()), ("num_bytes", pa.int64())]
        return pa.schema([*own, *self.schema])


def shard_path(prefix: str, template: str, suffix: str, shard: int, num_shards: int) -> str:
    """Returns the name of a shard: runs of S and N in `template` become its numbers."""
    numbers = {"S": shard, "N": num_shards}
    name = re.sub(r"S+|N+", lambda run: f"{numbers[run[0][0]]:0{len(run[0])}d}", template)
    return f"{prefix}{name}{suffix}"


class WriteShard(beam.DoFn):
    """(shard, [StagedRecord]) → _Part: one file, written in the order of the keys."""

    def __init__(self, target: "WriteShards"):
        self._target = target
        self._records, self._record_bytes = counter("records_written"), distribution("record_bytes")
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")

    def setup(self) -> None:
        self._reader = ClaimReader()

    def teardown(self) -> None:
        self._reader.close()

    def process(self, element: tuple[int, Iterable[bytes]], num_shards: int) -> Iterator[_Part]:
        with logged("Write shard", prefix=self._target.prefix, shard=element[0]):
            yield self._write_part(*element, num_shards)

    def _write_part(self, shard: int, values: Iterable[bytes], num_shards: int) -> _Part:
        staged = sorted(
            (StagedRecord.decode(value) for value in values if value), key=StagedRecord.order
        )
        target = self._target
        final_path = shard_path(
            target.prefix, target.shard_name_template, target.suffix, shard, num_shards
        )
        temporary_path = unique_path(target.temp_folder, FileSystems.split(final_path)[1])
        lines = (
            target.index.table([record.attributes for record in staged]) if target.index else None
        )
        record_bytes, (num_bytes, checksum) = self._write(temporary_path, staged)
        index_path = self._write_index(shard, lines, record_bytes) if lines is not None else None
        self._records.inc(len(staged))
        self._shards.inc()
        self._bytes.inc(num_bytes)
        info = ShardInfo(final_path, shard, num_shards, len(staged), num_bytes, checksum)
        return _Part(temporary_path, index_path, info)

    def _write(
        self, path: str, staged: Sequence[StagedRecord]
    ) -> tuple[list[int], tuple[int, int]]:
        """Writes a shard, one record in memory at a time.

        Returns:
          The size of each record; the size and checksum of the file.
        """
        encode = self._target.encode
        record_bytes = []
        with local_file(path) as local_path:
            try:
                writer = self._target.framing.open_writer(local_path)
                try:
                    for record in staged:
                        data = self._reader.read(record.payload)
                        data = encode(data, record.attributes) if encode else data
                        writer.write(data)
                        record_bytes.append(len(data))
                        self._record_bytes.update(len(data))
                finally:
                    writer.close()
            except RuntimeError as error:  # ArrayRecord's only kind; a full disk is among them
                reason = " ".join(str(error).split())
                raise ProbelineError(
                    f"cannot write {path}: {reason}; free some space or check the storage behind "
                    "it, then run the same command again"
                ) from error
            return record_bytes, size_and_checksum(local_path)

    def _write_index(self, shard: int, lines: pa.Table, record_bytes: list[int]) -> str:
        own = [
            pa.array([shard] * len(record_bytes), pa.int32()),
            pa.array(range(len(record_bytes)), pa.int64()),
            pa.array(record_bytes, pa.int64()),
        ]
        assert self._target.index is not None
        table = pa.Table.from_arrays([*own, *lines.columns], schema=self._target.index.full_schema)
        path = unique_path(self._target.temp_folder, f"index-{shard:05d}")
        with explained_os_errors("write", path), create_file(path) as file:
            pq.write_table(table, file)
        return path


class Finalise(beam.DoFn):
    """Renames all parts and joins the index: an impulse → ShardInfo, shard by shard.

    A part that is gone while its target has the right size and checksum has been renamed before,
    by an attempt whose result was lost. `guard` is called before anything is renamed.
    """

    def __init__(self, index: RecordIndex | None, guard: Callable[[], None] | None = None):
        self._index = index
        self._guard = guard

    def process(self, _: Any, parts: Iterable[_Part]) -> Iterator[ShardInfo]:
        with logged("Rename shards"):
            yield from self._finalise(parts)

    def _finalise(self, parts: Iterable[_Part]) -> list[ShardInfo]:
        if self._guard is not None:
            self._guard()
        ordered = sorted((_Part(*part) for part in parts), key=lambda part: part.info.shard)
        with ThreadPoolExecutor(_RENAMES_AT_A_TIME) as pool:
            for _renamed in pool.map(self._rename, ordered):
                pass
        if self._index is not None:
            self._join_index(ordered, self._index)
        return [part.info for part in ordered]

    @staticmethod
    def _rename(part: _Part) -> None:
        move(part.temporary_path, part.info.path, part.info.num_bytes, part.info.crc32c)

    @staticmethod
    def _join_index(parts: Sequence[_Part], index: RecordIndex) -> None:
        folder, name = FileSystems.split(parts[0].temporary_path)[0], "index"
        temporary_path = unique_path(folder, name)
        with explained_os_errors("write", index.path):
            with create_file(temporary_path) as file:
                with pq.ParquetWriter(file, index.full_schema, compression="zstd") as writer:
                    for part in parts:
                        assert part.index_path is not None
                        with open_file(part.index_path) as piece:
                            table = pq.read_table(pa.PythonFile(piece, mode="r"))
                        if table.num_rows:
                            writer.write_table(table)
        size, checksum = size_and_checksum(temporary_path)
        move(temporary_path, index.path, size, checksum)


class WriteShards(beam.PTransform):
    """StagedRecord, encoded → ShardInfo, each a file that is whole and has its final name.

    Args:
      prefix, suffix, shard_name_template: the parts of a shard's name.
      framing: the file format.
      temp_folder: a folder for this write alone, on the filesystem of `prefix`.
      num_shards: a number; a PCollection of one number; or 0: as many as make shards of about
        DEFAULT_SHARD_BYTES.
      index: a Parquet file that lists the records, if wanted.
      encode: makes the record of a staged payload and its attributes, if they are not the same:
        what is staged may be smaller, and the shards' writers share the work.
      guard: called before files get their final names; raises if they must not.
    """

    def __init__(
        self,
        prefix: str,
        suffix: str,
        shard_name_template: str,
        framing: Framing,
        temp_folder: str,
        num_shards: int | beam.PCollection = 0,
        index: RecordIndex | None = None,
        encode: Callable[[bytes, bytes], bytes] | None = None,
        guard: Callable[[], None] | None = None,
    ):
        super().__init__()
        self.prefix, self.suffix = prefix, suffix
        self.shard_name_template = shard_name_template
        self.framing = framing
        self.temp_folder = temp_folder
        self.index = index
        self.encode = encode
        self.guard = guard
        self._num_shards = num_shards

    def __getstate__(self) -> dict[str, Any]:
        # Workers need the names, not the PCollection.
        return {**self.__dict__, "_num_shards": None}

    def expand(self, staged: beam.PCollection) -> Any:
        impulse = staged.pipeline | "Start" >> beam.Impulse()
        num_shards = beam.pvalue.AsSingleton(self._counted_shards(staged))
        all_shards = impulse | "Every shard" >> beam.FlatMap(
            lambda _, count: [(shard, b"") for shard in range(count)], num_shards
        ).with_output_types(tuple[int, bytes])
        assigned = staged | "Assign to shards" >> beam.Map(
            lambda value, count: (shard_of(StagedRecord.decode(value).key, count), value),
            num_shards,
        ).with_output_types(tuple[int, bytes])
        parts = (
            (all_shards, assigned)
            | "With empty shards" >> beam.Flatten()
            | "Group by shard" >> beam.GroupByKey()
            | "Write shard" >> beam.ParDo(WriteShard(self), num_shards)
        )
        return impulse | "Rename shards" >> beam.ParDo(
            Finalise(self.index, self.guard), beam.pvalue.AsList(parts)
        )

    def _counted_shards(self, staged: beam.PCollection) -> Any:
        if isinstance(self._num_shards, beam.PCollection):
            return self._num_shards
        if self._num_shards:
            return staged.pipeline | "Number of shards" >> beam.Create([self._num_shards])
        return (
            staged
            | "Size of each" >> beam.Map(lambda value: StagedRecord.decode(value).num_bytes)
            | "Size of all" >> beam.CombineGlobally(sum)
            | "Number of shards" >> beam.Map(lambda total: max(1, -(-total // DEFAULT_SHARD_BYTES)))
        )
