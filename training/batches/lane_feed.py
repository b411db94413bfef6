"""Computes the crops of one dataset for some lanes, from its shards or from the cache."""

import contextlib
import ctypes
import functools
from concurrent.futures import Executor

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.batches.column_cache import CacheStore
from training.batches.config import DataConfig
from training.batches.lanes import DONE, LANE_ITEM, LARGE, STUCK, peek
from training.batches.packing import Crops
from training.batches.planning import HostPlan
from training.batches.shard_store import ShardStore
from training.batches.states import check_cursors
from training.rows.shard_reader import BadRow, ShardReader

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MAX_KEPT_BYTES = 32 << 20  # the largest value that glibc allows


class LaneFeed:
    """The rows of a dataset for some lanes of the global batch, and the lanes' positions.

    Opens the shards, or fills the cache; moves `cursors`, CURSOR [lanes]. Raises ProbelineError as
    `CacheStore`, or if a cursor is out of range.
    """

    def __init__(
        self,
        config: DataConfig,
        host_plan: HostPlan,
        lanes: range,
        cursors: np.ndarray,
        executor: Executor | None,
    ):
        self.cursors = cursors
        self._items = np.zeros(len(lanes), LANE_ITEM)
        self._plan = host_plan.plan(lanes)
        self._last_reason = "they have no weight"
        self._store: ShardStore | CacheStore
        reader = ShardReader(host_plan.shards, host_plan.rows())
        check_cursors(self._plan, cursors, reader.rows.n_measurements)
        if config.cache_dir is not None:
            self._store = CacheStore(config, reader, self._plan, executor)
        else:
            skips = config.on_bad_row == "skip"
            self._store = ShardStore(reader, self._plan, skips, executor)

    def load(self, is_due: np.ndarray) -> None:
        """Reads what the due lanes, bool [lanes], need for their next crops.

        Raises ProbelineError if a lane has no readable row left, BadRowError for an unusable row
        unless on_bad_row is "skip".
        """
        store, items = self._store, self._items
        while True:
            peek(self._plan, self.cursors, items, is_due)
            if (stuck := np.flatnonzero(items["kind"] == STUCK)).size:
                raise ProbelineError(
                    f"example {self._plan.lane[stuck[0]]} of the batch has no readable row left: "
                    f"{self._last_reason}"
                )
            is_ready = store.load(items, self.cursors)
            if store.bad_rows:
                self._last_reason = store.bad_rows[-1].reason
            if is_ready:
                return

    def fill(self, crops: Crops) -> None:
        """Writes the crops that `load` has prepared; those of ended lanes stay unchanged."""
        self._store.fill(self._items, self.cursors, crops)
        self.cursors["large_index"] += self._items["kind"] == LARGE

    def is_done(self) -> bool:
        """Returns whether all lanes had ended before the last crops."""
        return bool((self._items["kind"] == DONE).all())

    def has_ended(self) -> bool:
        """Returns whether all lanes have ended."""
        peek(self._plan, self.cursors, self._items, np.ones(len(self._items), bool))
        return self.is_done()

    def take_bad_rows(self) -> list[BadRow]:
        """Returns the bad rows found since the last call."""
        bad_rows, self._store.bad_rows = self._store.bad_rows, []
        return bad_rows


@functools.cache
def keep_large_blocks() -> None:
    """Makes glibc reuse large blocks of memory instead of fetching each from the kernel.

    Otherwise every row of 8 MiB costs thousands of page faults, more than reading it, and every
    batch a thousand, a third of drawing it. Has no effect with other C libraries.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAX_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 4 * _MAX_KEPT_BYTES)
