"""From the rows of a split to the lanes of a host, and to the number of batches of some epochs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

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

_RESTART_TOKENS = ABS_TOKENS - DELTA1_TOKENS  # the extra cost of a new segment's first timestamp


def num_contexts(n_measurements: np.ndarray, config: DataConfig) -> np.ndarray:
    """Returns how many contexts an epoch has of each row: int64."""
    contexts = -(-n_measurements.astype(np.int64) // config.avg_tokens_per_measurement)
    return np.clip(contexts, 1, config.max_contexts_per_row)


def deal(rows: RowTable, config: DataConfig) -> Plan:
    """Deals all rows of a split to the lanes of the global batch.

    Raises:
      UsageError: the rows do not suit the config, or do not suffice for its batch.
    """
    is_by_probe = config.sampler == "windows"
    large_rows, visits, visits_bounds, small_rows, small_bounds = (
        _deal_probes(rows, config) if is_by_probe else _deal_rows(rows, config)
    )
    begin = np.searchsorted(visits, visits_bounds[:-1], "right") - 1
    end = np.searchsorted(visits, visits_bounds[1:], "left")
    plan = Plan(
        seed=key_of(config.seed),
        num_epochs=FOREVER if config.num_epochs is None else config.num_epochs,
        shuffle=config.shuffle,
        mixed_rows=(config.mixed_rows or ALL_ROWS) if config.shuffle else 1,
        pack=config.pack,
        drawing=config.drawing,
        rounds_visits=is_by_probe,
        identity=rows.identity,
        src_hi=rows.src_hi,
        src_lo=rows.src_lo,
        src_is_ipv6=rows.src_is_ipv6,
        is_bad=np.zeros(len(rows), bool),
        large_rows=large_rows,
        visits=visits.astype(float),
        small_rows=small_rows,
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


# Large rows, the visits [large + 1] before each of them, those [lanes + 1] before each lane; small
# rows, and how many [lanes + 1] of them are before each lane.
type _Shares = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _deal_rows(rows: RowTable, config: DataConfig) -> _Shares:
    """Gives lanes equally many contexts of large rows, and about as many tokens of small ones."""
    lanes = np.arange(config.batch_size + 1)
    tokens = rows.untimed_tokens
    is_small = tokens <= config.crop_size
    large_rows, small_rows = np.flatnonzero(~is_small), np.flatnonzero(is_small)
    contexts = num_contexts(rows.n_measurements[large_rows], config)
    visits = np.concatenate([[0], np.cumsum(contexts)])
    # Timestamps add about a third to the tokens of any row.
    ends = np.concatenate([[0], np.cumsum(tokens[small_rows])])
    middles = ends[1:] - tokens[small_rows] / 2
    small_bounds = np.searchsorted(middles, ends[-1] * lanes / config.batch_size)
    visits_bounds = visits[-1] * lanes // config.batch_size
    return large_rows, visits, visits_bounds, small_rows, small_bounds


def _deal_probes(rows: RowTable, config: DataConfig) -> _Shares:
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
    # A lane begins at the probe nearest to its share, and has one probe at least.
    wanted = np.searchsorted(visits[starts], np.linspace(0, len(rows), config.batch_size + 1))
    lanes = np.arange(config.batch_size + 1)
    bounds = np.maximum.accumulate(wanted - lanes) + lanes
    bounds = np.minimum(bounds, len(starts) - config.batch_size + lanes)
    bounds[0], bounds[-1] = 0, len(starts)
    visits_bounds = np.append(visits[starts], visits[-1])[bounds]
    return order, visits, visits_bounds, np.zeros(0, np.int64), np.zeros_like(lanes)


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
    """Raises UsageError if a lane has nothing to give, or next to nothing."""
    visits = plan.visits_end - plan.visits_begin
    is_light = (visits < MIN_VISITS) & (visits > 0)
    if is_light.any():
        example = int(np.argmax(is_light))
        raise UsageError(
            f"example {example} of the batch has rows of little weight only, {visits[example]:.1e} "
            "contexts an epoch: use a smaller batch_size, or weights nearer to each other"
        )
    if ((visits <= 0) & (plan.small_begin == plan.small_end)).any():
        raise UsageError(
            f"batch_size is {len(plan.lane)}, but the data has only {int(plan.visits[-1])} "
            f"contexts of large rows and {len(plan.small_rows)} small rows an epoch, too few for "
            "every example of a batch: use a smaller batch_size"
        )


def fitting(config: DataConfig, rows: RowTable) -> DataConfig:
    """Returns the config with its batch halved until the rows suffice for every example.

    Raises:
      UsageError: the rows do not suit the config with a batch of one, either.
    """
    while True:
        try:
            deal(rows, config)
            return config
        except UsageError:
            if config.batch_size == 1:
                raise
        config = dataclasses.replace(config, batch_size=config.batch_size // 2)


# --- one host -----------------------------------------------------------------------------------


class HostPlan(NamedTuple):
    """The part of a host, or of one of its workers.

    Attributes:
      rows: int64, the rows of its lanes, as numbers in the split; `plan` numbers them from 0.
      plan: for the kernels.
      num_batches: the same for every host; None if batches never end.
    """

    rows: np.ndarray
    plan: Plan
    num_batches: int | None


def plan_host(
    rows: RowTable, config: DataConfig, first_lane: int, num_lanes: int, first_epoch: int = 0
) -> HostPlan:
    """Plans lanes [first_lane, first_lane + num_lanes) of the global batch.

    Args:
      rows: of the whole split.
      first_epoch: the first of the epochs that `num_batches` counts.

    Raises:
      UsageError: as `deal`.
    """
    whole = deal(rows, config)
    part = whole.of_lanes(slice(first_lane, first_lane + num_lanes))
    large = slice(int(part.large_begin[0]), int(part.large_end[-1]))
    small = slice(int(part.small_begin[0]), int(part.small_end[-1]))
    large_rows, small_rows = whole.large_rows[large], whole.small_rows[small]
    own = np.union1d(large_rows, small_rows)
    plan = part._replace(
        identity=whole.identity[own],
        src_hi=whole.src_hi[own],
        src_lo=whole.src_lo[own],
        src_is_ipv6=whole.src_is_ipv6[own],
        is_bad=whole.is_bad[own],
        large_rows=np.searchsorted(own, large_rows),
        visits=whole.visits[large.start : large.stop + 1].copy(),
        small_rows=np.searchsorted(own, small_rows),
        large_begin=part.large_begin - large.start,
        large_end=part.large_end - large.start,
        small_begin=part.small_begin - small.start,
        small_end=part.small_end - small.start,
    )
    num_batches = None
    if config.num_epochs is not None:
        num_batches = _count_batches(rows, whole, config, range(first_epoch, config.num_epochs))
    return HostPlan(own, plan, num_batches)


# --- how many batches ---------------------------------------------------------------------------


def _count_batches(rows: RowTable, plan: Plan, config: DataConfig, epochs: range) -> int:
    """Returns a number of batches that surely holds these epochs, without reading a row.

    Hosts must agree on it, and how well small rows pack is known only when they are read. So the
    crops of a lane are bounded: exactly for large rows; for small ones by what rows.parquet says
    of them, as if every crop lost as much as it can.
    """
    crops = np.zeros(config.batch_size)
    small = rows.take(plan.small_rows)
    totals = np.zeros(len(small) + 1, np.int64)  # crops before each small row, positions if packed
    # The positions of a crop that new tokens take at least: less one measurement, cut at its end.
    has_ipv6 = bool(rows.num_ipv6.any() or rows.src_is_ipv6.any())
    largest = MAX_MEASUREMENT_TOKENS if has_ipv6 else MAX_MEASUREMENT_TOKENS - 2 * 12
    per_crop = config.crop_size - (largest - 1) - _RESTART_TOKENS
    for epoch in epochs:
        rounding = visits_rounding(plan.seed, epoch, plan.rounds_visits)
        crops += np.floor(plan.visits_end + rounding) - np.floor(plan.visits_begin + rounding)
        positions = _max_positions(
            plan.seed,
            epoch,
            small.identity,
            small.n_measurements,
            small.untimed_tokens,
            small.last_second - small.first_second,
            plan.drawing,
        )
        totals[1:] += np.cumsum(positions if config.pack else -(-positions // per_crop))
    of_small = totals[plan.small_end] - totals[plan.small_begin]
    crops += -(-of_small // per_crop) if config.pack else of_small
    return int(crops.max(initial=0))


@kernel
def _max_positions(seed, epoch, identity, n_measurements, untimed_tokens, span, drawing):
    """Bounds the positions of each small row in an epoch: int64 [rows].

    Only the number of its timestamps is known. Within `span` seconds, at most span / 256 of them
    are 256 seconds or more after the one before; likewise for differences beyond 32 bits.
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
