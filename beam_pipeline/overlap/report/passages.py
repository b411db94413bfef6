"""What a page shows of a text that may be megabytes long: the shared places and what is around.

Enter a text and the ranges [start, end) of it that are shared, in code points; leave pieces of
text, shared text, and numbers of characters that are left out.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

WHOLE_CHARS = 1_500  # a text no longer than that is shown whole
_AROUND_CHARS = 160
_LEAST_LEFT_OUT_CHARS = 80
_WHOLE_SPAN_CHARS = 1_200  # of a longer span the ends are shown
_END_CHARS = 500
_MOST_SPANS = 6
_MOST_UNSEEN_CHARS = 20_000
_JOINERS = "\u200d\ufe0e\ufe0f"  # zero width joiner, variation selectors
_LONGEST_BACK = 32

Span = tuple[int, int]


class Piece(NamedTuple):
    """A piece of a text; of one that is left out only the number of characters is kept."""

    text: str
    is_shared: bool = False
    num_left_out: int = 0


class Passages(NamedTuple):
    """What is shown of a text, and the shared text that is not, as far as search wants it."""

    pieces: list[Piece]
    unseen: str


def merged(spans: Iterable[Span]) -> list[Span]:
    """Returns ranges in order, those that overlap or touch as one, without empty ones."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def num_covered(spans: Sequence[Span]) -> int:
    """Returns how many characters the ranges of `merged` cover."""
    return sum(end - start for start, end in spans)


def passages(text: str, spans: Sequence[Span]) -> Passages:
    """Cuts a text into pieces: all of a short one, of a long one what is around shared places.

    Args:
      spans: as `merged` returns them; of many the longest ones are shown.
    """
    windows = _windows(text, spans)
    pieces: list[Piece] = []
    at = 0
    for start, end in windows:
        if at < start:
            pieces.append(Piece("", num_left_out=start - at))
        pieces += _pieces_of_window(text, spans, start, end)
        at = end
    if at < len(text):
        pieces.append(Piece("", num_left_out=len(text) - at))
    return Passages(pieces, _unseen(text, spans, windows))


def _windows(text: str, spans: Sequence[Span]) -> list[Span]:
    """Returns the parts of a text that are shown, in order."""
    if len(text) <= WHOLE_CHARS:
        return [(0, len(text))] if text else []
    longest = sorted(spans, key=lambda span: (span[0] - span[1], span))[:_MOST_SPANS]
    wanted = [part for span in longest for part in _around(*span)] or [(0, WHOLE_CHARS)]
    windows: list[Span] = []
    for start, end in merged(
        (_boundary(text, start), _boundary(text, end)) for start, end in wanted
    ):
        if start - (windows[-1][1] if windows else 0) < _LEAST_LEFT_OUT_CHARS:
            windows[-1:] = [(windows[-1][0] if windows else 0, end)]
        else:
            windows.append((start, end))
    if len(text) - windows[-1][1] < _LEAST_LEFT_OUT_CHARS:
        windows[-1] = (windows[-1][0], len(text))
    return windows


def _around(start: int, end: int) -> list[Span]:
    """Returns what is shown for a span: with its surroundings, of a long one its two ends."""
    before, after = start - _AROUND_CHARS, end + _AROUND_CHARS
    if end - start <= _WHOLE_SPAN_CHARS:
        return [(before, after)]
    return [(before, start + _END_CHARS), (end - _END_CHARS, after)]


def _boundary(text: str, at: int) -> int:
    """Returns a place at or before `at` between two words or, where they are long, characters."""
    at = min(max(at, 0), len(text))
    if at in (0, len(text)):
        return at
    back = range(at, max(0, at - _LONGEST_BACK), -1)
    places = (place for place in back if text[place - 1].isspace())
    whole_characters = (place for place in back if not _goes_on(text, place))
    return next(places, next(whole_characters, at))


def _goes_on(text: str, place: int) -> bool:
    """Tells whether what stands at a place belongs to the character before it."""
    joins = text[place] in _JOINERS or text[place - 1] == _JOINERS[0]
    return joins or unicodedata.combining(text[place]) > 0


def _pieces_of_window(text: str, spans: Sequence[Span], start: int, end: int) -> Iterator[Piece]:
    for span_start, span_end in spans:
        if span_end <= start or span_start >= end:
            continue
        if start < span_start:
            yield Piece(text[start:span_start])
        shared_from, start = max(start, span_start), min(end, span_end)
        yield Piece(text[shared_from:start], is_shared=True)
    if start < end:
        yield Piece(text[start:end])


def _unseen(text: str, spans: Sequence[Span], windows: Sequence[Span]) -> str:
    """Returns the text of spans that are not shown whole, cut where it gets long."""
    found: list[str] = []
    budget = _MOST_UNSEEN_CHARS
    for start, end in spans:
        if budget <= 0:
            break
        if not any(first <= start and end <= last for first, last in windows):
            found.append(text[start : min(end, start + budget)])
            budget -= end - start
    return "\n".join(found)
