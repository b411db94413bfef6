"""The tables that removal and attributes read, which caps of details do not affect.

matches of a block, in pieces → rows of DOCUMENTS_SCHEMA, with merged spans
work units → a row of TRAIN_FILES_SCHEMA per training file
texts of evaluation rows → hashes of their distinct tokens
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.documents.batch import array_buffers
from beam_pipeline.overlap.ngrams.index import distinct
from beam_pipeline.overlap.ngrams.sections import count_code_points
from beam_pipeline.overlap.ngrams.token_batches import Texts, token_batches
from beam_pipeline.overlap.ngrams.token_kernels import HASH_NAME
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.details import Evaluation
from beam_pipeline.overlap.results.match_files import Block, ScannedUnit
from beam_pipeline.overlap.results.matches import BlockMatches, first_of_each
from beam_pipeline.overlap.results.output_files import (
    PLACES,
    LazyFiles,
    arrow_writer,
    escape_surrogates,
    make_table,
    parquet_writer,
    place_lists,
    strings_of,
)
from beam_pipeline.storage.files import atomic_write
from beam_pipeline.storage.parquet import open_parquet

DOCUMENTS_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("train_row", pa.int64()),
        ("train_doc_id", pa.string()),
        ("eval_datasets", pa.list_(pa.string())),  # sorted
        ("spans", PLACES),  # code points, merged if they touch
        ("num_covered_chars", pa.int64()),
    ]
)
TRAIN_FILES_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("num_bytes", pa.int64()),
        ("version", pa.int64()),  # from `FileVersion`
        ("num_rows", pa.int64()),
        ("num_texts", pa.int64()),
        ("num_text_chars", pa.int64()),
        ("num_without_text", pa.int64()),
        ("num_dead_letters", pa.int64()),
    ]
)
_TOKENS_SCHEMA = pa.schema([("token_hash", pa.uint64())]).with_metadata({"hash": HASH_NAME})
_PLACE_BITS = 32
_MIN_WAITING = 1 << 20  # hashes


class MergedSpans(NamedTuple):
    """Ranges [start, end) of documents in order, merged if they touch."""

    documents: np.ndarray  # int64 [p]
    starts: np.ndarray  # int64 [p]
    ends: np.ndarray  # int64 [p]


def places_of(lists: pa.ListArray) -> tuple[np.ndarray, ...]:
    """Returns the list, start and end of each of some PLACES, int64 [p]."""
    of_lists, (starts, ends) = pc.list_parent_indices(lists), lists.flatten().flatten()
    return tuple(np.asarray(each, np.int64) for each in (of_lists, starts, ends))


def merge_spans_of(documents: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> MergedSpans:
    """Merges ranges by document; all three are int64 [p]."""
    bases = documents << _PLACE_BITS
    firsts, reach = bases | starts, bases | ends
    if (firsts[1:] < firsts[:-1]).any():
        order = np.argsort(firsts, kind="stable")
        documents, firsts, reach = documents[order], firsts[order], reach[order]
    np.maximum.accumulate(reach, out=reach)
    begins = np.append(True, firsts[1:] > reach[:-1])
    lasts = np.append(begins[1:], True)
    mask = (1 << _PLACE_BITS) - 1
    return MergedSpans(documents[begins], firsts[begins] & mask, reach[lasts] & mask)


class ContaminatedDocuments:
    """Writes the documents of a work unit that have matches, one block at a time.

    Counts documents, and their characters, with matches of short rows alone; without
    `short_rows_contaminate`, these are not contaminated.
    """

    def __init__(
        self,
        files: LazyFiles,
        scanned: ScannedUnit,
        evaluation: Evaluation,
        short_rows_contaminate: bool = True,
    ):
        self._files, self._scanned, self._evaluation = files, scanned, evaluation
        self._short_rows_contaminate = short_rows_contaminate
        self.num_short_documents = self.num_short_chars = 0
        self._block: Block | None = None
        self._spans: list[MergedSpans] = []
        self._pairs: list[np.ndarray] = []

    def add(self, found: BlockMatches, places: pa.ListArray) -> None:
        """Adds matches, in order, and the PLACES of their n-grams in documents."""
        if found.block is not self._block:
            self.flush()
            self._block = found.block
            self._has_long = np.zeros(len(found.block.rows), bool)
        documents, rows, shared = found.matches.documents, found.matches.rows, found.shared
        is_long = ~self._evaluation.is_short[rows]
        self._has_long[documents[is_long]] = True
        if not (self._short_rows_contaminate or is_long.all()):
            if not is_long.any():
                return
            documents, rows = documents[is_long], rows[is_long]
            which = np.unique(found.of_match[is_long])
            places, shared = places.take(pa.array(which)), shared[which]
        of_ngrams, starts, ends = places_of(places)
        of_places = found.block.documents[shared][of_ngrams]
        self._spans.append(merge_spans_of(of_places, starts, ends))
        datasets = self._evaluation.instances.datasets_of(rows)
        pairs = documents * len(self._evaluation.rows.datasets) + datasets
        self._pairs.append(np.unique(pairs[first_of_each([pairs])]))

    def flush(self) -> None:
        """Writes the documents of the last block."""
        if self._block is None:
            return
        if self._short_rows_contaminate:
            texts = self._block.texts
            assert texts is not None
            utf8, bounds = array_buffers(texts)
            for at in np.flatnonzero(~self._has_long).tolist():
                self.num_short_documents += 1
                self.num_short_chars += count_code_points(utf8[bounds[at] : bounds[at + 1]])
        if self._short_rows_contaminate or self._has_long.any():
            writer = self._files.get("documents.arrow", arrow_writer, schema=DOCUMENTS_SCHEMA)
            writer.write_table(self._table(self._block))
        self._spans, self._pairs = [], []

    def _table(self, block: Block) -> pa.Table:
        assert block.ids is not None
        spans = merge_spans_of(*map(np.concatenate, zip(*self._spans, strict=True)))
        which = np.arange(len(block.rows))
        if not self._short_rows_contaminate:
            which = np.flatnonzero(self._has_long)
        num, ends = len(which), np.append(which, len(block.rows))
        by_document = np.searchsorted(spans.documents, ends)
        names = np.array(list(map(escape_surrogates, self._evaluation.rows.datasets)), object)
        order = np.argsort(names)
        place_of = np.argsort(order)  # the rank of each name
        documents, datasets = np.divmod(np.unique(np.concatenate(self._pairs)), len(names))
        pairs = np.sort(documents * len(names) + place_of[datasets])
        columns = [
            pa.array([escape_surrogates(self._scanned.unit.path)] * num, pa.string()),
            block.rows[which] + self._scanned.row_offset,
            strings_of(block.ids.take(pa.array(which))),
            pa.ListArray.from_arrays(
                np.searchsorted(pairs // len(names), ends).astype(np.int32),
                pa.array(names[order][pairs % len(names)], pa.string()),
            ),
            place_lists(by_document, spans.starts, spans.ends),
            np.add.reduceat(spans.ends - spans.starts, by_document[:-1]),
        ]
        return pa.table(columns, schema=DOCUMENTS_SCHEMA)


def train_files_table(units: Sequence[ScannedUnit]) -> pa.Table:
    """Returns the scan's totals for each training file, from work units in order."""
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
        path, num_bytes, version = first.file.file
        rows.append((escape_surrogates(path), num_bytes, version, *totals))
    return make_table(rows, TRAIN_FILES_SCHEMA) if rows else TRAIN_FILES_SCHEMA.empty_table()


# --- tokens -------------------------------------------------------------------------------------


def write_eval_tokens(
    path: str, temp_folder: str, texts: Iterable[Texts], tokenizer: Tokenizer
) -> None:
    """Writes the sorted hashes of distinct tokens, with which a removal checks its mask."""
    found, waiting, num_waiting = np.empty(0, np.uint64), [], 0
    for utf8, bounds in texts:
        for batch in token_batches(utf8, bounds, tokenizer):
            waiting.append(distinct(batch.hashes.copy()))
            num_waiting += len(waiting[-1])
            if num_waiting > max(_MIN_WAITING, len(found)):
                found, waiting, num_waiting = distinct(np.concatenate([found, *waiting])), [], 0
    found = distinct(np.concatenate([found, *waiting]))
    with (
        atomic_write(path, temp_folder) as stream,
        parquet_writer(stream, _TOKENS_SCHEMA) as writer,
    ):
        writer.write_table(pa.table([found], schema=_TOKENS_SCHEMA))


def read_eval_tokens(path: str) -> np.ndarray:
    """Returns the hashes, uint64, ascending."""
    with open_parquet(path) as parquet:
        return parquet.read().column("token_hash").to_numpy()
