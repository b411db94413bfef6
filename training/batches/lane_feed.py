"""`LaneFeed`: the crops of one dataset for some lanes.

It has two subclasses: `shard_feed.ShardFeed` draws from the shards, `column_cache.CacheFeed` from
the column cache. They give the same crops.
"""

import abc
from concurrent.futures import Executor

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.batches.lanes import DONE, LANE_ITEM, LARGE, STUCK, peek
from training.batches.packing import Crops
from training.batches.planning import HostPlan
from training.batches.states import check_cursors
from training.rows.shard_reader import BadRow, BadRowError, ShardReader


class LaneFeed(abc.ABC):
    """The rows of a dataset for some lanes of the global batch, and the lanes' positions.

    Moves `cursors`, CURSOR [lanes]. With on_bad_row="skip", unusable rows go to `plan.is_bad` and
    `take_bad_rows` instead of being raised. Raises ProbelineError if a cursor is out of range.
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
        self._bad_rows: list[BadRow] = []  # since the last `take_bad_rows`
        self._items = np.zeros(len(lanes), LANE_ITEM)
        self._plan = host_plan.plan(lanes)
        self._reader = ShardReader(host_plan.shards, host_plan.rows())
        self._skip_bad_rows = config.on_bad_row == "skip"
        self._map = executor.map if executor else map
        self._last_reason = "its rows have no weight"
        check_cursors(self._plan, cursors, self._reader.rows.n_measurements)

    @abc.abstractmethod
    def _load(self) -> None:
        """Reads the rows that the crops of `_items` need; skips bad ones."""

    @abc.abstractmethod
    def _fill(self, crops: Crops) -> None:
        """Writes the crops of `_items`; moves cursors past the small rows in them."""

    def load(self, is_due: np.ndarray) -> None:
        """Reads what the due lanes, bool [lanes], need for their next crops.

        Raises ProbelineError if a lane has no readable row left, BadRowError for an unusable row
        unless on_bad_row is "skip".
        """
        num_bad = -1
        while num_bad != len(self._bad_rows):
            num_bad = len(self._bad_rows)
            peek(self._plan, self.cursors, self._items, is_due)
            if (stuck := np.flatnonzero(self._items["kind"] == STUCK)).size:
                raise ProbelineError(
                    f"example {self._plan.lane[stuck[0]]} of the batch has no readable row left: "
                    f"{self._last_reason}"
                )
            self._load()

    def fill(self, crops: Crops) -> None:
        """Writes the crops that `load` has prepared; those of ended lanes stay unchanged."""
        self._fill(crops)
        self.cursors["large_index"] += self._items["kind"] == LARGE

    def _skip(self, row: int, error: BadRowError) -> None:
        """Notes an unusable row; raises the error unless bad rows are skipped."""
        if not self._skip_bad_rows:
            raise error
        if not self._plan.is_bad[row]:
            self._plan.is_bad[row] = True
            self._last_reason = str(error)
            self._bad_rows.append(BadRow(*self._reader.rows.place(row), str(error)))

    def is_done(self) -> bool:
        """Returns whether all lanes had ended before the last crops."""
        return bool((self._items["kind"] == DONE).all())

    def has_ended(self) -> bool:
        """Returns whether all lanes have ended."""
        peek(self._plan, self.cursors, self._items, np.ones(len(self._items), bool))
        return self.is_done()

    def take_bad_rows(self) -> list[BadRow]:
        """Returns the bad rows found since the last call."""
        bad_rows, self._bad_rows = self._bad_rows, []
        return bad_rows
