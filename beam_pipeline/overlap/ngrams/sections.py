"""Sections of long texts, so that memory does not depend on the length of a text.

A text is cut into pieces at `Tokenizer.borders`, so the pieces have the tokens of the text. A
section is a piece, preceded by the tokens at which an n-gram of the piece may begin:

  text       the quick, brown fox jumps over        n = 3
  pieces    [the quick] [brown fox] [jumps over]
  sections  [the quick] [the quick, brown fox] [brown fox jumps over]

Each 3-gram ends in one piece and is in the section of that piece.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.documents.batch import decode, encode
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_PIECE_BYTES = 1 << 20
_LOOKED_AT_BYTES = 1 << 12  # first part searched for a border


class Section(NamedTuple):
    """Several whole texts, or a part of one."""

    first: int  # number of the first text
    utf8: np.ndarray  # uint8
    bounds: np.ndarray  # int64 [texts + 1], of the texts in `utf8`
    place: int = 0  # start of the part in its text, in code points
    known_bytes: int = 0  # bytes at the start that belong to earlier pieces


def sections_of(
    utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer, num_before: int
) -> Iterator[Section]:
    """Yields the texts utf8[bounds[i]:bounds[i + 1]], long ones in several sections.

    A section has at least `num_before` tokens of earlier pieces of its text.
    """
    is_long = np.diff(bounds) > _PIECE_BYTES
    if tokenizer.function is not None:
        is_long[:] = False
    first = 0
    for number in [*np.flatnonzero(is_long).tolist(), len(is_long)]:
        if first < number:
            here = bounds[first : number + 1]
            yield Section(first, utf8[here[0] : here[-1]], here - here[0])
        if number < len(is_long):
            text = utf8[bounds[number] : bounds[number + 1]]
            yield from _sections_of_text(number, text, tokenizer, num_before)
        first = number + 1


def _sections_of_text(
    number: int, text: np.ndarray, tokenizer: Tokenizer, num_before: int
) -> Iterator[Section]:
    start = place = piece = known = 0
    while piece < len(text):
        stop, next_piece = _first_border(text, piece + _PIECE_BYTES, tokenizer)
        bounds = np.array([0, stop - start])
        yield Section(number, text[start:stop], bounds, place, max(0, known - start))
        next_start = _start_before(text, stop, num_before, tokenizer) if num_before else next_piece
        place += count_code_points(text[start:next_start])
        start, piece, known = next_start, next_piece, stop


def _first_border(text: np.ndarray, start: int, tokenizer: Tokenizer) -> tuple[int, int]:
    """Returns the start and end of the first border after a place, or the end of the text."""
    num_bytes = _LOOKED_AT_BYTES
    start = _begin_of_code_point(text, start)
    while start < len(text):
        stop = _begin_of_code_point(text, start + num_bytes)
        here = decode(text[start:stop].tobytes())
        if border := next(tokenizer.borders(here), None):
            begin, end = (start + len(encode(here[:at])) for at in border)
            return begin, end
        if stop == len(text):
            break
        num_bytes *= 4
    return len(text), len(text)


def _start_before(text: np.ndarray, stop: int, num_tokens: int, tokenizer: Tokenizer) -> int:
    """Returns the start of a token with at least `num_tokens` tokens from there to `stop`."""
    num_bytes = _LOOKED_AT_BYTES
    while True:
        start = _begin_of_code_point(text, max(0, stop - num_bytes))
        here = decode(text[start:stop].tobytes())
        ends = [end for _, end in tokenizer.borders(here)]
        if len(ends) >= num_tokens:  # at least one token between two borders
            return start + len(encode(here[: ends[-num_tokens]]))
        if start == 0:
            return 0
        num_bytes *= 4


def _begin_of_code_point(text: np.ndarray, at: int) -> int:
    """Returns the start of a byte's code point, or the end of the text."""
    if at >= len(text):
        return len(text)
    while text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def count_code_points(utf8: np.ndarray) -> int:
    """Returns the number of code points."""
    return int(np.count_nonzero(utf8.view(np.int8) >= -64))  # all but continuation bytes
