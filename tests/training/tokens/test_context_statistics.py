"""Drawing contexts is without bias: their tokens show what was drawn, theory says how often.

Keys are fixed; a bound is one that right drawing breaks with a probability of 1e-9.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest

from beam_pipeline.dataset.sorted_run import NARROW
from tests.support import reference_sampler as reference
from tests.support.drawn_contexts import WEIGHTS, Drawn, Row, draw, every_mode, row_of
from tests.support.helpers import YEAR_2024_US
from tests.support.reference_sampler import distance, most_chi_square, most_deviation
from training.tokens.draws import FULL, NONE, PARTIAL

UNTIMED, TIMED = 14, 16  # tokens of a measurement of a steady row; its first timestamp takes 7 more


def steady_row(n: int) -> Row:
    """The i-th destination is the IPv4 address i; all measurements take the same tokens."""
    run = np.zeros(n, NARROW)
    run["event_time"] = YEAR_2024_US + np.arange(n) * 100_000
    run["dst_lo"] = np.arange(n)
    run["rtt"] = 1.0
    return row_of(run)


class Shown(NamedTuple):
    """Measurements of contexts of a steady row whose destination is not cut off."""

    context: np.ndarray
    place: np.ndarray
    item: np.ndarray
    is_timed: np.ndarray
    is_last: np.ndarray


def shown_in(drawn: Drawn) -> Shown:
    tokens = drawn.tokens
    starts = np.cumsum(tokens == reference.START, axis=1, dtype=np.int32)
    context, at = np.nonzero(tokens[:, :-4] == reference.DST_IPV4)
    item = np.zeros(len(at), np.int64)
    for byte in range(1, 5):
        item = item << 8 | (tokens[context, at + byte].astype(np.int64) - 11)
    is_timed = np.zeros((len(tokens), int(starts.max())), bool)
    times = np.nonzero((tokens >= reference.ABSOLUTE) & (tokens <= reference.DELTA4))
    is_timed[times[0], starts[times] - 1] = True
    place = starts[context, at] - 1
    is_last = place == drawn.facts["num_measurements"][context] - 1
    return Shown(context, place, item, is_timed[context, place], is_last)


def most_off(probability: np.ndarray, num: int) -> np.ndarray:
    """How far shares of `num` draws are off any of these probabilities (Bernstein, union)."""
    t = math.log(2 * probability.size / 1e-9)
    return np.sqrt(2 * probability * (1 - probability) * t / num) + t / (3 * num)


def enough_for(crop_size: int, mode: int) -> int:
    """How many measurements a crop could need: the shortest take 12 tokens, 14 in mode full."""
    return -(-(crop_size + 1) // (14 if mode == FULL else 12))


@pytest.mark.parametrize(
    ("mode", "crop_size", "n"), [(FULL, 128, 60), (PARTIAL, 128, 3000), (NONE, 1024, 20_000)]
)
def test_sizes_of_windows_are_log_uniform_up_to_all_of_the_row(mode, crop_size, n):
    num = 20_000 if crop_size == 128 else 5000
    windows = draw(steady_row(n), num, WEIGHTS[mode], crop_size).facts["window"]
    enough = enough_for(crop_size, mode)
    sizes = np.arange(enough, n + 1)
    found = np.searchsorted(np.sort(windows), sizes, "right") / num
    expected = np.log(sizes + 1) / math.log(n + 1)
    assert np.abs(found - expected).max() < most_deviation(num)
    assert windows.max() <= n
    if n == 60:
        whole = np.array([1 - math.log(n) / math.log(n + 1)])
        assert abs(np.mean(windows == n) - whole[0]) < most_off(whole, num)[0]
        assert (windows == n).sum() > 20


def chance_of_each(n: int, crop_size: int) -> np.ndarray:
    """Returns with which probability a context without timestamps draws each measurement.

    From the words of `draw_window`: a window of log-uniform size, or, if it might not fill the
    crop, a run from either end of the smallest window that surely does.
    """
    count = -(-(crop_size + 1) // UNTIMED)
    enough = min(n, enough_for(crop_size, NONE))
    chance = np.zeros(n)
    for size in range(1, n + 1):
        share = math.log((size + 1) / size) / math.log(n + 1)
        width = max(size, enough)
        for first in range(n - width + 1):
            each = share / (n - width + 1)
            if size > enough:
                chance[first : first + width] += each * count / width
            else:
                chance[first : first + count] += each / 2
                chance[first + width - count : first + width] += each / 2
    return chance


@pytest.mark.parametrize(("crop_size", "n", "num"), [(128, 40, 60_000), (1024, 120, 8000)])
def test_every_measurement_is_drawn_as_often_as_it_should(crop_size, n, num):
    """Also the first and the last one of a row, which are drawn least often."""
    drawn = draw(steady_row(n), num, WEIGHTS[NONE], crop_size)
    counts = drawn.facts["num_measurements"]
    assert set(counts.tolist()) == {-(-(crop_size + 1) // UNTIMED)}
    shown = shown_in(drawn)
    kept = ~shown.is_last  # the last one is cut; it is a random one
    found = np.bincount(shown.item[kept], minlength=n) / num
    expected = chance_of_each(n, crop_size) * (counts[0] - 1) / counts[0]
    assert expected.sum() == pytest.approx(counts[0] - 1)
    assert (np.abs(found - expected) < most_off(expected, num)).all()
    assert found.min() > 0
    assert expected[0] == pytest.approx(expected[-1])


# --- timestamps ---------------------------------------------------------------------------------


def test_contexts_without_timestamps_are_in_random_order():
    """The rank correlation of place and time has a standard deviation of (m - 1) ** -0.5."""
    num = 4000
    drawn = draw(steady_row(2000), num, WEIGHTS[NONE])
    assert (drawn.facts["num_timed"] == 0).all()
    shown = shown_in(drawn)
    correlations = rank_correlations(shown, ~shown.is_last)
    assert len(correlations) == num
    most = 6 / math.sqrt(73 - 1) / math.sqrt(num)  # six standard deviations: 2e-9
    assert abs(np.mean(correlations)) < most
    assert np.std(correlations) == pytest.approx(1 / math.sqrt(72), rel=0.15)


def rank_correlations(shown: Shown, kept: np.ndarray) -> list[float]:
    """Correlates, in each context, the place of measurements with their rank in time."""
    context, item = shown.context[kept], shown.item[kept]
    correlations = []
    for items in np.split(item, np.flatnonzero(np.diff(context)) + 1):
        if len(items) > 2:
            ranks = np.argsort(np.argsort(items))
            correlations.append(float(np.corrcoef(np.arange(len(items)), ranks)[0, 1]))
    return correlations


def test_partial_contexts_spread_timed_and_untimed_ones_evenly():
    """A merge by coin flips would put timed ones at 0.12 where 90 % have no timestamp."""
    drawn = draw(steady_row(2000), 6000, WEIGHTS[PARTIAL])
    shown = shown_in(drawn)
    kept = ~shown.is_last
    places = (shown.place + 0.5) / (drawn.facts["num_measurements"][shown.context] - 1)
    share = (drawn.facts["num_timed"] / drawn.facts["num_measurements"])[shown.context]
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0), (0.0, 1.0)):
        some = kept & (share >= low) & (share < high)
        for is_timed in (False, True):
            mean = places[some & (shown.is_timed == is_timed)].mean()
            num_contexts = len(np.unique(shown.context[some]))
            assert num_contexts > 500
            # The mean of 6 places, the fewest, has a standard deviation of 0.12 in one context.
            assert abs(mean - 0.5) < 6 * 0.12 / math.sqrt(num_contexts)


@pytest.mark.parametrize("crop_size", [256, 1024])
def test_partial_contexts_lose_10_to_90_percent_of_their_timestamps(crop_size):
    num = 4000
    facts = draw(steady_row(5000), num, WEIGHTS[PARTIAL], crop_size).facts
    counts = facts["num_measurements"]
    untimed = counts - facts["num_timed"]
    # What each 8 lose is rounded; of the last, perhaps fewer than 8, any may be drawn first.
    least = np.floor(0.1 * (counts // 8 * 8))
    assert (untimed >= least).all()
    assert (facts["num_timed"] >= least).all()
    shares = untimed / counts
    rounding = 3 / counts.min()
    for share in np.linspace(0.15, 0.85, 15):
        expected = (share - 0.1) / 0.8
        found = np.mean(shares <= share)
        assert abs(found - expected) < most_deviation(num) + rounding
    assert shares.min() < 0.1 + rounding + 0.01
    assert shares.max() > 0.9 - rounding - 0.01
    assert abs(shares.mean() - 0.5) < most_deviation(num) + 0.2 / counts.min()


# --- fields -------------------------------------------------------------------------------------


@every_mode
def test_fields_are_in_every_order_equally_often(mode):
    tokens = draw(steady_row(3000), 2000, WEIGHTS[mode]).tokens
    context, at = np.nonzero(tokens < 11)
    roles = tokens[context, at]
    starts = np.flatnonzero(roles == reference.START)
    is_whole = context[starts[:-1]] == context[starts[1:]]  # the last of a context is cut
    lengths, starts = np.diff(starts)[is_whole] - 1, starts[:-1][is_whole]
    for length, num_orders in ((3, 6), (4, 24)):
        chosen = starts[lengths == length]
        if mode in (PARTIAL, FULL if length == 4 else NONE):
            orders = roles[chosen[:, None] + np.arange(1, length + 1)].astype(np.int64)
            orders[(orders == reference.DELTA1) | (orders == reference.DELTA4)] = 5
            _, counts = np.unique(orders, axis=0, return_counts=True)
            assert len(counts) == num_orders
            expected = counts.mean()
            chi_square = ((counts - expected) ** 2 / expected).sum()
            assert chi_square < most_chi_square(num_orders - 1)
        else:
            assert len(chosen) == 0


# --- strided windows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "n", "ratio"),
    [(FULL, 200, 1.0), (PARTIAL, 3000, 0.5), (NONE, 3000, 3.0), (FULL, 20_000, 1.0)],
)
def test_strides_are_powers_of_two_of_the_right_shares(mode, n, ratio):
    """A stride comes `ratio` times as often as half of it."""
    num = 20_000 if n < 3000 else 4000
    facts = draw(steady_row(n), num, WEIGHTS[mode], 128, strided=True, stride_ratio=ratio).facts
    largest = int(math.log2(n / enough_for(128, mode)))
    strides, counts = np.unique(facts["window"], return_counts=True)
    assert strides.tolist() == [2**exponent for exponent in range(largest + 1)]
    shares = ratio ** np.arange(len(strides))
    expected = num * shares / shares.sum()
    assert ((counts - expected) ** 2 / expected).sum() < most_chi_square(max(1, largest))
    if n == 20_000:
        first = facts["first"][facts["window"] == 1]
        near_the_end = enough_for(128, mode) / n
        assert distance((first / n).tolist()) < most_deviation(len(first)) + near_the_end


def test_mixed_windows_keep_each_timestamp_with_probability_one_half():
    facts = draw(steady_row(5000), 2000, WEIGHTS[PARTIAL], strided=True).facts
    total = int(facts["num_measurements"].sum())
    # With fewer timestamps a crop holds a few more measurements: 0.001 for that.
    assert abs(facts["num_timed"].sum() / total - 0.5) < most_deviation(total) + 0.002
    shares = facts["num_timed"] / facts["num_measurements"]
    assert np.std(shares) == pytest.approx(
        0.5 / math.sqrt(facts["num_measurements"].mean()), rel=0.2
    )
    shown = shown_in(draw(steady_row(5000), 2000, WEIGHTS[PARTIAL], strided=True))
    kept = ~shown.is_last
    for parity in (0, 1):
        chosen = shown.is_timed[kept & (shown.place % 2 == parity)]
        assert abs(chosen.mean() - 0.5) < most_deviation(len(chosen)) + 0.002


@pytest.mark.parametrize(("mode", "n"), [(FULL, 90), (PARTIAL, 1000), (NONE, 90)])
def test_strided_windows_reach_both_ends_of_a_row(mode, n):
    """Windows of stride 1 take every measurement in turn, so none may be left out for good.

    But the last one: it ends its context, and here all contexts are cut at the same place.
    """
    num = 8000
    shown = shown_in(draw(steady_row(n), num, WEIGHTS[mode], strided=True))
    found = np.bincount(shown.item, minlength=n)
    never = np.flatnonzero(found[:-1] == 0)
    assert never.size == 0, f"measurements {never.min()} to {never.max()} of {n} are never drawn"
