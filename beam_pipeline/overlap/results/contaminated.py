"""The contaminated training documents, one row each, and the training files that were scanned.

  matches of a block, some at a time → rows of DOCUMENTS_SCHEMA, spans merged
  work units → a row of TRAIN_FILES_SCHEMA for each training file

Removal and attributes go by both tables. They do not depend on caps of details.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.results.match_files import Block, ScannedUnit
from beam_pipeline.overlap.results.output_files import escape_surrogates, make_table, strings_of
from beam_pipeline.overlap.results.places import Places

_SPANS = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))
DOCUMENTS_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("train_row", pa.int64()),
        ("train_doc_id", pa.string()),
        ("eval_datasets", pa.list_(pa.string())),  # sorted
        ("spans", _SPANS),  # code points, those that meet as one
        ("num_covered_chars", pa.int64()),
    ]
)
TRAIN_FILES_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("num_bytes", pa.int64()),
        ("version", pa.int64()),  # of `FileVersion`
        ("num_rows", pa.int64()),
        ("num_texts", pa.int64()),
        ("num_text_chars", pa.int64()),
        ("num_without_text", pa.int64()),
        ("num_dead_letters", pa.int64()),
    ]
)
_PLACE_BITS = 32


class MergedSpans(NamedTuple):
    """Ranges [start, end) of documents, those that meet as one, in order."""

    documents: np.ndarray  # int64 [p]
    starts: np.ndarray  # int64 [p]
    ends: np.ndarray  # int64 [p]


def merge_spans_of(documents: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> MergedSpans:
    """Merges ranges by document; all three are int64 [p]."""
    bases = documents << _PLACE_BITS
    order = np.argsort(bases | starts, kind="stable")
    firsts, reach = (bases | starts)[order], np.maximum.accumulate((bases | ends)[order])
    begins = np.append(True, firsts[1:] > reach[:-1])
    lasts = np.append(begins[1:], True)
    mask = (1 << _PLACE_BITS) - 1
    return MergedSpans(documents[order][begins], firsts[begins] & mask, reach[lasts] & mask)


@kernel
def _merge_neighbours(documents, bounds, starts, ends, merged):
    """Fills documents, starts and ends of places, those that meet the one before as one."""
    count = 0
    for ngram in range(documents.size):
        for at in range(bounds[ngram], bounds[ngram + 1]):
            start, end = np.int64(starts[at]), np.int64(ends[at])
            last = count - 1
            is_same = count > 0 and merged[0, last] == documents[ngram]
            if is_same and merged[1, last] <= start <= merged[2, last]:
                merged[2, last] = max(merged[2, last], end)
                continue
            merged[0, count], merged[1, count], merged[2, count] = documents[ngram], start, end
            count += 1
    return count


class ContaminatedDocuments:
    """The documents of a block that have matches.

    Args:
      datasets: the names of the evaluation sets.
    """

    def __init__(self, block: Block, scanned: ScannedUnit, datasets: Sequence[str]):
        self._block, self._scanned, self._datasets = block, scanned, datasets
        self._spans: list[MergedSpans] = []
        self._pairs: list[np.ndarray] = []

    def add(
        self, places: Places, of_places: np.ndarray, documents: np.ndarray, datasets: np.ndarray
    ) -> None:
        """Takes some matches.

        Args:
          places: of their n-grams in documents.
          of_places: int64, the document of each n-gram.
          documents: int64 [m], of the matches.
          datasets: int64 [m], their evaluation sets.
        """
        merged = np.empty((3, len(places.starts)), np.int64)  # few of which are filled
        count = _merge_neighbours(of_places, *places, merged)
        self._spans.append(merge_spans_of(*merged[:, :count]))
        pairs = documents * len(self._datasets) + datasets
        is_new = np.append(True, pairs[1:] != pairs[:-1])  # many are that before
        self._pairs.append(np.unique(pairs[is_new]))

    def table(self) -> pa.Table:
        """Returns the documents as rows of DOCUMENTS_SCHEMA."""
        block, num = self._block, len(self._block.rows)
        assert block.ids is not None
        spans = merge_spans_of(*map(np.concatenate, zip(*self._spans, strict=True)))
        by_document = np.searchsorted(spans.documents, np.arange(num + 1))
        names = np.array(list(map(escape_surrogates, self._datasets)), object)
        order = np.argsort(names)
        place_of = np.argsort(order)  # a name's place among the sorted ones
        documents, datasets = np.divmod(np.unique(np.concatenate(self._pairs)), len(names))
        pairs = np.sort(documents * len(names) + place_of[datasets])
        places = [pa.array(each, pa.int32()) for each in (spans.starts, spans.ends)]
        columns = [
            pa.array([escape_surrogates(self._scanned.unit.path)] * num, pa.string()),
            block.rows + self._scanned.row_offset,
            strings_of(block.ids),
            pa.ListArray.from_arrays(
                np.searchsorted(pairs // len(names), np.arange(num + 1)).astype(np.int32),
                pa.array(names[order][pairs % len(names)], pa.string()),
            ),
            pa.ListArray.from_arrays(
                by_document.astype(np.int32), pa.StructArray.from_arrays(places, ["start", "end"])
            ),
            np.add.reduceat(spans.ends - spans.starts, by_document[:-1]),
        ]
        return pa.table(columns, schema=DOCUMENTS_SCHEMA)


def train_files_table(units: Sequence[ScannedUnit]) -> pa.Table:
    """Returns what the scan read of each training file, from work units in order."""
    rows = []
    for _, of_file in groupby(units, key=lambda scanned: scanned.order[0]):
        parts = list(of_file)
        counts = [
            (
                *(each.num_rows, each.num_texts, each.num_text_chars, each.num_without_text),
                sum(each.letters.values()),
            )
            for each in (scanned.summary for scanned in parts)
        ]
        first = parts[0].unit
        totals = map(sum, zip(*counts, strict=True))
        rows.append((escape_surrogates(first.path), first.num_bytes, first.version, *totals))
    return make_table(rows, TRAIN_FILES_SCHEMA) if rows else TRAIN_FILES_SCHEMA.empty_table()
