"""Feeds lanes straight from the shards, holding tokens in place of rows.

When the first context of a large row is due, the row is read once and all contexts that the lanes
here will want of it are drawn; 2 KiB each are kept, the row, up to 8 MiB, is not. Small rows are
kept as they were read until they are packed.
"""

import collections
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from training.batches.lanes import (
    LANE_ITEM,
    LARGE,
    SMALL,
    Plan,
    context_keys,
    list_small,
    shares_of,
)
from training.batches.packing import Crops, RowBytes, pack_small, put_contexts
from training.rows.measurement_at import are_readable
from training.rows.row_layout import ARROW, Columns
from training.rows.row_source import BadRow, BadRowError, ShardReader
from training.tokens.contexts import CONTEXT_FACTS, draw_contexts
from training.tokens.draws import MIN_MEASUREMENT_TOKENS, new_scratch

_DAMAGED = "a destination is no IP address"


class _Share(NamedTuple):
    """A lane's share of the contexts of a row in an epoch.

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
        num_tokens, num_lanes = plan.drawing.num_tokens, len(plan.lane)
        # Of each lane, by row and epoch.
        self._drawn: list[dict[tuple[int, int], _Share]] = [{} for _ in plan.lane]
        self._windows = np.full((num_lanes, 2), -1, np.int64)  # the lanes' (epoch, window)
        self._pool = _Pool(32 * num_lanes, num_tokens)
        self._local = threading.local()
        self._untimed_tokens = reader.rows.untimed_tokens.astype(np.int32)
        self._small: dict[int, Columns] = {}
        self._slots = np.full(len(reader.rows), -1, np.int32)  # of `_small`, by row
        largest = reader.rows.n_measurements[plan.small_rows].max(initial=0)
        self._scratch = new_scratch(num_tokens, int(largest))
        per_lane = num_tokens // (MIN_MEASUREMENT_TOKENS - 1) + 3
        self._listed = np.empty(num_lanes * per_lane, np.int64)

    def load(self, items: np.ndarray, cursors: np.ndarray) -> bool:
        """Reads what the lanes' next crops need; False if some of it turned out to be bad.

        Args:
          items: LANE_ITEM [lanes].
          cursors: CURSOR [lanes].

        Raises:
          BadRowError: a row cannot be used, and such rows are not to be skipped.
        """
        self._forget_windows(cursors)
        large: dict[tuple[int, int], list[_Share]] = {}
        for lane, item in _contexts(items):
            if (item.row, item.epoch) not in self._drawn[lane]:
                large[item.row, item.epoch] = self._take_shares(lane, item)
        count = list_small(self._plan, cursors, items, self._untimed_tokens, self._listed)
        listed = np.unique(self._listed[:count])
        wanted = listed[~self._plan.is_bad[listed]].tolist()
        missing = [row for row in wanted if row not in self._small]
        num_bad = len(self.bad_rows)
        for (row, _), error in zip(large, self._map(self._draw, large, large.values())):
            if error is not None:
                self._note(row, error)
        for row, columns in zip(missing, self._map(self._read_small, missing)):
            if isinstance(columns, BadRowError):
                self._note(row, columns)
            else:
                self._small[row] = columns
        self._small = {row: self._small[row] for row in wanted if row in self._small}
        return len(self.bad_rows) == num_bad

    def fill(self, items: np.ndarray, cursors: np.ndarray, crops: Crops) -> None:
        """Writes the crops that `load` has made ready, and moves the cursors of packed ones."""
        cells = np.full(len(items), -1, np.int64)
        for lane, item in _contexts(items):
            drawn = self._drawn[lane][item.row, item.epoch].cells
            at = item.k - item.first_k
            cells[lane], drawn[at] = drawn[at], -1
            if max(drawn) < 0:
                del self._drawn[lane][item.row, item.epoch]
        put_contexts(self._pool.tokens, self._pool.facts, cells, crops)
        self._pool.give_back(cells[cells >= 0].tolist())
        if (items["kind"] == SMALL).any():
            row_bytes = self._join_small()
            if not pack_small(self._plan, cursors, items, row_bytes, crops, self._scratch):
                raise AssertionError("a small row was packed that load has not read and checked")
            self._slots[list(self._small)] = -1

    def _note(self, row: int, error: BadRowError) -> None:
        if not self._skip_bad_rows:
            raise error
        if not self._plan.is_bad[row]:
            self._plan.is_bad[row] = True
            self.bad_rows.append(self._reader.describe(row, str(error)))

    def _columns(self, row: int, checks_all: bool) -> Columns:
        columns = self._reader.locate(row).columns
        # Compact rows hold any address.
        if checks_all and columns.layout.kind == ARROW and not are_readable(*columns):
            raise self._reader.bad_row(row, _DAMAGED)
        return columns

    # --- large rows ---

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

    def _take_shares(self, lane: int, item: "_Context") -> list[_Share]:
        """Takes cells for a row that `lane` needs, and for the lanes here that share it."""
        shares = [(lane, item.first_k, item.num_contexts)]
        if item.is_shared:
            shares = shares_of(self._plan, item.large, item.epoch).tolist()
        taken = []
        for other, first_k, num in shares:
            drawn, key = self._drawn[other], (item.row, item.epoch)
            epoch, window = self._windows[other].tolist()
            # A lane that is further behind would keep what it is given for too long.
            if num > 0 and key not in drawn and epoch in (item.epoch, item.epoch - 1):
                own_window = window if other == lane else -1
                drawn[key] = _Share(first_k, self._pool.take(num), own_window)
                taken.append(drawn[key])
        return taken

    def _draw(self, key: tuple[int, int], shares: list[_Share]) -> BadRowError | None:
        """Reads a row and draws its contexts into cells; returns what is wrong with it."""
        (row, epoch), plan = key, self._plan
        if not hasattr(self._local, "scratch"):
            self._local.scratch = new_scratch(plan.drawing.num_tokens)
        try:
            # Whether a context meets what is damaged depends on which are drawn here. Only a check
            # of the whole row makes all hosts skip the same rows.
            columns = self._columns(row, checks_all=self._skip_bad_rows)
        except BadRowError as error:
            return error
        keys = [
            context_keys(plan.seed, epoch, plan.identity[row], share.first_k, len(share.cells))
            for share in shares
        ]
        is_whole = draw_contexts(
            *columns,
            (plan.src_hi[row], plan.src_lo[row], plan.src_is_ipv6[row]),
            np.concatenate(keys),
            plan.drawing,
            self._local.scratch,
            np.concatenate([share.cells for share in shares]),
            self._pool.tokens,
            self._pool.facts,
        )
        return None if is_whole else self._reader.bad_row(row, _DAMAGED)

    # --- small rows ---

    def _read_small(self, row: int) -> Columns | BadRowError:
        try:
            return self._columns(row, checks_all=True)
        except BadRowError as error:
            return error

    def _join_small(self) -> RowBytes:
        """Returns the bytes of all small rows that `load` has read."""
        held = self._small.values()
        self._slots[list(self._small)] = np.arange(len(held))
        raw = np.concatenate([columns.raw for columns in held])
        raw.flags.writeable = False  # as the maps and records that kernels are compiled for
        sizes = [len(columns.raw) for columns in held]
        layouts = np.array([columns.layout for columns in held], np.int64)
        nothing32, nothing64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        starts = np.cumsum([0, *sizes[:-1]])
        return RowBytes(
            raw, self._slots, starts, layouts, nothing64, nothing32, nothing32, nothing64
        )


_Context = collections.namedtuple("_Context", LANE_ITEM.names or ())


def _contexts(items: np.ndarray) -> Iterator[tuple[int, _Context]]:
    """Yields the lanes whose next crop is a context of a large row, and the context."""
    lanes = np.flatnonzero(items["kind"] == LARGE)
    return zip(lanes.tolist(), map(_Context._make, items[lanes].tolist()))


class _Pool:
    """Cells of one context each."""

    def __init__(self, num_cells: int, num_tokens: int):
        self.tokens = np.empty((num_cells, num_tokens), np.uint16)
        self.facts = np.empty(num_cells, CONTEXT_FACTS)
        self._free = list(range(num_cells))

    def take(self, count: int) -> list[int]:
        """Returns cells that are free, doubling their number if need be."""
        while len(self._free) < count:
            self._free += range(len(self.tokens), 2 * len(self.tokens))
            self.tokens = np.concatenate([self.tokens, np.empty_like(self.tokens)])
            self.facts = np.concatenate([self.facts, np.empty_like(self.facts)])
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def give_back(self, cells: Iterable[int]) -> None:
        """Frees cells."""
        self._free += cells
