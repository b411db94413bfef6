"""Kinds of tokens, timestamp modes, queries and logarithmic RTTs."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from tests.support.contexts import contexts, measured
from tests.support.evaluation_helpers import Stored, plain_kinds, plain_measurements, plain_queries
from tests.support.evaluation_helpers import stored as stored
from tests.support.helpers import canonical
from tests.support.probe_rows_on_disk import CROP
from tests.support.properties import num_examples
from training.rows.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.tokens import kinds
from training.tokens.kinds import KIND_NAMES, MODE_CLASSES, NOTHING, parse
from training.tokens.log_rtt import stored_codes, token_code, token_codes
from training.tokens.tokenizer import encode


def plain_mode(tokens: list[int]) -> str:
    tells = [any(token in (5, 6, 7) for token in each) for each in plain_measurements(tokens)]
    if len(tells) < 10:
        return "short"
    if not tells[-1]:
        tells.pop()
    return "full" if all(tells) else "partial" if any(tells) else "none"


def pack(segments: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """One example's targets and segmentation, with some padding."""
    targets = [token for tokens in segments for token in tokens[1:]]
    numbers = [i + 1 for i, tokens in enumerate(segments) for _ in tokens[1:]]
    padding = [0] * 3
    return np.array([targets + padding], np.int32), np.array([numbers + padding], np.int32)


@st.composite
def cut_segments(draw: st.DrawFn) -> list[list[int]]:
    segments = []
    for _ in range(draw(st.integers(1, 3))):
        src, measurements, is_timed, orders = draw(contexts())
        if draw(st.booleans()):  # enough of them for a mode
            measurements, is_timed, orders = measurements * 4, is_timed * 4, orders * 4
        tokens = encode(src, measured(*measurements), np.array(is_timed), np.array(orders)).tolist()
        segments.append(tokens[: draw(st.integers(2, len(tokens)))])
    return segments


@settings(max_examples=num_examples(60))
@given(cut_segments())
@example([[0, 3, 11, 11, 11, 11, 10], [0, 8]])
@example([[0, 1, 12, 12, 12, 12, 3, 13, 13, 13, 13, 8, 11, 11]])  # an RTT of zero
def test_tokens_are_parsed_as_plain_python_parses_them(segments: list[list[int]]) -> None:
    targets, segmentation = pack(segments)
    parsed = parse(targets, segmentation)
    is_token = segmentation > 0
    assert (parsed.kinds[~is_token] == NOTHING).all() and (parsed.modes[~is_token] == NOTHING).all()
    assert [KIND_NAMES[kind] for kind in parsed.kinds[is_token]] == [
        name for tokens in segments for name in plain_kinds(tokens)
    ]
    assert [MODE_CLASSES[mode] for mode in parsed.modes[is_token]] == [
        plain_mode(tokens) for tokens in segments for _ in tokens[1:]
    ]
    found = parsed.measurements[parsed.measurements["is_query"]]
    begins = np.cumsum([0, *(len(tokens) - 1 for tokens in segments)])
    expected = [
        (0, number, begins[number] + query.place, query.src, query.dst, np.float32(query.ms))
        for number, tokens in enumerate(segments)
        for query in plain_queries(tokens)
    ]
    assert expected == [
        (
            *(one["example"], one["segment"], one["place"]),
            canonical(int(one["src_hi"]) << 64 | int(one["src_lo"])),
            canonical(int(one["dst_hi"]) << 64 | int(one["dst_lo"])),
            decode_rtt(one["code"]),
        )
        for one in found
    ]


def test_modes_are_those_that_were_drawn(stored: Stored) -> None:
    source, sampler = ProbeRowDataSource(str(stored.folder)), ProbeRowSampler(crop_size=CROP)
    contexts_ = [
        context
        for row in source
        if not sampler.is_small(row)
        for epoch in range(10)
        for context in sampler.contexts(row, epoch)
    ]
    targets, segmentation = (
        np.stack([context.example[name] for context in contexts_])
        for name in ("targets", "targets_segmentation")
    )
    parsed = parse(targets, segmentation)
    is_long = 1 + (parsed.kinds == kinds.START).sum(axis=1) >= kinds.MIN_MEASUREMENTS_FOR_MODE
    assert (parsed.modes[~is_long, 0] == kinds.SHORT).all()
    right: dict[str, list[bool]] = {"full": [], "partial": [], "none": []}
    for number in np.flatnonzero(is_long):
        drawn, told = contexts_[number].mode, MODE_CLASSES[parsed.modes[number, 0]]
        right[drawn].append(told == drawn)
    assert all(right["full"]) and all(right["none"]) and sum(map(len, right.values())) > 200
    # Among ten measurements of mode partial there can be none without a timestamp, or none with.
    assert np.mean(right["partial"]) > 0.9


DAY_MS = 86_400_000.0
WRITTEN = np.unique(encode_rtt(np.append(0, np.geomspace(1e-3, 49 * DAY_MS, 400_000))))
IS_EXACT = decode_rtt(WRITTEN) <= 1048


def test_what_is_told_can_be_told_back_and_ascends_with_the_rtt():
    told = token_codes(WRITTEN, True).astype(int)
    steps = np.diff(told)
    assert (steps[IS_EXACT[1:]] > 0).all() and (steps >= 0).all()
    assert told[0] == 0 and told[-1] < FAILED_RTT
    back = stored_codes(told, True)
    assert (back[IS_EXACT] == WRITTEN[IS_EXACT]).all()
    ratio = decode_rtt(back[~IS_EXACT]) / decode_rtt(WRITTEN[~IS_EXACT])
    assert 0.003 < np.abs(ratio - 1).max() < 0.004
    assert (token_codes(back, True) == told).all()
    assert [token_code(code, True) for code in WRITTEN[::97].tolist()] == told[::97].tolist()
    assert (token_codes(WRITTEN, False) == WRITTEN).all()
    assert (stored_codes(WRITTEN, False) == WRITTEN).all()


def test_a_failed_ping_stays_one_and_bytes_that_tell_no_rtt_are_read_as_the_next_lower():
    failed = np.array([FAILED_RTT])
    assert token_codes(failed, True) == FAILED_RTT == stored_codes(failed, True)
    assert token_code(FAILED_RTT, True) == FAILED_RTT
    told = np.unique(token_codes(WRITTEN, True).astype(int))
    never = np.setdiff1d(np.arange(told[-1]), told)
    lower = told[np.searchsorted(told, never) - 1]
    assert len(never) > 30_000 and (lower < never).all()
    assert (stored_codes(never, True) == stored_codes(lower, True)).all()
