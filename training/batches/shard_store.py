"""Feeds lanes straight from the shards, holding tokens in place of rows.

When the first context of a large row is due, the row is read once and all contexts that the lanes
here will want of it are drawn; 2 KiB each are kept, the row, up to 8 MiB, is not. Small rows are
kept as they were read until they are packed.
"""

import collections
import threading
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from training.batches.lanes import LARGE, SMALL, UNIT, Plan, context_keys, list_small, shares_of
from training.batches.packing import Crops, RowBytes, pack_small, put_contexts
from training.rows.row_layout import ARROW, LAYOUT, dst_at, put_row, ranks_bytes
from training.rows.row_source import BadRow, BadRowError, ShardReader
from training.tokens.contexts import CONTEXT_FACTS, draw_contexts, new_scratch

_LEAST_TOKENS = 12  # of a measurement


class _Share(NamedTuple):
    """What a lane has of the contexts of a row in an epoch.

    Attributes:
      cells: of the contexts from first_k on; -1: given.
      window: of the lane, for which the row was read; -1: it was read for another lane.
    """

    first_k: int
    cells: list[int]
    window: int


class ShardStore:
    """What the lanes of one process have of the shards' rows in memory.

    Args:
      reader: of the rows that `plan` counts in.
      skip_bad_rows: note rows that cannot be used in `plan.is_bad` and `bad_rows`, do not raise.
      executor: reads rows in parallel, if given.
    """

    def __init__(
        self,
        reader: ShardReader,
        plan: Plan,
        skip_bad_rows: bool,
        executor: Executor | None = None,
    ):
        self.bad_rows: list[BadRow] = []
        self._reader = reader
        self._plan = plan
        self._skip_bad_rows = skip_bad_rows
        self._map = executor.map if executor else map
        rows = reader.rows
        self._tokens = rows.untimed_tokens.astype(np.int32)
        # Of each lane, by row and epoch.
        self._drawn: list[dict[tuple[int, int], _Share]] = [{} for _ in plan.lane]
        self._windows = np.full((len(plan.lane), 2), -1, np.int64)  # the lanes' (epoch, window)
        self._pool = _Pool(32 * len(plan.lane), plan.drawing.num_tokens)
        self._local = threading.local()
        small = rows.take(plan.small_rows) if len(plan.small_rows) else None
        most = int(small.n_measurements.max()) if small else 0
        self._scratch = new_scratch(plan.drawing.num_tokens, most)
        self._arena = _Arena(
            len(rows), int(small.num_bytes.max()) + _most_ranks(most) if small else 0
        )
        per_lane = plan.drawing.num_tokens // (_LEAST_TOKENS - 1) + 3
        self._listed = np.empty(len(plan.lane) * per_lane, np.int64)

    def load(self, units: np.ndarray, cursors: np.ndarray) -> bool:
        """Reads what the lanes' next crops need; False if some of it turned out to be bad.

        Raises:
          BadRowError: a row cannot be used, and such rows are not to be skipped.
        """
        self._forget_windows(cursors)
        large: dict[tuple[int, int], list[_Share]] = {}
        for lane, unit in _large_units(units):
            if (unit.row, unit.epoch) not in self._drawn[lane]:
                large[unit.row, unit.epoch] = self._take_shares(lane, unit)
        count = list_small(self._plan, cursors, units, self._tokens, self._listed)
        wanted = np.unique(self._listed[:count])
        small = self._arena.missing(wanted[~self._plan.is_bad[wanted]])
        self._arena.make_room(wanted, len(small))
        num_bad = len(self.bad_rows)
        for (row, _), error in zip(large, self._map(self._draw, large, large.values())):
            if error is not None:
                self._note(row, error)
        for row, found in zip(small, self._map(self._read_small, small)):
            if isinstance(found, BadRowError):
                self._note(row, found)
            else:
                self._arena.put(row, *found)
        return len(self.bad_rows) == num_bad

    def fill(self, units: np.ndarray, cursors: np.ndarray, crops: Crops) -> None:
        """Writes the crops that `load` has made ready, and moves the cursors of packed ones."""
        cells = np.full(len(units), -1, np.int64)
        for lane, unit in _large_units(units):
            drawn = self._drawn[lane][unit.row, unit.epoch].cells
            at = unit.k - unit.first_k
            cells[lane], drawn[at] = drawn[at], -1
            if max(drawn) < 0:
                del self._drawn[lane][unit.row, unit.epoch]
        put_contexts(self._pool.tokens, self._pool.facts, cells, crops)
        self._pool.give_back(cells[cells >= 0].tolist())
        if (units["kind"] == SMALL).any():
            row_bytes = self._arena.row_bytes
            if not pack_small(self._plan, cursors, units, row_bytes, crops, self._scratch):
                raise AssertionError("a small row was packed that load has not read and checked")

    def _note(self, row: int, error: BadRowError) -> None:
        if not self._skip_bad_rows:
            raise error
        if not self._plan.is_bad[row]:
            self._plan.is_bad[row] = True
            self.bad_rows.append(self._reader.describe(row, str(error)))

    def _forget_windows(self, cursors: np.ndarray) -> None:
        """Drops what is left of windows that lanes have ended: they may have begun within them."""
        windows = np.stack([cursors["large_epoch"], cursors["large_window"]], axis=1)
        for lane in np.flatnonzero((windows != self._windows).any(axis=1)).tolist():
            drawn = self._drawn[lane]
            for row, epoch in list(drawn):
                if drawn[row, epoch].window >= 0 or epoch < windows[lane, 0]:
                    share = drawn.pop((row, epoch))
                    self._pool.give_back(cell for cell in share.cells if cell >= 0)
        self._windows = windows

    def _take_shares(self, lane: int, unit: "_Unit") -> list[_Share]:
        """Takes cells for a row that `lane` needs, and for the lanes here that share it."""
        shares = [(lane, unit.first_k, unit.num_contexts)]
        if unit.is_shared:
            shares = shares_of(self._plan, unit.large, unit.epoch).tolist()
        taken = []
        for other, first_k, num in shares:
            drawn, key = self._drawn[other], (unit.row, unit.epoch)
            epoch, window = self._windows[other].tolist()
            # A lane that is further behind would keep what it is given for too long.
            if num > 0 and key not in drawn and epoch in (unit.epoch, unit.epoch - 1):
                own_window = window if other == lane else -1
                drawn[key] = _Share(first_k, self._pool.take(num), own_window)
                taken.append(drawn[key])
        return taken

    def _draw(self, place: tuple[int, int], shares: list[_Share]) -> BadRowError | None:
        """Reads a row and draws its contexts into cells; returns what is wrong with it."""
        (row, epoch), plan = place, self._plan
        if not hasattr(self._local, "scratch"):
            self._local.scratch = new_scratch(plan.drawing.num_tokens)
        try:
            located = self._reader.locate(row)
        except BadRowError as error:
            return error
        # Whether a context meets what is damaged depends on which are drawn here; that all hosts
        # leave out the same rows takes a look at the whole row. Compact rows hold any address.
        raw, layout = np.frombuffer(located.raw, np.uint8), np.array([located.layout], LAYOUT)[0]
        if self._skip_bad_rows and layout["kind"] == ARROW and not _is_readable(raw, layout):
            return self._reader.bad_row(row, "a destination is no IP address")
        keys = [
            context_keys(plan.seed, epoch, plan.identity[row], share.first_k, len(share.cells))
            for share in shares
        ]
        is_whole = draw_contexts(
            raw,
            layout,
            (plan.src_hi[row], plan.src_lo[row], plan.src_is_ipv6[row]),
            np.concatenate(keys),
            plan.drawing,
            self._local.scratch,
            np.concatenate([share.cells for share in shares]),
            self._pool.tokens,
            self._pool.facts,
        )
        return None if is_whole else self._reader.bad_row(row, "a destination is no IP address")

    def _read_small(self, row: int) -> "tuple[bytes, tuple[int, ...]] | BadRowError":
        try:
            located = self._reader.locate(row)
            if located.layout[0] == ARROW:
                layout = np.array([located.layout], LAYOUT)[0]
                if not _is_readable(np.frombuffer(located.raw, np.uint8), layout):
                    raise self._reader.bad_row(row, "a destination is no IP address")
            return located.raw, located.layout
        except BadRowError as error:
            return error


_Unit = collections.namedtuple("_Unit", UNIT.names or ())


def _large_units(units: np.ndarray) -> list[tuple[int, _Unit]]:
    """Returns the lanes whose next crop is of a large row, and their units."""
    lanes = np.flatnonzero(units["kind"] == LARGE)
    return [(lane, _Unit(*unit)) for lane, unit in zip(lanes.tolist(), units[lanes].tolist())]


def _most_ranks(num_measurements: int) -> int:
    return int(ranks_bytes(np.array([num_measurements]), np.array([1]))[0])


@kernel
def _is_readable(raw, layout):
    """Tells whether every destination of a row can be read."""
    num_damaged = 0
    for i in range(layout.num_measurements):
        num_damaged += dst_at(raw, layout, i)[2] < 0
    return num_damaged == 0


class _Pool:
    """Cells of one context each."""

    def __init__(self, num_cells: int, num_tokens: int):
        self.tokens = np.empty((num_cells, num_tokens), np.uint16)
        self.facts = np.zeros(num_cells, CONTEXT_FACTS)
        self._free = list(range(num_cells))

    def take(self, count: int) -> list[int]:
        """Returns cells that are free; more are made if need be."""
        if len(self._free) < count:
            before = len(self.tokens)
            more = max(count, before)
            self.tokens = np.concatenate(
                [self.tokens, np.empty_like(self.tokens, shape=(more, self.tokens.shape[1]))]
            )
            self.facts = np.concatenate([self.facts, np.zeros(more, CONTEXT_FACTS)])
            self._free += range(before, before + more)
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def give_back(self, cells: Iterable[int]) -> None:
        self._free += cells


class _Arena:
    """Cells of equal size in one array; each holds the bytes of a small row."""

    def __init__(self, num_rows: int, cell_bytes: int):
        self._cell_bytes = cell_bytes
        self._slots = np.full(num_rows, -1, np.int32)
        self._row_of = np.zeros(0, np.int64)  # by slot, -1: free
        self._free: list[int] = []
        self._bytes = np.zeros(0, np.uint8)
        self._layouts = np.zeros(0, LAYOUT)
        self._wrap()

    def _wrap(self) -> None:
        raw = self._bytes.view()
        raw.flags.writeable = False  # as the maps and records that kernels are compiled for
        nothing32, nothing64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self.row_bytes = RowBytes(
            raw, self._layouts, self._slots, nothing64, nothing32, nothing32, nothing64
        )

    def missing(self, rows: np.ndarray) -> list[int]:
        """Returns those of the rows that have no cell."""
        return rows[self._slots[rows] < 0].tolist()

    def make_room(self, wanted: np.ndarray, num_new: int) -> None:
        """Sees to it that so many cells are free, if need be those of rows not wanted now."""
        if len(self._free) >= num_new:
            return
        is_wanted = np.zeros(len(self._slots), bool)
        is_wanted[wanted] = True
        for slot in np.flatnonzero(self._row_of >= 0).tolist():
            row = self._row_of[slot]
            if not is_wanted[row]:
                self._slots[row], self._row_of[slot] = -1, -1
                self._free.append(slot)
        if len(self._free) < num_new:
            self._grow(max(num_new - len(self._free), len(self._row_of) // 2))

    def _grow(self, num_cells: int) -> None:
        before = len(self._row_of)
        self._free += range(before, before + num_cells)
        self._row_of = np.concatenate([self._row_of, np.full(num_cells, -1, np.int64)])
        more = np.zeros(num_cells * self._cell_bytes, np.uint8)
        self._bytes = np.concatenate([self._bytes, more])
        self._layouts = np.concatenate([self._layouts, np.zeros(num_cells, LAYOUT)])
        self._wrap()

    def put(self, row: int, raw: bytes, layout: tuple[int, ...]) -> None:
        """Copies the bytes of a row into a free cell."""
        slot = self._free.pop()
        content = np.frombuffer(raw, np.uint8)
        put_row(self._bytes, slot * self._cell_bytes, content, self._layouts, slot, layout)
        self._slots[row], self._row_of[slot] = slot, row
