"""From the rows of a split to the lanes of a host, and how many batches a number of epochs has."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from beam_pipeline.errors import UsageError
from beam_pipeline.kernels import kernel
from training.batches.config import DataConfig
from training.batches.lanes import (
    ALL_ROWS,
    FOREVER,
    MIN_VISITS,
    Plan,
    context_key,
    visits_rounding,
)
from training.rows.keyed_random import key_of
from training.rows.row_table import RowTable
from training.tokens.draws import draw_mode, draw_untimed_share
from training.tokens.tokenizer import (
    ABS_TOKENS,
    DELTA1_TOKENS,
    DELTA4_TOKENS,
    MAX_MEASUREMENT_TOKENS,
)

_RESTART_TOKENS = ABS_TOKENS - DELTA1_TOKENS  # what a new segment's first timestamp costs more


def num_contexts(n_measurements: np.ndarray, config: DataConfig) -> np.ndarray:
    """Returns how many contexts each row gives an epoch: int64."""
    contexts = -(-n_measurements.astype(np.int64) // config.avg_tokens_per_measurement)
    return np.clip(contexts, 1, config.max_contexts_per_row)


@dataclass(frozen=True)
class _Lanes:
    """How all lanes of the global batch share the rows; see `lanes.Plan` for the arrays."""

    large_rows: np.ndarray
    visits: np.ndarray
    visits_bounds: np.ndarray  # float64 [lanes + 1]
    small_rows: np.ndarray
    small_bounds: np.ndarray  # int64 [lanes + 1]

    def large_range(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the begins and ends in large_rows of lanes [first, end)."""
        begin = np.searchsorted(self.visits, self.visits_bounds[first:end], "right") - 1
        stop = np.searchsorted(self.visits, self.visits_bounds[first + 1 : end + 1], "left")
        return np.minimum(begin, stop), stop


def _deal(rows: RowTable, config: DataConfig) -> _Lanes:
    num_lanes = config.batch_size
    if config.sampler == "windows":
        return _deal_probes(rows, config)
    tokens = rows.untimed_tokens
    is_small = tokens <= config.crop_size
    large_rows, small_rows = np.flatnonzero(~is_small), np.flatnonzero(is_small)
    contexts = num_contexts(rows.n_measurements[large_rows], config)
    visits = np.concatenate([[0], np.cumsum(contexts)])
    visits_bounds = visits[-1] * np.arange(num_lanes + 1) // num_lanes
    # With timestamps tokens are about a third more, of any row.
    ends = np.cumsum(tokens[small_rows])
    total = int(ends[-1]) if len(ends) else 0
    middles = ends - tokens[small_rows] / 2
    small_bounds = np.searchsorted(middles, total * np.arange(num_lanes + 1) / num_lanes)
    return _Lanes(
        large_rows, visits.astype(float), visits_bounds.astype(float), small_rows, small_bounds
    )


def _deal_probes(rows: RowTable, config: DataConfig) -> _Lanes:
    """Gives every probe, with all of its rows, to one lane; a row's visits follow its weight."""
    order = np.lexsort([rows.row_index, rows.src_id])
    weights = _weights(rows, config.weights)[order]
    visits = np.concatenate([[0], np.cumsum(weights * (len(rows) / (weights.sum() or 1)))])
    visits[-1] = len(rows)
    src_id = rows.src_id[order]
    starts = np.flatnonzero(np.diff(src_id, prepend=src_id[:1] - 1))
    if len(starts) < config.batch_size:
        raise UsageError(
            f"batch_size is {config.batch_size}, more than the {len(starts)} probes of the data, "
            "and sampler=windows has another probe in each example: use a smaller batch_size"
        )
    # At the probe nearest to each lane's share, but at least one further than the one before.
    wanted = np.searchsorted(visits[starts], np.linspace(0, len(rows), config.batch_size + 1))
    numbers = np.arange(config.batch_size + 1)
    bounds = np.maximum.accumulate(wanted - numbers) + numbers
    bounds = np.minimum(bounds, len(starts) - config.batch_size + numbers)
    bounds[0], bounds[-1] = 0, len(starts)
    visits_bounds = np.append(visits[starts], visits[-1])[bounds]
    nothing = np.zeros(0, np.int64)
    return _Lanes(order, visits, visits_bounds, nothing, np.zeros(len(bounds), np.int64))


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


def check_config(rows: RowTable, config: DataConfig) -> None:
    """Raises UsageError if these rows, of the whole split, do not suit the config."""
    _check_lanes(_deal(rows, config), config)


def fitting(config: DataConfig, rows: RowTable) -> DataConfig:
    """Returns the config with its batch halved until the rows have contexts for every example.

    Raises:
      UsageError: they do not suit it even then.
    """
    while True:
        try:
            check_config(rows, config)
            return config
        except UsageError:
            if config.batch_size == 1:
                raise
        config = dataclasses.replace(config, batch_size=config.batch_size // 2)


# --- one host -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostPlan:
    """The part of a host, or of one of its workers.

    Attributes:
      rows: the numbers, in the split, of the rows of its lanes; the plan's numbers count in them.
      plan: for the kernels.
      num_batches: how many there are, for every host the same; None if they never end.
    """

    rows: np.ndarray  # int64
    plan: Plan
    num_batches: int | None


def plan_host(
    rows: RowTable, config: DataConfig, first_lane: int, num_lanes: int, first_epoch: int = 0
) -> HostPlan:
    """Plans lanes [first_lane, first_lane + num_lanes) of the global batch.

    Args:
      rows: of the whole split.
      first_epoch: what `num_batches` counts from.

    Raises:
      UsageError: a lane has nothing to give.
    """
    lanes = _deal(rows, config)
    _check_lanes(lanes, config)
    end = first_lane + num_lanes
    large_begin, large_end = lanes.large_range(first_lane, end)
    small_begin = lanes.small_bounds[first_lane:end]
    small_end = lanes.small_bounds[first_lane + 1 : end + 1]
    large = slice(int(large_begin[0]), int(large_end[-1]))
    small = slice(int(small_begin[0]), int(small_end[-1]))
    own = np.union1d(lanes.large_rows[large], lanes.small_rows[small])
    plan = _make_plan(
        rows.take(own),
        config,
        large_rows=np.searchsorted(own, lanes.large_rows[large]),
        visits=lanes.visits[large.start : large.stop + 1],
        small_rows=np.searchsorted(own, lanes.small_rows[small]),
        lane=np.arange(first_lane, end),
        large_begin=large_begin - large.start,
        large_end=large_end - large.start,
        visits_begin=lanes.visits_bounds[first_lane:end],
        visits_end=lanes.visits_bounds[first_lane + 1 : end + 1],
        small_begin=small_begin - small.start,
        small_end=small_end - small.start,
    )
    num_batches = None
    if config.num_epochs is not None:
        num_batches = _count_batches(rows, lanes, config, first_epoch)
    return HostPlan(own, plan, num_batches)


def _check_lanes(lanes: _Lanes, config: DataConfig) -> None:
    if config.num_epochs is not None:
        return  # a lane without rows then gives empty examples
    visits = np.diff(lanes.visits_bounds)
    is_light = (visits < MIN_VISITS) & (visits > 0)
    if is_light.any():
        example = int(np.argmax(is_light))
        raise UsageError(
            f"example {example} of the batch has rows of little weight only, {visits[example]:.1e} "
            "contexts an epoch: use a smaller batch_size, or weights nearer to each other"
        )
    has_none = (visits <= 0) & (np.diff(lanes.small_bounds) == 0)
    if has_none.any():
        raise UsageError(
            f"batch_size is {config.batch_size}, but the data has only "
            f"{int(lanes.visits[-1])} contexts of large rows and {len(lanes.small_rows)} small "
            "rows an epoch, too few for every example of a batch: use a smaller batch_size"
        )


def _make_plan(rows: RowTable, config: DataConfig, **lanes: np.ndarray) -> Plan:
    num_epochs = FOREVER if config.num_epochs is None else config.num_epochs
    return Plan(
        seed=key_of(config.seed),
        num_epochs=num_epochs,
        shuffle=config.shuffle,
        mixed_rows=(config.mixed_rows or ALL_ROWS) if config.shuffle else 1,
        pack=config.pack,
        drawing=config.drawing,
        rounds_visits=config.sampler == "windows",
        identity=rows.identity,
        src_hi=rows.src_hi,
        src_lo=rows.src_lo,
        src_is_ipv6=rows.src_is_ipv6,
        is_bad=np.zeros(len(rows), bool),
        **{name: np.ascontiguousarray(values) for name, values in lanes.items()},
    )


# --- how many batches ---------------------------------------------------------------------------


def _count_batches(rows: RowTable, lanes: _Lanes, config: DataConfig, first_epoch: int) -> int:
    """Returns a number of batches that surely holds the epochs left, without reading a row.

    Hosts must agree on it, and how well small rows pack is only known when they are read. So the
    crops of a lane are bounded: exactly for large rows; for small ones by what rows.parquet says
    of them, as if every crop lost as much as it can.
    """
    crops = np.zeros(config.batch_size)
    small = rows.take(lanes.small_rows)
    ends = np.zeros(len(small) + 1, np.int64)
    per_row = _min_new_per_crop(rows, config)
    for epoch in range(first_epoch, config.num_epochs or 0):
        rounding = visits_rounding(key_of(config.seed), epoch, config.sampler == "windows")
        crops += np.diff(np.floor(lanes.visits_bounds + rounding))
        positions = _max_positions(
            key_of(config.seed),
            epoch,
            small.identity,
            small.n_measurements,
            small.untimed_tokens,
            small.last_second - small.first_second,
            config.drawing,
        )
        if config.pack:
            ends[1:] += np.cumsum(positions)
        else:
            ends[1:] += np.cumsum(-(-positions // per_row))
    small_positions = np.diff(ends[lanes.small_bounds])
    if config.pack:
        small_positions = -(-small_positions // per_row)
    return int((crops + small_positions).max(initial=0))


def _min_new_per_crop(rows: RowTable, config: DataConfig) -> int:
    """Returns how many positions of a crop of small rows are new tokens, at the least."""
    has_ipv6 = bool(rows.num_ipv6.any() or rows.src_is_ipv6.any())
    largest = MAX_MEASUREMENT_TOKENS if has_ipv6 else MAX_MEASUREMENT_TOKENS - 2 * 12
    return config.crop_size - (largest - 1) - _RESTART_TOKENS


@kernel
def _max_positions(seed, epoch, identity, n_measurements, untimed_tokens, span, drawing):
    """Bounds the positions of each small row in an epoch: int64 [rows].

    Of its timestamps only how many there are is known; of `span` seconds at most span / 256 can
    be 256 seconds or more after the one before, and so with the differences beyond 32 bits.
    """
    positions = np.empty(len(identity), np.int64)
    stream = np.empty(1, np.uint64)
    for row in range(len(identity)):
        stream[0] = context_key(seed, epoch, identity[row], 0)
        mode = draw_mode(stream, drawing)
        num = np.int64(n_measurements[row])
        num_timed = num - np.int64(num * draw_untimed_share(stream, mode))
        tokens = untimed_tokens[row]
        if num_timed > 0:
            num_long = min(num_timed - 1, span[row] >> 8)
            num_longest = min(num_timed - 1, span[row] >> 32)
            tokens += ABS_TOKENS + (num_timed - 1) * DELTA1_TOKENS
            tokens += num_long * (DELTA4_TOKENS - DELTA1_TOKENS)
            tokens += num_longest * (ABS_TOKENS - DELTA4_TOKENS)
        positions[row] = tokens - 1
    return positions
