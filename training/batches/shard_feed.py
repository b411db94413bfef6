"""Feeds lanes directly from the shards and keeps tokens, not rows.

When the first context of a large row is due, the row is read once and all contexts that lanes of
this process need are drawn. They are kept, 2 KiB each; the row, up to 8 MiB, is not. Small rows of
mapped shards are copied for each batch; others are kept as read until they are packed.
"""

import collections
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from training.batches.config import DataConfig
from training.batches.lane_feed import LaneFeed
from training.batches.lanes import LANE_ITEM, LARGE, SMALL, context_keys, list_small, shares_of
from training.batches.packing import Crops, pack_small, put_contexts
from training.rows.measurement_at import are_readable
from training.rows.row_bytes import RowBytes
from training.rows.row_layout import ARROW, FIRST_OFFSET, NO_RANKS, Columns, Located
from training.rows.shard_reader import BadRowError
from training.tokens.contexts import CONTEXT_FACTS, draw_contexts
from training.tokens.draws import MIN_MEASUREMENT_TOKENS, new_scratch

type Locate = Callable[[int], Located]

_DAMAGED = "a destination is not an IP address"


class _Share(NamedTuple):
    """A lane's contexts of a row in an epoch, from first_k on."""

    first_k: int
    contexts: np.ndarray  # filled by `draw_contexts`, like facts
    facts: np.ndarray
    left: set[int]  # indices of unused contexts
    window: int  # the lane's window that the row was read for; -1 if read for a different lane


class ShardFeed(LaneFeed):
    """Draws crops from the shards; holds the rows and contexts that the next crops need."""

    def __init__(self, config: DataConfig, *args: Any):
        super().__init__(config, *args)
        num_lanes = len(self.cursors)
        # Per lane, by row and epoch.
        self._drawn: list[dict[tuple[int, int], _Share]] = [{} for _ in range(num_lanes)]
        self._windows = np.full((num_lanes, 2), -1, np.int64)  # the lanes' (epoch, window)
        self._local = threading.local()
        self._small: dict[int, Columns] = {}
        # A small row fills no crop.
        num_tokens = self._plan.drawing.num_tokens
        self._scratch = new_scratch(num_tokens, num_tokens // MIN_MEASUREMENT_TOKENS)
        per_lane = num_tokens // (MIN_MEASUREMENT_TOKENS - 1) + 3
        self._listed = np.empty(num_lanes * per_lane, np.int64)

    def _load(self) -> None:
        self._forget_windows()
        large: dict[tuple[int, int], list[_Share]] = {}
        self._due = list(_contexts(self._items))
        for lane, item in self._due:
            if (item.row, item.epoch) not in self._drawn[lane]:
                large[item.row, item.epoch] = self._add_shares(lane, item)
        sizes = self._reader.rows.untimed_tokens
        count = list_small(self._plan, self.cursors, self._items, sizes, self._listed)
        of_large = [row for row, _ in large]
        needed = np.unique(np.concatenate([self._listed[:count], np.array(of_large, np.int64)]))
        needed = needed[~self._plan.is_bad[needed]]
        self._gathered = self._reader.gather(needed, self._map)
        done = {*of_large, *self._gathered.held.tolist()}
        wanted = [row for row in needed.tolist() if row not in done]
        missing = [row for row in wanted if row not in self._small]
        for (row, _), drawn in zip(large, self._map(self._draw, large, large.values())):
            if isinstance(drawn, BadRowError):
                self._skip(row, drawn)
        for row, located in zip(missing, self._map(self._read_small, missing)):
            if isinstance(located, BadRowError):
                self._skip(row, located)
            else:
                self._small[row] = located.columns
        self._small = {row: self._small[row] for row in wanted if row in self._small}

    def _fill(self, crops: Crops) -> None:
        lanes = np.flatnonzero(self._items["kind"] == LARGE)
        contexts = np.empty((len(lanes), self._plan.drawing.num_tokens), np.uint16)
        facts = np.empty(len(lanes), CONTEXT_FACTS)
        for place, (lane, item) in enumerate(self._due):
            share = self._drawn[lane][item.row, item.epoch]
            line = item.k - item.first_k
            contexts[place], facts[place] = share.contexts[line], share.facts[line]
            share.left.remove(line)
            if not share.left:
                del self._drawn[lane][item.row, item.epoch]
        put_contexts(contexts, facts, lanes, crops)
        if not (self._items["kind"] == SMALL).any():
            return
        row_bytes = self._join_small()
        row = pack_small(self._plan, self.cursors, self._items, row_bytes, crops, self._scratch)
        if row >= 0:
            raise AssertionError("a small row was packed that load has not read and checked")

    def _read(self, row: int, locate: Locate, checks_all: bool = True) -> Located | BadRowError:
        try:
            located = locate(row)
        except BadRowError as error:
            return error
        # In a compact row, any bytes are a valid address.
        columns = located.columns
        if checks_all and columns.layout.kind == ARROW and not are_readable(*columns):
            return self._reader.bad_row(row, _DAMAGED)
        return located

    # --- large rows ---

    def _forget_windows(self) -> None:
        """Drops contexts left over from finished windows, which lanes may have entered midway."""
        windows = np.stack([self.cursors[name] for name in ("large_epoch", "large_window")], axis=1)
        for lane in np.flatnonzero((windows != self._windows).any(axis=1)).tolist():
            self._drawn[lane] = {
                (row, epoch): share
                for (row, epoch), share in self._drawn[lane].items()
                if share.window < 0 and epoch >= windows[lane, 0]
            }
        self._windows = windows

    def _add_shares(self, lane: int, item: "_Context") -> list[_Share]:
        """Allocates the contexts of a row for `lane` and other lanes here that share the row."""
        shares = [(lane, item.first_k, item.num_contexts)]
        if item.is_shared:
            shares = shares_of(self._plan, item.large, item.epoch).tolist()
        taken, num_tokens = [], self._plan.drawing.num_tokens
        for other, first_k, num in shares:
            drawn, key = self._drawn[other], (item.row, item.epoch)
            epoch, window = self._windows[other].tolist()
            # A lane further behind would hold the contexts for too long.
            if num > 0 and key not in drawn and epoch in (item.epoch, item.epoch - 1):
                drawn[key] = _Share(
                    first_k,
                    contexts=np.empty((num, num_tokens), np.uint16),
                    facts=np.empty(num, CONTEXT_FACTS),
                    left=set(range(num)),
                    window=window if other == lane else -1,
                )
                taken.append(drawn[key])
        return taken

    def _draw(self, key: tuple[int, int], shares: list[_Share]) -> BadRowError | None:
        """Reads a row and draws its contexts; returns the error if that fails."""
        (row, epoch), plan = key, self._plan
        if not hasattr(self._local, "scratch"):
            self._local.scratch = new_scratch(plan.drawing.num_tokens)
        # Hosts draw different contexts, which may miss the damage. Only a check of the whole row
        # makes all hosts skip the same rows.
        columns, ranks = self._gathered.columns(row), NO_RANKS
        if columns is None:
            located = self._read(row, self._reader.locate_in_place, self._skip_bad_rows)
            if isinstance(located, BadRowError):
                return located
            columns, ranks = located.columns, located.ranks
        identity, scratch = plan.identity[row], self._local.scratch._replace(ranks=ranks)
        src = self._reader.rows.source(row)
        for first_k, contexts, facts, *_ in shares:
            keys = context_keys(plan.seed, epoch, identity, first_k, len(facts))
            if not draw_contexts(*columns, src, keys, plan.drawing, scratch, contexts, facts):
                return self._reader.bad_row(row, _DAMAGED)
        return None

    # --- small rows ---

    def _read_small(self, row: int) -> Located | BadRowError:
        return self._read(row, self._reader.locate)

    def _join_small(self) -> RowBytes:
        """Returns all small rows that `load` has read, with their bytes concatenated."""
        gathered, held = self._gathered, list(self._small.values())
        rows = np.concatenate([gathered.held, np.fromiter(self._small, np.int64)])
        raw, layouts = gathered.raw, gathered.layouts
        if held:
            parts = [raw, *(columns.raw for columns in held)]
            begins = np.cumsum([len(part) for part in parts])[:-1, np.newaxis]
            of_held = np.array([columns.layout for columns in held], np.int64)
            of_held[:, FIRST_OFFSET:] += begins
            raw, layouts = np.concatenate(parts), np.concatenate([layouts, of_held])
            raw.flags.writeable = False  # kernels are compiled for read-only bytes
        order = np.argsort(rows)
        return RowBytes(raw, held=rows[order], layouts=layouts[order])


_Context = collections.namedtuple("_Context", LANE_ITEM.names or ())


def _contexts(items: np.ndarray) -> Iterator[tuple[int, _Context]]:
    """Yields (lane, context) for lanes whose next item is a context of a large row."""
    lanes = np.flatnonzero(items["kind"] == LARGE)
    return zip(lanes.tolist(), map(_Context._make, items[lanes].tolist()))
