"""Documents in JSON: the bytes of records in, batches of texts out.

orjson parses a record, and Python's own `json` whatever orjson refuses or rounds: lone
surrogates, NaN, integers of more than 64 bits. So a record is a dead letter only if Python
cannot read it. On records of 4 KB orjson and the copy into a batch take 1.3 ns a byte of ASCII;
msgspec, which skips the fields that are not read, takes longer, since it does so byte by byte.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.overlap.documents.batch import DocumentBatch, excerpt, utf8_of
from beam_pipeline.overlap.documents.json_records import TOO_LONG
from beam_pipeline.overlap.documents.record_ids import record_hash


class Fields(NamedTuple):
    """How records name what is read of them; `hash_ids` gives those without an id one."""

    text: str = "text"
    id: str = "id"
    hash_ids: bool = False


class BadRecordError(Exception):
    """A record is a dead letter; the message is its reason."""


def batches_of(
    path: str, records: Iterable[list[bytes]], first_row: int, fields: Fields
) -> Iterator[DocumentBatch]:
    """Yields a batch for each list of records; the first record of all has row `first_row`."""
    for some in records:
        if some:
            yield _batch_of(path, some, first_row, fields)
            first_row += len(some)


def _batch_of(path: str, records: list[bytes], first_row: int, fields: Fields) -> DocumentBatch:
    rows: list[int] = []
    texts: list[str] = []
    ids: list[str | None] = []
    letters: list[DeadLetter] = []
    for row, record in enumerate(records, first_row):
        try:
            document = _document(record)
            text = document.get(fields.text)
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadRecordError("text_not_a_string")
            identifier = _id_of(document, record, fields)
        except BadRecordError as bad:
            value = "" if record is TOO_LONG else excerpt(record)
            letters.append(DeadLetter(path, row, str(bad), value))
            continue
        rows.append(row)
        texts.append(text)
        ids.append(identifier)
    utf8, bounds = utf8_of(texts)
    return DocumentBatch(
        num_rows=len(records),
        rows=np.array(rows, np.int64),
        utf8=utf8,
        bounds=bounds,
        ids=ids,
        num_without_text=len(records) - len(rows) - len(letters),
        letters=letters,
    )


def _document(record: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(record)
    except orjson.JSONDecodeError:
        document = parse(record)
    if not isinstance(document, dict):
        raise BadRecordError("json_not_an_object")
    return document


def _id_of(document: dict[str, Any], record: bytes, fields: Fields) -> str | None:
    value = document.get(fields.id)
    if value is None:
        return record_hash(parse(record)) if fields.hash_ids else None
    if isinstance(value, (float, list, dict)):  # orjson makes floats of integers over 64 bits
        value = parse(record)[fields.id]
    return str(value)


def parse(record: bytes) -> Any:
    """Returns what a record holds, as Python's `json` reads it.

    Raises:
      BadRecordError: it holds nothing that can be read.
    """
    if record is TOO_LONG:
        raise BadRecordError("record_too_long")
    try:
        text = record.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadRecordError("utf8_invalid") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRecordError("json_invalid") from None
