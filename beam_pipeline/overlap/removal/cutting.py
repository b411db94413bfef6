"""What remains of a text once the spans that it shares are cut out or masked.

Cuts are at borders of tokens, so that what remains has no token and no n-gram that the text did not
have: a run over it finds nothing. Each remainder is cut into tokens again to make sure. It is
dropped if they differ, as where the lower case of a capital sigma depends on what was cut.
"""

from typing import Literal, NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.token_kernels import Tokens, tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_TOKENS_AT_A_TIME = 1 << 20
Spans = list[tuple[int, int]]  # [start, end) in code points, ascending


class Cut(NamedTuple):
    """How texts are cut: a `mask`, or the limits of pieces in characters."""

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
    edges = np.flatnonzero(np.diff(is_kept, prepend=False, append=False)).reshape(-1, 2)
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
    """Tells which tokens overlap a span and its margins, or lie within, if empty: bool [tokens]."""
    starts, stops = np.array(spans, np.int64).T + np.array([[-margin_chars], [margin_chars]])
    starts = np.append(starts, np.iinfo(np.int64).max)

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
    tokens, mask = tokens_of(text, cut.tokenizer), tokens_of(cut.mask, cut.tokenizer).hashes
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
