"""The column cache: rows as compact columns in one memory-mapped file on a local disk.

Decompressing and copying a row of 8 MiB for a few contexts costs far more than drawing them. The
cache is filled once from the shards. A context then touches only the pages of its measurements,
and all processes of a host share them.

  CACHE_DIR/train-a1b2c3d4e5f60718/columns           every row, at an offset that follows from
                                                     rows.parquet
                                   shard_00007.json  exists once that shard is cached; lists its
                                                     unusable rows

The file is as long as the whole split requires, but sparse: a host fills only the shards of its
lanes. Every shard is compared with the manifest as it is read; one on `gs://` is first copied, with
one request. A killed fill resumes at the first shard without a JSON file.

Each row ends with its hash, which each process checks at first use. A shard with a damaged row is
cached again, with a warning, and the run continues.
"""

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.decoded_rows import UNREADABLE_RECORD, decode_together, in_batches
from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.kernels import kernel
from beam_pipeline.storage.files import (
    check_not_linked,
    checksum_text,
    is_local,
    locked,
    open_own,
    read_file,
    size_and_checksum,
    write_file,
)
from training.batches.config import DataConfig
from training.batches.lane_feed import LaneFeed
from training.batches.lanes import DONE, Plan
from training.batches.packing import Crops, draw_large, pack_small
from training.batches.planning import HostPlan
from training.raw_shards.blocks import hash_of
from training.rows.row_bytes import NO_BYTES, RowBytes
from training.rows.row_layout import COMPACT, HASH_BYTES, cached_bytes, ranks_bytes, to_compact
from training.rows.row_table import RowTable, ShardSet
from training.rows.shard_reader import BadRowError, num_threads_for
from training.tokens.draws import MIN_MEASUREMENT_TOKENS, Scratch, new_scratch

_COLUMNS = "columns"
_BLOCK_BYTES = 512  # unit of st_blocks on every file system
_LOG = logging.getLogger("training")


class CacheFeed(LaneFeed):
    """Draws crops from the column cache.

    The first process that needs a shard caches it. Raises ProbelineError if the folder cannot be
    written, a shard differs from the manifest, or the disk is too full.
    """

    def __init__(self, config: DataConfig, *args: Any):
        super().__init__(config, *args)
        rows, plan = self._reader.rows, self._plan
        self._num_threads = num_threads_for(self._reader.shards, config.num_threads)
        self._is_checked = np.zeros(len(rows), bool)
        self._num_bytes = 0
        if len(rows):
            last = rows.n_measurements[-1:], rows.num_ipv6[-1:]
            self._num_bytes = int(rows.cache_offset[-1] + cached_bytes(*last)[0])
        self._folder = self._open_folder(os.fspath(config.cache_dir or ""))
        is_used = _used_rows(plan)
        for row, reason in self._cache_shards(_shards_of(rows, is_used)).items():
            if is_used[row] or not self._skip_bad_rows:
                self._skip(row, BadRowError(reason))
        raw = NO_BYTES.raw
        if self._num_bytes:
            raw = np.asarray(np.memmap(self._folder / _COLUMNS, np.uint8, "r"))
        self._row_bytes = RowBytes(
            raw,
            offsets=rows.cache_offset,
            is_checked=self._is_checked,
            num_measurements=rows.n_measurements,
            num_ipv6=rows.num_ipv6,
            first_second=rows.first_second,
        )
        largest = plan.drawing.num_tokens // MIN_MEASUREMENT_TOKENS  # a small row fills no crop
        num_lanes = len(plan.lane)
        num_parts = max(1, min(num_lanes, config.num_threads))
        bounds = [num_lanes * part // num_parts for part in range(num_parts + 1)]
        # A part of the lanes for each thread, with its plan and scratch.
        self._parts = [
            (lanes, plan.of_lanes(lanes), new_scratch(plan.drawing.num_tokens, largest))
            for lanes in (slice(*ends) for ends in itertools.pairwise(bounds))
        ]

    def _load(self) -> None:
        """Does nothing: all rows are cached."""

    def _fill(self, crops: Crops) -> None:
        before = self.cursors.copy()
        while (row := self._draw(crops)) >= 0:
            self._cache_again(row)
            self.cursors[:] = before
            for values in crops:
                values[self._items["kind"] != DONE] = 0  # other lanes may be of another dataset

    def _draw(self, crops: Crops) -> int:
        """Draws the crops; returns a damaged row, or -1."""

        def draw(part: tuple[slice, Plan, Scratch]) -> int:
            lanes, plan, scratch = part
            items, own_crops = self._items[lanes], Crops(*(values[lanes] for values in crops))
            row = draw_large(plan, items, self._row_bytes, own_crops, scratch)
            if row >= 0:
                return row
            return pack_small(plan, self.cursors[lanes], items, self._row_bytes, own_crops, scratch)

        return max((self._map if len(self._parts) > 1 else map)(draw, self._parts))

    def _cache_again(self, row: int) -> None:
        """Caches the shard of a damaged row again; other processes may do so, or use it."""
        shard, _ = self._reader.rows.place(row)
        columns, path = self._folder / _COLUMNS, self._reader.shards.path(shard)
        _LOG.warning("%s is damaged: caching %s again", columns, path)
        self._note(shard).unlink(missing_ok=True)
        bad_rows = self._cache_shards([shard])
        if row in bad_rows:
            raise BadRowError(bad_rows[row])

    # --- filling the cache ---

    def _open_folder(self, cache_dir: str) -> Path:
        """Creates the folder of these shards and its column file; returns the folder."""
        if "://" in cache_dir:
            raise UsageError(f"cache_dir is {cache_dir}: it must be a folder on a local disk")
        num_bytes, folder = self._num_bytes, _folder_of(cache_dir, self._reader.shards)
        with explained_os_errors("write", cache_dir):
            check_not_linked(str(folder))
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / _COLUMNS
            with locked(f"{path}.lock"), open_own(str(path), "ab") as file:
                if os.fstat(file.fileno()).st_size != num_bytes:
                    for note in folder.glob("shard_*.json"):
                        note.unlink()  # its columns were removed with the file
                    file.truncate(num_bytes)
        return folder

    def _cache_shards(self, shards: list[int]) -> dict[int, str]:
        """Caches those shards that no process has cached; returns unusable rows with reasons."""
        missing = [shard for shard in shards if self._bad_rows_of(shard) is None]
        self._check_room(missing)
        for _ in self._map(self._cache_shard, missing):
            pass
        return {row: why for shard in shards for row, why in (self._bad_rows_of(shard) or [])}

    def _bad_rows_of(self, shard: int) -> list[tuple[int, str]] | None:
        """Returns the unusable rows of a cached shard with reasons; None if it is not cached."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            own = self._reader.rows.of_shard(shard)
            found = orjson.loads(read_file(str(self._note(shard))) or b"")["bad_rows"]
            return [(range(own.start, own.stop)[at], str(why)) for at, why in found]
        return None

    def _note(self, shard: int) -> Path:
        return _note_in(self._folder, shard)

    def _check_room(self, missing: list[int]) -> None:
        rows, shards = self._reader.rows, self._reader.shards
        needed = 0
        for own in map(rows.of_shard, missing):
            needed += int(cached_bytes(rows.n_measurements[own], rows.num_ipv6[own]).sum())
        if not is_local(shards.dataset.path):  # temporary copies, one per thread
            sizes = sorted((shards.shards[shard].num_bytes for shard in missing), reverse=True)
            needed += sum(sizes[: self._num_threads])
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ProbelineError(
                f"the cache needs {needed / 1e9:.1f} GB in {self._folder}, but only "
                f"{free / 1e9:.1f} GB are free: set cache_dir to a larger disk, or use more hosts"
            )

    def _cache_shard(self, shard: int) -> None:
        note, folder, reader = self._note(shard), str(self._folder), self._reader
        with explained_os_errors("write", folder), locked(str(note.with_suffix(".lock"))):
            if self._bad_rows_of(shard) is not None:
                return  # another process has filled it meanwhile
            bad_rows = []
            with (
                reader.on_disk(shard, folder) as path,
                open_own(str(self._folder / _COLUMNS), "r+b") as file,
            ):
                if not self._skip_bad_rows:  # else each row is checked
                    _check_shard(reader.shards, shard, path)
                own = reader.rows.of_shard(shard)
                first = own.start
                for records in in_batches(map(self._read, range(own.start, own.stop))):
                    runs = self._decode_together(records)
                    pairs = zip(records, runs, strict=True)
                    for row, (record, run) in enumerate(pairs, first):
                        try:
                            values = self._compact(row, record, run)
                        except BadRowError as error:
                            if not self._skip_bad_rows:
                                raise
                            bad_rows.append([row - own.start, str(error)])
                            continue
                        file.seek(int(reader.rows.cache_offset[row]))
                        file.write(_with_hash(values))
                        self._is_checked[row] = True
                    first += len(records)
                file.flush()
                os.fsync(file.fileno())
            write_file(str(note), orjson.dumps({"bad_rows": bad_rows}))

    def _read(self, row: int) -> bytes | BadRowError:
        try:
            return self._reader.read(row)
        except BadRowError as error:
            return error

    def _decode_together(
        self, records: Sequence[bytes | BadRowError]
    ) -> Sequence[np.ndarray | None]:
        """Returns the runs of records, None for those that `_compact` has to decode."""
        intact = [record for record in records if isinstance(record, bytes)]
        options = self._reader.shards.dataset.manifest.options
        if 1 < len(intact) == len(records) and options.get("measurement_encoding") == "arrow":
            with contextlib.suppress(*UNREADABLE_RECORD):
                decoded = decode_together(intact)
                return np.split(decoded.to_run(), decoded.bounds[1:-1])
        return [None] * len(records)

    def _compact(self, row: int, record: bytes | BadRowError, run: np.ndarray | None) -> np.ndarray:
        """Returns a row's compact measurements and their ranks, checked against rows.parquet."""
        reader, rows = self._reader, self._reader.rows
        if isinstance(record, BadRowError):
            raise record
        columns = reader.locate_in(row, record).columns
        if columns.layout.kind != COMPACT:
            try:
                columns = to_compact(row_codec.decode_record(record).run if run is None else run)
            except ValueError as error:
                raise reader.bad_row(row, str(error)) from error
        raw, layout = columns
        expected = (int(rows.num_ipv6[row]), int(rows.first_second[row]))
        if (found := (layout.num_ipv6, layout.first_second)) != expected:
            raise reader.bad_row(
                row, f"its (num_ipv6, first second) is {found}, not {expected} as in rows.parquet"
            )
        num, num_ipv6 = np.array(layout.num_measurements), np.array(layout.num_ipv6)
        begin = layout.times - row_codec.COMPACT_HEADER.size
        return raw[begin : layout.ranks + int(ranks_bytes(num, num_ipv6))]


def _folder_of(cache_dir: str | os.PathLike[str], shards: ShardSet) -> Path:
    return Path(cache_dir) / f"{shards.split}-{shards.fingerprint}"


def _note_in(folder: Path, shard: int) -> Path:
    return folder / f"shard_{shard:05d}.json"


@dataclass(frozen=True)
class CacheUse:
    """A host's use of its column cache."""

    hit_share: float  # share of its lanes' shards that were cached before the first batch
    _files: Sequence[Path]

    def num_bytes(self) -> int:
        """Returns the current size of the columns on disk, including those of other hosts."""
        return sum(file.stat().st_blocks * _BLOCK_BYTES for file in self._files if file.exists())


def cache_use(config: DataConfig, plans: Sequence[HostPlan]) -> CacheUse | None:
    """Returns how a host will use its cache, before its first batch; None without a cache."""
    if config.cache_dir is None:
        return None
    is_cached: list[bool] = []
    folders = [_folder_of(config.cache_dir, plan.shards) for plan in plans]
    for folder, plan in zip(folders, plans, strict=True):
        used = _shards_of(plan.rows(), _used_rows(plan.plan(config.lanes)))
        is_cached += [_note_in(folder, shard).exists() for shard in used]
    # A host may have no rows if epochs are limited.
    hit_share = float(np.mean(is_cached or [True]))
    return CacheUse(hit_share, [folder / _COLUMNS for folder in folders])


def _check_shard(shards: ShardSet, number: int, path: str) -> None:
    """Compares the checksum of a shard with that of the file at `path`."""
    name, shard = shards.path(number), shards.shards[number]
    with explained_os_errors("read", name):
        found = checksum_text(size_and_checksum(path)[1])
    if found != shard.crc32c:
        raise ProbelineError(
            f"{name} has checksum {found}, the manifest says {shard.crc32c}: copy the dataset "
            "again as a whole"
        )


def _with_hash(values: np.ndarray) -> np.ndarray:
    """Returns bytes padded to a multiple of 8, followed by their hash."""
    padded = np.zeros(-(-len(values) // 8) * 8 + HASH_BYTES, np.uint8)
    padded[: len(values)] = values
    padded[-HASH_BYTES:].view(np.uint64)[0] = _hash(padded[:-HASH_BYTES])
    return padded


@kernel
def _hash(values):
    return hash_of(values, 0, len(values))


def _used_rows(plan: Plan) -> np.ndarray:
    """Returns which rows consecutive lanes draw from: bool [rows]."""
    is_used = np.zeros(len(plan.identity), bool)
    is_used[plan.large_rows[int(plan.large_begin[0]) : int(plan.large_end[-1])]] = True
    is_used[plan.small_rows[int(plan.small_begin[0]) : int(plan.small_end[-1])]] = True
    return is_used


def _shards_of(rows: RowTable, is_used: np.ndarray) -> list[int]:
    """Returns the shards with used rows."""
    shards = range(len(rows.shard_begins) - 1)
    return [shard for shard in shards if is_used[rows.of_shard(shard)].any()]
