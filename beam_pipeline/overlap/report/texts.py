"""The texts of the instances that are shown, from wherever the output has them.

  [Instance], details or the files of texts → passages of both texts in each Document

A record of details is found by the number of its line, which is that of its match unless a cap
left out some before it. With --details=compact texts are joined by the places of their records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from beam_pipeline.overlap.report.instances import DOCUMENT_KEY, Document, Instance
from beam_pipeline.overlap.report.output import Advance, Output, decoded, reading
from beam_pipeline.overlap.report.passages import passages
from beam_pipeline.overlap.report.rows import ROW_KEY
from beam_pipeline.overlap.results.details import COMPACT, FULL
from beam_pipeline.overlap.results.layout import DETAILS, EVAL_TEXTS, MATCHES, TRAIN_TEXTS
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.storage.parquet import read_row_groups

Pair = tuple[Instance, Document]


def add_texts(
    output: Output, instances: list[Instance], options: dict[str, Any], advance: Advance
) -> None:
    """Adds passages to the documents of instances, where the output has both texts."""
    pairs = [(one, document) for one in instances for document in one.documents]
    if options["details"] == FULL:
        _add_from_details(output, pairs, options, advance)
    elif options["details"] == COMPACT:
        _add_from_texts(output, pairs, advance)


def text_files(options: dict[str, Any]) -> list[str]:
    """Returns the files that texts are read from."""
    return {FULL: [DETAILS], COMPACT: [EVAL_TEXTS, TRAIN_TEXTS]}.get(options["details"], [])


def _add(pair: Pair, eval_text: str, train_text: str) -> None:
    _, document = pair
    document.in_eval = passages(eval_text, document.eval_spans)
    document.in_train = passages(train_text, document.train_spans)


# --- from details ---------------------------------------------------------------------------------


class _Detail(msgspec.Struct):
    eval_dataset: str
    eval_path: str
    eval_row: int
    train_path: str
    train_row: int
    eval_text: str
    train_text: str

    @property
    def place(self) -> tuple:
        """The evaluation row and the training row."""
        names = self.eval_dataset, self.eval_path, self.train_path
        return *map(escape_surrogates, names), self.eval_row, self.train_row


def _add_from_details(
    output: Output, pairs: list[Pair], options: dict[str, Any], advance: Advance
) -> None:
    by_match = {pair[1].first_match: pair for pair in pairs}
    numbers = _line_numbers(output, sorted(by_match), options)
    decoder = msgspec.json.Decoder(_Detail)
    lines = output.lines(DETAILS, numbers.values(), advance)
    with reading(output.file(DETAILS)):
        for match, line in zip(numbers, lines, strict=True):
            detail = decoded(line, decoder)
            one, document = pair = by_match[match]
            names = one.eval_dataset, one.eval_path, document.train_path
            if detail.place != (*names, one.eval_row, document.train_row):
                raise ValueError(f"line {numbers[match]} is not of match {match}")
            _add(pair, detail.eval_text, detail.train_text)


def _line_numbers(output: Output, matches: list[int], options: dict[str, Any]) -> dict[int, int]:
    """Returns the line of details that each match has; one without a line is left out.

    Args:
      matches: numbers of the first matches of pairs, ascending.
    """
    per_pair, most = options["max_details_per_pair"], options["max_details"]
    if not matches or per_pair == 0:
        return {}
    numbers = np.array(matches)
    lines = numbers if per_pair < 0 else numbers - _left_out_before(output, numbers, per_pair)
    is_there = lines < most if most >= 0 else np.ones(len(lines), bool)
    return dict(zip(numbers[is_there].tolist(), lines[is_there].tolist(), strict=True))


def _left_out_before(output: Output, matches: np.ndarray, per_pair: int) -> np.ndarray:
    """Returns how many matches before each of some are not among the first of their pair."""
    left_out, at, num_before, run = np.zeros(len(matches), np.int64), 0, 0, 0
    columns = [*ROW_KEY, *DOCUMENT_KEY]
    last = None
    with reading(output.file(MATCHES)):
        for table in read_row_groups(output.file(MATCHES), columns):
            first = table.slice(0, 1).to_pylist()[0]
            begins = np.append(first != last, np.zeros(len(table) - 1, bool))
            for name in columns:
                column = table.column(name)
                begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
            last = table.slice(len(table) - 1).to_pylist()[0]
            place = np.arange(len(table))
            starts = np.maximum.accumulate(np.where(begins, place, -run))
            in_pair = place - starts
            extra = np.append(0, np.cumsum(in_pair >= per_pair))
            here = (matches >= at) & (matches < at + len(table))
            left_out[here] = num_before + extra[matches[here] - at]
            num_before += int(extra[-1])
            run, at = int(in_pair[-1]) + 1, at + len(table)
    return left_out


# --- from the files of texts ----------------------------------------------------------------------


class _EvalText(msgspec.Struct):
    eval_dataset: str
    eval_path: str
    eval_row: int
    eval_text: str


class _TrainText(msgspec.Struct):
    train_path: str
    train_row: int
    train_text: str


def _add_from_texts(output: Output, pairs: list[Pair], advance: Advance) -> None:
    rows = {(one.eval_dataset, one.eval_path, one.eval_row) for one, _ in pairs}
    of_rows = _texts(output.records(EVAL_TEXTS, _EvalText, advance), rows)
    documents = {(document.train_path, document.train_row) for _, document in pairs}
    of_documents = _texts(output.records(TRAIN_TEXTS, _TrainText, advance), documents)
    for pair in pairs:
        one, document = pair
        eval_text = of_rows.get((one.eval_dataset, one.eval_path, one.eval_row))
        train_text = of_documents.get((document.train_path, document.train_row))
        if eval_text is not None and train_text is not None:
            _add(pair, eval_text, train_text)


def _texts(records: Iterator[Any], wanted: set[tuple]) -> dict[tuple, str]:
    """Returns the texts of some places; reads no further than the last of them."""
    texts: dict[tuple, str] = {}
    for record in records if wanted else ():
        *names, row, text = msgspec.structs.astuple(record)
        place = *map(escape_surrogates, names), row
        if place in wanted:
            texts[place] = text
            if len(texts) == len(wanted):
                break
    return texts
