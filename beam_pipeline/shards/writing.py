"""Sharded files whose bytes do not depend on the runner: group by shard, write, rename.

  | StagedRecords                 shard = hash(key)
  v  "Group by shard"
  | (shard, [StagedRecords])
  v  WriteShard                   sorts by key if order counts, writes one file
  | WrittenShard                 under a temporary name
  v  Finalise                     renames all files; a second attempt changes nothing
  | ShardInfo

Nothing here depends on what a record means or on the file format. Bundles may be retried or run
twice at once: every attempt has files of its own, and only files named by the pipeline's elements
are read or renamed.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.errors import ProbelineError, explained_os_errors, one_line
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import counter, distribution, logged
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import StagedPayloads, StagedRecords, staged_schema
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, local_copies, move_files

DEFAULT_SHARD_BYTES = 256 << 20
_BATCH_BYTES = 4 << 20  # of payloads that are read and encoded together
_FRAMING_BYTES = 1 << 10  # what a record may have around its payload


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
    table: Callable[[pa.Table], pa.Table]

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
      attributes: the schema of what is known of each record.
      index: a Parquet file that lists the records.
      encode: returns the records of some staged payloads, given their attributes; by default the
        payloads are the records. So payloads can be small, and the writers share the work.
      guard: called before files get their final names; raises if they must not.
      ordered: whether a shard's records are sorted by their keys. If not, they are written as they
        arrive, a batch in memory at a time; all must be inline, and there is no index.
    """

    prefix: str
    suffix: str
    shard_name_template: str
    open_writer: Callable[[str], RecordWriter]
    temp_folder: str
    attributes: pa.Schema = field(default_factory=lambda: pa.schema([]))
    index: RecordIndex | None = None
    encode: Callable[[list[bytes], pa.Table], list[bytes]] | None = None
    guard: Callable[[], None] | None = None
    ordered: bool = True


def shard_path(prefix: str, template: str, suffix: str, shard: int, num_shards: int) -> str:
    """Returns the path of a shard: runs of S and N in `template` become its numbers."""
    numbers = {"S": shard, "N": num_shards}
    name = re.sub(r"S+|N+", lambda run: f"{numbers[run[0][0]]:0{len(run[0])}d}", template)
    return f"{prefix}{name}{suffix}"


class AssignToShards(beam.DoFn):
    """StagedRecords → (shard, StagedRecords)."""

    def __init__(self, attributes: pa.Schema):
        self._attributes = attributes
        self._grouped_bytes = counter("grouped_by_shard_bytes")

    def process(
        self, staged: StagedRecords, num_shards: int
    ) -> Iterator[tuple[int, StagedRecords]]:
        batch = staged.batch(self._attributes)
        shards = np.array([shard_of(key, num_shards) for key in batch.column("key").to_pylist()])
        order = np.argsort(shards, kind="stable")
        batch = batch.take(pa.array(order))
        starts = [0, *(np.flatnonzero(np.diff(shards[order])) + 1).tolist(), len(shards)]
        for start, end in itertools.pairwise(starts):
            part = StagedRecords.of(staged.path, batch.slice(start, end - start))
            self._grouped_bytes.inc(len(part.path) + len(part.columns))
            yield int(shards[order[start]]), part


class ShardRecords:
    """The staged records of a shard, in order: by key, equal keys by size and checksum."""

    def __init__(self, staged: Iterable[StagedRecords], attributes: pa.Schema, reader: ClaimReader):
        parts = [(part.path, part.batch(attributes)) for part in staged if part.columns]
        batches = [batch for _, batch in parts]
        columns = pa.Table.from_batches(batches, schema=staged_schema(attributes))
        # The inline payloads stay where they are, so that they are in memory once.
        small = columns.drop_columns(["inline", "offset"]).combine_chunks()
        sort_keys = [(name, "ascending") for name in ("key", "length", "crc32c")]
        self._order = pc.sort_indices(small, sort_keys).to_numpy().astype(np.int64)
        small = small.take(pa.array(self._order))
        self.lengths: list[int] = small["length"].to_pylist()
        self.attributes = small.select(attributes.names)
        self._parts = [StagedPayloads(path, batch, reader) for path, batch in parts]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def __len__(self) -> int:
        return len(self._order)

    def payloads(self, start: int, end: int) -> list[bytes]:
        """Reads some payloads; ProbelineError if they are not what was staged."""
        rows = self._order[start:end]
        parts = np.searchsorted(self._starts, rows, "right") - 1
        places = zip(parts.tolist(), (rows - self._starts[parts]).tolist(), strict=True)
        return [self._parts[part].read(row) for part, row in places]

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yields where some consecutive records begin and end, about _BATCH_BYTES of them."""
        ends = np.cumsum(np.array(self.lengths, np.int64) + _FRAMING_BYTES)
        start = 0
        while start < len(self):
            limit = _BATCH_BYTES + (int(ends[start - 1]) if start else 0)
            end = max(start + 1, int(np.searchsorted(ends, limit, "right")))
            yield start, end
            start = end

    def payload_batches(self) -> Iterator[tuple[list[bytes], pa.Table]]:
        """Yields all payloads in order with their attributes, about _BATCH_BYTES at a time."""
        for start, end in self.batches():
            yield self.payloads(start, end), self.attributes.slice(start, end - start)


class ArrivingRecords:
    """The staged records of a shard as they arrive, read once."""

    def __init__(self, staged: Iterable[StagedRecords], attributes: pa.Schema, reader: ClaimReader):
        self._staged = staged
        self._attributes = attributes
        self._reader = reader

    def payload_batches(self) -> Iterator[tuple[list[bytes], pa.Table]]:
        """Yields the payloads of each batch with their attributes."""
        for part in self._staged:
            if part.columns:
                batch = part.batch(self._attributes)
                payloads = StagedPayloads(part.path, batch, self._reader)
                attributes = pa.Table.from_batches([batch]).select(self._attributes.names)
                yield [payloads.read(row) for row in range(batch.num_rows)], attributes


class WriteShard(beam.DoFn):
    """(shard, [StagedRecords]) → WrittenShard: one file of records."""

    def __init__(self, target: ShardTarget):
        self._target = target
        self._records, self._record_bytes = counter("records_written"), distribution("record_bytes")
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")

    def setup(self) -> None:
        self._reader = ClaimReader()

    def teardown(self) -> None:
        self._reader.close()

    def process(
        self, element: tuple[int, Iterable[StagedRecords]], num_shards: int
    ) -> Iterator[WrittenShard]:
        shard, staged = element
        with logged("Write shard", prefix=self._target.prefix, shard=shard):
            arrange = ShardRecords if self._target.ordered else ArrivingRecords
            records = arrange(staged, self._target.attributes, self._reader)
            yield self._write_shard(shard, records, num_shards)

    def _write_shard(
        self, shard: int, records: ShardRecords | ArrivingRecords, num_shards: int
    ) -> WrittenShard:
        target = self._target
        final_path = shard_path(
            target.prefix, target.shard_name_template, target.suffix, shard, num_shards
        )
        temporary_path = files.unique_path(target.temp_folder, FileSystems.split(final_path)[1])
        lines, index_path = None, None
        if target.index and isinstance(records, ShardRecords):
            # Before any payload is read, since it may refuse the records.
            lines = target.index.table(records.attributes)
        record_bytes, digests = self._write(temporary_path, records)
        if target.index and lines is not None:
            index_path = files.unique_path(target.temp_folder, f"index-{shard:05d}")
            _write_index(index_path, target.index.full_schema, shard, record_bytes, lines)
        self._records.inc(len(record_bytes))
        self._shards.inc()
        self._bytes.inc(digests.num_bytes)
        info = ShardInfo(final_path, shard, num_shards, len(record_bytes), *digests)
        return WrittenShard(temporary_path, index_path, info)

    def _write(
        self, path: str, records: ShardRecords | ArrivingRecords
    ) -> tuple[list[int], files.Digests]:
        """Returns the size of each record, and the digests of the file."""
        record_bytes: list[int] = []

        def batches() -> Iterator[list[bytes]]:
            for batch, attributes in records.payload_batches():
                if encode := self._target.encode:
                    batch = encode(batch, attributes)
                record_bytes.extend(map(len, batch))
                yield batch

        with files.local_file(path) as local_path:
            write_records(path, local_path, self._target.open_writer, batches())
            for size in record_bytes:
                self._record_bytes.update(size)
            return record_bytes, files.file_digests(local_path)


def write_records(
    path: str,
    local_path: str,
    open_writer: Callable[[str], RecordWriter],
    batches: Iterable[list[bytes]],
) -> None:
    """Writes a local file of records; ProbelineError if that fails, which names `path`."""
    try:
        with contextlib.closing(open_writer(local_path)) as writer:
            for batch in batches:
                for data in batch:
                    writer.write(data)
    except RuntimeError as error:  # ArrayRecord's only kind; a full disk is among them
        raise ProbelineError(
            f"cannot write {path}: {one_line(error)}; free some space or check the storage "
            "behind it, then run the same command again"
        ) from error


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
        target = self._target
        infos = [shard.info for shard in written]
        moves = [
            Move(shard.temporary_path, info.path, info.num_bytes, info.crc32c)
            for shard, info in zip(written, infos, strict=True)
        ]
        self._check()
        if target.index is not None:
            moves.append(_join_index(written, target.index, target.temp_folder))
            self._check()  # all files are there: see `output_lease`
        move_files(moves)
        return infos

    def _check(self) -> None:
        if self._target.guard is not None:
            self._target.guard()


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
    """StagedRecords → ShardInfo, one per complete file with its final name.

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
            lambda _, count: [(shard, StagedRecords("", b"")) for shard in range(count)],
            num_shards,
        ).with_output_types(tuple[int, StagedRecords])
        assign = AssignToShards(self._target.attributes)
        assigned = staged | "Assign to shards" >> beam.ParDo(assign, num_shards).with_output_types(
            tuple[int, StagedRecords]
        )
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
            | "Size of each" >> beam.Map(_payload_bytes, self._target.attributes)
            | "Size of all" >> beam.CombineGlobally(sum)
            | "Number of shards" >> beam.Map(lambda total: max(1, -(-total // DEFAULT_SHARD_BYTES)))
        )


def _payload_bytes(staged: StagedRecords, attributes: pa.Schema) -> int:
    return pc.sum(staged.batch(attributes).column("length")).as_py()
