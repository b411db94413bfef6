"""Drawing contexts: the compiled way gives the tokens of the plain one, in crops that are full."""

import math
from dataclasses import replace
from ipaddress import ip_address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.sorted_run import sort_groups
from tests.support import reference_sampler as reference
from tests.support.drawn_contexts import (
    SRC,
    WEIGHTS,
    Row,
    assert_as_reference,
    contexts_of,
    draw,
    keys_of,
    row_of,
)
from tests.support.helpers import as_number, make_run
from tests.support.properties import num_examples
from tests.support.reference_sampler import most_deviation
from training.rows import row_layout
from training.tokens.draws import FULL
from training.tokens.tokenizer import decode


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


@settings(max_examples=num_examples(80))
@given(
    large_rows(),
    st.integers(0, 2**63),
    st.sampled_from([{}, {"fixed_order_share": 0.5}, {"strided": True}]),
)
def test_contexts_have_the_tokens_of_the_reference(row, seed, options):
    for mode in WEIGHTS:
        drawn = draw(row, 3, WEIGHTS[mode], seed=seed, **options)
        assert set(drawn.facts["mode"].tolist()) == {mode}
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        assert_as_reference(row, drawn)


@settings(max_examples=num_examples(30))
@given(large_rows(), st.integers(0, 2**63))
def test_contexts_of_few_destinations_are_relabelled_measurements_of_the_row(row, seed):
    for mode in WEIGHTS:
        drawn = draw(row, 3, WEIGHTS[mode], seed=seed, repeat_share=1.0, fixed_order_share=0.5)
        assert set(drawn.facts["num_tokens"].tolist()) == {1025}
        for tokens, key in zip(contexts_of(drawn), keys_of(3, seed).tolist(), strict=True):
            assert_relabelled(row, tokens, key)


def assert_relabelled(row: Row, tokens: list[int], key: int) -> None:
    """The tokens are the row's under the key's map; or so are all but RTTs, one a destination."""
    src = reference.relabelled(key, as_number(row.src_addr))
    items = [one._replace(dst=reference.relabelled(key, one.dst)) for one in row.items]
    if reference.is_relabelled(key) and is_steady(tokens):
        firsts = dict(reversed(rtts_of(tokens)))
        known = {(one.dst, one.code) for one in items}
        assert known.issuperset(firsts.items())
        tokens = reference.without_rtts(tokens)
        items = [one._replace(code=min(one.code, 0)) for one in items]
    choices = reference.choices_of(tokens, src, items)
    assert reference.encode(src, choices, len(tokens)) == tokens


def rtts_of(tokens: list[int]) -> list[tuple[int, int]]:
    """Returns destination and code of the whole, answered measurements of a context."""
    return [
        (one.dst, one.code)
        for one in reference.read(tokens)
        if one.dst is not None and one.code not in (None, reference.FAILED_CODE) and not one.is_cut
    ]


def is_steady(tokens: list[int]) -> bool:
    return len(set(rtts_of(tokens))) == len({dst for dst, _ in rtts_of(tokens)})


@pytest.mark.parametrize("crop_size", [1, 12, 13, 5000])
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


@pytest.mark.parametrize(("wide", "strided"), [(False, True), (True, False)])
def test_both_encodings_and_the_slow_way_give_the_same_contexts(wide, strided):
    run = make_run(1500, seed=3, wide=wide)
    compact, arrow = row_of(run, "compact"), row_of(run, "arrow")
    located = row_layout._locate_any(encode_row(run, RowKey(SRC, 0), "arrow"))
    slow = Row(SRC, located.columns, [])
    assert arrow.columns.layout.kind != compact.columns.layout.kind
    expected = contexts_of(draw(compact, 50, strided=strided))
    assert contexts_of(draw(arrow, 50, strided=strided)) == expected
    assert contexts_of(draw(slow, 50, strided=strided)) == expected


MANY = 30  # destinations


def row_to(destinations: np.ndarray, source: str = SRC) -> Row:
    """Returns a row whose measurements go to these destinations, in order of time."""
    run = make_run(len(destinations), seed=8)
    run["dst_lo"] = 0xC6336400 + destinations
    sort_groups(run, np.array([0, len(run)]))
    return row_of(run, src_addr=source)


def destinations_of(tokens: list[int]) -> list[int]:
    return [one.dst for one in reference.read(tokens) if one.dst is not None]


def shares_of_repeats(contexts: list[list[int]]) -> tuple[float, float, float]:
    """Returns the mean, the least and the most share of measurements to a destination again."""
    shares = [1 - len(set(each)) / len(each) for each in contexts]
    return float(np.mean(shares)), min(shares), max(shares)


@pytest.mark.parametrize(("num_destinations", "crop_size"), [(200, 128), (30, 1024)])
def test_a_context_with_repeats_has_few_destinations_of_the_whole_row(num_destinations, crop_size):
    row = row_to(np.random.default_rng(1).integers(0, num_destinations, 8000))
    plain, drawn = (
        draw(row, 80, crop_size=crop_size, repeat_share=share, min_window=1.0)
        for share in (0.0, 1.0)
    )
    of_plain, of_drawn = (
        [destinations_of(tokens) for tokens in contexts_of(each)] for each in (plain, drawn)
    )
    # At most half as many destinations as a crop has measurements of the shortest kind.
    most = max(1, crop_size // 12 // 2)
    assert np.mean([len(set(each)) <= most for each in of_drawn]) > 0.97
    plain_share, *_ = shares_of_repeats(of_plain)
    share, least, largest = shares_of_repeats(of_drawn)
    assert share > plain_share and 0.5 < share < 0.85 and largest - least > 0.2
    # All destinations have their turn, and no two relabelled contexts name one alike.
    known = {one.dst for one in row.items}
    keys = keys_of(80).tolist()
    true = [
        {dst for dst in known if reference.relabelled(key, dst) in shown}
        for key, shown in zip(keys, map(set, of_drawn), strict=True)
    ]
    assert list(map(len, true)) == [len(set(each)) for each in of_drawn]
    assert len(set[int]().union(*true)) > num_destinations / 2
    relabelled = [
        set(each) for key, each in zip(keys, of_drawn, strict=True) if reference.is_relabelled(key)
    ]
    assert 10 < len(relabelled) < 40
    assert len(set[int]().union(*relabelled)) == sum(map(len, relabelled))
    assert set(drawn.facts["window"].tolist()) == {8000}
    assert set(drawn.facts["first"].tolist()) == {0}


def test_a_row_that_is_short_for_repeats_is_drawn_from_like_any_and_relabelled():
    row = row_to(np.random.default_rng(2).integers(0, MANY, 150))
    plain, drawn = (contexts_of(draw(row, 20, repeat_share=share)) for share in (0.0, 1.0))
    for before, after, key in zip(plain, drawn, keys_of(20).tolist(), strict=True):
        names = [reference.relabelled(key, dst) for dst in destinations_of(before)]
        assert destinations_of(after) == names


def test_most_relabelled_contexts_show_one_rtt_for_each_destination():
    row = row_to(np.random.default_rng(6).integers(0, MANY, 3000))
    assert len({one.code for one in row.items}) > 1000
    contexts = contexts_of(draw(row, 1000, repeat_share=1.0))
    steady = {True: [], False: []}
    for tokens, key in zip(contexts, keys_of(1000).tolist(), strict=True):
        steady[reference.is_relabelled(key)].append(is_steady(tokens))
    assert abs(len(steady[True]) / 1000 - 0.3) < most_deviation(1000)
    assert abs(np.mean(steady[True]) - 0.7) < most_deviation(len(steady[True]))
    assert not any(steady[False])


@pytest.mark.parametrize("name", ["repeat_share", "fixed_order_share", "random_source_share"])
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


@pytest.mark.parametrize("source", [SRC, "2001:db8::7"])
def test_a_random_source_keeps_a_prefix_and_is_one_in_each_context(source: str):
    row = row_to(np.random.default_rng(5).integers(0, MANY, 900), source)
    plain, drawn = (contexts_of(draw(row, 30, random_source_share=share)) for share in (0.0, 1.0))
    told: list[str] = []
    for before, after in zip(plain, drawn, strict=True):
        known, found = decode(before), decode(after)
        (address,) = {one.src_addr for one in found if one.src_addr is not None}
        told.append(address)
        assert [replace(one, src_addr=None) for one in found] == [
            replace(one, src_addr=None) for one in known
        ]
    assert len(set(told)) == 30 and source not in told
    assert {":" in address for address in told} == {":" in source}
    num_bits = ip_address(source).max_prefixlen
    changed = [int(ip_address(one)) ^ int(ip_address(source)) for one in told]
    kept = [(num_bits - bits.bit_length()) // 8 for bits in changed]  # bytes of the prefix
    most = 3 if num_bits == 32 else 8
    assert max(kept) == most and len(set(kept)) >= 3 and 8 < kept.count(most) < 22
