"""The samplers as users call them: a row of a `ProbeRowDataSource` in, examples out."""

import itertools
from collections import Counter
from typing import Any

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


def test_k_is_n_by_30_rounded_up_and_at_most_16():
    sampler = ProbeRowSampler()
    sizes = (1, 30, 31, 450, 451, 10**6)
    assert [sampler.num_contexts(n) for n in sizes] == [1, 1, 2, 15, 16, 16]
    sampler = ProbeRowSampler(avg_tokens_per_measurement=10, max_contexts_per_row=3)
    assert [sampler.num_contexts(n) for n in (0, 10, 11, 31)] == [1, 1, 2, 3]


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


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ProbelineError, match=r"crop_size is 63: it must be"):
        ProbeRowSampler(crop_size=63)


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


@pytest.mark.parametrize(("src_addr", "ipv6"), [(SRC, False), ("2001:db8::1", True)])
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
        assert ProbeRowSampler(max(64, len(tokens))).is_small(row)
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


def batch(num: int, first: int = 0) -> Example:
    values = np.arange(first, first + num * 8, dtype=np.int32).reshape(num, 8)
    return dict.fromkeys(NAMES, values)


def test_a_round_is_the_first_probes_of_the_next_batch():
    iterator = iter([batch(4), batch(4, first=1000)])
    for first in (0, 1000):
        found = sample_federated_batch(iterator, 3)
        assert set(found) == NAMES
        for values in found.values():
            assert np.array_equal(values, batch(4, first)["inputs"][:3])
    with pytest.raises(StopIteration):
        sample_federated_batch(iterator, 3)
    for wrong in (0, 5):
        message = f"probes_per_round is {wrong}, but a batch has 4 probes: .*larger batch_size"
        with pytest.raises(ProbelineError, match=message):
            sample_federated_batch(iter([batch(4)]), wrong)


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
