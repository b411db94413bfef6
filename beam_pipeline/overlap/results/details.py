"""The lines of details: a record for each match, with both texts or without.

  Block, Matches → pieces of lines, each made once for all lines that share it → sizes, lines

The size of every line is known from its pieces before any is written. Caps keep the first records
in the order of (row, evaluation row, n, places there).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of
from beam_pipeline.overlap.results.instances import Instances
from beam_pipeline.overlap.results.json_columns import (
    column_of,
    data_of,
    join_pieces,
    json_fields,
    json_numbers,
    json_places,
    json_strings,
    piece,
    record_pieces,
    sizes_of,
)
from beam_pipeline.overlap.results.match_files import Block, Keep, ScannedUnit, read_blocks
from beam_pipeline.overlap.results.matches import (
    Matches,
    cut_by_weight,
    expand_block,
    take_lists,
)
from beam_pipeline.overlap.results.ordering import distinct
from beam_pipeline.overlap.results.output_files import json_value
from beam_pipeline.overlap.results.places import Places, places_of

FULL, COMPACT, NONE = "full", "compact", "none"
_LINE_BYTES_AT_A_TIME = 4 << 20


class Evaluation:
    """The evaluation side, as its matches are expanded.

    Args:
      postings: of each index shard.
    """

    def __init__(self, rows: EvaluationRows, postings: Sequence[Postings]):
        self.rows, self.postings = rows, postings
        self._sizes: dict[str, np.ndarray] = {}

    @functools.cached_property
    def instances(self) -> Instances:
        """The instances of the rows."""
        return Instances(self.rows)

    def beginning_sizes(self, mode: str) -> np.ndarray:
        """Returns how many bytes the beginning of a line has, of each evaluation row, int64."""
        if mode not in self._sizes:
            parts = [sizes_of(evaluation_pieces(rows, mode)) for rows in self.rows.batches()]
            self._sizes[mode] = np.concatenate([np.empty(0, np.int64), *parts])
        return self._sizes[mode]


class DetailsSize(NamedTuple):
    """The size of the details of a work unit before compression."""

    num_records: int
    num_bytes: int
    num_kept: int = 0  # by --max_details_per_pair
    num_kept_bytes: int = 0
    max_bytes: int = 0  # of one record
    num_text_bytes: int = 0  # of training texts, with --details=compact


class BlockMatches(NamedTuple):
    """Some matches of a block, and the n-grams that they have."""

    block: Block
    matches: Matches
    shared: np.ndarray  # int64 [u], the different n-grams of the matches, among those of the block
    of_match: np.ndarray  # int64 [m], which of the u n-grams each match has

    def eval_places(self, evaluation: Evaluation) -> Places:
        """Returns the places of the m matches in evaluation rows."""
        found = self.matches
        texts = evaluation.postings[0].texts
        return places_of(texts, found.rows, found.lengths, found.bounds, found.tokens)

    def train_places(self) -> Places:
        """Returns the places of the u n-grams in their documents."""
        block = self.block
        assert block.ends is not None
        return Places(*take_lists(self.shared, block.bounds, block.starts, block.ends))

    def lengths(self) -> np.ndarray:
        """Returns n of the u n-grams."""
        lengths = np.empty(len(self.shared), np.int64)
        lengths[self.of_match] = self.matches.lengths
        return lengths

    def ngrams(self, evaluation: Evaluation) -> pa.LargeBinaryArray:
        """Returns the u n-grams as UTF-8, from evaluation rows: they are the same in documents."""
        found, texts = self.matches, evaluation.postings[0].texts
        first = np.empty(len(self.shared), np.int64)
        first[self.of_match] = texts.firsts[found.rows] + found.tokens[found.bounds[:-1]]
        return ngrams_of(texts, first, self.lengths())

    def is_in_first(self, most: int | None) -> np.ndarray:
        """Tells which matches are among the first of their document and evaluation row."""
        if most is None:
            return np.ones(len(self.matches.rows), bool)
        starts = self.pair_starts()
        sizes = np.diff(np.append(starts, len(self.matches.rows)))
        return np.arange(len(self.matches.rows)) - np.repeat(starts, sizes) < most

    def pair_starts(self) -> np.ndarray:
        """Returns the first match of each document and evaluation row."""
        documents, rows = self.matches.documents, self.matches.rows
        differs = (documents[1:] != documents[:-1]) | (rows[1:] != rows[:-1])
        return np.flatnonzero(np.append(True, differs))


def read_matches(
    scanned: ScannedUnit, evaluation: Evaluation, keep: Keep | None
) -> Iterator[BlockMatches]:
    """Yields all matches of a work unit in their order, in bounded memory."""
    for block in read_blocks(scanned.paths, keep):
        for matches in expand_block(block, evaluation.postings):
            shared, of_match = distinct(matches.shared)
            yield BlockMatches(block, matches, shared, of_match)


# --- lines --------------------------------------------------------------------------------------


class DocumentPieces(NamedTuple):
    """What the lines of the documents of a block have in common, a piece for each document."""

    middle: pa.LargeBinaryArray  # behind n, up to the n-gram
    end: pa.LargeBinaryArray
    texts: pa.LargeBinaryArray  # lines of overlap_train_texts, with --details=compact


def document_pieces(block: Block, scanned: ScannedUnit, mode: str) -> DocumentPieces:
    """Makes the pieces of a block's documents.

    Args:
      mode: FULL, or COMPACT to leave the text out.
    """
    assert block.texts is not None and block.ids is not None
    path = b',"train_path":' + json_value(scanned.unit.path) + b',"train_row":'
    head: list = [piece(path), json_numbers(block.rows + scanned.row_offset)]
    text = [piece(b',"train_text":'), json_strings(block.texts)]
    texts: list = [piece(b"{" + path[1:]), head[1], *text, piece(b"}\n")]
    middle = [*head, *(text if mode == FULL else ()), piece(b',"train_ngram":')]
    has_id = block.ids.is_valid()
    ids = join_pieces([piece(b',"train_doc_id":'), json_strings(block.ids.fill_null(b""))])
    end = pa.array([b""], pa.large_binary()).take(pa.array(np.zeros(len(block.rows), np.int64)))
    end = pc.if_else(has_id, ids, end)
    return DocumentPieces(
        join_pieces(middle),
        join_pieces([end, piece(b"}\n")]),
        join_pieces(texts) if mode == COMPACT else end,
    )


def evaluation_pieces(rows: pa.Table | pa.RecordBatch, mode: str) -> pa.LargeBinaryArray:
    """Returns how the lines of evaluation rows begin, up to the n-gram."""
    text = {"eval_text": json_strings(column_of(rows, "text"))} if mode == FULL else {}
    fields = {
        **json_fields(rows, "eval_dataset", "eval_path", "eval_row"),
        **text,
        "eval_instance_id": json_strings(column_of(rows, "instance_id")),
    }
    return join_pieces([*record_pieces(fields), piece(b',"ngram":')])


class Lines:
    """The lines of some matches.

    Attributes:
      sizes: int64 [m], the number of bytes of each.
    """

    def __init__(
        self, found: BlockMatches, documents: DocumentPieces, evaluation: Evaluation, mode: str
    ):
        matches, of_match = found.matches, found.of_match
        self._rows, self._evaluation, self._mode = matches.rows, evaluation, mode
        ngrams = json_strings(found.ngrams(evaluation)), of_match
        # Behind the beginnings, which are of evaluation rows: pieces, and which each line has.
        self._columns: list[tuple[pa.LargeBinaryArray, np.ndarray] | bytes] = [
            ngrams,
            b',"eval_offsets":',
            (json_places(*found.eval_places(evaluation)), np.arange(len(of_match))),
            b',"n":',
            (json_numbers(found.lengths()), of_match),
            (documents.middle, matches.documents),
            ngrams,
            b',"train_offsets":',
            (json_places(*found.train_places()), of_match),
            (documents.end, matches.documents),
        ]
        self.sizes = evaluation.beginning_sizes(mode)[matches.rows]
        for column in self._columns:
            if isinstance(column, bytes):
                self.sizes += len(column)
            else:
                self.sizes += sizes_of(column[0])[column[1]]

    def some(self, which: np.ndarray) -> Iterator[memoryview]:
        """Yields some of the lines, several at a time."""
        for start, stop in cut_by_weight(self.sizes[which], _LINE_BYTES_AT_A_TIME):
            here = which[start:stop]
            rows, of_row = distinct(self._rows[here])
            table = self._evaluation.rows.take(rows, with_texts=self._mode == FULL)
            beginnings = evaluation_pieces(table, self._mode)
            columns: list = [beginnings.take(pa.array(of_row))]
            for column in self._columns:
                if isinstance(column, bytes):
                    columns.append(piece(column))
                else:
                    columns.append(column[0].take(pa.array(column[1][here])))
            yield data_of(join_pieces(columns))


def count_details(
    scanned: ScannedUnit,
    evaluation: Evaluation,
    keep: Keep | None = None,
    max_details_per_pair: int | None = None,
    mode: str = FULL,
) -> DetailsSize:
    """Returns the exact size that the details of a work unit have without --max_details."""
    total = np.zeros(4, np.int64)
    text_bytes = max_bytes = 0
    at: Block | None = None
    documents = None
    for found in read_matches(scanned, evaluation, keep):
        if found.block is not at or documents is None:
            at, documents = found.block, document_pieces(found.block, scanned, mode)
            text_bytes += int(sizes_of(documents.texts).sum()) if mode == COMPACT else 0
        sizes = Lines(found, documents, evaluation, mode).sizes
        kept = sizes[found.is_in_first(max_details_per_pair)]
        total += len(sizes), sizes.sum(), len(kept), kept.sum()
        max_bytes = max(max_bytes, int(kept.max(initial=0)))
    num_records, num_bytes, num_kept, kept_bytes = total.tolist()
    return DetailsSize(num_records, num_bytes, num_kept, kept_bytes, max_bytes, text_bytes)


def quotas(num_kept: Sequence[int], max_details: int | None) -> list[int | None]:
    """Returns how many details each work unit may write, so that the first `max_details` are.

    Args:
      num_kept: of each work unit in the order of the output, by --max_details_per_pair.
    """
    if max_details is None:
        return [None] * len(num_kept)
    before = np.cumsum([0, *num_kept], dtype=np.int64)[: len(num_kept)]
    return [max(0, max_details - count) for count in before.tolist()]
