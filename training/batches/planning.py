"""Deals the rows of a split to the lanes of a host, and bounds the number of batches of epochs."""

import dataclasses
import math
import pickle
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.errors import UsageError
from beam_pipeline.kernels import kernel, subkernel
from training.batches.config import DataConfig
from training.batches.lanes import (
    ALL_ROWS,
    FOREVER,
    MIN_VISITS,
    Plan,
    context_key,
    small_context,
    visits_rounding,
)
from training.batches.selections import row_weights
from training.rows.keyed_random import key_of
from training.rows.row_table import MappedArrays, MappedRows, RowTable, ShardSet
from training.tokens.draws import draw_mode, draw_untimed_share
from training.tokens.tokenizer import (
    ABS_TOKENS,
    DELTA1_TOKENS,
    DELTA4_TOKENS,
    MAX_MEASUREMENT_TOKENS,
)

# The arrays of a plan whose length depends on the number of rows.
_DEALT = ("large_rows", "visits", "small_rows", "small_copy", "small_weight")
_RESTART_TOKENS = ABS_TOKENS - DELTA1_TOKENS  # the extra cost of a new segment's first timestamp


def deal(rows: RowTable, config: DataConfig) -> Plan:
    """Deals a split's rows to the lanes of the global batch; UsageError if they do not suffice."""
    is_by_probe = config.sampler == "windows"
    shares = (_deal_probes if is_by_probe else _deal_by_size)(rows, config)
    visits_bounds, small_bounds = shares.visits_bounds, shares.small_bounds
    begin = np.searchsorted(shares.visits, visits_bounds[:-1], "right") - 1
    end = np.searchsorted(shares.visits, visits_bounds[1:], "left")
    plan = Plan(
        seed=key_of(config.seed),
        num_epochs=FOREVER if config.num_epochs is None else config.num_epochs,
        shuffle=config.shuffle,
        mixed_rows=(config.mixed_rows or ALL_ROWS) if config.shuffle else 1,
        pack=config.pack,
        drawing=config.drawing,
        rounds_visits=is_by_probe or bool(config.row_weights),
        identity=rows.identity,
        src_hi=rows.src_hi,
        src_lo=rows.src_lo,
        is_bad=np.zeros(len(rows), bool),
        **{name: getattr(shares, name) for name in _DEALT},
        lane=np.arange(config.batch_size),
        large_begin=np.minimum(begin, end),
        large_end=end,
        visits_begin=visits_bounds[:-1].astype(float),
        visits_end=visits_bounds[1:].astype(float),
        small_begin=small_bounds[:-1],
        small_end=small_bounds[1:],
    )
    if config.num_epochs is None:  # otherwise lanes without rows give empty examples
        _check_lanes(plan)
    return plan


class _Shares(NamedTuple):
    """The dealt rows and their lanes; fields as in `Plan` except the bounds.

    `visits_bounds` and `small_bounds`, [lanes + 1], are the visits and small rows before each lane.
    """

    large_rows: np.ndarray
    visits: np.ndarray
    visits_bounds: np.ndarray
    small_rows: np.ndarray
    small_bounds: np.ndarray
    small_copy: np.ndarray = np.zeros(0, np.uint8)
    small_weight: np.ndarray = np.zeros(0, np.float32)


def _deal_by_size(rows: RowTable, config: DataConfig) -> _Shares:
    """Gives each lane equally many contexts of large rows, and similar tokens of small ones.

    A small row of weight w is repeated ceil(w) times, see `lanes.small_context`.
    """
    weights, num_copies = np.zeros(0, np.float32), np.uint8(1)
    if config.row_weights:
        weights = row_weights(rows, config.row_weights).astype(np.float32)
        num_copies = np.ceil(weights).astype(np.uint8)
    is_large, lanes = rows.untimed_tokens > config.crop_size, np.arange(config.batch_size + 1)
    num_large = int(np.count_nonzero(is_large & (num_copies > 0)))
    num_small = int(np.sum(~is_large * num_copies))
    shares = _Shares(
        large_rows=np.empty(num_large, np.int32),
        visits=np.zeros(num_large + 1),
        visits_bounds=lanes,
        small_rows=np.empty(num_small, np.int32),
        small_bounds=np.full_like(lanes, num_small),
        small_copy=np.empty(num_small if len(weights) else 0, np.uint8),
        small_weight=np.empty(num_small if len(weights) else 0, np.float32),
    )
    limits = config.crop_size, config.avg_tokens_per_measurement, config.max_contexts_per_row
    _fill_by_size(rows.untimed_tokens, rows.n_measurements, weights, limits, shares)
    visits = shares.visits[-1]
    bounds = int(visits) * lanes // config.batch_size
    if len(weights):
        bounds = np.linspace(0, visits, config.batch_size + 1)
    return shares._replace(visits_bounds=bounds)


@kernel
def _fill_by_size(untimed_tokens, n_measurements, weights, limits, shares):
    """Lists large rows, the contexts before each, small rows, and the lanes' bounds of these."""
    crop_size, avg_tokens, max_contexts = limits
    num_large = num_small = 0
    total = 0.0
    for row in range(len(untimed_tokens)):
        weight = np.float64(weights[row]) if len(weights) else 1.0
        if untimed_tokens[row] <= crop_size:
            for copy in range(math.ceil(weight)):
                shares.small_rows[num_small] = row
                if len(weights):
                    shares.small_copy[num_small], shares.small_weight[num_small] = copy, weight
                total += _tokens_of_small(untimed_tokens, shares, num_small)
                num_small += 1
        elif weight > 0:
            contexts = min((n_measurements[row] + avg_tokens - 1) // avg_tokens, max_contexts)
            shares.large_rows[num_large] = row
            shares.visits[num_large + 1] = shares.visits[num_large] + max(contexts, 1) * weight
            num_large += 1
    # A lane begins with the first small row whose middle token is in its share of the tokens.
    lane, end, num_lanes = 0, 0.0, len(shares.small_bounds) - 1
    for place in range(num_small):
        tokens = _tokens_of_small(untimed_tokens, shares, place)
        end += tokens  # timestamps add about a third to the tokens of any row
        while lane <= num_lanes and end - tokens / 2 >= total * lane / num_lanes:
            shares.small_bounds[lane] = place
            lane += 1


@subkernel
def _tokens_of_small(untimed_tokens, shares, place):
    """Returns the mean tokens per epoch of an entry of small_rows."""
    tokens = np.float64(untimed_tokens[shares.small_rows[place]])
    if len(shares.small_weight) == 0:
        return tokens
    return tokens * min(np.float64(shares.small_weight[place]) - shares.small_copy[place], 1.0)


def _deal_probes(rows: RowTable, config: DataConfig) -> _Shares:
    """Gives each probe's rows to a single lane; a row's visits are proportional to its weight."""
    order = np.lexsort([rows.row_index, rows.src_id])
    weights = (_weights(rows, config.weights) * row_weights(rows, config.row_weights))[order]
    visits = np.concatenate([[0.0], np.cumsum(weights * (len(rows) / (weights.sum() or 1)))])
    visits[-1] = len(rows)
    src_id = rows.src_id[order]
    starts = np.flatnonzero(np.diff(src_id, prepend=src_id[:1] - 1))
    if len(starts) < config.batch_size:
        raise UsageError(
            f"batch_size is {config.batch_size}, more than the {len(starts)} probes of the data, "
            "and sampler=windows has a different probe in each example: use a smaller batch_size"
        )
    # A lane begins at the probe nearest to its share, and has at least one probe.
    wanted = np.searchsorted(visits[starts], np.linspace(0, len(rows), config.batch_size + 1))
    lanes = np.arange(config.batch_size + 1)
    bounds = np.maximum.accumulate(wanted - lanes) + lanes
    bounds = np.minimum(bounds, len(starts) - config.batch_size + lanes)
    bounds[0], bounds[-1] = 0, len(starts)
    visits_bounds = np.append(visits[starts], visits[-1])[bounds]
    no_rows = np.zeros(0, np.int32)
    return _Shares(order.astype(np.int32), visits, visits_bounds, no_rows, np.zeros_like(lanes))


def _weights(rows: RowTable, weights: str | Sequence[float]) -> np.ndarray:
    if isinstance(weights, str):
        if weights == "rows":
            return np.ones(len(rows))
        if weights == "measurements":
            return rows.n_measurements.astype(float)
        _, probe, num_rows = np.unique(rows.src_id, return_inverse=True, return_counts=True)
        return 1.0 / num_rows[probe]
    values = np.asarray(weights, float)
    if values.shape != (len(rows),) or not (values >= 0).all() or not 0 < values.sum() < math.inf:
        raise UsageError(
            f"weights are {values.size} numbers: give one for each of the {len(rows)} rows, none "
            "negative and not all 0"
        )
    return values


def _check_lanes(plan: Plan) -> None:
    """Raises UsageError if a lane has no rows, or almost no weight."""
    visits = plan.visits_end - plan.visits_begin
    is_light = (visits < MIN_VISITS) & (visits > 0)
    if is_light.any():
        example = int(np.argmax(is_light))
        raise UsageError(
            f"example {example} of the batch has only {visits[example]:.1e} contexts per epoch, "
            "because its rows have little weight: use a smaller batch_size, or more even weights"
        )
    if ((visits <= 0) & (plan.small_begin == plan.small_end)).any():
        raise UsageError(
            f"batch_size is {len(plan.lane)}, but an epoch has only {int(plan.visits[-1])} "
            f"contexts of large rows and {len(plan.small_rows)} small rows, too few for every "
            "example of a batch: use a smaller batch_size"
        )


def fitting(config: DataConfig, rows: RowTable) -> DataConfig:
    """Halves the config's batch until the rows suffice for it; UsageError if they never do."""
    while True:
        try:
            deal(rows, config)
            return config
        except UsageError:
            if config.batch_size == 1:
                raise
        config = dataclasses.replace(config, batch_size=config.batch_size // 2)


# --- one host -----------------------------------------------------------------------------------


class HostPlan:
    """The rows of a split and the lanes of the global batch, for a host and its workers.

    Made once per host. Its arrays are in temporary files, so that workers share them, and a process
    loads only the pages that its lanes touch.
    """

    def __init__(self, shards: ShardSet, config: DataConfig):
        self.shards, self._config = shards, config
        names: set[str] = set()
        if config.cache_dir is not None:
            names |= {"first_second", "cache_offset"}
        if config.num_epochs is not None:
            names |= {"first_second", "last_second"}
        if "period" in config.row_weights:
            names |= {"first_second"}
        if config.sampler == "windows":
            names |= {"src_id", "row_index"}
        self._rows = MappedRows(shards, names)
        plan = deal(self._rows.table(), config)
        dealt = {name: getattr(plan, name) for name in _DEALT}
        sizes = {name: (values.dtype, len(values)) for name, values in dealt.items()}
        self._dealt = MappedArrays(sizes)
        for name, values in dealt.items():
            self._dealt.write(name, 0, values)
        # Omitted from the plan that is pickled for workers.
        of_rows = ("identity", "src_hi", "src_lo", "is_bad", *dealt)
        self._plan = plan._replace(**{name: getattr(plan, name)[:0].copy() for name in of_rows})

    def __getstate__(self) -> tuple[ShardSet, DataConfig, bytes]:
        made = pickle.dumps((self._rows, self._dealt, self._plan))
        return self.shards, self._config, made

    def __setstate__(self, state: tuple[ShardSet, DataConfig, bytes]) -> None:
        shards, config, made = state
        try:
            self._rows, self._dealt, self._plan = pickle.loads(made)
            self.shards, self._config = shards, config
        except FileNotFoundError:  # the files ended with their creator
            self.__init__(shards, config)

    def rows(self) -> RowTable:
        """Returns the rows of the split."""
        return self._rows.table()

    def plan(self, lanes: range) -> Plan:
        """Returns the plan of some lanes of the global batch, over all rows of the split."""
        rows = self.rows()
        return self._plan.of_lanes(slice(lanes.start, lanes.stop))._replace(
            identity=rows.identity,
            src_hi=rows.src_hi,
            src_lo=rows.src_lo,
            is_bad=np.zeros(len(rows), bool),
            **self._dealt.arrays(),
        )

    def count_batches(self, config: DataConfig, first_epoch: int) -> int | None:
        """Calls `count_batches` with all lanes."""
        all_lanes = range(config.batch_size)
        return count_batches(self.rows(), self.plan(all_lanes), config, first_epoch)


# --- how many batches ---------------------------------------------------------------------------


def count_batches(rows: RowTable, plan: Plan, config: DataConfig, first_epoch: int) -> int | None:
    """Returns an upper bound on the batches of the epochs from `first_epoch` on; None if endless.

    Hosts must agree on it, and how well small rows pack is known only when they are read. So crops
    are counted for large rows and bounded for small ones, as if each lost as much as possible.
    """
    if config.num_epochs is None:
        return None
    crops = np.zeros(config.batch_size)
    # Crops before each small row, or positions if packed.
    totals = np.zeros(len(plan.small_rows) + 1, np.int64)
    # The min positions of a crop for new tokens: less one measurement, cut at its end.
    has_ipv6 = bool(rows.num_ipv6.any() or rows.src_is_ipv6.any())
    largest = MAX_MEASUREMENT_TOKENS if has_ipv6 else MAX_MEASUREMENT_TOKENS - 2 * 12
    per_crop = config.crop_size - (largest - 1) - _RESTART_TOKENS
    for epoch in range(first_epoch, config.num_epochs):
        rounding = visits_rounding(plan.seed, epoch, plan.rounds_visits)
        crops += np.floor(plan.visits_end + rounding) - np.floor(plan.visits_begin + rounding)
        of_rows = rows.n_measurements, rows.untimed_tokens, rows.first_second, rows.last_second
        divisor = 1 if config.pack else per_crop
        _add_positions(epoch, plan, of_rows, divisor, totals)
    of_small = totals[plan.small_end] - totals[plan.small_begin]
    crops += -(-of_small // per_crop) if config.pack else of_small
    return int(crops.max(initial=0))


@kernel
def _add_positions(epoch, plan, of_rows, divisor, totals):
    """Adds to totals[i + 1] a bound on the positions, over `divisor`, of small rows up to i.

    Only the number of a row's timestamps is known. Within a span of seconds, at most span / 256 of
    them are 256 seconds or more after the previous one; similarly for differences beyond 32 bits.
    """
    n_measurements, untimed_tokens, first_second, last_second = of_rows
    stream = np.empty(1, np.uint64)
    total = 0
    for i in range(len(plan.small_rows)):
        row, k = plan.small_rows[i], small_context(plan, i, epoch)
        if k < 0:
            totals[i + 1] += total
            continue
        stream[0] = context_key(plan.seed, epoch, plan.identity[row], k)
        mode = draw_mode(stream, plan.drawing)
        num, span = np.int64(n_measurements[row]), last_second[row] - first_second[row]
        num_timed = num - np.int64(num * draw_untimed_share(stream, mode))
        tokens = np.int64(untimed_tokens[row])
        if num_timed > 0:
            num_long = min(num_timed - 1, span >> 8)
            num_longest = min(num_timed - 1, span >> 32)
            tokens += ABS_TOKENS + (num_timed - 1) * DELTA1_TOKENS
            tokens += num_long * (DELTA4_TOKENS - DELTA1_TOKENS)
            tokens += num_longest * (ABS_TOKENS - DELTA4_TOKENS)
        total += (tokens - 1 + divisor - 1) // divisor
        totals[i + 1] += total
