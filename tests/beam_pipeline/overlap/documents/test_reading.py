"""Documents of any format, cut anywhere, equal what a plain reader of the whole file sees."""

import datetime
import decimal
import gzip
import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS, to_parquet
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.overlap.documents import json as document_json
from beam_pipeline.overlap.documents import parquet as document_parquet
from beam_pipeline.overlap.documents.batch import REASONS, array_buffers, decode
from beam_pipeline.overlap.documents.json import Fields
from beam_pipeline.overlap.documents.reading import (
    DocumentFile,
    WorkUnit,
    cut_into_work_units,
    field_names,
    match_documents,
    read_work_unit,
)
from beam_pipeline.overlap.documents.record_ids import document_id
from beam_pipeline.storage import lines as line_reading
from tests.conftest import Gcs
from tests.support.properties import num_examples

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


def cut(paths: list[str], text_field: str = "text", unit_bytes: int = 64 << 20) -> list[WorkUnit]:
    """Returns the work units of all files that match."""
    files = match_documents(paths)
    return [unit for file in files for unit in cut_into_work_units(file, text_field, unit_bytes)]


def seen(path: Path | str, unit_bytes: int = 1 << 20, **options: Any) -> Seen:
    """What the units of a file hold, each one's rows after those of the units before it."""
    found, letters = {}, {}
    num_rows = num_without_text = 0
    fields = Fields(**options)
    for unit in cut([str(path)], fields.text, unit_bytes):
        assert unit.first_row in (None, num_rows)
        shift = num_rows if unit.first_row is None else 0
        for batch in read_work_unit(unit, fields):
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


RECORDS_MADE_TO_DIFFER = [
    b"not json",
    b"[1]",
    b"null",
    b'"text"',
    b"{}",
    b'{"text": null, "id": 1}',
    b'{"text": 5}',
    b'{"text": ["a"]}',
    b'{"text": "a", "text": "b", "id": 1, "id": 2}',
    b'{"text": 1, "text": "b"}',
    b'{"text": "b", "text": null}',
    b'{"\\u0074ext": "escaped", "id": "\\u00e9"}',
    b'{"text": "a", "score": NaN, "id": -Infinity}',
    b'{"text": "a", "id": 1e400}',
    b'{"text": "a", "id": 18446744073709551616}',
    b'{"text": "a", "id": 0.1, "other": 1e999}',
    b'{"text": "a", "id": [18446744073709551616, -9223372036854775809, 0.1]}',
    b'{"text": "a", "id": -9223372036854775809}',
    b'{"text": "a", "big": 18446744073709551616}',
    b'{"text": "a", "id": {"b": [1, null, true], "a": "x"}}',
    b'{"text": "\\ud800"}',
    b'{"text": "\\ud83d\\ude00 \\uD83D\\uDE00"}',
    b'{"text": "\\udc00\\ud800\\ud800\\udc00\\ud800x"}',
    b'{"text": "a", "id": "\\ud800"}',
    b'{"text": "\xed\xa0\x80\xed\xb0\x80"}',
    b'{"text": "\xff"}',
    b'{"text": "a", "other": "\xc3"}',
    b'{"text": "\xe2\x80\xa8 \xc2\x85 \x7f"}',
    b'{"text": "tab\there"}',
    b'{"text": "\\/\\b\\f\\n\\r\\t\\"\\\\"}',
    b'{"text": "' + b"0123456789" * 7 + b'\\n"}',
    b'{"text": "\\u12g4"}',
    b'{"text": "\\x"}',
    b'{"text": "\x01"}',
    b'{"text": "", "text": null}',
    b'{"text": "a", "text": 7}',
    b'{"about": {"text": "within"}}',
    b'{"about": {"text": ""}}',
    b'{"about": {"text": "within"}, "text": "own"}',
    b'{"text": "own", "about": {"text": "within"}}',
    b'{"kind": "text", "a\\"text": "b", "text":   "c"}',
    b'{"text": "cut',
    b'{"text": "a"} trailing',
    b'\xef\xbb\xbf{"text": "not at the start"}',
    b' \t{ "text" :\t"spaces" } \r',
]


@st.composite
def records(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        return draw(st.sampled_from(RECORDS_MADE_TO_DIFFER))
    document: dict[str, Any] = {"text": draw(texts)}
    if draw(st.booleans()):
        document["id"] = draw(st.one_of(texts, st.integers(), st.floats(), st.none()))
    document[draw(texts)] = draw(st.one_of(texts, st.lists(st.integers())))
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "surrogatepass")


blank = st.sampled_from([b"", b"\r", b"  \t"])
cuts = st.sampled_from([1, 2, 3, 7, 30, 100, 10_000])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(
    lines=st.lists(st.one_of(records(), blank), max_size=30),
    bom=st.booleans(),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    has_last_end=st.booleans(),
    unit_bytes=cuts,
    block_bytes=st.sampled_from([3, 8, 64, 1 << 20]),
    hash_ids=st.booleans(),
)
@example(RECORDS_MADE_TO_DIFFER, True, b"\n", False, 10, 64, False)
@example(RECORDS_MADE_TO_DIFFER, False, b"\r\n", True, 1 << 20, 1 << 20, False)
@example(RECORDS_MADE_TO_DIFFER, False, b"\n", True, 1 << 20, 1 << 20, True)
@example([b'{"text": "a"}', b"", b""], True, b"\n", True, 2, 3, False)
@settings(max_examples=num_examples(300))
def test_lines_are_read_as_a_plain_reader_reads_them(
    compression: str,
    lines: list[bytes],
    bom: bool,
    ending: bytes,
    has_last_end: bool,
    unit_bytes: int,
    block_bytes: int,
    hash_ids: bool,
) -> None:
    data = BOM * bom + ending.join(lines) + (ending if has_last_end else b"")
    kept = [line for line in data.removeprefix(BOM).split(b"\n") if line.strip()]
    expected = plainly(kept, hash_ids)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(line_reading, "BLOCK_BYTES", block_bytes)
        path = Path(folder) / f"x.jsonl{compression}"
        path.write_bytes(COMPRESSIONS[compression](data))
        assert seen(path, unit_bytes, hash_ids=hash_ids) == expected


WHOLE = [record for record in RECORDS_MADE_TO_DIFFER if b"cut" not in record]
spaces = st.sampled_from([b"", b"\n", b" \r\n\t"])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(
    elements=st.lists(records().filter(lambda record: b"cut" not in record), max_size=20),
    bom=st.booleans(),
    space=spaces,
    block_bytes=st.sampled_from([8, 64, 1 << 20]),
)
@example(WHOLE, True, b"\n", 64)
@example([b'{"text": "]", "a": [{"b": "}]\\"\\\\"}]}', b'{"text": "[{,"}'], False, b"", 8)
@example([b""], False, b"\n", 8)
@example([b"", b'{"text": "a"}', b""], False, b" ", 8)
@example([b"", b""], False, b"", 8)
@settings(max_examples=num_examples(200))
def test_the_elements_of_an_array_are_records(
    compression: str, elements: list[bytes], bom: bool, space: bytes, block_bytes: int
) -> None:
    elements = [space + element + space for element in elements]
    data = BOM * bom + space + b"[" + b",".join(elements) + b"]" + space
    expected = plainly(elements if b"".join(elements).strip() or len(elements) > 1 else [])
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(line_reading, "BLOCK_BYTES", block_bytes)
        path = Path(folder) / f"x.json{compression}"
        path.write_bytes(COMPRESSIONS[compression](data))
        assert seen(path, unit_bytes=5) == expected


def test_a_json_file_may_hold_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    lines = [b'{"text": "a"}', b'{"text": "b"}']
    path.write_bytes(b"\n".join(lines))
    assert seen(path) == plainly(lines)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'[{"text": "a"}, {"text": "b"', "does not end"),
        (b'[{"text": "a"}] []', "follows the end"),
        (b"[" + b" " * 100 + b"] x", "follows the end"),
        (b"[ ]" + b" " * 100 + b"x", "follows the end"),
    ],
)
def test_an_array_that_is_not_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, problem: str
) -> None:
    monkeypatch.setattr(line_reading, "BLOCK_BYTES", 16)
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ProbelineError, match=f"^cannot read {path} .*{problem}"):
        seen(path)


def test_a_record_over_the_bound_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_json, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(line_reading, "BLOCK_BYTES", 64)
    good = b'{"text": "' + b"x" * 988 + b'"}'
    assert len(good) == 1000
    lines = [b'{"text": "a"}', b" " + good, good, b"x" * 5000, b'{"text": "b"}', b" " + good]
    for name, data in [("x.jsonl", b"\n".join(lines)), ("x.json", b"[" + b",".join(lines) + b"]")]:
        (tmp_path / name).write_bytes(data)
        found = seen(tmp_path / name)
        assert {row: text[0] for row, (text, _) in found.texts.items()} == {0: "a", 2: "x", 4: "b"}
        assert found.letters == dict.fromkeys((1, 3, 5), ("record_too_long", ""))


def test_a_file_without_line_ends_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_json, "MAX_RECORD_BYTES", 4 << 20)
    blocks = (b"x" * (1 << 20) for _ in range(64))
    tracemalloc.start()
    try:
        ((record,),) = (found.each() for found in document_json.split_records(blocks, False))
        assert len(record) == (4 << 20) + 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_the_value_of_a_dead_letter_is_a_short_text(tmp_path: Path) -> None:
    bad = b'{"text": "\xed\xa0\x80\xff' + "é".encode() * 10_000
    (tmp_path / "x.jsonl").write_bytes(bad)
    (unit,) = cut([str(tmp_path)])
    (batch,) = read_work_unit(unit)
    assert len(batch.letters[0].value) == MAX_VALUE_CHARS
    assert batch.letters[0].value.startswith('{"text": "\\xed\\xa0\\x80\\xffé')
    assert pq.read_table(pa.BufferReader(to_parquet(batch.letters))).to_pylist() == [
        batch.letters[0]._asdict()
    ]


def test_a_range_without_the_beginning_of_a_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "' + b"x" * 1000 + b'"}\n{"text": "b"}\n')
    units = cut([str(path)], unit_bytes=100)
    counts = [sum(batch.num_rows for batch in read_work_unit(unit)) for unit in units]
    assert counts == [1] + [0] * 9 + [1]
    assert [unit.first_row for unit in units] == [0] + [None] * 10


def test_a_batch_is_small_however_large_the_file(tmp_path: Path) -> None:
    line = json.dumps({"text": "word " * 2000}).encode() + b"\n"
    (tmp_path / "x.jsonl").write_bytes(line * 1000)
    table = pa.table({"text": ["word " * 2000] * 1000})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False)
    for name in ("x.jsonl", "x.parquet"):
        (unit,) = cut([str(tmp_path / name)])
        sizes = [len(batch.utf8) for batch in read_work_unit(unit)]
        assert max(sizes) < 5 << 20 and sum(sizes) == 10_000_000


PARQUET_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


@pytest.mark.parametrize("kind", PARQUET_TYPES)
@given(
    values=st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=40),
    row_group=st.integers(1, 20),
    batch_rows=st.sampled_from([1, 3, 100]),
    unit_bytes=cuts,
)
@settings(max_examples=num_examples(50))
def test_parquet_is_read_by_row(
    kind: str, values: list[str | None], row_group: int, batch_rows: int, unit_bytes: int
) -> None:
    ids = [None if row % 3 == 0 else row for row in range(len(values))]
    column = pa.array(values, pa.string()).cast(PARQUET_TYPES[kind])
    table = pa.table({"id": pa.array(ids, pa.int64()), "other": ids, "text": column})
    expected = plainly(
        [json.dumps({"id": i, "text": text}).encode() for i, text in zip(ids, values, strict=True)]
    )
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(document_parquet, "_MAX_BATCH_ROWS", batch_rows)
        path = Path(folder) / "x.parquet"
        pq.write_table(table, path, row_group_size=row_group)
        assert seen(path, unit_bytes) == expected


def test_buffers_of_a_part_of_an_array_begin_at_0() -> None:
    utf8, bounds = array_buffers(pa.array(["ab", "cde", "", "f"], pa.large_string()).slice(1, 2))
    assert (utf8.tobytes(), bounds.tolist()) == (b"cde", [0, 3, 3])


def test_parquet_strings_that_are_no_utf8_are_dead_letters(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff", None, b"\xed\xa0\x80", b"b\xc3"], pa.binary())
    _, bounds, data = raw.buffers()
    column = pa.StringArray.from_buffers(5, bounds, data, raw.buffers()[0])
    pq.write_table(pa.table({"text": column, "id": list("vwxyz")}), tmp_path / "x.parquet")
    found = seen(tmp_path / "x.parquet")
    assert found.texts == {0: ("a", "v"), 3: ("\ud800", "y")}
    assert found.letters == {1: ("utf8_invalid", "\\xff"), 4: ("utf8_invalid", "b\\xc3")}
    assert (found.num_rows, found.num_without_text) == (5, 1)


def test_a_parquet_row_without_an_id_is_hashed_as_python_values(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    rows = [
        {
            "text": "a",
            "id": None,
            "when": moment,
            "price": decimal.Decimal("1.50"),
            "raw": b"\xff",
            "nested": {"list": [1, None], "name": "x"},
        },
        {"text": "b", "id": "b-1", "when": None, "price": None, "raw": None, "nested": None},
        {"text": None, "id": None, "when": None, "price": None, "raw": None, "nested": None},
    ]
    table = pa.Table.from_pylist(rows).append_column("ns", pa.array([1, 2, 3], pa.timestamp("ns")))
    pq.write_table(table, tmp_path / "x.parquet")
    expected = document_id({**rows[0], "ns": 1})
    assert seen(tmp_path / "x.parquet", hash_ids=True).texts == {
        0: ("a", expected),
        1: ("b", "b-1"),
    }
    assert seen(tmp_path / "x.parquet").texts == {0: ("a", None), 1: ("b", "b-1")}


def test_a_parquet_file_without_such_texts_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"content": ["a"], "number": [1]}), path)
    missing = f"no text field 'text' in {path}: it has content, number; name it with --text_field, "
    missing += "or for evaluation sets with --eval_text_field"
    with pytest.raises(ProbelineError, match=f"^{missing}$"):
        seen(path)
    (unit,) = cut([str(path)], "content")
    with pytest.raises(ProbelineError, match=f"^{missing}$"):
        list(read_work_unit(unit))
    with pytest.raises(ProbelineError, match=f"'number' of {path} is of type int64, which must be"):
        seen(path, text="number")
    assert seen(path, text="content").texts == {0: ("a", None)}
    assert seen(path, text="content", id="number").texts == {0: ("a", "1")}
    assert seen(path, text="content", id="content").texts == {0: ("a", "a")}


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": 1, "body": "a", "id": 2, "key": 3}\n{"body": "\\ud800"}')
    found = seen(path, text="body", id="key")
    assert found.texts == {0: ("a", "3"), 1: ("\ud800", None)}
    assert seen(path, text="body", id="body").texts[0] == ("a", "a")


def test_the_fields_of_a_file_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'broken\n[]\n{"content": 1, "key": 2}\n')
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'[{"a": "\\ud800"}]'))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    pq.write_table(pa.table({"c": ["1"]}), tmp_path / "x.parquet")
    for name, expected in [
        ("x.jsonl", ["content", "key"]),
        ("x.json.gz", ["a"]),
        ("empty.jsonl", []),
        ("x.parquet", ["c"]),
    ]:
        (unit,) = cut([str(tmp_path / name)], "c")
        assert field_names(unit) == expected


LINES = b"".join(b'{"text": "%d and some more words"}\n' % number for number in range(20_000))


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_damaged_file_is_one_line(tmp_path: Path, compression: str) -> None:
    data = COMPRESSIONS[compression](LINES)
    path = tmp_path / f"x.jsonl{compression}"
    for damaged in (data[:-3], data[: len(data) // 2], data[:9], data + data[:5], data + b"junk"):
        path.write_bytes(damaged)
        with pytest.raises(ProbelineError, match=rf"^cannot read {path} \(row \d+\): [^\n]+$"):
            seen(path)
    middle = len(data) // 2
    path.write_bytes(data[:middle] + b"\xaa" * 20 + data[middle + 20 :])
    if compression == ".gz":  # Zstandard has a checksum only if it is asked for
        with pytest.raises(ProbelineError, match=rf"^cannot read {path}"):
            seen(path)
        path.write_bytes(data[:10] + b"\xff" * 100)
        with pytest.raises(ProbelineError, match=rf"^cannot read {path}"):
            seen(path)
    path.write_bytes(data + data)
    assert seen(path).num_rows == 40_000


def test_a_window_larger_than_a_worker_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    # A frame's magic, its descriptor, a window of 2^30 bytes, and an empty last block.
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x00" + b"\xa0" + b"\x01\0\0")
    with pytest.raises(ProbelineError, match=r"compress it again without --long"):
        seen(path)
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x50" + b"\x01\0\0")
    assert seen(path).num_rows == 0


def test_dates_beyond_those_of_python_have_a_place_in_an_id(tmp_path: Path) -> None:
    late = {"day": pa.array([2**31 - 1], pa.date32()), "at": pa.array([2**62], pa.timestamp("us"))}
    pq.write_table(pa.table({"text": ["a"], **late}), tmp_path / "x.parquet")
    (unit,) = cut([str(tmp_path)])
    (batch,) = read_work_unit(unit, Fields(hash_ids=True))
    assert batch.ids == [document_id({"text": "a", "day": 2**31 - 1, "at": 2**62})]


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000, "b" * 1000] * 50}), path, use_dictionary=False)
    (unit,) = cut([str(path)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    (file,) = match_documents([str(path)])
    unit = unit._replace(num_bytes=file.num_bytes, version=file.version)
    for reader in (lambda: cut([str(path)]), lambda: list(read_work_unit(unit))):
        with pytest.raises(ProbelineError, match=rf"^cannot read {path} \(row 0\): [^\n]+$"):
            reader()


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.json.gz"])
def test_a_file_that_changes_after_the_plan_ends_the_run_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": ["a", "b"]}), path)
    else:
        path.write_bytes(gzip.compress(LINES) if path.suffix == ".gz" else LINES)
    (file,) = match_documents([str(path)])
    (unit,) = cut_into_work_units(file)
    list(read_work_unit(unit))
    for change in (lambda: path.write_bytes(path.read_bytes()[:50]), path.unlink):
        change()
        with pytest.raises(ProbelineError, match=f"^{path} was changed while the job ran: it had"):
            list(read_work_unit(unit))


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz", "x.json.zst"])
def test_empty_files_hold_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for data in (
        b"",
        b"\xef\xbb\xbf",
        b"\n\n",
        *(compress(b"") for compress in COMPRESSIONS.values()),
    ):
        path.write_bytes(data)
        assert seen(path) == Seen({}, {}, 0, 0)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    assert seen(tmp_path / "x.parquet") == Seen({}, {}, 0, 0)


def test_what_is_compressed_is_told_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(LINES)  # as GCS hands out an object that it stores compressed
    assert seen(path).num_rows == 20_000
    path = tmp_path / "x.jsonl"
    path.write_bytes(gzip.compress(LINES))
    assert seen(path).num_rows == 20_000
    with pytest.raises(ProbelineError, match=r"x.jsonl is compressed.*add \.gz"):
        seen(path, unit_bytes=100)


def test_folders_globs_and_files_are_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = ["a.jsonl", "b.json", "c.parquet", "sub/d.jsonl.gz", "sub/deep/e.json.zst", "sub/_.json"]
    ignored = [
        "_SUCCESS", ".a.jsonl", "_part.jsonl", "_tmp/a.jsonl", "sub/.git/a.jsonl", "readme.md",
        "a.jsonl.crc", "a.jsonl.bz2", "c.parquet.gz", "jsonl", "x.jsonlx",
    ]  # fmt: skip
    for name in good[:-1] + ignored:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")

    def names(*patterns: str) -> list[str]:
        return [file.path for file in match_documents(patterns)]

    monkeypatch.chdir(tmp_path)
    expected = [str(tmp_path / name) for name in good[:-1]]
    assert names(str(tmp_path)) == names(f"{tmp_path}/") == names(f"{tmp_path}/**") == expected
    assert names(f"{tmp_path}/**/*.js*") == [path for path in expected if "parquet" not in path]
    assert names("sub", "a.jsonl", "*.jsonl") == [
        "a.jsonl",
        "sub/d.jsonl.gz",
        "sub/deep/e.json.zst",
    ]
    assert names("_tmp", "_part.jsonl") == ["_part.jsonl", "_tmp/a.jsonl"]
    found = match_documents(["b.json", "sub/d.jsonl.gz"])
    assert [file._replace(version=0) for file in found] == [
        DocumentFile("b.json", 5, "json", False),
        DocumentFile("sub/d.jsonl.gz", 5, "jsonl", True, source=1),
    ]
    units = cut(["b.json"])
    os.utime("b.json", ns=(1, 1))  # it may have been written again, with as many bytes
    assert cut(["b.json"])[0].name != units[0].name
    (tmp_path / "bare").mkdir()
    for pattern in ("nothing", "readme.md", "bare", "*.txt", "sub/*.parquet"):
        with pytest.raises(UsageError, match=r"^--decontaminate_source=.* matches no file"):
            match_documents(["a.jsonl", pattern], option="--decontaminate_source")


def test_a_path_that_exists_is_no_glob(tmp_path: Path) -> None:
    """`data[1]` is the name of a folder, and would be a pattern for `data1`."""
    for name in ("data[1]/deep/a.jsonl", "data[1]/b[2].jsonl", "data1/a.jsonl", "data1/b2.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")

    def names(pattern: str) -> list[str]:
        paths = [Path(file.path) for file in match_documents([f"{tmp_path}/{pattern}"])]
        return [str(path.relative_to(tmp_path)) for path in paths]

    assert names("data[1]") == names("data[1]/") == ["data[1]/b[2].jsonl", "data[1]/deep/a.jsonl"]
    assert names("data[1]/b[2].jsonl") == ["data[1]/b[2].jsonl"]
    assert names("data[1]/a.jsonl") == ["data1/a.jsonl"]
    assert names("data[12]/a.jsonl") == ["data1/a.jsonl"]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    for path in (folder / "sub/a.jsonl", elsewhere / "b.jsonl", elsewhere / "deep/c.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    (folder / "link").symlink_to(elsewhere)
    (folder / "sub/up").symlink_to(folder)
    (folder / "sub/here").symlink_to(".")
    (elsewhere / "deep/back").symlink_to(folder)
    expected = ["link/b.jsonl", "link/deep/c.jsonl", "sub/a.jsonl"]
    for pattern in (folder, f"{folder}/**", f"{folder}/**/*.jsonl"):
        found = [file.path for file in match_documents([str(pattern)])]
        assert found == [f"{folder}/{name}" for name in expected]
    assert [file.path for file in match_documents([f"{folder}/*/*.jsonl"])] == [
        f"{folder}/link/b.jsonl",
        f"{folder}/sub/a.jsonl",
    ]


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.jsonl", "sub/b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    scandir = os.scandir

    def refusing(path: str):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UsageError, match=rf"--input_path={tmp_path}: Permission denied"):
        match_documents([str(tmp_path)])
    assert len(match_documents([f"{tmp_path}/*.jsonl"])) == 1  # nothing below is asked for


def test_units_are_named_by_what_they_are(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(LINES)
    pq.write_table(pa.table({"text": ["a"] * 10}), tmp_path / "c.parquet", row_group_size=3)
    units = cut([str(tmp_path)], unit_bytes=100_000)
    assert units == cut([str(tmp_path)], unit_bytes=100_000)
    assert units == sorted(units, key=lambda unit: (unit.path, unit.start))
    assert len({unit.name for unit in units}) == len(units) > 10
    assert units[0].name == units[0]._replace(first_row=7).name
    for change in (
        {"path": "/x"},
        {"num_bytes": 1},
        {"start": 1},
        {"end": 1},
        {"row_groups": (1,)},
    ):
        assert units[0]._replace(**change).name != units[0].name
    groups = cut([str(tmp_path / "c.parquet")], unit_bytes=1)
    assert [(unit.row_groups, unit.first_row) for unit in groups] == [
        ((0,), 0), ((1,), 3), ((2,), 6), ((3,), 9),
    ]  # fmt: skip


def test_objects_are_read_like_files(gcs: Gcs, tmp_path: Path) -> None:
    for compression, compress in COMPRESSIONS.items():
        (tmp_path / f"x.jsonl{compression}").write_bytes(compress(LINES))
    pq.write_table(pa.table({"text": [f"{row}" for row in range(100)]}), tmp_path / "x.parquet")
    (tmp_path / "_SUCCESS").touch()
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, f"{bucket}/train")
    local, remote = match_documents([str(tmp_path)]), match_documents([f"{bucket}/train"])
    assert [file.path for file in remote] == [
        f"{bucket}/train/{Path(file.path).name}" for file in local
    ]
    assert match_documents([f"{bucket}/**/*.parquet"]) == remote[-1:]
    gcs.upload(tmp_path, f"{bucket}/data[1]")
    beside = match_documents([f"{bucket}/data[1]"])
    assert [file.path for file in beside] == [
        file.path.replace("/train/", "/data[1]/") for file in remote
    ]
    assert match_documents([beside[0].path]) == beside[:1]
    for here, there in zip(local, remote, strict=True):
        assert seen(here.path) == seen(there.path, unit_bytes=200_000)
    with pytest.raises(UsageError, match="matches no file"):
        match_documents([f"{bucket}/test"])
    (unit,) = cut_into_work_units(remote[-1])
    gone = unit._replace(path=f"{bucket}/train/gone.jsonl", format="jsonl")
    with pytest.raises(ProbelineError, match="it was changed or removed while the job ran"):
        list(read_work_unit(gone))
    with pytest.raises(ProbelineError, match="no such object"):
        list(read_work_unit(gone._replace(version=0)))
