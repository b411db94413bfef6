"""Documents in Parquet: rows are those that Python reads, and files that cannot be read."""

import datetime
import decimal
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents import reading
from beam_pipeline.documents.fields import Fields, document_id, training_fields
from beam_pipeline.documents.files import match_documents
from beam_pipeline.documents.reading import read_texts
from beam_pipeline.errors import ProbelineError
from tests.support.documents_read import cut, cuts, plainly, seen
from tests.support.properties import num_examples

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
        patch.setattr(reading, "_MAX_BATCH_RECORDS", batch_rows)
        path = Path(folder) / "x.parquet"
        pq.write_table(table, path, row_group_size=row_group)
        assert seen(path, unit_bytes) == expected


def test_parquet_strings_that_are_no_utf8_are_dead_letters(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff", None, b"\xed\xa0\x80", b"b\xc3"], pa.binary())
    _, bounds, data = raw.buffers()
    column = pa.StringArray.from_buffers(5, bounds, data, raw.buffers()[0])
    nested = pa.StructArray.from_arrays([raw.cast(pa.binary_view())], ["text"])
    columns = {"text": column, "raw": raw, "data": nested, "id": list("vwxyz")}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    for field in ("text", "raw", "data.text"):
        found = seen(tmp_path / "x.parquet", **training_fields(field, "id")._asdict())
        assert found.texts == {0: ("a", "v"), 3: ("\ud800", "y")}
        values = ("", "") if field == "data.text" else ("\\xff", "b\\xc3")
        assert found.letters == dict(zip((1, 4), (("utf8_invalid", each) for each in values)))
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


def test_a_parquet_file_without_such_texts_is_read_as_json_is(tmp_path: Path) -> None:
    """Without the field or of type null, it has no texts; other values are dead letters."""
    path, lines = tmp_path / "x.parquet", tmp_path / "x.jsonl"
    rows = [{"content": "a", "number": 1, "none": None, "list": ["b"]}, {"content": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for field in ("missing", "none", "content", "number", "list", "content.x"):
        found, expected = seen(path, text=field), seen(lines, text=field)
        assert found._replace(letters={}) == expected._replace(letters={})
        reasons = {row: reason for row, (reason, _) in found.letters.items()}
        assert reasons == {row: reason for row, (reason, _) in expected.letters.items()}
    assert seen(path, text="number").letters == {0: ("text_not_a_string", "1")}
    assert seen(path, text="content", id="number").texts == {0: ("a", "1")}
    assert seen(path, text="content", id="content").texts == {0: ("a", "a")}
    pq.write_table(pa.table([["a"], ["b"]], ["text", "text"]), path)
    with pytest.raises(ProbelineError, match="has 2 columns named 'text'; it must be one"):
        seen(path)


def test_dates_beyond_those_of_python_have_a_place_in_an_id(tmp_path: Path) -> None:
    late = {"day": pa.array([2**31 - 1], pa.date32()), "at": pa.array([2**62], pa.timestamp("us"))}
    pq.write_table(pa.table({"text": ["a"], **late}), tmp_path / "x.parquet")
    (unit,) = cut([str(tmp_path)])
    (batch,) = read_texts(unit, Fields(hash_ids=True))
    assert batch.ids == [document_id({"text": "a", "day": 2**31 - 1, "at": 2**62})]


def test_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000, "b" * 1000] * 50}), path, use_dictionary=False)
    (unit,) = cut([str(path)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    (file,) = match_documents([str(path)])
    unit = unit._replace(file=file, end=file.num_bytes)
    for reader in (lambda: cut([str(path)]), lambda: list(read_texts(unit))):
        with pytest.raises(ProbelineError, match=rf"^cannot read {path} \(row 0\): [^\n]+$"):
            reader()
