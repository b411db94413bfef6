"""The column cache: rows as compact columns in one memory-mapped file on a local disk.

Decompressing and copying a row of 8 MiB for a handful of contexts costs far more than drawing
them. The cache is filled once from the shards; then a context touches only the pages that its
measurements lie in, and the processes of a host share them.

  CACHE_DIR/train-a1b2c3d4e5f60718/columns      every row at an offset that rows.parquet gives
                                    shard_00007.json   that shard is there; what is wrong in it

The file is as long as the whole split would be but sparse: a host fills only the shards that its
lanes draw from. Every shard is checked against the manifest while it is read. It appears at once,
when its JSON file does, so a fill that is killed goes on where it was.
"""

import contextlib
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
from training.batches.lanes import Plan
from training.batches.packing import Crops, RowBytes, draw_large, pack_small
from training.rows.row_layout import COMPACT, LAYOUT, ranks_bytes, to_compact
from training.rows.row_source import BadRowError, ShardReader
from training.rows.row_table import RowTable, ShardSet
from training.tokens.contexts import Scratch, new_scratch

_COLUMNS_NAME = "columns"


def offsets_of(rows: RowTable) -> np.ndarray:
    """Returns where each row lies in the file, and the file's length: int64 [rows + 1]."""
    n, num_ipv6 = rows.n_measurements.astype(np.int64), rows.num_ipv6.astype(np.int64)
    sizes = row_codec.compact_measurements_bytes(n, num_ipv6) + ranks_bytes(n, num_ipv6)
    return np.concatenate([[0], np.cumsum((sizes + 7) // 8 * 8)])


class ColumnCache:
    """The cached columns of a set of shards.

    Args:
      cache_dir: a folder on a local disk; made if it is not there.
      reader: of all rows of the shards.

    Raises:
      ProbelineError: the folder cannot be written.
    """

    def __init__(self, cache_dir: str, reader: ShardReader):
        if "://" in cache_dir:
            raise UsageError(f"cache_dir is {cache_dir}: it must be a folder on a local disk")
        self._reader = reader
        self._offsets = offsets_of(reader.rows)
        self._folder = Path(cache_dir) / f"{reader.shards.split}-{reader.shards.fingerprint}"
        self._path = self._folder / _COLUMNS_NAME
        with explained_os_errors("write", cache_dir):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_file(int(self._offsets[-1]))

    def _make_file(self, num_bytes: int) -> None:
        with locked(f"{self._path}.lock"), open(self._path, "ab") as file:
            if os.fstat(file.fileno()).st_size != num_bytes:
                for note in self._folder.glob("shard_*.json"):
                    note.unlink()  # what it tells of was removed with the file
                file.truncate(num_bytes)

    def fill(self, shards: np.ndarray, skip_bad_rows: bool, executor: Executor | None) -> None:
        """Sees to it that these shards, by number, are cached; other processes may do the same.

        Raises:
          ProbelineError: a shard is not what the manifest says, or there is no room.
          BadRowError: a row cannot be used, and such rows are not to be skipped.
        """
        missing = [int(shard) for shard in shards if self._note(int(shard)) is None]
        self._check_room(missing)
        for _ in (executor.map if executor else map)(
            lambda shard: self._fill_shard(shard, skip_bad_rows), missing
        ):
            pass
        for shard in shards:
            bad_rows = (self._note(int(shard)) or {}).get("bad_rows", [])
            if bad_rows and not skip_bad_rows:
                raise BadRowError(bad_rows[0][1])

    def bad_rows(self, shards: np.ndarray) -> dict[int, str]:
        """Returns the rows of cached shards that cannot be used, and why."""
        found = ((self._note(int(shard)) or {}).get("bad_rows", []) for shard in shards)
        return {row: reason for rows in found for row, reason in rows}

    def open(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mapped file, uint8 and read-only, and the offsets of the rows in it."""
        if self._offsets[-1] == 0:
            nothing = np.zeros(0, np.uint8)
            nothing.flags.writeable = False
            return nothing, self._offsets
        return np.asarray(np.memmap(self._path, np.uint8, "r")), self._offsets

    def _note_path(self, shard: int) -> Path:
        return self._folder / f"shard_{shard:05d}.json"

    def _note(self, shard: int) -> dict | None:
        with contextlib.suppress(FileNotFoundError):
            return orjson.loads(self._note_path(shard).read_bytes())
        return None

    def _rows_of(self, shard: int) -> range:
        begin, end = np.searchsorted(self._reader.rows.shard, [shard, shard + 1])
        return range(int(begin), int(end))

    def _check_room(self, missing: list[int]) -> None:
        parts = [self._rows_of(shard) for shard in missing]
        needed = sum(int(self._offsets[part.stop] - self._offsets[part.start]) for part in parts)
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize
        if needed > free:
            raise ProbelineError(
                f"the cache needs {needed / 1e9:.1f} GB in {self._folder}, {free / 1e9:.1f} GB "
                "are free: choose a cache_dir on a larger disk, or share the data among more hosts"
            )

    def _fill_shard(self, shard: int, skip_bad_rows: bool) -> None:
        with (
            explained_os_errors("write", str(self._folder)),
            locked(f"{self._folder}/shard_{shard:05d}.lock"),
        ):
            if self._note(shard) is not None:
                return  # another process has done it meanwhile
            _check_shard(self._reader.shards, shard)
            bad_rows = []
            with open(self._path, "r+b") as file:
                for row in self._rows_of(shard):
                    try:
                        file.seek(int(self._offsets[row]))
                        file.write(self._compact(row))
                    except BadRowError as error:
                        if not skip_bad_rows:
                            raise
                        bad_rows.append([row, str(error)])
                file.flush()
                os.fsync(file.fileno())
            write_file(str(self._note_path(shard)), orjson.dumps({"bad_rows": bad_rows}))

    def _compact(self, row: int) -> bytes:
        """Returns a row's compact measurements and their ranks."""
        record = self._reader.read(row)
        try:
            raw, layout = self._reader.locate_in(row, record)[-2:]
            if layout[0] != COMPACT:
                raw, layout = to_compact(row_codec.decode_record(record).run)
        except ValueError as error:
            raise self._reader.bad_row(row, str(error)) from error
        times, end = layout[4], layout[9]
        columns = raw[times - row_codec.COMPACT_HEADER.size : end + self._ranks_bytes(row)]
        return self._checked(row, columns, layout)

    def _ranks_bytes(self, row: int) -> int:
        rows = self._reader.rows
        return int(ranks_bytes(rows.n_measurements[row : row + 1], rows.num_ipv6[row : row + 1])[0])

    def _checked(self, row: int, columns: bytes, layout: tuple[int, ...]) -> bytes:
        """Returns the bytes if all that is left out of the file is as rows.parquet has it."""
        rows = self._reader.rows
        found = (layout[2], layout[3])
        expected = (int(rows.num_ipv6[row]), int(rows.first_second[row]))
        if found == expected:
            return columns
        raise self._reader.bad_row(
            row, f"it has (num_ipv6, first second) {found}, rows.parquet says {expected}"
        )


def _check_shard(shards: ShardSet, number: int) -> None:
    """Raises ProbelineError if a local shard has not the manifest's checksum.

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
      rows: the numbers, among those, of the rows that `plan` counts in.
      skip_bad_rows: leave rows that cannot be used out.
      executor: draws for some of the lanes each, if given.
      num_parts: in how many parts the lanes are then drawn.
    """

    def __init__(
        self,
        cache_dir: str,
        reader: ShardReader,
        rows: np.ndarray,
        plan: Plan,
        skip_bad_rows: bool,
        executor: Executor | None,
        num_parts: int,
    ):
        cache = ColumnCache(cache_dir, reader)
        shards = np.unique(reader.rows.shard[rows])
        cache.fill(shards, skip_bad_rows, executor)
        bad_rows = cache.bad_rows(shards)
        plan.is_bad[:] = np.isin(rows, list(bad_rows))
        self.bad_rows = [reader.describe(row, bad_rows[row]) for row in rows[plan.is_bad].tolist()]
        raw, offsets = cache.open()
        own = reader.rows.take(rows)
        most = int(own.n_measurements[plan.small_rows].max(initial=0))
        num_lanes = len(plan.lane)
        num_parts = min(num_lanes, num_parts) if executor else 1
        bounds = [num_lanes * part // num_parts for part in range(num_parts + 1)]
        self._map = executor.map if executor and num_parts > 1 else map
        self._parts = [
            _Part(
                lanes,
                _plan_of(plan, lanes),
                RowBytes(
                    raw,
                    np.zeros(1, LAYOUT),
                    np.zeros(0, np.int32),
                    offsets[rows],
                    own.n_measurements,
                    own.num_ipv6,
                    own.first_second,
                ),
                new_scratch(plan.drawing.num_tokens, most),
            )
            for lanes in (slice(*ends) for ends in itertools.pairwise(bounds))
        ]

    def load(self, units: np.ndarray, cursors: np.ndarray) -> bool:
        """Has nothing to do: all rows are there."""
        return True

    def fill(self, units: np.ndarray, cursors: np.ndarray, crops: Crops) -> None:
        """Draws the crops, and moves the cursors of packed ones."""

        def draw(part: "_Part") -> None:
            lanes = part.lanes
            own_crops = Crops(*(values[lanes] for values in crops))
            draw_large(part.plan, units[lanes], part.row_bytes, own_crops, part.scratch)
            pack_small(
                part.plan, cursors[lanes], units[lanes], part.row_bytes, own_crops, part.scratch
            )

        for _ in self._map(draw, self._parts):
            pass


class _Part(NamedTuple):
    """Some of the lanes, and what drawing for them takes; each is drawn by one thread."""

    lanes: slice
    plan: Plan
    row_bytes: RowBytes
    scratch: Scratch


def _plan_of(plan: Plan, lanes: slice) -> Plan:
    names = ("lane", "large_begin", "large_end", "visits_begin", "visits_end")
    names += ("small_begin", "small_end")
    return plan._replace(**{name: getattr(plan, name)[lanes] for name in names})
