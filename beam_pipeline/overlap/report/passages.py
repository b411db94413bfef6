"""The parts of a possibly long text that a page shows: shared places and their surroundings.

text, shared ranges [start, end) in code points → text, shared text, numbers of omitted characters
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

WHOLE_CHARS = 1_500  # texts up to this length are shown whole
_AROUND_CHARS = 160
_MIN_OMITTED_CHARS = 80
_END_CHARS = 600  # of spans longer than twice that, only the ends are shown
_MAX_SPANS = 6
_JOINERS = "\u200d\ufe0e\ufe0f"  # zero width joiner, variation selectors
_MAX_BACK_CHARS = 32
_NEAR_CHARS = 2 * (_AROUND_CHARS + _MIN_OMITTED_CHARS + _MAX_BACK_CHARS)
MAX_PLACES = 21  # the page lists 20 and says if there are more
Span = tuple[int, int]  # [start, end) in code points


class Piece(NamedTuple):
    """A piece of a text, or the number of characters omitted."""

    text: str
    is_shared: bool = False
    num_omitted: int = 0


def passages(text: str, spans: Sequence[Span]) -> list[Piece]:
    """Cuts a text into pieces: a short one whole, a long one only around its longest shared places.

    `spans` are merged and not empty.
    """
    pieces: list[Piece] = []
    at = 0
    for start, end in [*_windows(text, spans), (len(text), len(text))]:
        if at < start:
            pieces.append(Piece("", num_omitted=start - at))
        pieces += _pieces(text, spans, start, end)
        at = end
    return pieces


def shown_spans(starts: np.ndarray, ends: np.ndarray) -> list[Span]:
    """Returns those of many merged spans that `passages` or a list of places may show."""
    longest = np.lexsort((starts, starts - ends))[:_MAX_SPANS]
    is_shown = starts < WHOLE_CHARS
    is_shown[:MAX_PLACES] = True
    for start, end in zip(starts[longest], ends[longest], strict=True):
        is_shown |= (ends > start - _NEAR_CHARS) & (starts < start + _END_CHARS + _NEAR_CHARS)
        is_shown |= (ends > end - _END_CHARS - _NEAR_CHARS) & (starts < end + _NEAR_CHARS)
    return list(zip(starts[is_shown].tolist(), ends[is_shown].tolist(), strict=True))


def merge_spans(spans: Iterable[Span], max_gap: int = 0) -> list[Span]:
    """Returns ranges [start, end) in order, merging those at most `max_gap` apart.

    >>> merge_spans([(4, 9), (0, 2), (2, 3)])
    [(0, 3), (4, 9)]
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + max_gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _windows(text: str, spans: Sequence[Span]) -> list[Span]:
    """Returns the shown ranges of a text, in order."""
    size = len(text)
    if size <= WHOLE_CHARS:
        return [(0, size)]
    longest = sorted(spans, key=lambda span: (span[0] - span[1], span))[:_MAX_SPANS]
    wanted = [(0, WHOLE_CHARS)] if not spans else []
    for start, end in longest:
        before, after = start - _AROUND_CHARS, end + _AROUND_CHARS
        wanted += [(before, min(start + _END_CHARS, after)), (max(end - _END_CHARS, before), after)]
    whole_words = [(_boundary(text, start), _boundary(text, end)) for start, end in wanted]
    windows = merge_spans([(0, 0), *whole_words, (size, size)], max_gap=_MIN_OMITTED_CHARS - 1)
    return [(start, end) for start, end in windows if start < end]


def _boundary(text: str, at: int) -> int:
    """Returns the last place up to `at` between words or, within long words, characters."""
    at = min(max(at, 0), len(text))
    if at in (0, len(text)):
        return at
    back = range(at, max(0, at - _MAX_BACK_CHARS), -1)
    between_words = (place for place in back if text[place - 1].isspace())
    between_characters = (
        place
        for place in back
        if not unicodedata.combining(text[place]) and text[place] not in _JOINERS
        if text[place - 1] != _JOINERS[0]
    )
    return next(between_words, next(between_characters, at))


def _pieces(text: str, spans: Sequence[Span], start: int, end: int) -> Iterator[Piece]:
    for span_start, span_end in spans:
        if start < span_end and span_start < end:
            if start < span_start:
                yield Piece(text[start:span_start])
            shared_from, start = max(start, span_start), min(end, span_end)
            yield Piece(text[shared_from:start], is_shared=True)
    if start < end:
        yield Piece(text[start:end])
