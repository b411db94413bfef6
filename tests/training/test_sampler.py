"""The samplers as users call them: a row of a `ProbeRowDataSource` in, examples out."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.dataset.row_codec import RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rtt import encode_rtt
from beam_pipeline.errors import ProbelineError
from tests.support import reference_sampler as reference
from tests.support.helpers import MAPPED_IPV4, as_number, make_run, records_as_tuples
from tests.support.properties import num_examples
from training.rows.row_layout import locate
from training.rows.row_source import Measurements
from training.sampler import ProbeRowSampler, ProbeWindowSampler, sample_federated_batch
from training.tokens.kinds import parse
from training.tokens.tokenizer import ROLE_NAMES, decode

SRC = "192.0.2.1"
NAMES = {
    *("inputs", "inputs_segmentation", "inputs_position"),
    *("targets", "targets_segmentation", "targets_position"),
}
WEIGHTS = {"full": (1, 0, 0), "partial": (0, 1, 0), "none": (0, 0, 1)}
every_mode = pytest.mark.parametrize("mode", WEIGHTS)
both_samplers = pytest.mark.parametrize("sampler_class", [ProbeRowSampler, ProbeWindowSampler])

Row = dict[str, Any]
Example = dict[str, np.ndarray]


def row_of(
    run: np.ndarray, encoding: Encoding = "compact", src_addr: str = SRC, row_index: int = 0
) -> Row:
    """Returns what a data source gives for a row, as far as samplers look at it."""
    record = encode_row(run, RowKey(src_addr, row_index), encoding)
    row, located = decode_record(record), locate(record)
    return {
        "src_id": row.src_id,
        "src_addr": row.src_addr,
        "row_index": row.row_index,
        "n_measurements": row.n_measurements,
        "measurements": Measurements(located.columns),
    }


def items_of(run: np.ndarray) -> list[reference.Item]:
    return reference.items_of(records_as_tuples(run))


def numbered_run(n: int, seed: int = 0, ipv6: bool = False) -> np.ndarray:
    """Returns a run in which each destination is another one."""
    run = make_run(n, seed=seed, wide=True)
    run["dst_hi"] = 1 if ipv6 else 0
    run["dst_lo"] = np.arange(n, dtype=np.uint64) | np.uint64(MAPPED_IPV4)
    return run


def tokens_of(example: Example) -> list[int]:
    """Returns the tokens of the one segment of an example, the last one a target only."""
    length = int(np.count_nonzero(example["inputs_segmentation"]))
    return [*example["inputs"][:length].tolist(), int(example["targets"][length - 1])]


def assert_example(example: Example, crop_size: int = 1024) -> None:
    """One segment, then padding: MaxText's six arrays, where a target is the next token."""
    assert set(example) == NAMES
    for values in example.values():
        assert values.dtype == np.int32
        assert values.shape == (crop_size,)
    length = int(np.count_nonzero(example["inputs_segmentation"]))
    assert length >= 1
    expected = (np.arange(crop_size) < length).astype(int)
    for name in ("inputs", "targets"):
        assert np.array_equal(example[f"{name}_segmentation"], expected)
        assert np.array_equal(example[f"{name}_position"], np.arange(crop_size) * expected)
        assert not example[name][length:].any()
        assert example[name].max() < 267
    assert np.array_equal(example["inputs"][1:length], example["targets"][: length - 1])


def damaged_row(n: int) -> Row:
    """Returns a row whose destinations are all no addresses, as only its readers can find out."""
    record = bytearray(encode_row(make_run(n, seed=7), RowKey(SRC, 5), "arrow"))
    columns = locate(bytes(record)).columns
    row = row_of(make_run(n, seed=7), "arrow", row_index=5)
    begin, end = columns.layout.dst_more, columns.layout.families
    record[begin:end] = b"x" * (end - begin)
    columns = columns._replace(raw=np.frombuffer(bytes(record), np.uint8))
    return row | {"measurements": Measurements(columns)}


FIXED_ORDER = ("SRC", "TIM", "DST", "RTT", "FAI")


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, 1), (29, 1), (30, 1), (31, 2), (60, 2), (61, 3), (450, 15), (451, 16), (10**6, 16)],
)
def test_k_is_n_by_30_rounded_up_and_at_most_16(n, expected):
    assert ProbeRowSampler().num_contexts(n) == expected


def test_k_follows_its_arguments():
    sampler = ProbeRowSampler(avg_tokens_per_measurement=10, max_contexts_per_row=3)
    assert [sampler.num_contexts(n) for n in (0, 1, 10, 11, 21, 31)] == [1, 1, 1, 2, 3, 3]


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
        ({"crop_size": 63}, "crop_size is 63: it must be"),
    ],
)
def test_options_that_cannot_be_are_refused(options, line):
    with pytest.raises(ProbelineError, match=re.escape(line)):
        ProbeRowSampler(**options)


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
    dst = [{one.dst_addr for one in decode(tokens)} for tokens in (other_probe[0], expected[0])]
    assert dst[0] != dst[1]


def test_mode_weights_are_shares_of_their_sum():
    row = row_of(make_run(3000, seed=4))
    for mode, weights in WEIGHTS.items():
        sampler = ProbeRowSampler(mode_weights=tuple(7 * weight for weight in weights))  # type: ignore[arg-type]
        assert {context.mode for context in sampler.contexts(row)} == {mode}
    sampler = ProbeRowSampler(64, 1, 3000, mode_weights=(1, 0, 3))
    modes = Counter(context.mode for epoch in range(4) for context in sampler.contexts(row, epoch))
    assert set(modes) == {"full", "none"}
    assert abs(modes["full"] / 12_000 - 0.25) < reference.most_deviation(12_000)


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


@both_samplers
@pytest.mark.parametrize("n", [10, 200], ids=["small", "large"])
def test_a_damaged_row_is_named(sampler_class, n):
    message = "row 5 of 192.0.2.1 has a destination that is not an IP address.*beam_pipeline.verify"
    row, sampler = damaged_row(n), sampler_class(mode_weights=(1, 0, 0))
    with pytest.raises(ProbelineError, match=message):
        sampler.random_map(row, np.random.default_rng(1))
    with pytest.raises(ProbelineError, match=message):
        if isinstance(sampler, ProbeRowSampler):
            list(sampler.examples(row))
        else:
            sampler.context(row)


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
    message = f"probes_per_round is {num}, but a batch has 4 probes: .*larger batch_size"
    with pytest.raises(ProbelineError, match=message):
        sample_federated_batch(iter([batch(4)]), num)


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
def test_small_row_gives_each_measurement_once(
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


def test_modes_of_a_small_row_by_epoch():
    row = row_of(numbered_run(20, seed=10))
    sampler = ProbeRowSampler(seed=11)
    first, again, other = (
        [tokens_of(example) for example in sampler.examples(row, epoch)] for epoch in (0, 0, 1)
    )
    assert first == again != other
    num, num_timed = 3000, Counter()
    for epoch in range(num):
        (example,) = sampler.examples(row, epoch)
        num_timed[sum(token in (5, 6, 7) for token in tokens_of(example))] += 1
    assert set(num_timed) == {0, 20, *range(3, 19)}
    for found, share in ((num_timed[20], 0.4), (num_timed[0], 0.3)):
        assert abs(found / num - share) < reference.most_deviation(num)
    partial = [num_timed[count] for count in range(3, 19)]
    assert max(partial) < 2.5 * min(partial)
