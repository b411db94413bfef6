"""Sharded files whose bytes do not depend on the runner: group by shard, write, rename.

  | elements                      assigned to shards by a `ShardInput`
  v  "Group by shard"
  | (shard, [element])
  v  WriteShard                   puts the records in order, writes one file
  | WrittenShard                 under a temporary name
  v  Finalise                     renames all files; idempotent
  | ShardInfo

One step may write several sets of shards, its targets, such as the splits of a dataset. Shards are
numbered consecutively across targets.

Nothing here depends on the content of records or the file format. Bundles may be retried or run
twice at once: every attempt has its own files, and only files named by the pipeline's elements are
read or renamed.
"""

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError, explained_os_errors, one_line
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import counter, distribution, logged
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, local_copies, move_files

_INDEX_LINES = 1 << 16  # of a row group


class ShardInfo(Message, frozen=True):
    """A shard with its final name; `crc32c` and `sha256` are those of the whole file."""

    path: str
    shard: int
    num_shards: int
    num_records: int
    num_bytes: int
    crc32c: int
    sha256: str


class WrittenShard(Message, frozen=True):
    """A shard of a target with its temporary name, and the file with its index lines."""

    target: int
    temporary_path: str
    index_path: str | None
    info: ShardInfo


class RecordWriter(Protocol):
    """A local file of records, such as an ArrayRecordWriter."""

    def write(self, record: bytes) -> Any: ...
    def close(self) -> Any: ...


@dataclass(frozen=True)
class RecordIndex:
    """A Parquet file beside the shards with one line per record."""

    path: str
    schema: pa.Schema  # of the lines that come with records; shard, position and num_bytes precede

    @property
    def full_schema(self) -> pa.Schema:
        own = [("shard", pa.int32()), ("position", pa.int64()), ("num_bytes", pa.int64())]
        return pa.schema([*own, *self.schema])


class ShardContent(Protocol):
    """The records of a shard, in order."""

    def batches(self) -> Iterable[tuple[list[bytes], pa.RecordBatch | None]]:
        """Yields some records at a time, with their lines of the index if there is one."""
        ...


class ShardInput(Protocol):
    """How the elements of a pipeline become the records of shards."""

    @property
    def root(self) -> str:
        """The root of the claims in elements."""
        ...

    @property
    def nothing(self) -> Message:
        """An element without records."""
        ...

    def assign(self, element: Any, num_shards: Sequence[int], /) -> Iterable[tuple[int, int, Any]]:
        """Yields (target, shard, element), given the number of shards of each target."""
        ...

    def content(
        self, elements: Iterable[Any], shard: int, num_shards: int, reader: ClaimReader, /
    ) -> ShardContent:
        """Returns the records of a shard, given all elements that were assigned to it."""
        ...


@dataclass(frozen=True)
class ShardTarget:
    """The files to write; `shard_path` joins prefix, template and suffix."""

    prefix: str
    suffix: str
    shard_name_template: str
    open_writer: Callable[[str], RecordWriter]  # creates a local file, given its path
    temp_folder: str  # for this write alone, on the filesystem of `prefix`
    index: RecordIndex | None = None
    guard: Callable[[], None] | None = None  # called before files get final names; may raise


def shard_path(prefix: str, template: str, suffix: str, shard: int, num_shards: int) -> str:
    """Returns the path of a shard: runs of S and N in `template` become its numbers."""
    numbers = {"S": shard, "N": num_shards}
    name = re.sub(r"S+|N+", lambda run: f"{numbers[run[0][0]]:0{len(run[0])}d}", template)
    return f"{prefix}{name}{suffix}"


class AssignToShards(beam.DoFn):
    """Element → (shard, element), shards being numbered across targets."""

    def __init__(self, shard_input: ShardInput):
        self._input = shard_input
        self._grouped_bytes = counter("grouped_by_shard_bytes")

    def process(self, element: Message, num_shards: Sequence[int]) -> Iterator[tuple[int, Any]]:
        firsts = first_shards(num_shards)
        for target, shard, part in self._input.assign(element, num_shards):
            self._grouped_bytes.inc(len(part.encode()))
            yield firsts[target] + shard, part


def first_shards(num_shards: Sequence[int]) -> list[int]:
    """Returns the number of each target's first shard, and the number of all shards."""
    return np.cumsum([0, *num_shards]).tolist()


class WriteShard(beam.DoFn):
    """(shard, [element]) → WrittenShard: one file of records."""

    def __init__(self, targets: Sequence[ShardTarget], shard_input: ShardInput):
        self._targets = targets
        self._input = shard_input
        self._records, self._record_bytes = counter("records_written"), distribution("record_bytes")
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")

    def setup(self) -> None:
        self._reader = ClaimReader(self._input.root)

    def finish_bundle(self) -> None:
        self._reader.close()

    def process(
        self, element: tuple[int, Iterable[Any]], num_shards: Sequence[int]
    ) -> Iterator[WrittenShard]:
        number, elements = element
        firsts = first_shards(num_shards)
        at = bisect.bisect_right(firsts, number) - 1
        target, shard, count = self._targets[at], number - firsts[at], num_shards[at]
        with logged("Write shard", prefix=target.prefix, shard=shard):
            content = self._input.content(elements, shard, count, self._reader)
            yield WrittenShard(at, *self._write_shard(target, shard, count, content))

    def _write_shard(
        self, target: ShardTarget, shard: int, num_shards: int, content: ShardContent
    ) -> tuple[str, str | None, ShardInfo]:
        """Returns a shard's temporary path, the path of its index lines, and its description."""
        final_path = shard_path(
            target.prefix, target.shard_name_template, target.suffix, shard, num_shards
        )
        temporary_path = files.unique_path(target.temp_folder, FileSystems.split(final_path)[1])
        index = None
        if target.index:
            path = files.unique_path(target.temp_folder, f"index-{shard:05d}")
            index = _IndexWriter(path, target.index.full_schema, shard)
        num_records = 0

        def batches() -> Iterator[list[bytes]]:
            nonlocal num_records
            for records, lines in content.batches():
                sizes = list(map(len, records))
                num_records += len(sizes)
                for size in sizes:
                    self._record_bytes.update(size)
                if index and lines is not None:
                    index.add(sizes, lines)
                yield records

        with files.local_file(temporary_path) as local_path:
            write_records(temporary_path, local_path, target.open_writer, batches())
            digests = files.file_digests(local_path)
        if index:
            index.close()
        self._records.inc(num_records)
        self._shards.inc()
        self._bytes.inc(digests.num_bytes)
        info = ShardInfo(final_path, shard, num_shards, num_records, *digests)
        return temporary_path, index and index.path, info


class _IndexWriter:
    """Writes the lines of a shard to a Parquet file, many at a time."""

    def __init__(self, path: str, schema: pa.Schema, shard: int):
        self.path = path
        self._schema, self._shard = schema, shard
        self._lines: list[pa.RecordBatch] = []
        self._position = self._waiting = 0
        with explained_os_errors("write", path):
            self._file = files.create_file(path)
        self._writer = pq.ParquetWriter(self._file, schema)

    def add(self, sizes: list[int], lines: pa.RecordBatch) -> None:
        """Adds the lines of consecutive records, given their sizes."""
        end = self._position + len(sizes)
        place = [
            np.full(len(sizes), self._shard),
            np.arange(self._position, end),
            np.array(sizes, np.int64),
        ]
        own = [pa.array(values, kind) for values, kind in zip(place, self._schema.types)]
        self._lines.append(pa.RecordBatch.from_arrays([*own, *lines.columns], schema=self._schema))
        self._position = end
        self._waiting += len(sizes)
        if self._waiting >= _INDEX_LINES:
            self._flush()

    def _flush(self) -> None:
        with explained_os_errors("write", self.path):
            self._writer.write_table(pa.Table.from_batches(self._lines, schema=self._schema))
        self._lines, self._waiting = [], 0

    def close(self) -> None:
        """Writes the lines that wait, and closes the file."""
        self._flush()
        with explained_os_errors("write", self.path):
            self._writer.close()
            self._file.close()


def write_records(
    path: str,
    local_path: str,
    open_writer: Callable[[str], RecordWriter],
    batches: Iterable[list[bytes]],
) -> None:
    """Writes a local file of records; ProbelineError that names `path` if it fails."""
    try:
        with contextlib.closing(open_writer(local_path)) as writer:
            for batch in batches:
                for data in batch:
                    writer.write(data)
    except RuntimeError as error:  # the only type that ArrayRecord raises, also for a full disk
        raise ProbelineError(
            f"cannot write {path}: {one_line(error)}; free some space or check the storage "
            "behind it, then run the same command again"
        ) from error


class Finalise(beam.DoFn):
    """Renames all shards and joins each index: impulse → ShardInfo, in the order of the shards.

    An earlier attempt, whose result was lost, may have renamed any of them.
    """

    def __init__(self, targets: Sequence[ShardTarget]):
        self._targets = targets

    def process(self, _: Any, written: Iterable[WrittenShard]) -> Iterator[ShardInfo]:
        with logged("Rename shards"):
            in_order = sorted(written, key=lambda shard: (shard.target, shard.info.shard))
            yield from self._finalise(in_order)

    def _finalise(self, written: Sequence[WrittenShard]) -> list[ShardInfo]:
        infos = [shard.info for shard in written]
        moves = [
            Move(shard.temporary_path, info.path, info.num_bytes, info.crc32c)
            for shard, info in zip(written, infos, strict=True)
        ]
        self._check()
        for at, target in enumerate(self._targets):
            if target.index is not None:
                own = [shard for shard in written if shard.target == at]
                moves.append(_join_index(own, target.index, target.temp_folder))
        self._check()  # all files are there: see `output_lease`
        move_files(moves)
        return infos

    def _check(self) -> None:
        for guard in dict.fromkeys(target.guard for target in self._targets if target.guard):
            guard()


def _join_index(written: Sequence[WrittenShard], index: RecordIndex, temp_folder: str) -> Move:
    path = files.unique_path(temp_folder, "index")
    parts = [shard.index_path for shard in written if shard.index_path is not None]
    with explained_os_errors("write", index.path), files.create_file(path) as file:
        with pq.ParquetWriter(file, index.full_schema, compression="zstd") as writer:
            for part in local_copies(parts):
                table = pq.read_table(part)
                if table.num_rows:
                    writer.write_table(table)
    return Move(path, index.path, *files.size_and_checksum(path))


class WriteShards(beam.PTransform):
    """Elements → ShardInfo, one per complete file with its final name.

    Args:
      shard_input: how elements become records.
      targets: one or several.
      num_shards: a PCollection of a list with the number of each target's shards.
    """

    def __init__(
        self, shard_input: ShardInput, *targets: ShardTarget, num_shards: beam.PCollection
    ):
        super().__init__()
        self._input = shard_input
        self._targets = targets
        self._num_shards = num_shards

    def expand(self, elements: beam.PCollection) -> Any:
        kind = type(self._input.nothing)
        impulse = elements.pipeline | "Start" >> beam.Impulse()
        num_shards = beam.pvalue.AsSingleton(self._num_shards)
        assign = AssignToShards(self._input)
        assigned = elements | "Assign to shards" >> beam.ParDo(
            assign, num_shards
        ).with_output_types(tuple[int, kind])
        every_shard = impulse | "Every shard" >> beam.FlatMap(
            lambda _, counts, nothing: [(shard, nothing) for shard in range(sum(counts))],
            num_shards,
            self._input.nothing,
        ).with_output_types(tuple[int, kind])
        written = (
            (assigned, every_shard)
            | "With empty shards" >> beam.Flatten()
            | "Group by shard" >> beam.GroupByKey()
            | "Write shard" >> beam.ParDo(WriteShard(self._targets, self._input), num_shards)
        )
        return impulse | "Rename shards" >> beam.ParDo(
            Finalise(self._targets), beam.pvalue.AsList(written)
        )
