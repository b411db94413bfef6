"""Spans of bzip2 files against the standard library."""

import bz2
import io
import itertools
import lzma
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.storage.bzip2 import _find_marks, read_lines_of_span
from beam_pipeline.storage.lines import DAMAGE, decompressed, read_blocks
from tests.support.properties import num_examples

# Blocks of 100 kB; hexadecimal digits take half of that.
RANDOM = np.random.default_rng(1).bytes(200_000).hex("\n", 50).encode()
streams = st.lists(
    st.builds(
        lambda text, level: bz2.compress(text, level),
        st.sampled_from([b"", b"\n", b"a", b"\n\n", RANDOM, RANDOM[:150_000]])
        | st.text("ab\n", max_size=9).map(str.encode),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=4,
)


def spans(num_bytes: int, cuts: list[float]) -> list[tuple[int, int]]:
    bounds = sorted({0, num_bytes, *(int(cut * num_bytes) for cut in cuts)})
    return list(itertools.pairwise(bounds))


def read(data: bytes, *spans: tuple[int, int]) -> tuple[bytes, list[Exception]]:
    """Returns what is in each span, up to its damage, and the damage."""
    found, damage = [], []
    for span in spans:
        try:
            found += read_lines_of_span(io.BytesIO(data), *span)
        except DAMAGE as error:
            damage.append(error)
    return b"".join(found), damage


def read_as_usual(data: bytes) -> tuple[bytes, list[Exception]]:
    found, damage = [], []
    file = bz2.BZ2File(io.BytesIO(data))
    try:
        while block := file.read1():
            found.append(block)
    except DAMAGE as error:
        damage.append(error)
    return b"".join(found), damage


@settings(max_examples=num_examples(60), deadline=None)
@given(streams, st.lists(st.floats(0, 1), max_size=9))
def test_spans_have_all_lines(streams: list[bytes], cuts: list[float]) -> None:
    """Cut anywhere, in files of several streams, with lines over several blocks and spans."""
    data = b"".join(streams)
    assert read(data, *spans(len(data), cuts)) == (bz2.decompress(data), [])


@settings(max_examples=num_examples(60), deadline=None)
@given(streams, st.floats(0, 1))
def test_truncated_file(streams: list[bytes], cut: float) -> None:
    data = b"".join(streams)
    data = data[: max(14, int(cut * len(data)))]
    whole, damage = read_as_usual(data)
    found, found_damage = read(data, (0, len(data)))
    assert found == whole
    assert list(map(repr, found_damage)) == list(map(repr, damage))


def test_damaged_block() -> None:
    """Only blocks before it are read, and the error is the usual one."""
    data = bytearray(bz2.compress(RANDOM, 1))
    _, second, third, *_ = [bit // 8 for bit, is_block in _find_marks(bytes(data), 0, 0)]
    data[(second + third) // 2] ^= 1
    found, (error,) = read(bytes(data), (0, second + 1))
    whole, (expected,) = read_as_usual(bytes(data))
    assert repr(error) == repr(expected)
    assert found and whole.startswith(found)
    after, damage = read(bytes(data), (third, len(data)))
    assert RANDOM.endswith(after) and after and not damage


@pytest.mark.parametrize("stream", [0, 1])
def test_damaged_mark_of_the_first_block(stream: int) -> None:
    """It is not found, and what it begins is not lost silently."""
    streams = [
        bytearray(bz2.compress(RANDOM[at : at + 50_000])) for at in range(0, 150_000, 50_000)
    ]
    streams[stream][7] ^= 1
    data = b"".join(streams)
    with pytest.raises(OSError, match="Invalid data stream"):
        list(read_lines_of_span(io.BytesIO(data), 0, len(data)))
    with pytest.raises(OSError, match="Invalid data stream"):  # to the end of its last line
        list(read_lines_of_span(io.BytesIO(data), 0, sum(map(len, streams[:stream]))))


def test_block_without_an_end() -> None:
    """Memory is bounded."""
    data = bz2.compress(RANDOM[:50_000])[:20_000]
    stream = io.BytesIO(data + bytes(9 << 20))
    with pytest.raises(OSError, match="Invalid data stream"):
        list(read_lines_of_span(stream, 0, 10 << 20))
    assert stream.tell() < 4 << 20


@pytest.mark.parametrize("mark", [b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90"])
def test_mark_by_chance(mark: bytes) -> None:
    """A mark within the data of a block ends no block."""
    data = bz2.compress(RANDOM[:50_000])
    with pytest.MonkeyPatch.context() as patch:
        real = _find_marks
        chance = 8 * (len(data) // 2) + 3

        def with_chance(data: bytes, base: int, first: int) -> list[tuple[int, bool]]:
            return sorted([*real(data, base, first), (chance, mark[0] == 0x31)])

        patch.setattr("beam_pipeline.storage.bzip2._find_marks", with_chance)
        assert read(data, (0, len(data))) == (RANDOM[:50_000], [])


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_no_stream_of_a_whole_file_is_lost(compress: Callable[[bytes], bytes]) -> None:
    """The standard library drops a stream that does not begin like one, or after zeros."""
    first, second = compress(b"one\n"), compress(b"two\n")
    for between in (b"", bytes(8)):
        assert (
            b"".join(read_blocks(decompressed(io.BytesIO(first + between + second))))
            == b"one\ntwo\n"
        )
    for rest in (b"", bytes(9)):
        assert list(read_blocks(decompressed(io.BytesIO(first + rest)))) == [b"one\n"]
    for rest in (b"?" + second[1:], second[:9]):
        with pytest.raises(DAMAGE):
            list(read_blocks(decompressed(io.BytesIO(first + rest))))
