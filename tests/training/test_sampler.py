"""The samplers as users call them: a row of a `ProbeRowDataSource` in, examples out."""

import itertools
import re
from collections import Counter

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.dataset.rtt import encode_rtt
from beam_pipeline.errors import ProbelineError
from tests.support import reference_sampler as reference
from tests.support.helpers import MAPPED_IPV4, as_number, make_run
from tests.support.properties import num_examples
from tests.support.sampler_rows import (
    NAMES,
    SRC,
    WEIGHTS,
    Example,
    assert_example,
    both_samplers,
    damaged_row,
    items_of,
    numbered_run,
    row_of,
    tokens_of,
)
from training.sampler import ProbeRowSampler, ProbeWindowSampler, sample_federated_batch
from training.tokens.kinds import parse
from training.tokens.tokenizer import ROLE_NAMES, decode

FIXED_ORDER = ("SRC", "TIM", "DST", "RTT", "FAI")

# --- arguments ----------------------------------------------------------------------------------


def test_without_a_seed_it_is_0():
    assert ProbeRowSampler().seed == 0


@both_samplers
def test_samplers_are_random_maps_of_grain(sampler_class):
    assert isinstance(sampler_class(), grain.transforms.RandomMap)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, 1), (29, 1), (30, 1), (31, 2), (60, 2), (61, 3), (450, 15), (451, 16), (10**6, 16)],
)
def test_k_is_n_by_30_rounded_up_and_at_most_16(n, expected):
    assert ProbeRowSampler().num_contexts(n) == expected


def test_k_follows_its_arguments():
    sampler = ProbeRowSampler(avg_tokens_per_measurement=10, max_contexts_per_row=3)
    assert [sampler.num_contexts(n) for n in (0, 1, 10, 11, 21, 31)] == [1, 1, 1, 2, 3, 3]


@both_samplers
@pytest.mark.parametrize("crop_size", [63, 0, -1])
def test_a_crop_too_small_for_a_measurement_is_refused(sampler_class, crop_size):
    with pytest.raises(ProbelineError, match=f"crop_size is {crop_size}: it must be .*64"):
        sampler_class(crop_size=crop_size)


def test_contexts_are_drawn_and_told_as_asked():
    run = make_run(400, seed=1)
    sampler = ProbeRowSampler(
        fixed_order_share=1.0, random_source_share=1.0, log_rtt=True, window_shares=(1.0, 1.0)
    )
    contexts = sampler.contexts(row_of(run))
    assert {context.window for context in contexts} == {400}
    for context in contexts:
        measurements = decode(np.array(tokens_of(context.example)))
        assert SRC not in {measurement.src_addr for measurement in measurements}
        fields = [[ROLE_NAMES[role][:3] for role in each.roles] for each in measurements]
        assert all(each == [f for f in FIXED_ORDER if f in each] for each in fields)
        batch = {name: values[np.newaxis] for name, values in context.example.items()}
        found = parse(batch["targets"], batch["targets_segmentation"], log_rtt=True).measurements
        assert set(found["code"].tolist()) <= set(encode_rtt(run["rtt"]).tolist())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"repeat_share": 1.5}, "repeat_share is 1.5: it must be a number from 0 to 1"),
        ({"window_shares": (0.5, 0.1)}, "window_shares is (0.5, 0.1)"),
        ({"log_rtt": "yes"}, "log_rtt is 'yes'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, line):
    with pytest.raises(ProbelineError, match=re.escape(line)):
        ProbeRowSampler(**options)


# --- contexts of large rows ---------------------------------------------------------------------


@settings(max_examples=num_examples(30))
@given(
    n=st.integers(90, 1500),
    seed=st.integers(0, 2**63),
    wide=st.booleans(),
    encoding=st.sampled_from(ENCODINGS),
    src_addr=st.sampled_from([SRC, "2001:db8::1"]),
)
def test_contexts_are_full_examples_of_the_rows_measurements(n, seed, wide, encoding, src_addr):
    run = make_run(n, seed=seed % 1000, wide=wide)
    row = row_of(run, encoding, src_addr)
    sampler = ProbeRowSampler(seed=seed)
    contexts = sampler.contexts(row, epoch=seed % 7)
    assert len(contexts) == sampler.num_contexts(n)
    assert [tokens_of(example) for example in sampler.examples(row, epoch=seed % 7)] == [
        tokens_of(context.example) for context in contexts
    ]
    src = as_number(src_addr)
    for context in contexts:
        assert_example(context.example)
        tokens = tokens_of(context.example)
        assert len(tokens) == context.num_tokens == 1025
        choices = reference.choices_of(tokens, src, items_of(run))
        assert reference.encode(src, choices, 1025) == tokens
        decoded = decode(tokens)
        timed = [one.event_time is not None for one in decoded[:-1]]
        assert context.mode == "partial" or all(timed) == (context.mode == "full")
        assert context.mode != "none" or not any(timed)
        assert 0 <= context.first < context.first + context.window <= n


def test_contexts_follow_seed_epoch_probe_and_row_index_alone():
    run = make_run(300, seed=1)

    def contexts(seed=1, epoch=2, src_addr=SRC, row_index=3, encoding: Encoding = "compact"):
        row = row_of(run, encoding, src_addr, row_index)
        return [tokens_of(one.example) for one in ProbeRowSampler(seed=seed).contexts(row, epoch)]

    expected = contexts()
    assert contexts() == expected
    assert contexts(encoding="arrow") == expected
    others = [contexts(seed=2), contexts(epoch=3), contexts(row_index=4), contexts(seed=-1)]
    found = [tuple(tokens) for context in [expected, *others] for tokens in context]
    assert len(set(found)) == len(found) == 50
    other_probe = contexts(src_addr="192.0.2.2")
    as_if_here = [[13 if token == 999 else token for token in tokens] for tokens in other_probe]
    assert [len(tokens) for tokens in as_if_here] == [1025] * 10
    dst = [
        Counter(one.dst_addr for one in decode(tokens)) for tokens in (other_probe[0], expected[0])
    ]
    assert dst[0] != dst[1]


def test_other_parts_of_the_row_do_not_change_its_contexts():
    row = row_of(make_run(300, seed=1))
    expected = [tokens_of(one.example) for one in ProbeRowSampler(seed=1).contexts(row)]
    needed = {name: row[name] for name in ("src_id", "src_addr", "row_index", "measurements")}
    more = needed | {"metadata": {"time_span_seconds": 1.0}, "n_measurements": -5}
    for other in (needed, more):
        assert [
            tokens_of(one.example) for one in ProbeRowSampler(seed=1).contexts(other)
        ] == expected


def test_fewer_contexts_are_the_first_of_more():
    row = row_of(make_run(600, seed=2))
    many = ProbeRowSampler(seed=3).contexts(row)
    few = ProbeRowSampler(seed=3, max_contexts_per_row=4).contexts(row)
    assert (len(many), len(few)) == (16, 4)
    assert [tokens_of(one.example) for one in few] == [tokens_of(one.example) for one in many[:4]]


def test_mode_weights_are_shares_of_their_sum():
    row = row_of(make_run(3000, seed=4))
    for mode, weights in WEIGHTS.items():
        sampler = ProbeRowSampler(mode_weights=tuple(7 * weight for weight in weights))  # type: ignore[arg-type]
        assert {context.mode for context in sampler.contexts(row)} == {mode}
    sampler = ProbeRowSampler(64, 1, 3000, mode_weights=(1, 0, 3))
    modes = Counter(context.mode for epoch in range(4) for context in sampler.contexts(row, epoch))
    assert set(modes) == {"full", "none"}
    assert abs(modes["full"] / 12_000 - 0.25) < reference.most_deviation(12_000)


def test_default_modes_are_40_30_30():
    row = row_of(make_run(3000, seed=4))
    sampler = ProbeRowSampler(64, 1, 3000)
    modes = Counter(context.mode for epoch in range(7) for context in sampler.contexts(row, epoch))
    for mode, share in (("full", 0.4), ("partial", 0.3), ("none", 0.3)):
        assert abs(modes[mode] / 21_000 - share) < reference.most_deviation(21_000)


@pytest.mark.parametrize("src_addr", [SRC, "2001:db8::1"])
@pytest.mark.parametrize("ipv6", [False, True])
def test_a_row_is_large_if_it_fills_a_crop_without_its_timestamps(src_addr, ipv6):
    """A crop of 1,024 takes 1,025 tokens, the last one as a target."""
    run = numbered_run(100, seed=5, ipv6=ipv6)
    sampler = ProbeRowSampler(seed=6, mode_weights=(0, 0, 1))
    orders = itertools.repeat(("src", "dst", "rtt"))
    for n in range(1, 100):
        choices = [reference.Choice(*one) for one in zip(items_of(run[:n]), orders)]
        tokens = reference.encode(as_number(src_addr), choices)
        row = row_of(run[:n], ENCODINGS[n % 2], src_addr)
        assert sampler.is_small(row) == (len(tokens) < 1025)
        if len(tokens) >= 1025:
            assert {context.num_tokens for context in sampler.contexts(row)} == {1025}


def test_a_row_that_fills_a_crop_to_the_last_token_is_large():
    """1,025 tokens: 73 IPv4 pings of 14, of them one failed, less 2, and one IPv6, 12 more."""
    run = numbered_run(72, seed=5)
    run["rtt"] = 1.0
    run["rtt"][0] = -1.0
    run["dst_hi"][3] = 1
    run["dst_hi"][4] = 1
    sampler = ProbeRowSampler()
    tokens = 72 * 14 - 2 + 2 * 12
    assert tokens == 1030
    for crop_size, is_small in ((1029, False), (1030, True)):
        assert ProbeRowSampler(crop_size).is_small(row_of(run)) == is_small
    assert not sampler.is_small(row_of(run))
    assert {one.num_tokens for one in ProbeRowSampler(1029).contexts(row_of(run))} == {1030}


@both_samplers
def test_a_damaged_row_is_named(sampler_class):
    message = "row 5 of 192.0.2.1 has a destination that is no IP address.*beam_pipeline.verify"
    row, sampler = damaged_row(200), sampler_class()
    with pytest.raises(ProbelineError, match=message):
        sampler.random_map(row, np.random.default_rng(1))
    with pytest.raises(ProbelineError, match=message):
        if isinstance(sampler, ProbeRowSampler):
            list(sampler.examples(row))
        else:
            sampler.context(row)


# --- windows with a stride ----------------------------------------------------------------------


@settings(max_examples=num_examples(30))
@given(
    n=st.integers(1, 2000),
    seed=st.integers(0, 2**63),
    k=st.integers(0, 2**40),
    encoding=st.sampled_from(ENCODINGS),
    mode=st.sampled_from(list(WEIGHTS)),
)
def test_a_window_is_every_so_manyth_measurement_in_order_of_time(n, seed, k, encoding, mode):
    run = numbered_run(n, seed=seed % 1000)
    row = row_of(run, encoding)
    sampler = ProbeWindowSampler(mode_weights=WEIGHTS[mode], seed=seed)
    context = sampler.context(row, epoch=3, k=k)
    assert_example(context.example)
    tokens = tokens_of(context.example)
    assert context.num_tokens == len(tokens)
    assert len(tokens) == 1025 or context.num_measurements == n
    src = as_number(SRC)
    choices = reference.choices_of(tokens, src, items_of(run))
    assert reference.encode(src, choices, 1025) == tokens
    chosen = [one.dst - (MAPPED_IPV4) for one in reference.read(tokens) if one.dst is not None]
    stride = context.window
    assert stride & (stride - 1) == 0
    assert chosen == list(range(context.first, n, stride))[: len(chosen)]
    again = sampler.context(row, epoch=3, k=k)
    assert tokens_of(again.example) == tokens


def test_each_visit_gives_another_window():
    row = row_of(make_run(3000, seed=13))
    sampler = ProbeWindowSampler(seed=14)
    found = {
        tuple(tokens_of(sampler.context(row, epoch, k).example))
        for epoch in range(5)
        for k in range(5)
    }
    assert len(found) == 25


def test_mixed_windows_keep_half_of_the_timestamps_and_true_differences():
    run = numbered_run(3000, seed=15)
    row = row_of(run)
    sampler = ProbeWindowSampler(mode_weights=WEIGHTS["partial"])
    num_timed = total = 0
    for k in range(200):
        tokens = tokens_of(sampler.context(row, k=k).example)
        told = list(reference.read(tokens))[:-1]
        total += len(told)
        for one in told:
            if one.second is not None and one.dst is not None:
                num_timed += 1
                assert one.second == run["event_time"][one.dst - MAPPED_IPV4] // 1_000_000
    # With fewer timestamps a crop holds a few more measurements: 0.002 for that.
    assert abs(num_timed / total - 0.5) < reference.most_deviation(total) + 0.002


# --- Grain --------------------------------------------------------------------------------------


@both_samplers
@pytest.mark.parametrize("n", [5, 500])
def test_random_map_draws_by_grains_generator(sampler_class, n):
    row, sampler = row_of(make_run(n, seed=16)), sampler_class(seed=17)
    first, same, other = (
        sampler.random_map(row, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert_example(first)
    assert tokens_of(first) == tokens_of(same)
    assert tokens_of(first) != tokens_of(other)
    rng = np.random.default_rng(3)
    drawn = {tuple(tokens_of(sampler.random_map(row, rng))) for _ in range(20)}
    assert len(drawn) == 20


@both_samplers
def test_samplers_work_in_a_grain_pipeline(sampler_class):
    rows = [row_of(make_run(300, seed=seed), src_addr=f"10.0.0.{seed}") for seed in range(4)]
    dataset = grain.MapDataset.source(rows).seed(18).random_map(sampler_class(crop_size=128))
    examples = list(dataset.repeat(2))
    assert len(examples) == 8
    assert len({tuple(tokens_of(example)) for example in examples}) == 8
    again = list(dataset.repeat(2))
    assert [tokens_of(example) for example in again] == [tokens_of(one) for one in examples]


# --- federated batches --------------------------------------------------------------------------


def batch(num: int, first: int = 0) -> Example:
    values = np.arange(first, first + num * 8, dtype=np.int32).reshape(num, 8)
    return dict.fromkeys(NAMES, values)


@pytest.mark.parametrize("num", [1, 3, 4])
def test_a_round_is_the_first_probes_of_the_next_batch(num):
    iterator = iter([batch(4), batch(4, first=1000)])
    for first in (0, 1000):
        found = sample_federated_batch(iterator, num)
        assert set(found) == NAMES
        assert all(
            np.array_equal(values, batch(4, first)["inputs"][:num]) for values in found.values()
        )
    with pytest.raises(StopIteration):
        sample_federated_batch(iterator, num)


@pytest.mark.parametrize("num", [0, -1, 5])
def test_a_round_of_more_probes_than_a_batch_has_is_refused(num):
    message = f"probes_per_round is {num}, a batch has 4 probes: .*larger batch_size"
    with pytest.raises(ProbelineError, match=message):
        sample_federated_batch(iter([batch(4)]), num)
