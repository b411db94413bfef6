"""Drawing contexts: the compiled way gives the tokens of the plain one, and draws without bias.

Most statistics are of a `steady_row`: its i-th destination is the IPv4 address i and all its
measurements take the same tokens, so that the tokens tell which were drawn and theory says how
often. Keys are fixed; a bound is one that right drawing breaks with a probability of 1e-9.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.options import ENCODINGS, Encoding
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.sorted_run import NARROW, sort_groups
from tests.support import reference_sampler as reference
from tests.support.helpers import (
    MAPPED_IPV4,
    YEAR_2024_US,
    as_number,
    make_run,
    records_as_tuples,
)
from tests.support.properties import num_examples
from tests.support.reference_sampler import distance, most_chi_square, most_deviation
from training.batches.lanes import context_keys
from training.rows import row_layout
from training.rows.keyed_random import key_of
from training.rows.row_layout import Columns, locate
from training.tokens.contexts import CONTEXT_FACTS, draw_contexts
from training.tokens.draws import FULL, MODE_NAMES, NONE, PARTIAL, Drawing, new_scratch
from training.tokens.tokenizer import MAX_MEASUREMENT_TOKENS

SRC = "192.0.2.1"
WEIGHTS = {FULL: (1.0, 0.0), PARTIAL: (0.0, 1.0), NONE: (0.0, 0.0)}
every_mode = pytest.mark.parametrize("mode", WEIGHTS, ids=MODE_NAMES)


class Row(NamedTuple):
    """A row's bytes, for drawing, and its measurements, for comparing."""

    src_addr: str
    columns: Columns
    items: list[reference.Item]


class Drawn(NamedTuple):
    tokens: np.ndarray  # uint16 [contexts, num_tokens]
    facts: np.ndarray  # CONTEXT_FACTS [contexts]


def row_of(run: np.ndarray, encoding: Encoding = "compact", src_addr: str = SRC) -> Row:
    located = locate(encode_row(run, RowKey(src_addr, 0), encoding))
    return Row(src_addr, located.columns, reference.items_of(records_as_tuples(run)))


def draw(
    row: Row,
    num: int,
    weights: tuple[float, float] = (0.4, 0.3),
    crop_size: int = 1024,
    strided: bool = False,
    seed: int = 0,
    epoch: int = 0,
    identity: int = 0,
    first_k: int = 0,
    **more: Any,
) -> Drawn:
    """Draws contexts first_k, first_k + 1, … of a row; `more` are further fields of Drawing."""
    hi, lo, family = addresses.parse(pa.array([row.src_addr]))
    tokens = np.full((num, crop_size + 1), 9, np.uint16)
    facts = np.zeros(num, CONTEXT_FACTS)
    is_whole = draw_contexts(
        *row.columns,
        (hi[0], lo[0], bool(family[0] == 6)),
        context_keys(key_of(seed), np.int64(epoch), key_of(identity), first_k, num),
        Drawing(crop_size + 1, *weights, strided, **more),
        new_scratch(crop_size + 1),
        tokens,
        facts,
    )
    assert is_whole
    return Drawn(tokens, facts)


def contexts_of(drawn: Drawn) -> list[list[int]]:
    return [
        tokens[: fact["num_tokens"]].tolist() for tokens, fact in zip(drawn.tokens, drawn.facts)
    ]


# --- equal to the plain reference ---------------------------------------------------------------


def assert_as_reference(row: Row, drawn: Drawn) -> None:
    """The tokens are those that the reference writes for the choices that they show."""
    src = as_number(row.src_addr)
    for tokens, fact in zip(contexts_of(drawn), drawn.facts):
        choices = reference.choices_of(tokens, src, row.items)
        assert reference.encode(src, choices, len(tokens)) == tokens
        # Of those that were drawn last, of 12 tokens and more, the crop's end may show nothing.
        assert 0 <= fact["num_measurements"] - len(choices) <= MAX_MEASUREMENT_TOKENS // 12
        told = [choice.item.second for choice in choices if "time" in choice.order]
        assert 0 <= fact["num_timed"] - len(told) <= 1 + fact["num_measurements"] - len(choices)
        assert told == sorted(told)
        mode = fact["mode"]
        assert all(("time" in choice.order) == (mode == FULL) for choice in choices[:-1]) or (
            mode == PARTIAL
        )


@st.composite
def large_rows(draw) -> Row:
    """Rows of any mixture of families, failures, ties and gaps, whose source is of any family."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.one_of(st.integers(86, 130), st.integers(86, 2000)))
    ties = draw(st.booleans())
    run = make_run(n, seed=int(rng.integers(2**32)), wide=draw(st.booleans()), ties=ties)
    if not ties:
        # Gaps from less than a second to more than a difference can tell.
        largest = draw(st.sampled_from([1e5, 1e8, 1e11, 5e15]))
        gaps = np.exp(rng.uniform(0, math.log(largest), n)).astype(np.int64)
        run["event_time"] = np.minimum(np.cumsum(gaps), 2**60)
    run["rtt"][rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = -1
    sort_groups(run, np.array([0, n]))
    span = int(run["event_time"][-1] - run["event_time"][0]) // 10**6
    encoding = draw(st.sampled_from(ENCODINGS)) if span < 2**32 - 1 else "arrow"
    src_addr = draw(st.sampled_from([SRC, "255.255.255.255", "2001:db8::1", "::1"]))
    return row_of(run, encoding, src_addr)


@settings(max_examples=num_examples(50))
@given(large_rows(), st.integers(0, 2**63))
def test_windows_have_the_tokens_of_the_reference(row, seed):
    for mode in WEIGHTS:
        drawn = draw(row, 3, WEIGHTS[mode], seed=seed)
        assert set(drawn.facts["mode"].tolist()) == {mode}
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        assert_as_reference(row, drawn)


@settings(max_examples=num_examples(30))
@given(large_rows(), st.integers(0, 2**63))
def test_repeats_and_fixed_orders_have_the_tokens_of_the_reference(row, seed):
    for mode in WEIGHTS:
        drawn = draw(row, 2, WEIGHTS[mode], seed=seed, repeat_share=1.0, fixed_order_share=0.5)
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        assert_as_reference(row, drawn)


@settings(max_examples=num_examples(40))
@given(large_rows(), st.integers(0, 2**63))
def test_strided_windows_have_the_tokens_of_the_reference(row, seed):
    for mode in WEIGHTS:
        drawn = draw(row, 2, WEIGHTS[mode], strided=True, seed=seed)
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        assert_as_reference(row, drawn)


@pytest.mark.parametrize("crop_size", [1, 2, 11, 12, 13, 64, 300, 5000])
def test_crops_of_any_size_have_the_tokens_of_the_reference(crop_size):
    for encoding in ENCODINGS:
        row = row_of(make_run(700, seed=1, wide=True), encoding)
        for mode in WEIGHTS:
            drawn = draw(row, 5, WEIGHTS[mode], crop_size=crop_size)
            assert set(drawn.facts["num_tokens"].tolist()) == {crop_size + 1}
            assert_as_reference(row, drawn)


def test_the_reference_finds_faults():
    """It would be no use as a reference if it took anything."""
    row = row_of(make_run(200, seed=2))
    (tokens,) = contexts_of(draw(row, 1, WEIGHTS[FULL]))
    src = as_number(SRC)
    assert reference.choices_of(tokens, src, row.items)
    dst = tokens.index(reference.DST_IPV4)
    wrong_address = [*tokens[: dst + 4], 11 + (tokens[dst + 4] - 10) % 256, *tokens[dst + 5 :]]
    with pytest.raises(AssertionError, match="not in the row"):
        reference.choices_of(wrong_address, src, row.items)
    second = tokens.index(reference.START, 1)
    with pytest.raises(AssertionError):
        reference.choices_of([*tokens[:second], *tokens[:second]], src, row.items)
    later = tokens.index(reference.DELTA4) if reference.DELTA4 in tokens else 0
    wrong_time = [*tokens[: later + 4], 11 + (tokens[later + 4] - 10) % 256, *tokens[later + 5 :]]
    with pytest.raises(AssertionError):
        reference.choices_of(wrong_time, src, row.items)


# --- what a context depends on ------------------------------------------------------------------


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_both_encodings_and_the_slow_way_give_the_same_contexts(wide, strided):
    run = make_run(1500, seed=3, wide=wide)
    compact, arrow = row_of(run, "compact"), row_of(run, "arrow")
    located = row_layout._locate_any(encode_row(run, RowKey(SRC, 0), "arrow"))
    slow = Row(SRC, located.columns, [])
    assert arrow.columns.layout.kind != compact.columns.layout.kind
    expected = contexts_of(draw(compact, 50, strided=strided))
    assert contexts_of(draw(arrow, 50, strided=strided)) == expected
    assert contexts_of(draw(slow, 50, strided=strided)) == expected


def test_contexts_do_not_depend_on_how_many_are_drawn_at_once():
    row = row_of(make_run(900, seed=4, wide=True))
    all_of_them = contexts_of(draw(row, 16))
    assert contexts_of(draw(row, 16)) == all_of_them
    assert contexts_of(draw(row, 5)) == all_of_them[:5]
    assert contexts_of(draw(row, 3, first_k=9)) == all_of_them[9:12]
    assert [contexts_of(draw(row, 1, first_k=k))[0] for k in range(16)] == all_of_them


def test_seed_epoch_row_and_number_make_another_context_each():
    row = row_of(make_run(900, seed=5))
    values = [0, 1, 2, 2**40, 2**62]
    found = {
        tuple(tokens)
        for seed, epoch, identity in itertools.product(values, repeat=3)
        for tokens in contexts_of(draw(row, 3, seed=seed, epoch=epoch, identity=identity))
    }
    assert len(found) == 3 * 5**3


def test_contexts_are_written_to_their_lines_alone():
    row = row_of(make_run(900, seed=6))
    expected = draw(row, 3)
    tokens, facts = np.full((7, 1025), 9, np.uint16), np.zeros(7, CONTEXT_FACTS)
    hi, lo, _ = addresses.parse(pa.array([SRC]))
    draw_contexts(
        *row.columns,
        (hi[0], lo[0], False),
        context_keys(key_of(0), np.int64(0), key_of(0), 0, 3),
        Drawing(1025, 0.4, 0.3, False),
        new_scratch(1025),
        tokens,
        facts,
    )
    assert np.array_equal(tokens[:3], expected.tokens)
    assert np.array_equal(facts[:3], expected.facts)
    assert (tokens[3:] == 9).all()


def test_a_damaged_destination_is_told():
    record = bytearray(encode_row(make_run(100, seed=7), RowKey(SRC, 0), "arrow"))
    columns = locate(bytes(record)).columns
    text = columns.layout.dst_more
    record[text : text + 1000] = b"x" * 1000
    row = Row(SRC, columns._replace(raw=np.frombuffer(bytes(record), np.uint8)), [])
    with pytest.raises(AssertionError):
        draw(row, 16)


# --- repeats and fixed orders ------------------------------------------------------------------

MANY = 30  # destinations


def row_to(destinations: np.ndarray) -> Row:
    """Returns a row whose measurements go to these destinations, in order of time."""
    run = make_run(len(destinations), seed=8)
    run["dst_lo"] = 0xC6336400 + destinations
    sort_groups(run, np.array([0, len(run)]))
    return row_of(run)


def destinations_of(row: Row, tokens: list[int]) -> list[int]:
    return [choice.item.dst for choice in reference.choices_of(tokens, as_number(SRC), row.items)]


def test_a_context_with_repeats_has_few_destinations_of_the_whole_row():
    row = row_to(np.random.default_rng(1).integers(0, MANY, 3000))
    plain, repeated = (
        [destinations_of(row, tokens) for tokens in contexts_of(draw(row, 60, repeat_share=share))]
        for share in (0.0, 1.0)
    )
    num_plain, num_repeated = (
        np.mean([len(set(each)) for each in drawn]) for drawn in (plain, repeated)
    )
    assert num_plain > 20
    # The anchor and an eighth of the others, less those that happen not to be drawn.
    assert 1 + (MANY - 1) / 8 * 0.6 < num_repeated < 1 + (MANY - 1) / 8 * 1.4
    assert {dst for each in repeated for dst in each} == {dst for each in plain for dst in each}
    firsts = draw(row, 60, repeat_share=1.0).facts
    assert set(firsts["window"].tolist()) == {3000} and set(firsts["first"].tolist()) == {0}


def test_the_crop_is_full_also_where_measurements_to_few_destinations_are_rare():
    destinations = np.arange(3000)
    row = row_to(destinations)  # each destination once
    drawn = draw(row, 20, repeat_share=1.0)
    assert set(drawn.facts["num_tokens"].tolist()) == {1025}
    assert_as_reference(row, drawn)


def test_a_row_that_is_short_for_repeats_is_drawn_from_like_any():
    row = row_to(np.random.default_rng(2).integers(0, MANY, 150))
    assert contexts_of(draw(row, 20, repeat_share=1.0)) == contexts_of(draw(row, 20))


@pytest.mark.parametrize("name", ["repeat_share", "fixed_order_share"])
def test_a_share_of_the_contexts_is_drawn_so_and_the_others_as_without_it(name):
    row = row_to(np.random.default_rng(3).integers(0, MANY, 3000))
    without, all_so, some_so = (
        contexts_of(draw(row, 2000, crop_size=64, **{name: share}))  # pyright: ignore[reportArgumentType]
        for share in (0.0, 1.0, 0.3)
    )
    num_so = 0
    for plain, changed, found in zip(without, all_so, some_so, strict=True):
        assert found in (plain, changed)
        num_so += found == changed
    assert abs(num_so / 2000 - 0.3) < most_deviation(2000)


def test_in_a_fixed_order_the_rtt_follows_its_destination():
    row = row_to(np.random.default_rng(4).integers(0, MANY, 900))
    wanted = {True: ("src", "time", "dst", "rtt"), False: ("src", "dst", "rtt")}
    for mode, weights in WEIGHTS.items():
        for tokens in contexts_of(draw(row, 5, weights, fixed_order_share=1.0)):
            for choice in reference.choices_of(tokens, as_number(SRC), row.items)[:-1]:
                assert choice.order == wanted["time" in choice.order]
                assert mode == PARTIAL or ("time" in choice.order) == (mode == FULL)


# --- full crops ---------------------------------------------------------------------------------


def untimed_tokens(src_addr: str, item: reference.Item) -> int:
    return len(
        reference.encode(as_number(src_addr), [reference.Choice(item, ("src", "dst", "rtt"))])
    )


@every_mode
@pytest.mark.parametrize("src_addr", [SRC, "2001:db8::1"])
@pytest.mark.parametrize("ipv6_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("failed_share", [0.0, 0.3, 1.0])
def test_contexts_of_rows_at_the_border_to_small_ones_are_full(
    mode, src_addr, ipv6_share, failed_share
):
    rng = np.random.default_rng(8)
    run = make_run(100, seed=8, wide=True)
    is_ipv6 = rng.random(100) < ipv6_share
    run["dst_hi"] = np.where(is_ipv6, 1, 0)
    run["dst_lo"] = np.arange(100, dtype=np.uint64) | np.uint64(MAPPED_IPV4)
    run["rtt"] = np.where(rng.random(100) < failed_share, -1, 1)
    tokens = np.cumsum([untimed_tokens(src_addr, item) for item in row_of(run).items])
    least = int(np.searchsorted(tokens, 1025)) + 1
    assert tokens[least - 1] >= 1025 > tokens[least - 2]
    for n in range(least, least + 4):
        row = row_of(run[:n], ENCODINGS[n % 2], src_addr)
        drawn = draw(row, 100, WEIGHTS[mode])
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        assert (drawn.tokens != 9).all()


@every_mode
@pytest.mark.parametrize("wide", [False, True])
def test_contexts_of_large_rows_are_full(mode, wide):
    drawn = draw(row_of(make_run(20_000, seed=9, wide=wide)), 1000, WEIGHTS[mode])
    assert set(drawn.facts["num_tokens"].tolist()) == {1025}


def test_the_rest_of_a_context_that_is_not_full_is_left_alone():
    """Its end is in the facts; so contexts of rows too short for a crop can be padded by anyone."""
    row = row_of(make_run(20, seed=10))
    for mode in WEIGHTS:
        drawn = draw(row, 5, WEIGHTS[mode])
        assert set(drawn.facts["num_measurements"].tolist()) == {20}
        assert (drawn.facts["num_tokens"] < 1025).all()
        assert_as_reference(row, drawn)


# --- statistics ---------------------------------------------------------------------------------

UNTIMED, TIMED = 14, 16  # tokens of a measurement of a steady row; its first timestamp takes 7 more


def steady_row(n: int) -> Row:
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


def test_modes_are_40_30_30():
    num = 40_000
    modes = draw(steady_row(100), num, crop_size=64).facts["mode"]
    for mode, share in ((FULL, 0.4), (PARTIAL, 0.3), (NONE, 0.3)):
        assert abs(np.mean(modes == mode) - share) < most_deviation(num)


@every_mode
@pytest.mark.parametrize(("crop_size", "n"), [(128, 60), (128, 3000), (1024, 20_000)])
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


@every_mode
def test_places_of_windows_are_uniform(mode):
    n, num = 300, 40_000
    facts = draw(steady_row(n), num, WEIGHTS[mode], 128).facts
    facts = facts[facts["window"] > enough_for(128, mode)]
    assert len(facts) > num / 4
    # A number that is uniform over 0, 1, … m and a fraction give one that is uniform over all.
    fractions = np.random.default_rng(11).random(len(facts))
    places = (facts["first"] + fractions) / (n - facts["window"] + 1)
    assert distance(places.tolist()) < most_deviation(len(facts))


@every_mode
def test_what_is_drawn_lies_in_the_window_and_nothing_twice(mode):
    drawn = draw(steady_row(150), 4000, WEIGHTS[mode])
    shown = shown_in(drawn)
    first, window = (drawn.facts[name][shown.context] for name in ("first", "window"))
    assert (shown.item >= first).all()
    assert (shown.item < first + window).all()
    assert len(np.unique(shown.context * 1000 + shown.item)) == len(shown.item)
    # A window no larger than what is drawn from it is drawn as a whole.
    assert (drawn.facts["window"] >= drawn.facts["num_measurements"]).all()
    assert (drawn.facts["first"] + drawn.facts["window"] <= 150).all()


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


@pytest.mark.parametrize(
    ("crop_size", "n", "num"), [(128, 40, 60_000), (128, 150, 60_000), (1024, 120, 8000)]
)
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


@every_mode
def test_both_ends_of_a_row_are_drawn_in_every_mode(mode):
    n, num = 100, 20_000
    shown = shown_in(draw(steady_row(n), num, WEIGHTS[mode], 128))
    found = np.bincount(shown.item, minlength=n) / num
    expected = chance_of_each(n, 128)
    # Fewer measurements with timestamps fill a crop, and a context in order cuts its latest one.
    assert (found > expected / 3).all()
    assert (found < expected * 1.3 + 0.01).all()


# --- timestamps ---------------------------------------------------------------------------------


def test_full_contexts_are_in_order_and_tell_every_time():
    drawn = draw(steady_row(2000), 500, WEIGHTS[FULL])
    shown = shown_in(drawn)
    assert shown.is_timed[~shown.is_last].all()
    same = shown.context[1:] == shown.context[:-1]
    assert (np.diff(shown.item)[same] > 0).all()
    assert (drawn.facts["num_timed"] == drawn.facts["num_measurements"]).all()


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


def test_partial_contexts_have_timed_ones_in_order_and_others_in_none():
    drawn = draw(steady_row(2000), 3000, WEIGHTS[PARTIAL])
    shown = shown_in(drawn)
    timed = shown.is_timed
    same = np.diff(shown.context[timed]) == 0
    assert (np.diff(shown.item[timed])[same] > 0).all()
    correlations = rank_correlations(shown, ~timed & ~shown.is_last)
    assert abs(np.mean(correlations)) < 6 * np.std(correlations) / math.sqrt(len(correlations))


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


@pytest.mark.parametrize("crop_size", [256, 1024, 8192])
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


def test_which_measurements_lose_their_timestamp_does_not_depend_on_their_time():
    drawn = draw(steady_row(2000), 4000, WEIGHTS[PARTIAL])
    shown = shown_in(drawn)
    kept = ~shown.is_last
    middle = (drawn.facts["first"] + drawn.facts["window"] / 2)[shown.context]
    is_late = shown.item > middle
    late = shown.is_timed[kept & is_late].mean()
    early = shown.is_timed[kept & ~is_late].mean()
    # In one context the shares of two halves of 60 differ with a standard deviation of 0.13.
    assert abs(late - early) < 6 * 0.13 / math.sqrt(4000)


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


@every_mode
@pytest.mark.parametrize("n", [200, 1000, 20_000])
def test_strides_are_powers_of_two_each_as_often(mode, n):
    num = 20_000 if n < 20_000 else 4000
    facts = draw(steady_row(n), num, WEIGHTS[mode], 128, strided=True).facts
    largest = int(math.log2(n / enough_for(128, mode)))
    strides, counts = np.unique(facts["window"], return_counts=True)
    assert strides.tolist() == [2**exponent for exponent in range(largest + 1)]
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi_square < most_chi_square(max(1, largest))
    if n == 20_000:
        first = facts["first"][facts["window"] == 1]
        near_the_end = enough_for(128, mode) / n
        assert distance((first / n).tolist()) < most_deviation(len(first)) + near_the_end


@every_mode
def test_strided_windows_are_every_so_manyth_measurement_in_order(mode):
    drawn = draw(steady_row(5000), 2000, WEIGHTS[mode], strided=True)
    shown = shown_in(drawn)
    first, stride = (drawn.facts[name][shown.context] for name in ("first", "window"))
    assert np.array_equal(shown.item, first + shown.place * stride)
    assert (drawn.facts["num_tokens"] == 1025).all()
    last = drawn.facts["first"] + (drawn.facts["num_measurements"] - 1) * drawn.facts["window"]
    assert (last < 5000).all()


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


@every_mode
def test_a_row_too_short_for_a_window_is_given_whole(mode):
    for n in (1, 2, 20, 40):
        row = steady_row(n)
        drawn = draw(row, 20, WEIGHTS[mode], strided=True)
        assert set(drawn.facts["num_measurements"].tolist()) == {n}
        assert set(drawn.facts["first"].tolist()) == {0}
        assert set(drawn.facts["window"].tolist()) == {1}
        assert (drawn.facts["num_tokens"] < 1025).all()
        assert_as_reference(row, drawn)


@every_mode
@pytest.mark.parametrize("n", [90, 1000])
def test_strided_windows_reach_both_ends_of_a_row(mode, n):
    """Windows of stride 1 take every measurement in turn, so none may be left out for good.

    But the last one: it ends its context, and here all contexts are cut at the same place.
    """
    num = 8000
    shown = shown_in(draw(steady_row(n), num, WEIGHTS[mode], strided=True))
    found = np.bincount(shown.item, minlength=n)
    never = np.flatnonzero(found[:-1] == 0)
    assert never.size == 0, f"measurements {never.min()} to {never.max()} of {n} are never drawn"
