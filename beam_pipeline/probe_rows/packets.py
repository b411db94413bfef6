"""Packets: rows on their way from the sorted buckets to the shards.

A packet holds about a thousand short rows of one split, or one long row. Its element is small and
travels through the shuffle; its measurements, and the list of its rows, are stored.

  Packet   first and last place, counts | list of rows | measurements, one row after another
             element                        ROW [r]        NARROW or WIDE [n]

The rows of a packet ascend by place, and so do the ranges of places of a bucket's packets. A shard
thus needs few packets, those that meet its range, and takes its own rows from each (`ShardRows`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.layout import ROW_BYTES, DatasetOptions, RowFormat, halves
from beam_pipeline.dataset.placement import places, probe_hashes, range_of, splits, src_ids
from beam_pipeline.dataset.row_codec import is_ipv6
from beam_pipeline.dataset.row_encoder import RowKeys, encode_rows
from beam_pipeline.dataset.row_index import INDEX_SCHEMA
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.jobs.messages import Message
from beam_pipeline.kernels import kernel
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, Payload, StoredPayload
from beam_pipeline.shards.staging import bounds_within
from beam_pipeline.storage.files import crc32c

ROW = np.dtype([("src_hi", "<u8"), ("src_lo", "<u8"), ("row_index", "<i4"), ("count", "<i4")])
_MAX_ROWS, _MAX_BYTES = 1000, 4 << 20  # of a packet of several rows
_BATCH_BYTES = 4 << 20  # of measurements that are read and encoded together
# The columns of rows.parquet that do not depend on the shard.
LINE_SCHEMA = pa.schema(list(INDEX_SCHEMA)[3:])


class Packet(Message, frozen=True):
    """Rows of one split, in order of their places; shards are sized by `num_bytes`."""

    split: int
    first: int  # place of the first row
    last: int
    num_probes: int  # first rows
    num_rows: int
    num_bytes: int
    is_wide: bool
    rows: Payload  # ROW [num_rows]
    run: Payload  # NARROW or WIDE


class PacketWriter:
    """Writes rows to packets in one file; they may be emitted after `close`."""

    def __init__(self, workspace: Workspace, options: DatasetOptions):
        self._file = ClaimWriter(workspace.below("packets"), "packets", root=workspace.folder)
        self._inline_bytes = workspace.inline_bytes
        self._train_ratio, self._split_seed = options.train_ratio, options.split_seed
        self._packets: list[Packet] = []

    def add(self, rows: np.ndarray, run: np.ndarray) -> None:
        """Adds rows, ROW [r], whose measurements are adjacent in a run.

        First rows ascend by place. A later row has a packet of its own.
        """
        split_numbers = splits(*_halves(rows), self._train_ratio, self._split_seed)
        hashes = _hashes(rows)
        ends = np.cumsum(rows["count"], dtype=np.int64)
        is_first = rows["row_index"] == 0
        for split in np.unique(split_numbers[is_first]).tolist():
            of_split = np.flatnonzero(is_first & (split_numbers == split))
            sizes = rows["count"][of_split] * run.itemsize
            for bounds in bounds_within(sizes, _MAX_BYTES, _MAX_ROWS):
                some = of_split[slice(*bounds)]
                counts = rows["count"][some]
                own = _gather({0: run}, np.zeros(len(some), int), ends[some] - counts, counts)
                self._put(split, rows[some], hashes[some], own)
        for row in np.flatnonzero(~is_first).tolist():
            place = places(hashes[row : row + 1], rows["row_index"][row : row + 1])
            its_run = run[ends[row] - rows["count"][row] : ends[row]]
            self._put(int(split_numbers[row]), rows[row : row + 1], place, its_run)

    def add_row(
        self, src_addr: str, row_index: int, run: np.ndarray, stored: StoredPayload | None = None
    ) -> None:
        """Adds a packet of one row; `stored` is where its measurements are, if they are stored."""
        row = np.array([(*halves(src_addr), row_index, len(run))], ROW)
        (split,) = splits(*_halves(row), self._train_ratio, self._split_seed).tolist()
        self._put(split, row, places(_hashes(row), row["row_index"]), run, stored)

    def _put(
        self,
        split: int,
        rows: np.ndarray,
        its_places: np.ndarray,
        run: np.ndarray,
        stored: StoredPayload | None = None,
    ) -> None:
        data = memoryview(np.ascontiguousarray(run).view(np.uint8))
        listed = rows.tobytes()
        is_inline = len(listed) + len(data) <= self._inline_bytes
        if stored:
            stored = msgspec.structs.replace(stored, crc32c=crc32c(data))
        self._packets.append(
            Packet(
                split,
                int(its_places[0]),
                int(its_places[-1]),
                int(np.count_nonzero(rows["row_index"] == 0)),
                len(rows),
                # Per measurement: whether a run is wide may depend on how it was cut.
                ROW_BYTES * len(rows)
                + NARROW.itemsize * len(run)
                + (WIDE.itemsize - NARROW.itemsize) * int(np.count_nonzero(is_ipv6(run))),
                run.dtype == WIDE,
                listed if is_inline or len(rows) == 1 else self._file.put(listed),
                bytes(data) if is_inline else stored or self._file.put(data),
            )
        )

    def close(self) -> list[Packet]:
        """Closes the file and returns the packets."""
        self._file.close()
        return self._packets


def _hashes(rows: np.ndarray) -> np.ndarray:
    """Returns the hash of each row's probe, uint64 [r]."""
    return probe_hashes(*_halves(rows))


def _halves(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the halves of each row's address; kernels are compiled for contiguous arrays."""
    return np.ascontiguousarray(rows["src_hi"]), np.ascontiguousarray(rows["src_lo"])


def _gather(
    runs: Mapping[int, np.ndarray], of_run: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Returns the records of rows of several runs of one kind, one row after another."""
    ends = np.cumsum(counts, dtype=np.int64)
    at, numbers = ends - counts, np.unique(of_run).tolist()
    if len(numbers) == 1 and (starts - starts[0] == at).all():
        return runs[numbers[0]][starts[0] : starts[0] + ends[-1]]
    dtype = runs[numbers[0]].dtype
    gathered = np.empty(ends[-1], dtype)
    for number in numbers:
        own = np.flatnonzero(of_run == number)
        # As words, so that the kernel needs no version for each kind.
        words = runs[number].view(np.uint32), gathered.view(np.uint32)
        _copy_words(*words, starts[own], counts[own], at[own], dtype.itemsize // 4)
    return gathered


@kernel
def _copy_words(words, out, starts, counts, starts_out, num_words):
    """Copies records of `num_words` words: those of each row, from their start to another."""
    for row in range(len(starts)):
        source, target = words[starts[row] * num_words :], out[starts_out[row] * num_words :]
        for i in range(counts[row] * num_words):
            target[i] = source[i]


# --- the shards -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PacketShards:
    """How packets become shards: the `ShardInput` of probe rows."""

    row_format: RowFormat
    root: str  # of claims
    nothing = Packet(0, 0, 0, 0, 0, 0, False, b"", b"")

    def assign(
        self, packet: Packet, num_shards: Sequence[int]
    ) -> Iterator[tuple[int, int, Packet]]:
        """Yields (split, shard, packet) for each shard whose range the packet meets."""
        ends = np.array([packet.first, packet.last], np.uint64)
        first, last = range_of(ends, num_shards[packet.split]).tolist()
        for shard in range(first, last + 1):
            yield packet.split, shard, packet

    def content(
        self, packets: Iterable[Packet], shard: int, num_shards: int, reader: ClaimReader
    ) -> "ShardRows":
        """Returns the rows of a shard."""
        return ShardRows(packets, shard, num_shards, self.row_format, reader)


class Encoded(NamedTuple):
    """Some records of a shard with their lines of the index."""

    records: list[bytes]
    lines: pa.RecordBatch  # of LINE_SCHEMA


class ShardRows:
    """The rows of a shard, in order; memory: some 60 bytes per row and a few packets."""

    def __init__(
        self,
        packets: Iterable[Packet],
        shard: int,
        num_shards: int,
        row_format: RowFormat,
        reader: ClaimReader,
    ):
        self._row_format = row_format
        self._reader = reader
        own = (packet for packet in packets if packet.num_rows)
        self._packets = sorted(own, key=lambda packet: (packet.first, packet.last))
        waits = [reader.prefetch(packet.rows) for packet in self._packets]
        tables = [np.frombuffer(wait(), ROW) for wait in waits]
        rows = np.concatenate([np.empty(0, ROW), *tables])
        counts = rows["count"].astype(np.int64)
        starts = np.cumsum(counts) - counts  # in the whole of all packets' runs
        bounds = np.cumsum([0, *map(len, tables)])
        of_packet = np.repeat(np.arange(len(tables), dtype=np.int32), np.diff(bounds))
        # As places in their own packet.
        starts -= np.append(starts, 0)[bounds[:-1]][of_packet] if len(rows) else 0
        row_places = places(_hashes(rows), rows["row_index"])
        here = np.flatnonzero(range_of(row_places, num_shards) == shard)
        ids = src_ids(rows["src_hi"][here], rows["src_lo"][here])
        order = _in_order(row_places[here], ids, rows["row_index"][here])
        here = here[order]
        self._rows, self._ids = rows[here], ids[order]
        self._starts, self._of_packet = starts[here], of_packet[here]
        self._is_wide = np.array([packet.is_wide for packet in self._packets], bool)
        self._open: dict[int, Callable[[], bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self) -> Iterator[Encoded]:
        """Yields all rows, encoded, some MiB at a time."""
        bounds = self._batch_bounds()
        last_use = np.zeros(len(self._packets), np.int64)
        np.maximum.at(last_use, self._of_packet, np.arange(len(self)))
        runs: dict[int, np.ndarray] = {}
        for number, (start, end) in enumerate(bounds):
            for at in range(number, min(number + 2, len(bounds))):  # those of the next as well
                self._begin(*bounds[at])
            needed = np.unique(self._of_packet[start:end]).tolist()
            for packet in needed:
                if packet not in runs:
                    dtype = WIDE if self._packets[packet].is_wide else NARROW
                    # The kernels are compiled for writable arrays.
                    runs[packet] = np.frombuffer(bytearray(self._open[packet]()), dtype)
            yield self._encode(start, end, runs)
            for packet in needed:
                if last_use[packet] < end:
                    del runs[packet], self._open[packet]

    def _begin(self, start: int, end: int) -> None:
        """Begins to read the packets of some rows."""
        for packet in np.unique(self._of_packet[start:end]).tolist():
            if packet not in self._open:
                self._open[packet] = self._reader.prefetch(self._packets[packet].run)

    def _batch_bounds(self) -> list[tuple[int, int]]:
        itemsize = np.where(self._is_wide, WIDE.itemsize, NARROW.itemsize)[self._of_packet]
        sizes = self._rows["count"] * itemsize.astype(np.int64) + ROW_BYTES
        return list(bounds_within(sizes, _BATCH_BYTES))

    def _encode(self, start: int, end: int, runs: dict[int, np.ndarray]) -> Encoded:
        """Encodes rows of both kinds, one kind after the other, and puts them in order."""
        of_packet = self._of_packet[start:end]
        wide = self._is_wide[of_packet]
        kinds = [np.flatnonzero(wide == is_wide) + start for is_wide in (False, True)]
        kinds = [rows for rows in kinds if len(rows)]
        found = [self._encode_kind(rows, runs) for rows in kinds]
        if len(found) == 1:
            return found[0]
        place = np.empty(end - start, np.int64)
        place[np.concatenate(kinds) - start] = np.arange(end - start)
        records = np.empty(end - start, object)
        records[:] = [record for some in found for record in some.records]
        lines = pa.concat_batches([some.lines for some in found])
        return Encoded(records[place].tolist(), lines.take(pa.array(place)))

    def _encode_kind(self, numbers: np.ndarray, runs: dict[int, np.ndarray]) -> Encoded:
        """Encodes rows of one kind, given their numbers in the shard."""
        rows, of_packet, starts = (
            self._rows[numbers],
            self._of_packet[numbers],
            self._starts[numbers],
        )
        bounds = np.append(0, np.cumsum(rows["count"], dtype=np.int64))
        run = _gather(runs, of_packet, starts, rows["count"])
        src_addrs = format_any(*_halves(rows))
        ids, row_indexes = self._ids[numbers], rows["row_index"].astype(np.int64)
        records = encode_rows(run, bounds, RowKeys(ids, src_addrs, row_indexes), self._row_format)
        times, first = run["event_time"], bounds[:-1]
        columns = [
            ids,
            src_addrs,
            rows["row_index"],
            rows["count"],
            np.add.reduceat(is_ipv6(run), first, dtype=np.int32),
            np.add.reduceat(run["rtt"] < 0, first, dtype=np.int32),
            times[first],
            times[bounds[1:] - 1],
        ]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, LINE_SCHEMA.types)]
        return Encoded(records, pa.RecordBatch.from_arrays(arrays, schema=LINE_SCHEMA))


def _in_order(row_places: np.ndarray, ids: np.ndarray, row_indexes: np.ndarray) -> np.ndarray:
    """Returns the order by (place, src_id, row_index), int64 [n]; places are mostly in order."""
    order = np.argsort(row_places, kind="stable")
    ordered = row_places[order]
    if (ordered[1:] == ordered[:-1]).any():
        return np.lexsort([row_indexes, ids, row_places])
    return order
