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
