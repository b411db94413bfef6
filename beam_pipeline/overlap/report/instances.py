"""The evaluation rows that overlap most, each with the training documents that share most with it.

  Output → [Instance]: coverage at each n, and passages of both texts

Coverage and details are read once each, line by line, and only a few documents' passages are kept
of each row.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.output import Advance, Output, reading
from beam_pipeline.overlap.report.passages import Passages, passages
from beam_pipeline.overlap.results.layout import COVERAGE, DETAILS, MATCHES
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.overlap.results.row_overlaps import Span, merge_spans
from beam_pipeline.storage.parquet import open_parquet

DOCUMENTS_PER_INSTANCE = 3
_BUFFER_BYTES, _BATCH_ROWS = 8 << 20, 16_384
RowKey = tuple[str, str, int]  # an evaluation row: set, path, number


class RowRecord(msgspec.Struct):
    """The fields of a record that name its evaluation row."""

    eval_dataset: str
    eval_path: str
    eval_row: int

    @property
    def key(self) -> RowKey:
        """The evaluation row."""
        return self.eval_dataset, self.eval_path, self.eval_row


class Coverage(RowRecord):
    """How much of a row the n-grams of one n share with the training data."""

    instance_id: str
    n: int
    coverage: float
    num_covered_tokens: int
    num_tokens: int
    num_train_documents: int


class Detail(RowRecord):
    """An n-gram that a row and a document share; matches in Parquet have no texts."""

    n: int
    train_path: str
    train_row: int
    eval_offsets: list[Span | dict[str, int]]
    train_offsets: list[Span | dict[str, int]]
    train_doc_id: str | None = None
    eval_text: str | None = None
    train_text: str | None = None


class Shared(NamedTuple):
    """What of a text is shared, in code points; no passages if the output lacks the text."""

    spans: list[Span]
    passages: Passages | None = None


@dataclass
class Document:
    """A training document and what it shares with a row."""

    train_path: str
    train_row: int
    doc_id: str | None
    num_ngrams: Counter[int]  # by n
    in_eval: Shared
    in_train: Shared
    num_left_out: int = 0  # n-grams that a cap keeps out of the details

    @property
    def rank(self) -> tuple[int, int]:
        """Less for a document that shares more: characters of the row, then n-grams."""
        num_chars = sum(end - start for start, end in self.in_eval.spans)
        return -num_chars, -self.num_ngrams.total()


class Instance(NamedTuple):
    """An evaluation row with a hit."""

    key: RowKey
    coverage: list[Coverage]  # by n
    documents: list[Document]  # those that share most first


def worst_instances(output: Output, num_instances: int, advance: Advance) -> list[Instance]:
    """Returns the rows of highest coverage, of equal ones those in more documents first."""

    def rank(instance: Instance) -> tuple:
        lines = ((-line.coverage, -line.num_train_documents) for line in instance.coverage)
        return min(lines), instance.key

    lines = output.records(COVERAGE, Coverage)  # those of a row are consecutive
    rows = (Instance(key, list(group), []) for key, group in groupby(lines, lambda line: line.key))
    worst = heapq.nsmallest(num_instances, rows, key=rank)
    if worst:
        chosen = {instance.key: instance for instance in worst}
        details = output.records(DETAILS, Detail, advance)
        _add_documents((detail for detail in details if detail.key in chosen), chosen)
        if textless := [instance for instance in worst if not instance.documents]:
            in_matches = {
                (escape_surrogates(dataset), escape_surrogates(path), row): instance
                for instance in textless
                for dataset, path, row in [instance.key]
            }
            _add_documents(_matches(output, in_matches), in_matches)
    return worst


def _matches(output: Output, chosen: Mapping[RowKey, Instance]) -> Iterator[Detail]:
    """Yields the matches of rows, which have no texts."""
    rows = pa.array(sorted({row for _, _, row in chosen}), pa.int64())
    columns = [name for name in Detail.__struct_fields__ if not name.endswith("_text")]
    path = output.file(MATCHES)
    with reading(path), open_parquet(path, buffer_bytes=_BUFFER_BYTES) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
            found = batch.filter(pc.is_in(batch["eval_row"].cast(pa.int64()), value_set=rows))
            records = msgspec.convert(found.to_pylist(), list[Detail])
            yield from (record for record in records if record.key in chosen)


def _add_documents(records: Iterator[Detail], instances: Mapping[RowKey, Instance]) -> None:
    """Adds to each row the documents that share most; the records of a pair are consecutive."""
    pairs = groupby(records, lambda detail: (detail.key, detail.train_path, detail.train_row))
    for (key, train_path, train_row), details in pairs:
        num_ngrams: Counter[int] = Counter()
        eval_spans: list[Span] = []
        train_spans: list[Span] = []
        for detail in details:
            num_ngrams[detail.n] += 1
            eval_spans += _spans(detail.eval_offsets)
            train_spans += _spans(detail.train_offsets)
        in_eval = _shared(eval_spans, detail.eval_text)
        in_train = _shared(train_spans, detail.train_text)
        documents = instances[key].documents
        documents.append(
            Document(train_path, train_row, detail.train_doc_id, num_ngrams, in_eval, in_train)
        )
        documents.sort(key=lambda document: document.rank)
        del documents[DOCUMENTS_PER_INSTANCE:]


def _spans(offsets: Iterable[Span | dict[str, int]]) -> list[Span]:
    pairs = (at.values() if isinstance(at, dict) else at for at in offsets)
    return [(start, end) for start, end in pairs if start < end]


def _shared(spans: list[Span], text: str | None) -> Shared:
    merged = merge_spans(spans)
    return Shared(merged, None if text is None else passages(text, merged))
