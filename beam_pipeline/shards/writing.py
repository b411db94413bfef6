"""Sharded files whose bytes do not depend on the runner: group by shard, write, rename.

  | StagedRecords                 shard = hash(key)
  v  "Group by shard"
  | (shard, [StagedRecords])
  v  WriteShard                   sorts by key if ordered, writes one file
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
from beam_pipeline.shards.staging import ArrivingRecords, ShardRecords, StagedRecords
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, local_copies, move_files

DEFAULT_SHARD_BYTES = 256 << 20


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
    schema: pa.Schema  # of `table`; shard, position and num_bytes are written before it
    # The lines of a shard, given its records' attributes in order; may raise to refuse them.
    table: Callable[[pa.Table], pa.Table]

    @property
    def full_schema(self) -> pa.Schema:
        own = [("shard", pa.int32()), ("position", pa.int64()), ("num_bytes", pa.int64())]
        return pa.schema([*own, *self.schema])


@dataclass(frozen=True)
class ShardTarget:
    """The files to write; `shard_path` joins prefix, template and suffix."""

    prefix: str
    suffix: str
    shard_name_template: str
    open_writer: Callable[[str], RecordWriter]  # creates a local file, given its path
    temp_folder: str  # for this write alone, on the filesystem of `prefix`
    attributes: pa.Schema = field(default_factory=lambda: pa.schema([]))  # of each record
    index: RecordIndex | None = None
    # Turns staged payloads and their attributes into records, if payloads are not the records. It
    # allows small payloads, and the writers share the work.
    encode: Callable[[list[bytes], pa.Table], list[bytes]] | None = None
    guard: Callable[[], None] | None = None  # called before files get final names; may raise
    # If False, records are written as they arrive, one batch in memory at a time; all must be
    # inline, and there is no index.
    ordered: bool = True


def shard_path(prefix: str, template: str, suffix: str, shard: int, num_shards: int) -> str:
    """Returns the path of a shard: runs of S and N in `template` become its numbers."""
    numbers = {"S": shard, "N": num_shards}
    name = re.sub(r"S+|N+", lambda run: f"{numbers[run[0][0]]:0{len(run[0])}d}", template)
    return f"{prefix}{name}{suffix}"


class AssignToShards(beam.DoFn):
    """StagedRecords → (shard, StagedRecords); the attribute `chosen_by` is a record's target."""

    def __init__(self, attributes: pa.Schema, chosen_by: str | None = None):
        self._attributes = attributes
        self._chosen_by = chosen_by
        self._grouped_bytes = counter("grouped_by_shard_bytes")

    def process(
        self, staged: StagedRecords, num_shards: Sequence[int]
    ) -> Iterator[tuple[int, StagedRecords]]:
        batch = staged.batch(self._attributes)
        keys, firsts = batch.column("key").to_pylist(), first_shards(num_shards)
        targets = batch.column(self._chosen_by).to_pylist() if self._chosen_by else [0] * len(keys)
        shards = np.array(
            [
                firsts[target] + shard_of(key, num_shards[target])
                for key, target in zip(keys, targets, strict=True)
            ]
        )
        order = np.argsort(shards, kind="stable")
        batch = batch.take(pa.array(order))
        starts = [0, *(np.flatnonzero(np.diff(shards[order])) + 1).tolist(), len(shards)]
        # The largest first: Beam's in-memory runner assigns keys to workers in order of appearance.
        sizes = np.add.reduceat(batch.column("length").to_numpy(), starts[:-1])
        for at in np.argsort(-sizes, kind="stable").tolist():
            start, end = starts[at : at + 2]
            part = StagedRecords.of(staged.path, batch.slice(start, end - start))
            self._grouped_bytes.inc(len(part.path) + len(part.columns))
            yield int(shards[order[start]]), part


def first_shards(num_shards: Sequence[int]) -> list[int]:
    """Returns the number of each target's first shard, and the number of all shards."""
    return np.cumsum([0, *num_shards]).tolist()


class WriteShard(beam.DoFn):
    """(shard, [StagedRecords]) → WrittenShard: one file of records."""

    def __init__(self, targets: Sequence[ShardTarget]):
        self._targets = targets
        self._records, self._record_bytes = counter("records_written"), distribution("record_bytes")
        self._shards, self._bytes = counter("shards_written"), counter("bytes_written")

    def setup(self) -> None:
        self._reader = ClaimReader()

    def finish_bundle(self) -> None:
        self._reader.close()

    def process(
        self, element: tuple[int, Iterable[StagedRecords]], num_shards: Sequence[int]
    ) -> Iterator[WrittenShard]:
        number, staged = element
        firsts = first_shards(num_shards)
        at = bisect.bisect_right(firsts, number) - 1
        target, shard = self._targets[at], number - firsts[at]
        with logged("Write shard", prefix=target.prefix, shard=shard):
            arrange = ShardRecords if target.ordered else ArrivingRecords
            records = arrange(staged, target.attributes, self._reader)
            yield WrittenShard(at, *self._write_shard(target, shard, num_shards[at], records))

    def _write_shard(
        self,
        target: ShardTarget,
        shard: int,
        num_shards: int,
        records: ShardRecords | ArrivingRecords,
    ) -> tuple[str, str | None, ShardInfo]:
        """Returns a shard's temporary path, the path of its index lines, and its description."""
        final_path = shard_path(
            target.prefix, target.shard_name_template, target.suffix, shard, num_shards
        )
        temporary_path = files.unique_path(target.temp_folder, FileSystems.split(final_path)[1])
        lines, index_path = None, None
        if target.index and isinstance(records, ShardRecords):
            # Before any payload is read, since it may refuse the records.
            lines = target.index.table(records.attributes)
        record_bytes, digests = self._write(target, temporary_path, records)
        if target.index and lines is not None:
            index_path = files.unique_path(target.temp_folder, f"index-{shard:05d}")
            _write_index(index_path, target.index.full_schema, shard, record_bytes, lines)
        self._records.inc(len(record_bytes))
        self._shards.inc()
        self._bytes.inc(digests.num_bytes)
        info = ShardInfo(final_path, shard, num_shards, len(record_bytes), *digests)
        return temporary_path, index_path, info

    def _write(
        self, target: ShardTarget, path: str, records: ShardRecords | ArrivingRecords
    ) -> tuple[list[int], files.Digests]:
        """Returns the size of each record and the digests of the file."""
        record_bytes: list[int] = []

        def batches() -> Iterator[list[bytes]]:
            for batch, attributes in records.payload_batches():
                if target.encode:
                    batch = target.encode(batch, attributes)
                record_bytes.extend(map(len, batch))
                yield batch

        with files.local_file(path) as local_path:
            write_records(path, local_path, target.open_writer, batches())
            for size in record_bytes:
                self._record_bytes.update(size)
            return record_bytes, files.file_digests(local_path)


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


def _write_index(
    path: str, schema: pa.Schema, shard: int, record_bytes: list[int], lines: pa.Table
) -> None:
    place = [[shard] * len(record_bytes), range(len(record_bytes)), record_bytes]
    own = [pa.array(values, dtype) for values, dtype in zip(place, schema.types, strict=False)]
    with explained_os_errors("write", path), files.create_file(path) as file:
        pq.write_table(pa.Table.from_arrays([*own, *lines.columns], schema=schema), file)


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
    """StagedRecords → ShardInfo, one per complete file with its final name.

    Args:
      targets: one, or several with the same attributes.
      num_shards: of one target, or 0 for shards of about DEFAULT_SHARD_BYTES; for several, a
        PCollection of a list with the number of each.
      chosen_by: the attribute with the index of a record's target, if there are several.
    """

    def __init__(
        self,
        *targets: ShardTarget,
        num_shards: int | beam.PCollection = 0,
        chosen_by: str | None = None,
    ):
        super().__init__()
        self._targets = targets
        self._num_shards = num_shards
        self._chosen_by = chosen_by

    def expand(self, staged: beam.PCollection) -> Any:
        impulse = staged.pipeline | "Start" >> beam.Impulse()
        num_shards = beam.pvalue.AsSingleton(self._counted_shards(staged))
        assign = AssignToShards(self._targets[0].attributes, self._chosen_by)
        assigned = staged | "Assign to shards" >> beam.ParDo(assign, num_shards).with_output_types(
            tuple[int, StagedRecords]
        )
        # Empty shards come last: a runner may assign in order, see AssignToShards.
        none = assigned | "Await assigned" >> beam.Filter(lambda _: False)
        every_shard = impulse | "Every shard" >> beam.FlatMap(
            lambda _, counts, none: [
                (shard, StagedRecords("", b"")) for shard in range(sum(counts))
            ],
            num_shards,
            beam.pvalue.AsIter(none),
        ).with_output_types(tuple[int, StagedRecords])
        written = (
            (assigned, every_shard)
            | "With empty shards" >> beam.Flatten()
            | "Group by shard" >> beam.GroupByKey()
            | "Write shard" >> beam.ParDo(WriteShard(self._targets), num_shards)
        )
        return impulse | "Rename shards" >> beam.ParDo(
            Finalise(self._targets), beam.pvalue.AsList(written)
        )

    def _counted_shards(self, staged: beam.PCollection) -> Any:
        if isinstance(self._num_shards, beam.PCollection):
            return self._num_shards
        if self._num_shards:
            return staged.pipeline | "Number of shards" >> beam.Create([[self._num_shards]])
        return (
            staged
            | "Size of each" >> beam.Map(_payload_bytes, self._targets[0].attributes)
            | "Size of all" >> beam.CombineGlobally(sum)
            | "Number of shards"
            >> beam.Map(lambda total: [max(1, -(-total // DEFAULT_SHARD_BYTES))])
        )


def _payload_bytes(staged: StagedRecords, attributes: pa.Schema) -> int:
    return pc.sum(staged.batch(attributes).column("length")).as_py()
