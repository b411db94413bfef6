"""Bytes in kernels, 64 at a time, beside the same in plain Python."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from beam_pipeline.byte_blocks import (
    copy_block,
    load_word,
    low_bits,
    mask_of,
    put_bits,
    put_code_point,
)
from tests.support.properties import num_examples

byte = st.integers(0, 255)
OTHER = 0xEE


@njit
def blocks(data, at, low, span, add, target, to):
    copy_block(data, at, low, span, add, target, to)
    return mask_of(data, at, low, span), load_word(data, at)


@given(st.binary(min_size=70, max_size=70), st.integers(0, 6), byte, byte, byte)
@settings(max_examples=num_examples(300))
def test_masks_copies_and_words(data: bytes, at: int, low: int, span: int, add: int) -> None:
    target = np.full(80, OTHER, np.uint8)
    one = np.uint8
    mask, word = blocks(
        np.frombuffer(data, np.uint8), np.uint64(at), one(low), one(span), one(add), target,
        np.uint64(3),
    )  # fmt: skip
    block = data[at : at + 64]
    is_in = [(value - low) % 256 <= span for value in block]
    assert mask == sum(flag << bit for bit, flag in enumerate(is_in))
    assert word == int.from_bytes(block[:8], "little")
    copied = [(v + add * flag) % 256 for v, flag in zip(block, is_in, strict=True)]
    assert target.tolist() == [OTHER] * 3 + copied + [OTHER] * 13


@njit
def places_of(mask, first, places, count):
    return put_bits(mask, first, places, count)


@given(st.sets(st.integers(0, 63)), st.integers(1, 64))
@settings(max_examples=num_examples(300))
def test_bits_become_places(bits: set[int], count: int) -> None:
    places = np.zeros(80, np.uint32)
    mask = np.uint64(sum(1 << bit for bit in bits)) & low_bits(np.uint64(count))
    stop = places_of(np.uint64(mask), np.uint64(1000), places, np.uint64(2))
    assert places[2:stop].tolist() == [1000 + bit for bit in sorted(bits) if bit < count]


def test_code_points_become_utf8() -> None:
    for char in "a\x7f\x80\u07ff\u0800\ud800\uffff\U00010000\U0010ffff":
        text = np.zeros(8, np.uint8)
        stop = put_code_point(np.uint32(ord(char)), text, np.uint64(1))
        assert text[1:stop].tobytes() == char.encode("utf-8", "surrogatepass")
