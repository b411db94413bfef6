"""The evaluation rows that overlap most, each with the training documents nearest to it.

Enter a job's output; leave `Instance`s: how much of each row is shared at each n, and passages of
both texts. The coverage file is read twice and the details once, line by line: of the details
only the lines of chosen rows are parsed, and of these only a few documents' passages are kept.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.output import Advance, Output, parse, reading
from beam_pipeline.overlap.report.passages import Passages, Span, merged, num_covered, passages
from beam_pipeline.overlap.results.layout import COVERAGE, DETAILS, DETAILS_LEFT_OUT, MATCHES

DOCUMENTS_OF_AN_INSTANCE = 3
_MOST_LOOSE_SPANS = 8_192
# The fields that tell of which evaluation row a line is, if they are its first ones.
_JSON_STRING = rb'("(?:[^"\\]|\\.)*")'
_HEAD = re.compile(
    rb'\{"eval_dataset": ?%b, ?"eval_path": ?%b, ?"eval_row": ?(\d+)[,}]'
    % (_JSON_STRING, _JSON_STRING)
)
_MATCH_COLUMNS = [
    *("eval_dataset", "eval_path", "eval_row", "train_path", "train_row", "train_doc_id", "n"),
    *("eval_offsets", "train_offsets"),
]


class RowKey(NamedTuple):
    """An evaluation row."""

    eval_dataset: str
    eval_path: str
    eval_row: int


class Coverage(NamedTuple):
    """How much of a row the n-grams of one n share with the training data."""

    n: int
    coverage: float
    num_covered_tokens: int
    num_tokens: int
    num_train_documents: int


@dataclass
class Document:
    """A training document and what it shares with a row; no passages: its text is not known."""

    train_path: str
    train_row: int
    doc_id: str | None
    num_ngrams: Counter[int] = field(default_factory=Counter)  # by n
    eval_spans: list[Span] = field(default_factory=list)
    train_spans: list[Span] = field(default_factory=list)
    eval_passages: Passages | None = None
    train_passages: Passages | None = None
    num_left_out: int = 0  # n-grams that a cap keeps out of the details

    def add(self, n: int, eval_offsets: Iterable[Any], train_offsets: Iterable[Any]) -> None:
        """Takes in another n-gram, as a record of the details or the matches has it."""
        self.num_ngrams[n] += 1
        for spans, offsets in ((self.eval_spans, eval_offsets), (self.train_spans, train_offsets)):
            spans += map(_span, offsets)
            if len(spans) > _MOST_LOOSE_SPANS:
                spans[:] = merged(spans)

    def close(self) -> None:
        """Merges the spans: no n-gram comes any more."""
        self.eval_spans, self.train_spans = merged(self.eval_spans), merged(self.train_spans)


@dataclass
class Instance:
    """An evaluation row with a hit; its coverage by n, the documents that share most first."""

    key: RowKey
    instance_id: str
    coverage: list[Coverage] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)

    @property
    def worst(self) -> Coverage:
        """The coverage at the n that covers most, of several the longest."""
        return max(self.coverage, key=lambda line: (line.coverage, line.n))

    def offer(self, document: Document, eval_text: str | None, train_text: str | None) -> None:
        """Takes a document in, if it is one of those that share most with the row."""
        document.close()
        self.documents.append(document)
        self.documents.sort(key=lambda d: (-num_covered(d.eval_spans), -sum(d.num_ngrams.values())))
        del self.documents[DOCUMENTS_OF_AN_INSTANCE:]
        is_kept = any(kept is document for kept in self.documents)
        if is_kept and eval_text is not None and train_text is not None:
            document.eval_passages = passages(eval_text, document.eval_spans)
            document.train_passages = passages(train_text, document.train_spans)


def worst_instances(output: Output, num_instances: int, advance: Advance) -> list[Instance]:
    """Returns the rows of most coverage, of equal ones those found in more documents first.

    Args:
      advance: is told of bytes of the details read.
    """
    chosen = _choose(output, num_instances)
    if chosen:
        _add_details(output, chosen, advance)
        _add_matches(output, {k: i for k, i in chosen.items() if not i.documents})
        _add_left_out(output, chosen)
    return list(chosen.values())


# --- which ones ---------------------------------------------------------------------------------


def _choose(output: Output, num_instances: int) -> dict[RowKey, Instance]:
    best: dict[RowKey, tuple[float, int]] = {}  # of some more rows than are wanted
    for record in output.records(COVERAGE):
        with reading(output.file(COVERAGE)):
            key = _key(record)
            rank = (float(record["coverage"]), int(record["num_train_documents"]))
        best[key] = max(rank, best.get(key, rank))
        if len(best) > 4 * num_instances + 1_000:
            best = dict(_largest(best, num_instances))
    chosen = {key: Instance(key, "") for key, _ in _largest(best, num_instances)}
    for record in output.records(COVERAGE):
        with reading(output.file(COVERAGE)):
            if instance := chosen.get(_key(record)):
                instance.instance_id = record["instance_id"]
                instance.coverage.append(Coverage(**{k: record[k] for k in Coverage._fields}))
    for instance in chosen.values():
        instance.coverage.sort()
    return chosen


def _largest(
    best: dict[RowKey, tuple[float, int]], number: int
) -> list[tuple[RowKey, tuple[float, int]]]:
    return heapq.nsmallest(
        number, best.items(), key=lambda item: (-item[1][0], -item[1][1], item[0])
    )


def _key(record: dict[str, Any]) -> RowKey:
    return RowKey(record["eval_dataset"], record["eval_path"], int(record["eval_row"]))


# --- their documents ----------------------------------------------------------------------------


def _add_details(output: Output, chosen: dict[RowKey, Instance], advance: Advance) -> None:
    def records() -> Iterator[dict[str, Any]]:
        for line in output.lines(DETAILS, advance):
            if head := _HEAD.match(line):
                strings = parse(b"[%b,%b]" % (head[1], head[2]))
                if (*strings, int(head[3])) not in chosen:
                    continue
            record = parse(line)
            if _key(record) in chosen:
                yield record

    with reading(output.file(DETAILS)):
        _offer_documents(records(), chosen)


def _add_matches(output: Output, textless: dict[RowKey, Instance]) -> None:
    """Looks up rows that a cap keeps out of the details in the matches, which have no texts."""
    textless = {RowKey(*map(_in_parquet, key)): one for key, one in textless.items()}
    if not textless:
        return
    rows = pa.array(sorted({key.eval_row for key in textless}), pa.int64())

    def records() -> Iterator[dict[str, Any]]:
        for batch in output.batches(output.file(MATCHES), _MATCH_COLUMNS):
            found = batch.filter(pc.is_in(batch["eval_row"].cast(pa.int64()), value_set=rows))
            yield from (record for record in found.to_pylist() if _key(record) in textless)

    with reading(output.file(MATCHES)):
        _offer_documents(records(), textless)


def _offer_documents(records: Iterator[dict[str, Any]], instances: dict[RowKey, Instance]) -> None:
    """Takes in the records of details or matches, in which those of a pair stand together."""
    pairs = groupby(records, lambda r: (_key(r), r["train_path"], r["train_row"]))
    for (key, train_path, train_row), records_of_pair in pairs:
        first = next(records_of_pair)
        document = Document(train_path, train_row, first.get("train_doc_id"))
        for record in chain([first], records_of_pair):
            document.add(record["n"], record["eval_offsets"], record["train_offsets"])
        instances[key].offer(document, first.get("eval_text"), first.get("train_text"))


def _span(offset: Any) -> Span:
    """Returns a range from [start, end] or {start: …, end: …}."""
    start, end = offset.values() if isinstance(offset, dict) else offset
    return start, end


def _in_parquet(value: Any) -> Any:
    """Returns a value as the matches have it: lone surrogates as escapes."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _add_left_out(output: Output, chosen: dict[RowKey, Instance]) -> None:
    shown: dict[tuple[RowKey, str, int], list[Document]] = defaultdict(list)
    for key, instance in chosen.items():
        for document in instance.documents:
            shown[key, document.train_path, document.train_row].append(document)
    for record in output.records(DETAILS_LEFT_OUT):
        if "eval_row" not in record:
            continue
        with reading(output.file(DETAILS_LEFT_OUT)):
            pair = (_key(record), record["train_path"], record["train_row"])
            for document in shown.get(pair, ()):
                document.num_left_out += record["num_left_out"]
