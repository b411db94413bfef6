"""Measurements of a simulated network: periodic pings with delays, losses and outages.

`simulate` yields arrays in time order. Time is cut into slices of about half a million measurements
(a day at most), each a pure function of (options, slice index), so memory does not grow with the
number of measurements.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from beam_pipeline.simulation.network import (
    MAX_OUTAGE_HOURS,
    MIN_OUTAGE_HOURS,
    OUTAGE_SHARE,
    OUTAGE_STREAM,
    SLICE_STREAM,
    Ints,
    Network,
    Pairs,
)
from beam_pipeline.simulation.options import NetworkOptions

# One measurement. `probe` and `destination` are indices into Probes and Anchors.
MEASUREMENT = np.dtype(
    [("time_us", "i8"), ("probe", "i4"), ("destination", "i4"), ("rtt_ms", "f4")], align=True
)

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_SLICE_ROWS = 1 << 19
_MAX_DELAY_S = 5.0  # a measurement starts up to this long after its tick
_JITTER = 0.02  # sigma of the multiplicative noise
_SPIKE_SHARE, _SPIKE_MS = 0.05, 5.0


def simulate(network: Network, options: NetworkOptions) -> Iterator[np.ndarray]:
    """Yields exactly `num_measurements` rows of dtype MEASUREMENT in time order, in slices."""
    num_left = options.num_measurements
    slices_per_day = math.ceil(network.rows_per_day / _SLICE_ROWS)
    late = np.empty(0, MEASUREMENT)  # a tick before the slice's end may be measured after it
    for index in itertools.count():
        day, part = divmod(index, slices_per_day)
        begin_us = day * _DAY_US + part * _DAY_US // slices_per_day
        end_us = day * _DAY_US + (part + 1) * _DAY_US // slices_per_day
        rng = np.random.default_rng([options.seed, SLICE_STREAM, index])
        pair, tick_us = _regular_ticks(network.pairs, begin_us, end_us)
        up = ~_silent(network.pairs.probe[pair], tick_us - day * _DAY_US, options, day)
        pair, tick_us = pair[up], tick_us[up]
        measured = _measure(network, pair, options.start_us + tick_us, rng)
        rows = _in_time_order(np.concatenate([late, measured]))
        num_due = int(np.searchsorted(rows["time_us"], options.start_us + end_us))
        due, late = rows[: min(num_due, num_left)], rows[num_due:]
        if len(due):
            yield due
        num_left -= len(due)
        if not num_left:
            return


def _regular_ticks(pairs: Pairs, begin_us: int, end_us: int) -> tuple[Ints, Ints]:
    """Returns (pair, tick time since the start in us) of every tick in [begin_us, end_us).

    Sorted by pair, then time. Tick n of a pair is at (n + phase) / rate, so neighbouring slices
    neither share nor miss a tick.
    """
    first = np.ceil(begin_us / 1e6 * pairs.rate_hz - pairs.phase)
    num_ticks = (np.ceil(end_us / 1e6 * pairs.rate_hz - pairs.phase) - first).astype(np.int64)
    active = np.flatnonzero(num_ticks)
    num_ticks = num_ticks[active]
    interval_us = 1e6 / pairs.rate_hz[active]
    row = np.repeat(np.arange(len(active)), num_ticks)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(num_ticks) - num_ticks, num_ticks)
    # From n, not from the slice's first tick, so that rounding does not depend on slices.
    pair = active[row]
    tick_us = (first[pair] + nth + pairs.phase[pair]) * interval_us[row]
    return pair, tick_us.astype(np.int64)


def _silent(
    probe: NDArray[np.int32], time_of_day_us: Ints, options: NetworkOptions, day: int
) -> NDArray[np.bool_]:
    """Returns whether the probe has an outage: one of 1 to 8 hours, on some of its days."""
    rng = np.random.default_rng([options.seed, OUTAGE_STREAM, day])
    happens = rng.random(options.num_probes) < OUTAGE_SHARE
    hours = rng.uniform(MIN_OUTAGE_HOURS, MAX_OUTAGE_HOURS, options.num_probes) * happens
    begin_hour = rng.random(options.num_probes) * (24 - hours)
    begin_us = (begin_hour * _HOUR_US).astype(np.int64)
    end_us = begin_us + (hours * _HOUR_US).astype(np.int64)
    return (time_of_day_us >= begin_us[probe]) & (time_of_day_us < end_us[probe])


def _measure(network: Network, pair: Ints, tick_us: Ints, rng: np.random.Generator) -> np.ndarray:
    """Pings once per tick (us since 1970): returns MEASUREMENT rows in tick order."""
    pairs = network.pairs
    rows = np.empty(len(pair), MEASUREMENT)
    rows["probe"] = pairs.probe[pair]
    rows["destination"] = pairs.destination[pair]
    max_delay_us = 1e6 * np.minimum(_MAX_DELAY_S, 0.25 / pairs.rate_hz[pair])
    rows["time_us"] = tick_us + (rng.random(len(pair)) * max_delay_us).astype(np.int64)

    angle = (rows["time_us"] % _DAY_US).astype(np.float32) * np.float32(2 * np.pi / _DAY_US)
    rtt_ms = pairs.mean_ms[pair]
    rtt_ms += pairs.sine_ms[pair] * np.sin(angle) + pairs.cosine_ms[pair] * np.cos(angle)
    rtt_ms *= 1 + np.float32(_JITTER) * rng.standard_normal(len(pair), np.float32)
    luck = rng.random(len(pair), np.float32)  # decides between loss, spike and neither
    slow = np.flatnonzero(luck >= 1 - _SPIKE_SHARE)
    rtt_ms[slow] += np.float32(_SPIKE_MS) * rng.standard_exponential(len(slow), np.float32)
    rtt_ms = np.rint(rtt_ms * 1000) / np.float32(1000)  # ping prints three decimals
    lost = luck < network.probes.loss_rate.astype(np.float32)[rows["probe"]]
    rows["rtt_ms"] = np.where(lost, np.float32(-1), rtt_ms)
    return rows


def _in_time_order(rows: np.ndarray) -> np.ndarray:
    """Sorts rows by time, stably.

    Packing time and position into one integer is several times faster than argsort, and makes ties
    independent of the CPU.
    """
    if not len(rows):
        return rows
    position_bits = len(rows).bit_length()
    elapsed_us = rows["time_us"] - rows["time_us"].min()  # a day at most: 37 bits
    key = elapsed_us << position_bits | np.arange(len(rows))
    key.sort()
    return rows[key & ((1 << position_bits) - 1)]
