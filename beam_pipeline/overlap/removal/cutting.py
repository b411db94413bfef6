"""Contaminated texts with their shared spans cut out or masked, and counts of the changes.

Cuts are at token borders, so the remainder has no token or n-gram that the text lacked, and a
second run over it finds nothing. As a check, each remainder is tokenised again, and dropped if its
tokens differ: the lower case of a capital sigma, for example, depends on its neighbours.
"""

import functools
import hashlib
from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np

from beam_pipeline.documents.batch import encode
from beam_pipeline.overlap.ngrams.token_texts import Tokens, tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.removal.training_files import Counts, DocumentReader, Documents

_TOKENS_AT_A_TIME = 1 << 20
_NO_COUNTS: dict[str, int] = dict.fromkeys(
    (
        *("contaminated", "changed", "records_removed", "below_min_coverage", "pieces"),
        *("contaminated_chars", "contaminated_chars_kept", "chars_removed", "mask_chars"),
    ),
    0,
)
Spans = list[tuple[int, int]]  # [start, end) in code points, ascending


class Cut(NamedTuple):
    """How to cut texts: a `mask`, or the limits of pieces in characters."""

    tokenizer: Tokenizer
    mask: str | None = None
    margin_chars: int = 200
    min_piece_chars: int = 200
    max_pieces: int = 10


def cut_text(text: str, spans: Spans, cut: Cut) -> list[str]:
    """Returns the pieces of a text without its shared spans, or the masked text; [] drops it."""
    return split_text(text, spans, cut) if cut.mask is None else mask_text(text, spans, cut)


def split_text(text: str, spans: Spans, cut: Cut) -> list[str]:
    """Returns the pieces between spans and their margins; [] if there are too many."""
    tokens = tokens_of(text, cut.tokenizer)
    is_kept = ~reach_into(tokens, spans, cut.margin_chars)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_kept, [False]]))).reshape(-1, 2)
    pieces = []
    for first, stop in edges.tolist():
        begin = tokens.starts[first] if first else 0
        end = tokens.ends[stop - 1] if stop < len(is_kept) else len(text)
        pieces.append((text[begin:end], tokens.hashes[first:stop]))
    pieces = [(piece, hashes) for piece, hashes in pieces if piece]
    if len(pieces) > cut.max_pieces:
        return []
    return [
        piece
        for piece, hashes in pieces
        if len(piece) >= cut.min_piece_chars
        and np.array_equal(tokens_of(piece, cut.tokenizer).hashes, hashes)
    ]


def reach_into(tokens: Tokens, spans: Spans, margin_chars: int) -> np.ndarray:
    """Returns whether tokens overlap a span with its margins or, if empty, lie within: bool [n]."""
    starts = np.array([start - margin_chars for start, _ in spans] + [np.iinfo(np.int64).max])
    stops = np.array([stop + margin_chars for _, stop in spans])

    def first_behind(places: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """Returns where the first span begins that ends behind each place, or at it (left)."""
        return starts[np.searchsorted(stops, places, side)]

    reaches = np.empty(len(tokens.starts), bool)
    for at in range(0, len(reaches), _TOKENS_AT_A_TIME):
        here = slice(at, at + _TOKENS_AT_A_TIME)
        begins, ends = tokens.starts[here], tokens.ends[here]
        overlaps = first_behind(begins, "right") < ends
        reaches[here] = overlaps | (first_behind(ends, "left") <= begins)
    return reaches


def mask_text(text: str, spans: Spans, cut: Cut) -> list[str]:
    """Returns the text with a mask for each span, or [] if its other tokens would change."""
    assert cut.mask is not None
    tokens, mask = tokens_of(text, cut.tokenizer), _hashes_of(cut.mask, cut.tokenizer)
    starts, ends = np.array(spans, np.uint32).T
    # The tokens [first, stop) of each span.
    firsts = np.searchsorted(tokens.starts, starts)
    stops = np.searchsorted(np.maximum.accumulate(tokens.ends), ends, "right")
    if (stops <= firsts).any() or (starts[1:] < ends[:-1]).any():
        return []
    parts, expected, at, token = [], [], 0, 0
    for (start, end), first, stop in zip(spans, firsts.tolist(), stops.tolist(), strict=True):
        parts += [text[at:start], cut.mask]
        expected += [tokens.hashes[token:first], mask]
        at, token = end, stop
    parts.append(text[at:])
    masked = "".join(parts)
    expected.append(tokens.hashes[token:])
    found = tokens_of(masked, cut.tokenizer).hashes
    return [masked] if np.array_equal(found, np.concatenate(expected)) else []


@functools.cache
def _hashes_of(mask: str, tokenizer: Tokenizer) -> np.ndarray:
    return tokens_of(mask, tokenizer).hashes


# --- records --------------------------------------------------------------------------------------


def piece_id(identifier: Any, number: int, text: str) -> str | int | None:
    """Returns the id of a piece, of the type of its document's id; None if it is of another type.

    Text is followed by the piece's number and 16 hex digits of its text; instead of an integer, it
    is 63 bits of a hash of all three. Other records have the same id only by chance.
    """
    if isinstance(identifier, str):
        return f"{identifier}-{number}-{_digest(text).hex()}"
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return int.from_bytes(_digest(f"{identifier}-{number}-{text}")) >> 1
    return None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(encode(text), digest_size=8).digest()


class Changes:
    """Cuts or drops (without a cut) the contaminated records of a file, and counts them."""

    def __init__(self, documents: DocumentReader, cut: Cut | None, min_coverage: float = 0.0):
        self._documents, self._cut, self._min_coverage = documents, cut, min_coverage
        self.is_split = cut is not None and cut.mask is None
        self.num_unnamed = 0  # pieces without an id of their own
        self._counts = Counts(Counter(_NO_COUNTS), {})

    def within(self, first_row: int, stop_row: int) -> Documents:
        """Returns the contaminated documents of some rows, as `DocumentReader` does."""
        return self._documents.within(first_row, stop_row)

    def texts(self, documents: Documents, index: int, text: str) -> list[str] | None:
        """Returns the remaining texts of a record; [] drops it, None keeps it as it is."""
        pieces: list[str] = []
        added = 0
        found = {**_NO_COUNTS, "contaminated": 1, "contaminated_chars": len(text)}
        is_below = documents.covered_chars[index] < self._min_coverage * len(text)
        if is_below:
            found |= {"below_min_coverage": 1, "contaminated_chars_kept": len(text)}
        else:
            if self._cut is not None:
                spans = documents.spans_at(index)
                pieces = cut_text(text, spans, self._cut)
                if self._cut.mask and pieces:
                    added = len(self._cut.mask) * len(spans)
            kept = sum(map(len, pieces)) - added
            found |= {"changed" if pieces else "records_removed": 1, "pieces": len(pieces)}
            found |= {"contaminated_chars_kept": kept, "chars_removed": len(text) - kept}
            found["mask_chars"] = added
        self._counts.total.update(found)
        for name in documents.datasets_at(index):
            self._counts.by_set.setdefault(name, Counter()).update(found)
        return None if is_below else pieces

    def new_id(self, identifier: Any, number: int, text: str) -> str | int | None:
        """Returns the id of a piece; None, which is counted, leaves the document's id."""
        new = piece_id(identifier, number, text)
        self.num_unnamed += new is None
        return new

    def counts(self, num_rows: int, num_chars: int) -> Counts:
        """Returns the counts of a file with these numbers of records and characters of text."""
        total = self._counts.total
        untouched = num_rows - total["contaminated"] + total["below_min_coverage"]
        total.update(
            records_in=num_rows,
            records_kept=untouched + total["changed"],
            records_out=untouched + total["pieces"],
            chars_in=num_chars,
            chars_kept=num_chars - total["chars_removed"],
            unnamed_pieces=self.num_unnamed,
        )
        return self._counts
