"""Documents in JSON: blocks of bytes to records, records to batches of texts.

Records are lines or the elements of one array. orjson parses a record, and Python's own `json`
whatever orjson rejects or rounds: lone surrogates, NaN, integers of more than 64 bits. So a record
is a dead letter only if Python cannot read it. On records of 4 KB orjson and the copy into a batch
take 1.3 ns a byte of ASCII; msgspec, which skips fields that are not read, takes longer.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.overlap.documents.batch import DocumentBatch, excerpt, text_buffers
from beam_pipeline.overlap.documents.record_ids import record_hash
from beam_pipeline.storage.json_array import begins_array, split_array
from beam_pipeline.storage.lines import split_lines

MAX_RECORD_BYTES = 128 << 20


class Fields(NamedTuple):
    """The fields of a record that are read."""

    text: str = "text"
    id: str = "id"
    # A record without an id has the hash of all its fields (`record_hash`): all are read.
    hash_ids: bool = False


class BadRecordError(Exception):
    """A record is a dead letter; the message is its reason."""


# --- blocks to records --------------------------------------------------------------------------


def split_records(blocks: Iterable[bytes], may_be_array: bool) -> Iterator[list[bytes]]:
    """Yields the records of a file, a list for each block; blank lines are no records.

    A record of more than MAX_RECORD_BYTES is cut after one byte more. The blocks are whole lines
    or, if `may_be_array` and they begin with `[`, a whole array, cut anywhere.

    Raises:
      ArrayError: the array does not end, or something follows it.
    """
    blocks = iter(blocks)
    first_block = next(blocks, b"")
    blocks = chain([first_block], blocks)
    if may_be_array and begins_array(first_block):
        yield from split_array(blocks, MAX_RECORD_BYTES)
        return
    for lines in split_lines(blocks, MAX_RECORD_BYTES):
        yield [line for line in lines if line and not line.isspace()]


# --- records to batches -------------------------------------------------------------------------


def read_batch(path: str, records: list[bytes], first_row: int, fields: Fields) -> DocumentBatch:
    """Returns a batch of some records, the first of which has the row `first_row`."""
    rows: list[int] = []
    texts: list[str] = []
    ids: list[str | None] = []
    letters: list[DeadLetter] = []
    for row, record in enumerate(records, first_row):
        try:
            document = _parse_object(record)
            text = document.get(fields.text)
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadRecordError("text_not_a_string")
            identifier = _read_id(document, record, fields)
        except BadRecordError as bad:
            value = "" if len(record) > MAX_RECORD_BYTES else excerpt(record)
            letters.append(DeadLetter(path, row, str(bad), value))
            continue
        rows.append(row)
        texts.append(text)
        ids.append(identifier)
    num_without_text = len(records) - len(rows) - len(letters)
    buffers = text_buffers(texts)
    return DocumentBatch(
        len(records), np.array(rows, np.int64), *buffers, ids, num_without_text, letters
    )


def _parse_object(record: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(record) if len(record) <= MAX_RECORD_BYTES else parse(record)
    except orjson.JSONDecodeError:
        document = parse(record)
    if not isinstance(document, dict):
        raise BadRecordError("json_not_an_object")
    return document


def _read_id(document: dict[str, Any], record: bytes, fields: Fields) -> str | None:
    value = document.get(fields.id)
    if value is None:
        return record_hash(parse(record)) if fields.hash_ids else None
    if isinstance(value, (float, list, dict)):  # orjson makes floats of integers over 64 bits
        value = parse(record)[fields.id]
    return str(value)


def parse(record: bytes) -> Any:
    """Returns the value of a record, as Python's `json` reads it.

    Raises:
      BadRecordError: the record is too long, or Python cannot read it.
    """
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
