"""The column cache: rows as compact columns in one memory-mapped file on a local disk.

Decompressing and copying a row of 8 MiB for a handful of contexts costs far more than drawing
them. The cache is filled once from the shards; then a context touches only the pages that its
measurements lie in, and the processes of a host share them.

  CACHE_DIR/train-a1b2c3d4e5f60718/columns           every row at an offset that follows from
                                                     rows.parquet
                                   shard_00007.json  written when that shard is cached: the rows
                                                     that cannot be used

The file has the length of the whole split but is sparse: a host fills only the shards that its
lanes draw from. Every shard is checked against the manifest while it is read. A shard counts as
cached once its JSON file exists, so a fill that is killed resumes where it was.
"""

import itertools
import os
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.storage.files import checksum_text, locked, size_and_checksum, write_file
from training.batches.config import DataConfig
from training.batches.lanes import Plan
from training.batches.packing import Crops, RowBytes, draw_large, pack_small
from training.batches.planning import HostPlan
from training.rows.row_layout import COMPACT, ranks_bytes, to_compact
from training.rows.row_source import BadRowError, ShardReader
from training.rows.row_table import RowTable, ShardSet
from training.tokens.draws import Scratch, new_scratch

_COLUMNS_NAME = "columns"


def row_offsets(rows: RowTable) -> np.ndarray:
    """Returns where each row lies in the file, and the file's length: int64 [rows + 1]."""
    n, num_ipv6 = rows.n_measurements.astype(np.int64), rows.num_ipv6.astype(np.int64)
    sizes = row_codec.compact_measurements_bytes(n, num_ipv6) + ranks_bytes(n, num_ipv6)
    return np.concatenate([[0], np.cumsum((sizes + 7) // 8 * 8)])


class ColumnCache:
    """The cached columns of a set of shards.

    Args:
      cache_dir: a folder on a local disk; made if it does not exist.
      reader: of all rows of the shards.

    Attributes:
      offsets: `row_offsets` of those rows.

    Raises:
      ProbelineError: the folder cannot be written.
    """

    def __init__(self, cache_dir: str, reader: ShardReader):
        if "://" in cache_dir:
            raise UsageError(f"cache_dir is {cache_dir}: it must be a folder on a local disk")
        self._reader = reader
        self.offsets = row_offsets(reader.rows)
        self._folder = Path(cache_dir) / f"{reader.shards.split}-{reader.shards.fingerprint}"
        self._path = self._folder / _COLUMNS_NAME
        with explained_os_errors("write", cache_dir):
            self._folder.mkdir(parents=True, exist_ok=True)
            with locked(f"{self._path}.lock"), open(self._path, "ab") as file:
                if os.fstat(file.fileno()).st_size != self.offsets[-1]:
                    for note in self._folder.glob("shard_*.json"):
                        note.unlink()  # the columns it describes were removed with the file
                    file.truncate(int(self.offsets[-1]))

    def fill(
        self, shards: np.ndarray, skip_bad_rows: bool, executor: Executor | None = None
    ) -> dict[int, str]:
        """Caches those of the shards, by number, that no process has cached yet.

        Returns:
          The rows of all these shards that cannot be used, and why.

        Raises:
          ProbelineError: a shard is not what the manifest says, or the disk has no room.
          BadRowError: a row cannot be used, and such rows are not to be skipped.
        """
        notes = {shard: self._folder / f"shard_{shard:05d}.json" for shard in shards.tolist()}
        missing = [shard for shard, note in notes.items() if not note.exists()]
        self._check_room(missing)

        def fill_one(shard: int) -> None:
            self._fill_shard(shard, notes[shard], skip_bad_rows)

        list((executor.map if executor else map)(fill_one, missing))
        found = [orjson.loads(note.read_bytes())["bad_rows"] for note in notes.values()]
        bad_rows: dict[int, str] = dict(itertools.chain.from_iterable(found))
        if bad_rows and not skip_bad_rows:
            raise BadRowError(next(iter(bad_rows.values())))
        return bad_rows

    def open(self) -> np.ndarray:
        """Returns the mapped file, uint8 and read-only."""
        if self.offsets[-1] == 0:
            return np.frombuffer(b"", np.uint8)
        return np.asarray(np.memmap(self._path, np.uint8, "r"))

    def _rows(self, shard: int) -> range:
        return range(*np.searchsorted(self._reader.rows.shard, [shard, shard + 1]).tolist())

    def _check_room(self, missing: list[int]) -> None:
        rows = [self._rows(shard) for shard in missing]
        needed = sum(int(self.offsets[each.stop] - self.offsets[each.start]) for each in rows)
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize
        if needed > free:
            raise ProbelineError(
                f"the cache needs {needed / 1e9:.1f} GB in {self._folder}, {free / 1e9:.1f} GB "
                "are free: choose a cache_dir on a larger disk, or share the data among more hosts"
            )

    def _fill_shard(self, shard: int, note: Path, skip_bad_rows: bool) -> None:
        with (
            explained_os_errors("write", str(self._folder)),
            locked(str(note.with_suffix(".lock"))),
        ):
            if note.exists():
                return  # another process has filled it meanwhile
            _check_shard(self._reader.shards, shard)
            bad_rows = []
            with open(self._path, "r+b") as file:
                for row in self._rows(shard):
                    try:
                        file.seek(int(self.offsets[row]))
                        file.write(self._compact(row))
                    except BadRowError as error:
                        if not skip_bad_rows:
                            raise
                        bad_rows.append([row, str(error)])
                file.flush()
                os.fsync(file.fileno())
            write_file(str(note), orjson.dumps({"bad_rows": bad_rows}))

    def _compact(self, row: int) -> np.ndarray:
        """Returns a row's compact measurements and their ranks, checked against rows.parquet."""
        record = self._reader.read(row)
        try:
            columns = self._reader.locate_in(row, record).columns
            if columns.layout.kind != COMPACT:
                columns = to_compact(row_codec.decode_record(record).run)
        except ValueError as error:
            raise self._reader.bad_row(row, str(error)) from error
        rows, (raw, layout) = self._reader.rows, columns
        expected = (int(rows.num_ipv6[row]), int(rows.first_second[row]))
        if (found := (layout.num_ipv6, layout.first_second)) != expected:
            raise self._reader.bad_row(
                row, f"it has (num_ipv6, first second) {found}, rows.parquet says {expected}"
            )
        num, num_ipv6 = np.array(layout.num_measurements), np.array(layout.num_ipv6)
        begin = layout.times - row_codec.COMPACT_HEADER.size
        return raw[begin : layout.ranks + int(ranks_bytes(num, num_ipv6))]


def _check_shard(shards: ShardSet, number: int) -> None:
    """Raises ProbelineError if the checksum of a local shard is not the manifest's.

    A shard on GCS was compared already, see `row_source.check_shards`.
    """
    path, shard = shards.path(number), shards.shards[number]
    if "://" in path:
        return
    with explained_os_errors("read", path):
        found = checksum_text(size_and_checksum(path)[1])
    if found != shard.crc32c:
        raise ProbelineError(
            f"{path} has checksum {found}, the manifest says {shard.crc32c}: copy the dataset "
            "again as a whole"
        )


class CacheStore:
    """Feeds lanes from the column cache; stands in for `shard_store.ShardStore`.

    Args:
      reader: of all rows of the shards.
      executor: reads shards and draws crops in parallel, if given.
    """

    def __init__(
        self,
        config: DataConfig,
        reader: ShardReader,
        host: HostPlan,
        executor: Executor | None,
    ):
        rows, plan, skips = host.rows, host.plan, config.on_bad_row == "skip"
        cache = ColumnCache(config.cache_dir or "", reader)
        bad_rows = cache.fill(np.unique(reader.rows.shard[rows]), skips, executor)
        plan.is_bad[:] = np.isin(rows, list(bad_rows))
        self.bad_rows = [reader.describe(row, bad_rows[row]) for row in rows[plan.is_bad].tolist()]
        own = reader.rows.take(rows)
        nothing = np.zeros(0, np.int32)
        self._row_bytes = RowBytes(
            raw=cache.open(),
            slots=nothing,
            starts=nothing.astype(np.int64),
            layouts=np.zeros((0, 0), np.int64),
            offsets=cache.offsets[rows],
            num_measurements=own.n_measurements,
            num_ipv6=own.num_ipv6,
            first_second=own.first_second,
        )
        largest = int(own.n_measurements[plan.small_rows].max(initial=0))
        num_lanes = len(plan.lane)
        num_parts = min(num_lanes, config.num_threads) if executor else 1
        bounds = [num_lanes * part // num_parts for part in range(num_parts + 1)]
        self._map = executor.map if executor and num_parts > 1 else map
        self._parts = [
            _Part(lanes, plan.of_lanes(lanes), new_scratch(plan.drawing.num_tokens, largest))
            for lanes in (slice(*ends) for ends in itertools.pairwise(bounds))
        ]

    def load(self, items: np.ndarray, cursors: np.ndarray) -> bool:
        """Does nothing: all rows are cached."""
        return True

    def fill(self, items: np.ndarray, cursors: np.ndarray, crops: Crops) -> None:
        """Draws the crops, and moves the cursors of packed ones."""

        def draw(part: "_Part") -> None:
            lanes, plan, scratch = part
            own, own_crops = items[lanes], Crops(*(values[lanes] for values in crops))
            draw_large(plan, own, self._row_bytes, own_crops, scratch)
            pack_small(plan, cursors[lanes], own, self._row_bytes, own_crops, scratch)

        for _ in self._map(draw, self._parts):
            pass


class _Part(NamedTuple):
    """Some of the lanes, with what one thread needs to draw for them."""

    lanes: slice
    plan: Plan
    scratch: Scratch
