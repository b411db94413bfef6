"""JSON: records to values, and records to batches of texts.

Texts are cut out of many records at a time
(`json_text`) and orjson parses the rest. If that fails, orjson parses each record of the batch, and
Python's own `json` whatever orjson rejects or rounds: lone surrogates, NaN, integers of more than
64 bits. A document is thus a dead letter only if Python cannot read it.
"""

import json
from collections.abc import Iterator
from json.decoder import scanstring
from typing import Any, NamedTuple

import numpy as np
import orjson

from beam_pipeline.dataset.dead_letters import DeadLetter, excerpt
from beam_pipeline.documents.batch import DocumentBatch, text_buffers
from beam_pipeline.documents.fields import Fields, document_id, id_at, text_of
from beam_pipeline.documents.json_records import Records
from beam_pipeline.documents.json_text import MARK, cut_texts

MAX_RECORD_BYTES = 128 << 20
_scan = json.JSONDecoder().scan_once


class BadRecordError(Exception):
    """A record is a dead letter; the message is its reason."""


# --- records to values ----------------------------------------------------------------------------


def parse_object(record: bytes) -> dict[str, Any]:
    """Returns the fields of a record; BadRecordError if it is a dead letter."""
    try:
        document = orjson.loads(record) if len(record) <= MAX_RECORD_BYTES else parse(record)
    except orjson.JSONDecodeError:
        document = parse(record)
    if not isinstance(document, dict):
        raise BadRecordError("json_not_an_object")
    return document


def id_of(document: dict[str, Any], records: Records, number: int, name: str) -> Any:
    """Returns the id of record `number` as Python reads it; None without one."""
    value = id_at(document, name)
    if isinstance(value, (float, list, dict)):  # orjson makes floats of integers over 64 bits
        return id_at(parse(records.at(number)), name)
    return value


class Place(NamedTuple):
    """A value within the text of a record: text[start:end]."""

    start: int
    end: int
    value: Any


def members_of(text: str, start: int = 0) -> Iterator[tuple[str | int, Place]]:
    """Yields the members of the object, or the elements of the list, that begins at `start`.

    The text must be JSON that `parse` reads. As there, the last of several equal keys counts.
    """
    at = _after_space(text, start)
    is_object, number = text[at] == "{", 0
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        key: str | int = number
        if is_object:
            key, at = scanstring(text, at + 1)
            at = _after_space(text, _after_space(text, at) + 1)  # the colon
        value, end = _scan(text, at)
        yield key, Place(at, end, value)
        at, number = _after_space(text, end), number + 1
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def parse(record: bytes) -> Any:
    """Parses a record with Python's `json`; BadRecordError if it is too long or unreadable."""
    if len(record) > MAX_RECORD_BYTES:
        raise BadRecordError("record_too_long")
    try:
        text = record.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise BadRecordError("utf8_invalid") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRecordError("json_invalid") from None


def parse_strict(record: bytes) -> Any:
    """Parses a record that is JSON by RFC 8259, without NaN; BadRecordError for any other."""
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(record.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("json_invalid") from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def is_json(record: bytes) -> bool:
    """Returns whether a record is JSON by RFC 8259."""
    try:
        parse_strict(record)
    except BadRecordError:
        return False
    return True


# --- records to batches -------------------------------------------------------------------------


def read_batch(path: str, records: Records, first_row: int, fields: Fields) -> DocumentBatch:
    """Returns a batch of records, the first of which has row `first_row`."""
    batch = _read_together(records, first_row, fields)
    return batch or _read_one_by_one(path, records, first_row, fields)


def _read_together(records: Records, first_row: int, fields: Fields) -> DocumentBatch | None:
    """Reads records together; None unless each is an object without a text or with a cut one."""
    is_plain = not fields.hash_ids and not fields.nested and fields.id != fields.text
    if not is_plain or records.max_bytes > MAX_RECORD_BYTES:
        return None
    cut = cut_texts(records, fields.text)
    if cut is None:
        return None
    numbers: list[int] = []  # of records with a text
    ids: list[str | None] = []
    for number, document in enumerate(cut.others):
        if not isinstance(document, dict):
            return None
        text = document.get(fields.text)
        if text == MARK:
            numbers.append(number)
            ids.append(_read_id(document, records, number, fields))
        elif text is not None or cut.bounds[number] != cut.bounds[number + 1]:
            return None
    rows = np.array(numbers, np.int64)
    # A record without a text has no bytes.
    bounds = np.append(cut.bounds[rows], cut.bounds[-1])
    num_without_text = records.count - len(rows)
    return DocumentBatch(
        records.count, rows + first_row, cut.utf8, bounds, ids, num_without_text, []
    )


def _read_one_by_one(path: str, records: Records, first_row: int, fields: Fields) -> DocumentBatch:
    rows: list[int] = []
    texts: list[str] = []
    ids: list[str | None] = []
    letters: list[DeadLetter] = []
    for number, record in enumerate(records.each()):
        try:
            document = parse_object(record)
            text = text_of(document, fields)
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadRecordError("text_not_a_string")
            identifier = _read_id(document, records, number, fields)
        except (BadRecordError, TypeError) as bad:
            reason = str(bad) if isinstance(bad, BadRecordError) else "text_not_a_string"
            value = "" if len(record) > MAX_RECORD_BYTES else excerpt(record)
            letters.append(DeadLetter(path, first_row + number, reason, value))
            continue
        rows.append(first_row + number)
        texts.append(text)
        ids.append(identifier)
    num_without_text = records.count - len(rows) - len(letters)
    buffers = text_buffers(texts)
    return DocumentBatch(
        records.count, np.array(rows, np.int64), *buffers, ids, num_without_text, letters
    )


def _read_id(document: dict[str, Any], records: Records, number: int, fields: Fields) -> str | None:
    value = id_of(document, records, number, fields.id)
    if value is None:
        return document_id(parse(records.at(number)), fields.id) if fields.hash_ids else None
    return str(value)
