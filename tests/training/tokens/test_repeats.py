"""Contexts of few destinations, with fields in a fixed order, or with a random source."""

from dataclasses import replace

import numpy as np
import pytest

from beam_pipeline.dataset.sorted_run import sort_groups
from tests.support import reference_sampler as reference
from tests.support.drawn_contexts import (
    SRC,
    WEIGHTS,
    Row,
    assert_as_reference,
    contexts_of,
    draw,
    row_of,
)
from tests.support.helpers import (
    as_number,
    make_run,
)
from tests.support.reference_sampler import most_deviation
from training.tokens.draws import FULL, PARTIAL
from training.tokens.tokenizer import decode

MANY = 30  # destinations


def row_to(destinations: np.ndarray, source: str = SRC) -> Row:
    """Returns a row whose measurements go to these destinations, in order of time."""
    run = make_run(len(destinations), seed=8)
    run["dst_lo"] = 0xC6336400 + destinations
    sort_groups(run, np.array([0, len(run)]))
    return row_of(run, src_addr=source)


def destinations_of(row: Row, tokens: list[int]) -> list[int]:
    return [choice.item.dst for choice in reference.choices_of(tokens, as_number(SRC), row.items)]


def shares_of_repeats(contexts: list[list[int]]) -> tuple[float, float, float]:
    """Returns the mean, the least and the most share of measurements to a destination again."""
    shares = [1 - len(set(each)) / len(each) for each in contexts]
    return float(np.mean(shares)), min(shares), max(shares)


@pytest.mark.parametrize("num_destinations", [30, 400])
@pytest.mark.parametrize("crop_size", [128, 1024])
def test_a_context_with_repeats_has_few_destinations_of_the_whole_row(num_destinations, crop_size):
    row = row_to(np.random.default_rng(1).integers(0, num_destinations, 8000))
    plain, drawn = (
        draw(row, 300, crop_size=crop_size, repeat_share=share, min_window=1.0)
        for share in (0.0, 1.0)
    )
    of_plain, of_drawn = (
        [destinations_of(row, tokens) for tokens in contexts_of(each)] for each in (plain, drawn)
    )
    # At most half as many destinations as a crop has measurements of the shortest kind.
    most = max(1, crop_size // 12 // 2)
    assert np.mean([len(set(each)) <= most for each in of_drawn]) > 0.97
    plain_share, *_ = shares_of_repeats(of_plain)
    share, least, largest = shares_of_repeats(of_drawn)
    assert share > plain_share and 0.5 < share < 0.85 and largest - least > 0.2
    # All destinations have their turn.
    assert len({dst for each in of_drawn for dst in each}) > num_destinations / 2
    assert set(drawn.facts["window"].tolist()) == {8000}
    assert set(drawn.facts["first"].tolist()) == {0}


def test_the_crop_is_full_also_where_measurements_to_few_destinations_are_rare():
    destinations = np.arange(3000)
    row = row_to(destinations)  # each destination once
    drawn = draw(row, 20, repeat_share=1.0)
    assert set(drawn.facts["num_tokens"].tolist()) == {1025}
    assert_as_reference(row, drawn)


def test_a_row_that_is_short_for_repeats_is_drawn_from_like_any():
    row = row_to(np.random.default_rng(2).integers(0, MANY, 150))
    assert contexts_of(draw(row, 20, repeat_share=1.0)) == contexts_of(draw(row, 20))


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


def test_in_a_fixed_order_the_rtt_follows_its_destination():
    row = row_to(np.random.default_rng(4).integers(0, MANY, 900))
    wanted = {True: ("src", "time", "dst", "rtt"), False: ("src", "dst", "rtt")}
    for mode, weights in WEIGHTS.items():
        for tokens in contexts_of(draw(row, 5, weights, fixed_order_share=1.0)):
            for choice in reference.choices_of(tokens, as_number(SRC), row.items)[:-1]:
                assert choice.order == wanted["time" in choice.order]
                assert mode == PARTIAL or ("time" in choice.order) == (mode == FULL)


@pytest.mark.parametrize("source", [SRC, "2001:db8::7"])
def test_a_random_source_is_of_the_same_family_and_one_in_each_context(source: str):
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
