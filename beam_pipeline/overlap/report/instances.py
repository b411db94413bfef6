"""The evaluation rows with most covered tokens, each with the training documents that share most.

  HitRows, overlap_matches → [Instance]: its scores by n, and what each document shares with it

The matches are read once in row groups, as columns. Of those of the rows that are shown only the
ones of a few documents a row are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.output import Advance, Output, reading
from beam_pipeline.overlap.report.passages import Passages
from beam_pipeline.overlap.report.rows import ROW_KEY, HitRows
from beam_pipeline.overlap.results.contaminated import merge_spans_of
from beam_pipeline.overlap.results.layout import MATCHES
from beam_pipeline.overlap.results.row_overlaps import Span, merge_spans
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet

DOCUMENTS_PER_INSTANCE = 3
DOCUMENT_KEY = ("train_path", "train_row")
_VALUES = ("train_doc_id", "n", "eval_offsets", "train_offsets")
_ROW, _MATCH = "row", "match"  # columns: place among the rows shown, number of the match


class Score(NamedTuple):
    """How much of a row the n-grams of one n share with the training data."""

    n: int
    coverage: float
    num_covered_tokens: int
    longest_run: int
    num_train_documents: int


@dataclass
class Document:
    """A training document and what it shares with a row; passages if there are texts."""

    train_path: str
    train_row: int
    doc_id: str | None
    first_match: int  # the number of its first match with the row, of all matches
    num_ngrams: Counter[int]  # by n
    eval_spans: list[Span]
    train_spans: list[Span]
    in_eval: Passages | None = None
    in_train: Passages | None = None


@dataclass
class Instance:
    """An evaluation row with a hit; a lone surrogate in a name is an escape."""

    eval_dataset: str
    eval_path: str
    eval_row: int
    instance_id: str
    num_tokens: int
    num_covered_tokens: int
    coverage: float
    scores: list[Score]
    documents: list[Document] = field(default_factory=list)  # those that share most first


def worst_instances(
    output: Output, rows: HitRows, num_instances: int, advance: Advance
) -> list[Instance]:
    """Returns the first of the rows, with documents but without passages."""
    keys = rows.keys.slice(0, num_instances)
    instances = [Instance(**key, **_figures(rows, at)) for at, key in enumerate(keys.to_pylist())]
    best: list[pa.Table] = []
    for found in _matches(output, keys, advance) if instances else ():
        best = [_best(pa.concat_tables([*best, found]), goes_on=True)]
    for matches in best:
        for row, document in _documents(_best(matches, goes_on=False)):
            instances[row].documents.append(document)
    return instances


def _figures(rows: HitRows, at: int) -> dict:
    scores = [
        Score(
            n,
            float(rows.coverage[place, at]),
            int(rows.scores["num_covered_tokens"][place, at]),
            int(rows.scores["longest_run"][place, at]),
            int(rows.scores["num_train_documents"][place, at]),
        )
        for place, n in enumerate(rows.lengths)
        if rows.scores["num_train_documents"][place, at]
    ]
    return {
        "num_covered_tokens": int(rows.covered[at]),
        "coverage": float(rows.coverage[-1, at]),
        "scores": scores,
    }


def _matches(output: Output, keys: pa.Table, advance: Advance) -> Iterator[pa.Table]:
    """Yields the matches of some rows.

    Args:
      keys: ROW_KEY of the rows; their places there are the column `row`.
    """
    choose = _Choice(keys)
    path = output.file(MATCHES)
    number = 0
    with reading(path), open_parquet(path, buffer_bytes=PIECE_BYTES) as file:
        for group in range(file.num_row_groups):
            names = file.read_row_group(group, columns=[*ROW_KEY, *DOCUMENT_KEY])
            places = choose(names)
            chosen = np.flatnonzero(places >= 0)
            if len(chosen):
                found = names.select(DOCUMENT_KEY).take(chosen)
                values = file.read_row_group(group, columns=list(_VALUES)).take(chosen)
                columns = {_ROW: places[chosen], _MATCH: chosen + number}
                for name, column in (columns | dict(zip(_VALUES, values.columns))).items():
                    found = found.append_column(name, column if name in _VALUES else [column])
                yield found
            number += len(names)
            advance(output.num_bytes(MATCHES) / file.num_row_groups)


class _Choice:
    """Tells which of some evaluation rows those of a table are."""

    def __init__(self, keys: pa.Table):
        self._values = [pc.unique(keys.column(name)) for name in ROW_KEY]
        codes, _ = self._codes(keys)
        self._order = np.argsort(codes)
        self._codes_in_order = codes[self._order]

    def _codes(self, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Returns a number for each row, and which rows have values that are known."""
        codes, is_known = np.zeros(len(table), np.int64), np.ones(len(table), bool)
        for name, values in zip(ROW_KEY, self._values, strict=True):
            places = pc.index_in(table.column(name), values).fill_null(-1).to_numpy()
            codes = codes * len(values) + places
            is_known &= places >= 0
        return codes, is_known

    def __call__(self, table: pa.Table) -> np.ndarray:
        """Returns the place of each row, -1 for another one; int64."""
        codes, is_known = self._codes(table)
        at = np.searchsorted(self._codes_in_order, codes)
        at = np.minimum(at, len(self._order) - 1)
        is_known &= self._codes_in_order[at] == codes
        return np.where(is_known, self._order[at], -1)


def _best(matches: pa.Table, goes_on: bool) -> pa.Table:
    """Keeps the documents that share most with each row, and the last pair if that may go on.

    A document shares more than another if it shares more characters of the row, then more n-grams.
    """
    rows = matches.column(_ROW).to_numpy()
    begins = np.append(True, rows[1:] != rows[:-1])
    for name in DOCUMENT_KEY:
        column = matches.column(name)
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    pair_of_match, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
    num_ngrams = np.bincount(pair_of_match)
    offsets = matches.column("eval_offsets").combine_chunks()
    starts, ends = (each.to_numpy().astype(np.int64) for each in offsets.flatten().flatten())
    pairs = np.repeat(pair_of_match, np.diff(offsets.offsets.to_numpy()))
    spans = merge_spans_of(pairs, starts, ends)
    num_chars = np.bincount(spans.documents, spans.ends - spans.starts, len(firsts))
    order = np.lexsort((-num_ngrams, -num_chars, rows[firsts]))
    row_of_pair = rows[firsts][order]
    run_begins = np.append(True, row_of_pair[1:] != row_of_pair[:-1])
    run = np.flatnonzero(run_begins)[np.cumsum(run_begins) - 1]
    is_kept = np.zeros(len(firsts), bool)
    is_kept[order[np.arange(len(order)) - run < DOCUMENTS_PER_INSTANCE]] = True
    is_kept[-1] |= goes_on
    return matches.filter(pa.array(is_kept[pair_of_match]))


def _documents(matches: pa.Table) -> Iterator[tuple[int, Document]]:
    """Yields the row and the document of each pair, of a row those that share most first."""
    found: dict[tuple, Document] = {}
    for match in matches.to_pylist():
        key = match[_ROW], match["train_path"], match["train_row"]
        if key not in found:
            found[key] = Document(*key[1:], match["train_doc_id"], match[_MATCH], Counter(), [], [])
        document = found[key]
        document.num_ngrams[match["n"]] += 1
        for spans, name in (
            (document.eval_spans, "eval_offsets"),
            (document.train_spans, "train_offsets"),
        ):
            spans += [(at["start"], at["end"]) for at in match[name] if at["start"] < at["end"]]
    for document in found.values():
        document.eval_spans = merge_spans(document.eval_spans)
        document.train_spans = merge_spans(document.train_spans)

    def rank(item: tuple[tuple, Document]) -> tuple[int, int]:
        num_chars = sum(end - start for start, end in item[1].eval_spans)
        return -num_chars, -item[1].num_ngrams.total()

    for (row, *_), document in sorted(found.items(), key=rank):
        yield row, document
