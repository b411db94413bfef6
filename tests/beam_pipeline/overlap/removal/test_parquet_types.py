"""Parquet of any Arrow type that can be read is written with the same types, values and layout."""

import datetime
import decimal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.batch import decode
from beam_pipeline.documents.fields import Fields
from beam_pipeline.overlap.removal.cutting import piece_id
from beam_pipeline.overlap.removal.rewriting import rewrite_parquet
from beam_pipeline.storage.matching import match
from tests.support.properties import num_examples
from tests.support.removal_corpus import Planned

_DAY = datetime.date(2026, 1, 2)
_TIME = datetime.datetime(2026, 1, 2, 3, 4, 5)
_CLOCK = datetime.time(3, 4, 5)
_NUMBER = decimal.Decimal("1.25")
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
_LEAVES: list[tuple[pa.DataType, Any]] = [
    *((dtype, "x") for dtype in TEXT_TYPES),
    *((dtype, b"x") for dtype in (*BINARY_TYPES, pa.binary(1))),
    *((dtype, 7) for dtype in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((dtype, 7) for dtype in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((dtype, 0.5) for dtype in (pa.float16(), pa.float32(), pa.float64())),
    *((pa.timestamp(unit), _TIME) for unit in ("s", "ms", "us", "ns")),
    *((pa.duration(unit), datetime.timedelta(1)) for unit in ("s", "ms", "us", "ns")),
    *((dtype, _CLOCK) for dtype in (pa.time32("s"), pa.time32("ms"), pa.time64("us"))),
    *((dtype, _NUMBER) for dtype in (pa.decimal32(5, 2), pa.decimal64(9, 2))),
    *((dtype, _NUMBER) for dtype in (pa.decimal128(20, 2), pa.decimal256(50, 2))),
    *((pa.date32(), _DAY), (pa.date64(), _DAY), (pa.bool_(), True), (pa.null(), None)),
    *((pa.timestamp("us", "Europe/Berlin"), _TIME), (pa.dictionary(pa.int8(), pa.string()), "x")),
]
_EXTENSIONS = [  # Arrow cannot make nested ones of Python's values
    (pa.uuid(), uuid.UUID(int=5).bytes),
    (pa.json_(), "[1]"),
    (pa.opaque(pa.string_view(), "type", "vendor"), "x"),
]


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
    return st.one_of(
        st.tuples(st.sampled_from(lists), inner).map(
            lambda pair: (pair[0](pair[1][0]), [pair[1][1], None])
        ),
        inner.map(lambda pair: (pa.struct([("u", pair[0]), ("v", pa.int8())]), {"u": pair[1]})),
        inner.map(lambda pair: (pa.map_(pa.string(), pair[0]), [("k", pair[1])])),
    )


_TYPES = st.recursive(st.sampled_from(_LEAVES), _nested, max_leaves=2)
_TYPES |= st.sampled_from(_EXTENSIONS)


def _column(dtype: pa.DataType, value: Any, num_rows: int) -> pa.Array:
    values = [None if row % 3 == 1 else value for row in range(num_rows)]
    if isinstance(dtype, pa.BaseExtensionType):
        storage = pa.array(values, dtype.storage_type)
        return pa.ExtensionArray.from_storage(dtype, storage)
    return pa.array(values, dtype)


def rows_of(file: pq.ParquetFile) -> list[dict[str, Any]]:
    """Returns all rows, with texts as Python strings; Arrow reads some types only by row group."""
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    return [
        {**row, "text": decode(text)}
        for group in groups
        for row, text in zip(
            group.drop_columns(["text"]).to_pylist(),
            group.column("text").cast(pa.large_binary()).to_pylist(),
            strict=True,
        )
    ]


def _readable(table: pa.Table, path: Path, row_group_size: int, codecs: Any) -> bool:
    """Writes a table; returns whether Arrow can write it and read it again."""
    try:
        pq.write_table(table, path, row_group_size=row_group_size, compression=codecs)
        rows_of(pq.ParquetFile(path))
    except (pa.ArrowException, OSError):
        return False
    return True


def codecs_of(file: pq.ParquetFile) -> list[str]:
    group = file.metadata.row_group(0)
    return [group.column(number).compression for number in range(group.num_columns)]


@given(
    st.lists(_TYPES, max_size=3),
    st.sampled_from([*TEXT_TYPES, *BINARY_TYPES, pa.dictionary(pa.int32(), pa.string())]),
    st.sampled_from([*TEXT_TYPES, pa.int64(), pa.uint64(), pa.int32(), pa.float64()]),
    st.sampled_from(["id", "id.id", "other"]),
    st.dictionaries(st.integers(0, 9), st.sampled_from([None, [], ["n"], ["n", "é\ud800"]])),
    st.integers(1, 10),
    st.sampled_from(["gzip", "brotli", {"text": "lz4"}, {"text": "none", "id": "zstd"}]),
)
@settings(max_examples=num_examples(2000, 100))
def test_any_type_is_rewritten(
    tmp_path_factory: pytest.TempPathFactory,
    others: list[tuple[pa.DataType, Any]],
    text_type: pa.DataType,
    id_type: pa.DataType,
    id_name: str,
    texts: dict[int, Any],
    row_group_size: int,
    codecs: Any,
) -> None:
    folder = tmp_path_factory.mktemp("types")
    num_rows = 10
    ids = pa.array(range(num_rows), pa.int64()).cast(pa.string())
    ids = ids.cast(id_type) if id_type in TEXT_TYPES else pa.array(range(num_rows), id_type)
    columns: dict[str, Any] = {"text": pa.array(["old"] * num_rows).cast(text_type), "id": ids}
    if is_nested := id_name == "id.id":
        columns["id"] = pa.StructArray.from_arrays([ids, ids], ["id", "x"])
    for number, (dtype, value) in enumerate(others):
        columns[f"c{number}"] = _column(dtype, value, num_rows)
    table = pa.table(columns).replace_schema_metadata({"mine": "kept"})
    if not _readable(table, folder / "old.parquet", row_group_size, codecs):
        return  # nothing to scan
    source = pq.ParquetFile(folder / "old.parquet")
    expected = []
    for row, record in enumerate(rows_of(source)):
        new = texts.get(row)
        for at, text in enumerate(new or ()):
            value = record["id"]["id"] if is_nested else record["id"]
            has_id = id_name != "other" and id_type in (*TEXT_TYPES, pa.int64(), pa.uint64())
            named = piece_id(value, at, text) if has_id else value
            own = {**record["id"], "id": named} if is_nested else named
            expected.append({**record, "id": own, "text": text})
        if new is None:
            expected.append(record)
    planned: Any = Planned(texts, is_split=True)
    target = folder / "new.parquet"
    with target.open("wb") as stream:
        (file,) = match(str(folder / "old.parquet"))
        fields = Fields(id=id_name)
        assert rewrite_parquet(file, stream, planned, fields) == num_rows
    found = pq.ParquetFile(target)
    assert found.schema_arrow.equals(source.schema_arrow, check_metadata=True)
    assert found.num_row_groups == source.num_row_groups
    assert codecs_of(found) == codecs_of(source)
    assert repr(rows_of(found)) == repr(expected)
