"""The evaluation rows that overlap most, each with the training documents that share most with it.

  Output → [Instance]: coverage at each n, and passages of both texts

The coverage file is read twice and the details once, line by line: only details of chosen rows
are parsed, and only a few documents' passages are kept.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.overlap.report.output import Advance, Output, decoded, reading
from beam_pipeline.overlap.report.passages import Passages, passages
from beam_pipeline.overlap.results.layout import COVERAGE, DETAILS, MATCHES
from beam_pipeline.overlap.results.row_overlaps import Span, merge_spans
from beam_pipeline.storage.files import open_ranges

DOCUMENTS_PER_INSTANCE = 3
_MAX_LOOSE_SPANS = 8_192
_BATCH_ROWS = 16_384
_STRING = rb'"(?:[^"\\]|\\.)*"'
# The evaluation row of a line, if its first fields name it.
_HEAD = re.compile(
    rb'\{"eval_dataset": ?%b, ?"eval_path": ?%b, ?"eval_row": ?\d+' % (_STRING, _STRING)
)

RowKey = tuple[str, str, int]  # an evaluation row: set, path, number
Offsets = Iterable[Span | dict[str, int]]  # {start, end} in Parquet


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


@dataclass
class Shared:
    """What of a text is shared, in code points; no passages if the output lacks the text."""

    spans: list[Span] = field(default_factory=list)
    passages: Passages | None = None

    def add(self, offsets: Offsets) -> None:
        """Adds the places of an n-gram."""
        places = (at.values() if isinstance(at, dict) else at for at in offsets)
        self.spans += [(start, end) for start, end in places if start < end]
        if len(self.spans) > _MAX_LOOSE_SPANS:
            self.spans = merge_spans(self.spans)


@dataclass
class Document:
    """A training document and what it shares with a row."""

    train_path: str
    train_row: int
    doc_id: str | None
    num_ngrams: Counter[int] = field(default_factory=Counter)  # by n
    in_eval: Shared = field(default_factory=Shared)
    in_train: Shared = field(default_factory=Shared)
    num_left_out: int = 0  # n-grams that a cap keeps out of the details

    @property
    def rank(self) -> tuple[int, int]:
        """Less for a document that shares more: characters of the row, then n-grams."""
        num_chars = sum(end - start for start, end in self.in_eval.spans)
        return -num_chars, -self.num_ngrams.total()


@dataclass
class Instance:
    """An evaluation row with a hit; its coverage by n, the documents that share most first."""

    key: RowKey
    coverage: list[Coverage] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)


def worst_instances(output: Output, num_instances: int, advance: Advance) -> list[Instance]:
    """Returns the rows of highest coverage, of equal ones those in more documents first.

    Args:
      advance: called with the number of bytes of the details read, as stored.
    """
    chosen = _choose(output, num_instances)
    if chosen:
        _add_documents(_details(output, chosen, advance), chosen)
        textless = {_key_in_parquet(key): one for key, one in chosen.items() if not one.documents}
        if textless:
            _add_documents(_matches(output, textless), textless)
    return list(chosen.values())


def _choose(output: Output, num_instances: int) -> dict[RowKey, Instance]:
    ranks: dict[RowKey, tuple[float, int]] = {}  # of some more rows than are wanted

    def first() -> list[RowKey]:
        return heapq.nsmallest(num_instances, ranks, key=lambda key: (ranks[key], key))

    for line in output.records(COVERAGE, Coverage):
        rank = -line.coverage, -line.num_train_documents
        ranks[line.key] = min(rank, ranks.get(line.key, rank))
        if len(ranks) > 4 * num_instances + 1_000:
            ranks = {key: ranks[key] for key in first()}
    chosen = {key: Instance(key) for key in first()}
    for line in output.records(COVERAGE, Coverage):
        if instance := chosen.get(line.key):
            instance.coverage.append(line)
            instance.coverage.sort(key=lambda line: line.n)
    return chosen


def _details(
    output: Output, chosen: Mapping[RowKey, Instance], advance: Advance
) -> Iterator[Detail]:
    decoder = msgspec.json.Decoder(RowRecord)

    def is_wanted(line: bytes) -> bool:
        head = _HEAD.match(line)
        return decoded(head[0] + b"}" if head else line, decoder).key in chosen

    return output.records(DETAILS, Detail, advance, is_wanted)


def _matches(output: Output, chosen: Mapping[RowKey, Instance]) -> Iterator[Detail]:
    """Yields the matches of rows, which have no texts."""
    rows = pa.array(sorted({row for _, _, row in chosen}), pa.int64())
    columns = [name for name in Detail.__struct_fields__ if not name.endswith("_text")]
    path = output.file(MATCHES)
    with reading(path), open_ranges(path) as stream:
        for batch in pq.ParquetFile(stream).iter_batches(_BATCH_ROWS, columns=columns):
            found = batch.filter(pc.is_in(batch["eval_row"].cast(pa.int64()), value_set=rows))
            records = msgspec.convert(found.to_pylist(), list[Detail])
            yield from (record for record in records if record.key in chosen)


def _key_in_parquet(key: RowKey) -> RowKey:
    """Returns a row as the matches name it: lone surrogates as escapes."""
    dataset, path, row = key
    escaped = [name.encode("utf-8", "backslashreplace").decode() for name in (dataset, path)]
    return escaped[0], escaped[1], row


def _add_documents(records: Iterator[Detail], instances: Mapping[RowKey, Instance]) -> None:
    """Adds to each row the documents that share most; the records of a pair are consecutive."""
    for _, pair in groupby(
        records, lambda record: (record.key, record.train_path, record.train_row)
    ):
        detail = next(pair)
        document = Document(detail.train_path, detail.train_row, detail.train_doc_id)
        for one in chain([detail], pair):
            document.num_ngrams[one.n] += 1
            document.in_eval.add(one.eval_offsets)
            document.in_train.add(one.train_offsets)
        texts = ((document.in_eval, detail.eval_text), (document.in_train, detail.train_text))
        for shared, _ in texts:
            shared.spans = merge_spans(shared.spans)
        documents = instances[detail.key].documents
        documents.append(document)
        documents.sort(key=lambda one: one.rank)
        del documents[DOCUMENTS_PER_INSTANCE:]
        if document in documents:
            for shared, text in texts:
                shared.passages = None if text is None else passages(text, shared.spans)
