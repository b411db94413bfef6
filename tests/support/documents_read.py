"""What reading documents gives."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard
from hypothesis import strategies as st

from beam_pipeline.documents.batch import REASONS, decode
from beam_pipeline.documents.fields import Fields, document_id
from beam_pipeline.documents.files import WorkUnit, cut_into_work_units, match_documents
from beam_pipeline.documents.reading import read_texts

ODD = 'a"\\/\b\f\n\r\t\x00\x1f\x7f\x85é\u2028\ufeff\uffff日\ud800\udbff\udc00\udfff\U0001f600'
texts = st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=80)
BOM = b"\xef\xbb\xbf"
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


class Seen(NamedTuple):
    """What there is in a file: by row, texts and ids; by row, reasons and values; other rows."""

    texts: dict[int, tuple[str, str | None]]
    letters: dict[int, tuple[str, str]]
    num_rows: int
    num_without_text: int


def cut(paths: list[str], unit_bytes: int = 64 << 20) -> list[WorkUnit]:
    """Returns the work units of all files that match."""
    files = match_documents(paths)
    return [unit for file in files for unit in cut_into_work_units(file, unit_bytes)]


def seen(path: Path | str, unit_bytes: int = 1 << 20, **options: Any) -> Seen:
    """What the units of a file hold, each one's rows after those of the units before it."""
    found, letters = {}, {}
    num_rows = num_without_text = 0
    fields = Fields(**options)
    for unit in cut([str(path)], unit_bytes):
        assert unit.first_row in (None, num_rows)
        shift = num_rows if unit.first_row is None else 0
        for batch in read_texts(unit, fields):
            assert len(batch.rows) == len(batch.ids) == len(batch.bounds) - 1
            assert (batch.bounds[0], batch.bounds[-1]) == (0, len(batch.utf8))
            assert (batch.utf8.dtype, batch.utf8.flags.writeable) == (np.uint8, False)
            assert batch.rows.dtype == batch.bounds.dtype == np.int64
            for at, row in enumerate(batch.rows.tolist()):
                found[row + shift] = (decode(batch.text_bytes(at)), batch.ids[at])
            for letter in batch.letters:
                assert (letter.file, letter.reason in REASONS) == (str(path), True)
                letters[letter.row + shift] = (letter.reason, letter.value)
            num_rows += batch.num_rows
            num_without_text += batch.num_without_text
    return Seen(found, letters, num_rows, num_without_text)


def plainly(records: Sequence[bytes], hash_ids: bool = False) -> Seen:
    """The same by Python's own means."""
    found, letters = {}, {}
    num_without_text = 0
    for row, record in enumerate(records):
        value = record.decode("utf-8", "backslashreplace")
        try:
            document = json.loads(record.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            letters[row] = ("utf8_invalid", value)
            continue
        except ValueError:
            letters[row] = ("json_invalid", value)
            continue
        if not isinstance(document, dict):
            letters[row] = ("json_not_an_object", value)
        elif document.get("text") is None:
            num_without_text += 1
        elif not isinstance(document["text"], str):
            letters[row] = ("text_not_a_string", value)
        else:
            name = document.get("id")
            name = document_id(document) if hash_ids else name if name is None else str(name)
            found[row] = (document["text"], name)
    return Seen(found, letters, len(records), num_without_text)


cuts = st.sampled_from([1, 2, 3, 7, 30, 100, 10_000])


LINES = b"".join(b'{"text": "%d and some more words"}\n' % number for number in range(20_000))
