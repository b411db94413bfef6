"""Small rows: a sampler gives each measurement exactly once, in padded examples."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS
from beam_pipeline.errors import ProbelineError
from tests.support import reference_sampler as reference
from tests.support.helpers import as_number
from tests.support.properties import num_examples
from tests.support.sampler_rows import (
    SRC,
    WEIGHTS,
    Example,
    assert_example,
    damaged_row,
    every_mode,
    items_of,
    numbered_run,
    row_of,
    tokens_of,
)
from training.batches.packing import new_crops, pad_small
from training.sampler import ProbeRowSampler
from training.tokens.draws import Drawing


def parts_of(examples: Iterable[Example], crop_size: int) -> list[list[int]]:
    parts = []
    for example in examples:
        assert_example(example, crop_size)
        parts.append(tokens_of(example))
    return parts


def assert_each_exactly_once(parts: list[list[int]], src: int, run: np.ndarray, mode: str) -> None:
    """Every measurement is whole once; a copy that is cut may end the crop before.

    Destinations must differ. A part is full but for the last one, and only its last measurement
    can be cut; a cut just before the timestamp shows in that the next part begins with it.
    """
    items = items_of(run)
    whole: Counter[int] = Counter()
    for part, after in zip(parts, [*parts[1:], None]):
        told = list(reference.read(part))
        choices = reference.choices_of(part, src, items)
        assert reference.encode(src, choices, len(part)) == part
        comes_again = after is not None and (
            told[-1].is_cut or told[-1].dst == next(reference.read(after)).dst
        )
        if after is None:
            assert not told[-1].is_cut
        for one in told[: len(told) - comes_again]:
            assert one.dst is not None
            whole[one.dst] += 1
            assert mode == "partial" or (one.second is None) == (mode == "none")
        if mode == "full":
            seconds = [one.second for one in told if one.second is not None]
            assert seconds == sorted(seconds)
    assert whole == Counter(item.dst for item in items)


@every_mode
@settings(max_examples=num_examples(60))
@given(
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63),
    crop_size=st.sampled_from([64, 65, 200, 1024]),
    ipv6=st.booleans(),
    encoding=st.sampled_from(ENCODINGS),
    src_addr=st.sampled_from([SRC, "2001:db8::1"]),
)
def test_every_measurement_of_a_small_row_is_whole_exactly_once(
    mode, share, seed, crop_size, ipv6, encoding, src_addr
):
    src = as_number(src_addr)
    sampler = ProbeRowSampler(crop_size, mode_weights=WEIGHTS[mode], seed=seed)
    most = crop_size // (14 + 12 * ipv6 + 12 * (src >> 32 != 0xFFFF))
    run = numbered_run(max(1, int(most * share)), seed=seed % 1000, ipv6=ipv6)
    row = row_of(run, encoding, src_addr)
    assert sampler.is_small(row)
    parts = parts_of(sampler.examples(row), crop_size)
    assert all(len(part) == crop_size + 1 for part in parts[:-1])
    assert_each_exactly_once(parts, src, run, mode)
    assert len(parts) <= (1 if mode == "none" else 3) or crop_size < 200
    starts = [part[: part.index(0, 1) if 0 in part[1:] else len(part)] for part in parts]
    if mode == "full":
        assert all(set(start) & {6, 7} == set() for start in starts), "first times are absolute"


@every_mode
def test_small_rows_of_every_size_come_whole(mode):
    """Up to the border to large ones, with gaps that need all kinds of timestamps."""
    run = numbered_run(86, seed=8)
    gaps = np.random.default_rng(9).choice([100_000, 10**6, 255 * 10**6, 256 * 10**6], len(run))
    run["event_time"] = 10**15 + np.cumsum(gaps)
    sampler = ProbeRowSampler(mode_weights=WEIGHTS[mode])
    num_small = 0
    for n in range(1, len(run)):
        row = row_of(run[:n])
        if sampler.is_small(row):
            num_small += 1
            assert_each_exactly_once(
                parts_of(sampler.examples(row), 1024), as_number(SRC), run[:n], mode
            )
    assert 70 <= num_small < 86


def test_a_small_row_has_a_mode_and_order_of_its_own_in_every_epoch():
    row = row_of(numbered_run(20, seed=10))
    sampler = ProbeRowSampler(seed=11)
    first, again, other = (
        [tokens_of(example) for example in sampler.examples(row, epoch)] for epoch in (0, 0, 1)
    )
    assert first == again != other
    num, modes = 3000, Counter()
    untimed_shares = []
    for epoch in range(num):
        (example,) = sampler.examples(row, epoch)
        timed = sum(token in (5, 6, 7) for token in tokens_of(example))
        modes["full" if timed == 20 else "none" if timed == 0 else "partial"] += 1
        if 0 < timed < 20:
            untimed_shares.append((20 - timed) / 20)
    for mode, share in (("full", 0.4), ("partial", 0.3), ("none", 0.3)):
        assert abs(modes[mode] / num - share) < reference.most_deviation(num)
    assert min(untimed_shares) == 0.1
    assert max(untimed_shares) == pytest.approx(0.85)  # of 20, 17.x are rounded down
    counts = Counter(round(share * 20) for share in untimed_shares)
    assert set(counts) == set(range(2, 18))
    assert max(counts.values()) < 2.5 * min(counts.values())


def test_small_rows_in_partial_mode_spread_their_timestamps_evenly():
    run = numbered_run(40, seed=12)
    row = row_of(run)
    sampler = ProbeRowSampler(mode_weights=WEIGHTS["partial"], crop_size=2048)
    places: dict[bool, list[float]] = {False: [], True: []}
    order_of_untimed = []
    num = 1000
    for epoch in range(num):
        (example,) = sampler.examples(row, epoch)
        told = list(reference.read(tokens_of(example)))
        for is_timed in (False, True):
            places[is_timed] += [
                (place + 0.5) / 40
                for place, one in enumerate(told)
                if (one.second is not None) == is_timed
            ]
        times = [one.dst or 0 for one in told if one.second is not None]
        assert times == sorted(times)  # destinations are numbered in order of time
        untimed = [one.dst or 0 for one in told if one.second is None]
        ranks = np.argsort(np.argsort(untimed))
        if len(ranks) > 2:
            order_of_untimed.append(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
    # The mean of 4 places, the fewest, has a standard deviation of 0.15 in one context.
    for is_timed in (False, True):
        assert abs(np.mean(places[is_timed]) - 0.5) < 6 * 0.15 / num**0.5
    assert (
        abs(np.mean(order_of_untimed)) < 6 * np.std(order_of_untimed) / len(order_of_untimed) ** 0.5
    )


def test_a_row_of_one_measurement_is_one_short_example():
    run = numbered_run(1)
    (example,) = ProbeRowSampler(mode_weights=WEIGHTS["full"]).examples(row_of(run))
    tokens = tokens_of(example)
    choices = reference.choices_of(tokens, as_number(SRC), items_of(run))
    assert len(choices) == 1
    assert "time" in choices[0].order
    assert np.count_nonzero(example["targets_segmentation"]) == len(tokens) - 1


def test_a_damaged_small_row_is_named():
    sampler = ProbeRowSampler(mode_weights=(1, 0, 0))
    row = damaged_row(10)
    assert sampler.is_small(row)
    with pytest.raises(ProbelineError, match=r"row 5 of 192.0.2.1 has a destination that is no IP"):
        list(sampler.examples(row))


def test_the_kernel_for_small_rows_is_what_examples_calls():
    assert callable(pad_small)
    assert new_crops(1, 8).inputs.shape == (1, 8)
    assert Drawing(9, 1, 0, False).num_tokens == 9
