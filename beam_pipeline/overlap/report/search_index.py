"""What the page searches: all rows with a hit, or those with most covered tokens, compressed.

  HitRows, overlap_ngrams → JSON of columns, gzip, base64

A row is found by its set, id, path and shared words. Each row has its shared words once, in the
order of the text; so an n-gram is found by its words. The size is bounded by the number of rows and
by that of characters of words, which go to the rows with most covered tokens.
"""

from __future__ import annotations

import base64
import gzip
from typing import NamedTuple

import msgspec
import numpy as np
import orjson

from beam_pipeline.overlap.report.output import Advance, Output, decoded, reading
from beam_pipeline.overlap.report.rows import HitRows
from beam_pipeline.overlap.results.layout import NGRAMS

MAX_ROWS = 200_000
MAX_WORD_CHARS = 100_000_000
ROW_CHARS = 2_000
_CHARS_PER_TOKEN = 8  # by which rows are chosen, before their words are read


class SearchIndex(NamedTuple):
    """What the page searches."""

    data: str
    num_rows: int
    num_rows_with_words: int


class _Ngrams(msgspec.Struct):
    overlapping_ngram_counts: list[tuple[str, int, int]]


def make_search_index(output: Output, rows: HitRows, advance: Advance) -> SearchIndex:
    """Returns the index of the first rows."""
    num_rows = min(len(rows), MAX_ROWS)
    keys = rows.keys.slice(0, num_rows).combine_chunks()
    columns: dict[str, object] = {"lengths": rows.lengths}
    for name in ("eval_dataset", "eval_path"):
        encoded = keys.column(name).combine_chunks().dictionary_encode()
        columns[f"{name}s"] = encoded.dictionary.to_pylist()
        columns[name] = encoded.indices.to_numpy()
    for name in ("eval_row", "num_tokens"):
        columns[name] = keys.column(name).to_numpy()
    columns["instance_id"] = keys.column("instance_id").to_pylist()
    for name in ("num_covered_tokens", "num_train_documents"):
        columns[name] = [np.ascontiguousarray(one[:num_rows]) for one in rows.scores[name]]
    columns["words"] = words = _words(output, rows, num_rows, advance)
    data = gzip.compress(orjson.dumps(columns, option=orjson.OPT_SERIALIZE_NUMPY), 6, mtime=0)
    return SearchIndex(base64.b64encode(data).decode(), num_rows, len(words))


def _words(output: Output, rows: HitRows, num_rows: int, advance: Advance) -> list[str]:
    """Returns the shared words of the first rows."""
    quotas = np.minimum(rows.covered[:num_rows] * _CHARS_PER_TOKEN, ROW_CHARS)
    num_words = int(np.searchsorted(np.cumsum(quotas), MAX_WORD_CHARS, "right"))
    words = [""] * num_words
    # overlap_ngrams has the lines of overlap_coverage; the first of a row is of its smallest n.
    order = np.argsort(rows.first_lines[:num_words])
    lines = output.lines(NGRAMS, rows.first_lines[order].tolist(), advance)
    decoder = msgspec.json.Decoder(_Ngrams)
    with reading(output.file(NGRAMS)):
        for at, line in zip(order.tolist(), lines, strict=True):
            ngrams = [ngram for ngram, _, _ in decoded(line, decoder).overlapping_ngram_counts]
            once = dict.fromkeys(" ".join(ngrams).split(" "))
            words[at] = " ".join(once)[:ROW_CHARS].encode("utf-8", "replace").decode()
    sizes = np.cumsum([len(one) for one in words])
    return words[: int(np.searchsorted(sizes, MAX_WORD_CHARS, "right"))]
