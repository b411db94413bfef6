"""The lines of overlap_details: one record per match, with or without both texts.

  BlockMatches → pieces of lines, made once for all lines that share them → sizes, lines

Pieces give the size of every line before any line is written. Caps keep the first records in the
order of (row, evaluation row, n, places there).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.results.instances import Instances
from beam_pipeline.overlap.results.match_files import Block, ScannedUnit
from beam_pipeline.overlap.results.matches import BlockMatches, cut_by_weight, distinct
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    LazyFiles,
    column_of,
    data_of,
    join_pieces,
    json_fields,
    json_numbers,
    json_places,
    json_strings,
    json_value,
    piece,
    record_lines,
    record_pieces,
    sizes_of,
)
from beam_pipeline.overlap.results.rules import SHORT_TOKENS

FULL, COMPACT, NONE = "full", "compact", "none"
_LINE_BYTES_AT_A_TIME = 4 << 20


class DetailsOptions(NamedTuple):
    """Which details to write."""

    mode: str = FULL  # --details
    max_per_pair: int | None = None  # per document and evaluation row; None is unlimited
    max_total: int | None = None
    max_gb: int = 20  # before compression

    @property
    def has_caps(self) -> bool:
        """Whether details may be omitted."""
        caps = self.max_per_pair, self.max_total
        return self.mode != NONE and any(cap is not None for cap in caps)


class Evaluation:
    """The evaluation side for the expansion of matches, with the postings of each index shard."""

    def __init__(self, rows: EvaluationRows, postings: Sequence[Postings]):
        self.rows, self.postings = rows, postings
        self._sizes: dict[str, np.ndarray] = {}

    @functools.cached_property
    def instances(self) -> Instances:
        """The instances of the rows."""
        return Instances(self.rows)

    @functools.cached_property
    def is_short(self) -> np.ndarray:
        """Whether each row has fewer than SHORT_TOKENS tokens, bool."""
        return np.diff(self.postings[0].texts.firsts) < SHORT_TOKENS

    def beginning_sizes(self, mode: str) -> np.ndarray:
        """Returns the size in bytes of the beginning of each evaluation row's lines, int64."""
        if mode not in self._sizes:
            parts = [sizes_of(_beginnings(rows, mode)) for rows in self.rows.batches()]
            self._sizes[mode] = np.concatenate([np.empty(0, np.int64), *parts])
        return self._sizes[mode]


class DetailsSize(NamedTuple):
    """The size of the details of a work unit, before compression and without --max_details."""

    num_bytes: int = 0  # of all matches
    num_kept: int = 0  # by --max_details_per_pair
    num_kept_bytes: int = 0
    max_bytes: int = 0  # of a record
    num_text_bytes: int = 0  # of training texts, with --details=compact


# --- lines --------------------------------------------------------------------------------------


class _DocumentPieces(NamedTuple):
    """The parts that lines of a block's documents share, one piece per document."""

    block: Block
    middle: pa.LargeBinaryArray  # after n, up to the n-gram
    end: pa.LargeBinaryArray
    texts: pa.LargeBinaryArray | None  # lines of overlap_train_texts, with --details=compact


def _document_pieces(block: Block, scanned: ScannedUnit, mode: str) -> _DocumentPieces:
    assert block.texts is not None and block.ids is not None
    path = b',"train_path":' + json_value(scanned.unit.path) + b',"train_row":'
    head: list = [piece(path), json_numbers(block.rows + scanned.row_offset)]
    text = [piece(b',"train_text":'), json_strings(block.texts)]
    middle = [*head, *(text if mode == FULL else ()), piece(b',"train_ngram":')]
    ids = join_pieces([piece(b',"train_doc_id":'), json_strings(block.ids.fill_null(b""))])
    end = pc.if_else(block.ids.is_valid(), ids, piece(b""))
    texts = None
    if mode == COMPACT:
        texts = join_pieces([piece(b"{" + path[1:]), head[1], *text, piece(b"}\n")])
    return _DocumentPieces(block, join_pieces(middle), join_pieces([end, piece(b"}\n")]), texts)


def _beginnings(rows: pa.Table | pa.RecordBatch, mode: str) -> pa.LargeBinaryArray:
    """Returns the beginnings of the lines of evaluation rows, up to the n-gram."""
    text = {"eval_text": json_strings(column_of(rows, "text"))} if mode == FULL else {}
    fields = {
        **json_fields(rows, "eval_dataset", "eval_path", "eval_row"),
        **text,
        "eval_instance_id": json_strings(column_of(rows, "instance_id")),
    }
    return join_pieces([*record_pieces(fields), piece(b',"ngram":')])


class _Lines:
    """The lines of some matches."""

    def __init__(
        self, found: BlockMatches, documents: _DocumentPieces, evaluation: Evaluation, mode: str
    ):
        matches, of_match = found.matches, found.of_match
        self._rows, self._evaluation, self._mode = matches.rows, evaluation, mode
        ngrams = json_strings(found.ngrams()), of_match
        # The columns after the beginnings: pieces, and the index of each line's piece.
        self._columns: list[tuple[pa.LargeBinaryArray, np.ndarray] | bytes] = [
            ngrams,
            b',"eval_offsets":',
            (json_places(found.eval_places()), np.arange(len(of_match))),
            b',"n":',
            (json_numbers(found.lengths()), of_match),
            (documents.middle, matches.documents),
            ngrams,
            b',"train_offsets":',
            (json_places(found.train_places()), of_match),
            (documents.end, matches.documents),
        ]
        self.sizes = evaluation.beginning_sizes(mode)[matches.rows]  # int64 [m], bytes
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
            columns: list = [_beginnings(table, self._mode).take(pa.array(of_row))]
            for column in self._columns:
                if isinstance(column, bytes):
                    columns.append(piece(column))
                else:
                    columns.append(column[0].take(pa.array(column[1][here])))
            yield data_of(join_pieces(columns))


class UnitLines:
    """The details of a work unit: `measure` or `write` takes its matches in order."""

    def __init__(self, scanned: ScannedUnit, evaluation: Evaluation, options: DetailsOptions):
        self._scanned, self._evaluation, self._options = scanned, evaluation, options
        self._documents: _DocumentPieces | None = None
        self._last_text = -1  # the block's last document whose text has been written
        self.size = DetailsSize()
        self.num_written = self.num_left_out = 0

    def _pieces(self, block: Block) -> tuple[_DocumentPieces, bool]:
        """Returns the pieces of a block, and whether the block is new."""
        is_new = self._documents is None or self._documents.block is not block
        if self._documents is None or is_new:
            self._documents = _document_pieces(block, self._scanned, self._options.mode)
        return self._documents, is_new

    def measure(self, found: BlockMatches) -> None:
        """Adds the lines of some matches to `size`."""
        documents, is_new = self._pieces(found.block)
        sizes = _Lines(found, documents, self._evaluation, self._options.mode).sizes
        kept = sizes[found.is_in_first(self._options.max_per_pair)]
        num_bytes, num_kept, num_kept_bytes, max_bytes, num_text_bytes = self.size
        if is_new and documents.texts is not None:
            num_text_bytes += int(sizes_of(documents.texts).sum())
        self.size = DetailsSize(
            num_bytes + int(sizes.sum()),
            num_kept + len(kept),
            num_kept_bytes + int(kept.sum()),
            max(max_bytes, int(kept.max(initial=0))),
            num_text_bytes,
        )

    def write(self, found: BlockMatches, files: LazyFiles, quota: int | None) -> None:
        """Writes details.gz, train_texts.gz and left_out, up to the work unit's quota."""
        documents, is_new = self._pieces(found.block)
        if is_new:
            self._last_text = -1
        is_kept = found.is_in_first(self._options.max_per_pair)
        if not is_kept.all():
            files.get("left_out").write(self._left_out(found, is_kept))
        kept = np.flatnonzero(is_kept)
        if quota is not None:
            room = quota - self.num_written
            self.num_left_out += len(kept[room:])
            kept = kept[:room]
        if len(kept):
            self.num_written += len(kept)
            lines = _Lines(found, documents, self._evaluation, self._options.mode)
            for data in lines.some(kept):
                files.get("details.gz", GzipMember).write(data)
            self._write_texts(found.matches.documents[kept], documents, files)

    def _write_texts(self, which: np.ndarray, documents: _DocumentPieces, files: LazyFiles) -> None:
        which = np.unique(which)
        which = which[which > self._last_text]
        if documents.texts is not None and len(which):
            self._last_text = int(which[-1])
            for at in which.tolist():
                files.get("train_texts.gz", GzipMember).write(documents.texts[at].as_py())

    def _left_out(self, found: BlockMatches, is_kept: np.ndarray) -> memoryview:
        starts = found.pair_starts()
        counts = np.add.reduceat(~is_kept, starts, dtype=np.int64)
        starts, counts = starts[counts > 0], counts[counts > 0]
        numbers, of_row = distinct(found.matches.rows[starts])
        rows = self._evaluation.rows.take(numbers, with_texts=False).take(pa.array(of_row))
        train_rows = found.block.rows[found.matches.documents[starts]] + self._scanned.row_offset
        fields = {
            **json_fields(rows, "eval_dataset", "eval_path", "eval_row"),
            "train_path": piece(json_value(self._scanned.unit.path)),
            "train_row": json_numbers(train_rows),
            "num_left_out": json_numbers(counts),
        }
        return record_lines(fields)


def quotas(num_kept: Sequence[int], max_details: int | None) -> list[int | None]:
    """Returns the max details of each work unit, so that the first `max_details` are written."""
    if max_details is None:
        return [None] * len(num_kept)
    before = np.cumsum([0, *num_kept], dtype=np.int64)[: len(num_kept)]
    return [max(0, max_details - count) for count in before.tolist()]
