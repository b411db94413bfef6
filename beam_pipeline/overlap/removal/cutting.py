"""What remains of a text once the spans that it shares are cut out or masked.

Cuts are at borders of tokens, so that what remains has no token and no n-gram that the text did not
have: a run over it finds nothing. Each remainder is cut into tokens again to make sure. It is
dropped if they differ, as where the lower case of a capital sigma depends on what was cut.
"""

from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.token_kernels import tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

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
    is_kept = np.ones(len(tokens.starts), bool)
    for start, end in spans:
        first, stop = start - cut.margin_chars, end + cut.margin_chars
        overlaps = (tokens.starts < stop) & (tokens.ends > first)
        is_kept &= ~(overlaps | ((tokens.starts >= first) & (tokens.ends <= stop)))
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


def mask_text(text: str, spans: Spans, cut: Cut) -> list[str]:
    """Returns the text with a mask for each span, or [] if its other tokens would change."""
    assert cut.mask is not None
    tokens, mask = tokens_of(text, cut.tokenizer), tokens_of(cut.mask, cut.tokenizer).hashes
    parts, expected, at, token = [], [], 0, 0
    for start, end in spans:
        is_covered = (tokens.starts >= start) & (tokens.ends <= end)
        covered = np.flatnonzero(is_covered)
        if not len(covered) or start < at:
            return []
        parts += [text[at:start], cut.mask]
        expected += [tokens.hashes[token : covered[0]], mask]
        at, token = end, int(covered[-1]) + 1
    masked = "".join([*parts, text[at:]])
    expected.append(tokens.hashes[token:])
    found = tokens_of(masked, cut.tokenizer).hashes
    return [masked] if np.array_equal(found, np.concatenate(expected)) else []
