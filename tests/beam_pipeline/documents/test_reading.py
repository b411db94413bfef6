"""Documents of any format, cut anywhere, equal what a plain reader of the whole file sees."""

import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS, to_parquet
from beam_pipeline.documents import json as document_json
from beam_pipeline.documents.json_records import is_object, split_records
from beam_pipeline.documents.reading import read_texts
from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage import lines as line_reading
from tests.support.documents_read import BOM, COMPRESSIONS, LINES, cut, cuts, plainly, seen, texts
from tests.support.properties import num_examples

RECORDS_MADE_TO_DIFFER = [
    b"not json",
    b"[1]",
    b"null",
    b"{}",
    b'{"text": null, "id": 1}',
    b'{"text": 5}',
    b'{"text": "a", "text": "b", "id": 1, "id": 2}',
    b'{"text": 1, "text": "b"}',
    b'{"\\u0074ext": "escaped", "id": "\\u00e9"}',
    b'{"text": "a", "score": NaN, "id": -Infinity}',
    b'{"text": "a", "id": 1e400}',
    b'{"text": "a", "id": 18446744073709551616}',
    b'{"text": "a", "id": 0.1, "other": 1e999}',
    b'{"text": "a", "id": [18446744073709551616, -9223372036854775809, 0.1]}',
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
    b'{"text": "\x01"}',
    b'{"text": "", "text": null}',
    b'{"text": "a", "text": 7}',
    b'{"about": {"text": "within"}}',
    b'{"about": {"text": "within"}, "text": "own"}',
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


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'[{"text": "a"}, {"text": "b"', "does not end"),
        (b"[" + b" " * 100 + b"] x", "follows the end"),
    ],
)
def test_malformed_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, problem: str
) -> None:
    monkeypatch.setattr(line_reading, "BLOCK_BYTES", 16)
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ProbelineError, match=f"^cannot read {path} .*{problem}"):
        seen(path)


def test_record_over_the_limit_is_a_dead_letter(
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


def test_memory_of_a_file_without_line_ends() -> None:
    blocks = (b"x" * (1 << 20) for _ in range(64))
    num_bytes, found = 0, []
    tracemalloc.start()
    try:
        for records in split_records(blocks, False, 4 << 20):
            num_bytes += len(records.content)
            found += [len(record) for record in records.each()]
        assert (num_bytes, found) == (64 << 20, [(4 << 20) + 1])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_dead_letter_value_is_short(tmp_path: Path) -> None:
    bad = b'{"text": "\xed\xa0\x80\xff' + "é".encode() * 10_000
    (tmp_path / "x.jsonl").write_bytes(bad)
    (unit,) = cut([str(tmp_path)])
    (batch,) = read_texts(unit)
    assert len(batch.letters[0].value) == MAX_VALUE_CHARS
    assert batch.letters[0].value.startswith('{"text": "\\xed\\xa0\\x80\\xffé')
    assert pq.read_table(pa.BufferReader(to_parquet(batch.letters))).to_pylist() == [
        batch.letters[0]._asdict()
    ]


@given(
    st.lists(st.dictionaries(texts, texts | st.lists(st.integers()), min_size=1), min_size=2),
    st.sampled_from(["", "\n", " \r\n\n", "\x1e", "\n\x1e"]),
    st.sampled_from([None, 1]),
    cuts,
)
@example([{"\ud800": ""}, {"": ""}], "", None, 1)
@settings(max_examples=num_examples(200))
def test_objects_that_are_not_one_to_a_line(
    objects: list[dict[str, Any]], between: str, indent: int | None, size: int
) -> None:
    """Pretty-printed ones, or several in a line; every byte is in the records or between them."""
    if indent is None and "\n" in between:  # lines
        between = ""
    written = [json.dumps(each, indent=indent) for each in objects]
    data = (between + between.join(written)).encode() + b" \n"
    assume(any(is_object(text.encode()) for text in written[:2]))  # else lines: neither can be read
    first = len(between.join(["", *written[:2]])) + 2
    blocks = [data[:first], *(data[at : at + size] for at in range(first, len(data), size))]
    records = list(split_records(blocks, False, 1 << 20))
    assert b"".join(bytes(each.content) for each in records) == data
    found = [record for each in records for record in each.each()]
    assert [json.loads(record) for record in found] == objects


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("begin", [b'{"id": 1} {"id": 2}\n', b'{"id": !} {"id": 2}\n'])
def test_a_broken_object_of_a_sequence_takes_no_other_with_it(size: int, begin: bytes) -> None:
    good, first = b'{"id": 9, "text": "z"}', begin
    broken = [b'{"id": 1', b'{"id": "x', b'{"id": "x\\', b'{"id": [1, {"a": 2}', b'"x', b"x", b","]
    data = first + b"".join(each + b"\n" + good + b"\n" for each in broken)
    data += b'{"id": 1}}\n' + good + b'{"id": "\x1e' + good + b'{"id": "\\\t"}\n' + good
    blocks = [first, *(data[at : at + size] for at in range(len(first), len(data), size))]
    records = list(split_records(blocks, False, 1 << 20))
    assert b"".join(bytes(each.content) for each in records) == data
    found = [record.strip() for each in records for record in each.each()]
    ends = [b'{"id": 1}', b"}", good, b'{"id": "', good, b'{"id": "\\\t"}', good]
    assert found[2:] == [each for bad in broken for each in (bad, good)] + ends


def test_a_large_file_of_pretty_objects_is_one_work_unit(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n}"}, indent=1) for n in range(1000)))
    (unit,) = cut([str(path)], unit_bytes=1000)
    assert len(seen(path, unit_bytes=1000).texts) == unit.num_units * 1000
    path.write_text('{\n "text": "a"\n')
    with pytest.raises(ProbelineError, match=r"\(row 0\): the last JSON object does not end: the"):
        seen(path)


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_damaged_file(tmp_path: Path, compression: str) -> None:
    data = COMPRESSIONS[compression](LINES)
    path = tmp_path / f"x.jsonl{compression}"
    for damaged in (data[:-3], data[: len(data) // 2], data[:9], data + data[:5], data + b"junk"):
        path.write_bytes(damaged)
        with pytest.raises(ProbelineError, match=rf"^cannot read {path} \(row \d+\): [^\n]+$"):
            seen(path)
    if compression == ".gz":  # Zstandard has a checksum only if it is asked for
        middle = len(data) // 2
        path.write_bytes(data[:middle] + b"\xaa" * 20 + data[middle + 20 :])
        with pytest.raises(ProbelineError, match=rf"^cannot read {path}"):
            seen(path)
    path.write_bytes(data + data)
    assert seen(path).num_rows == 40_000
