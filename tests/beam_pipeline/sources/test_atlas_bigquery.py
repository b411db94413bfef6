"""RIPE Atlas in BigQuery: rows of packets are exploded into measurements."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import COLUMNS, AtlasSource
from tests.support.atlas_results import BIGQUERY_SCHEMA, PING_TYPE, good, read_one, rows_of

OK, DUP = {"timeout": False, "error": False, "rtt": 12.5}, {"rtt": 1635.5, "dup": 1}
TIMEOUT = {"timeout": True, "rtt": None}
ERROR = {"timeout": False, "error": True, "error_message": "sendto failed", "rtt": 3.0}
ALL_PINGS: list[list[dict | None] | None] = [
    [OK, TIMEOUT],
    None,
    [ERROR],
    [],
    [{"rtt": None}, None, {"rtt": float("nan")}],
    [OK, DUP, OK],
]
EXPECTED_RTTS = [[12.5, -1.0], [], [-1.0], [], [None, None, "nan"], [12.5, 1635.5, 12.5]]


def bigquery_row(number: int, pings: list[dict | None] | None) -> dict[str, Any]:
    return {
        "af": 4,
        "prb_id": number,
        "src_addr": f"192.168.0.{number % 3}",
        "dst_addr": f"193.0.14.{number}" if number != 2 else None,
        "synth_addr": f"80.56.151.{number % 2}",
        "start_time": 1_700_000_000_000_000 + number,
        "pings": pings,
    }


ROWS = [bigquery_row(number, pings) for number, pings in enumerate(ALL_PINGS)]


def bigquery_file(schema: pa.Schema = BIGQUERY_SCHEMA) -> pq.ParquetFile:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS, schema), sink)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def read_bigquery(
    source: AtlasSource = "from", **options: Any
) -> tuple[pa.RecordBatch, pq.ParquetFile]:
    file = bigquery_file()
    columns = atlas.bigquery_columns(file.schema, source)
    return next(file.iter_batches(columns=columns, **options)), file


def check_exploded(
    exploded: atlas.Exploded, first: int, last: int, source: AtlasSource = "from"
) -> None:
    """Compares with what rows `first` to `last` of ROWS hold."""
    src_name = "synth_addr" if source == "from" else "src_addr"
    expected, parents, empty = [], [], []
    for number in range(first, last):
        row, rtts = ROWS[number], EXPECTED_RTTS[number]
        if not rtts:
            empty.append(number - first)
        parents += [number - first] * len(rtts)
        expected += [
            (row["start_time"], row[src_name], row["dst_addr"], row["af"], rtt) for rtt in rtts
        ]
    batch = exploded.measurements
    assert tuple(batch.schema.names) == COLUMNS
    times = batch.column("event_time").cast(pa.int64())
    batch = batch.set_column(0, "event_time", times)
    actual = [(*row, "nan" if rtt != rtt else rtt) for *row, rtt in rows_of(batch)]
    assert actual == expected
    assert exploded.rows.tolist() == parents
    assert exploded.empty_rows.tolist() == empty
    assert exploded.rows.dtype == exploded.empty_rows.dtype == np.int64


class TestBigQuery:
    def test_check(self) -> None:
        batch, _ = read_bigquery()
        exploded = atlas.explode_bigquery(batch, "from")
        block, faults = measurements.check(exploded.measurements)
        assert block.rtt.tolist() == [12.5, -1.0, 12.5, 1635.5, 12.5]
        assert block.event_time[0] == 1_700_000_000_000_000
        assert list(zip(exploded.rows[faults.rows], faults.reasons, strict=True)) == [
            (2, "dst_addr_null"),
            (4, "rtt_null"),
            (4, "rtt_null"),
            (4, "rtt_not_finite"),
        ]

    @pytest.mark.parametrize("first", range(len(ROWS)))
    def test_slices(self, first: int) -> None:
        for batch in (
            read_bigquery()[0],
            read_bigquery(use_threads=False)[0],
            pa.RecordBatch.from_pylist(ROWS, BIGQUERY_SCHEMA),
        ):
            for last in range(first, len(ROWS) + 1):
                part = batch.slice(first, last - first)
                check_exploded(atlas.explode_bigquery(part, "from"), first, last)
                inner = batch.slice(first).slice(0, last - first)
                check_exploded(atlas.explode_bigquery(inner, "from"), first, last)

    def test_large_lists_and_dictionaries(self) -> None:
        text = pa.dictionary(pa.int32(), pa.string())
        schema = BIGQUERY_SCHEMA
        for name, dtype in (
            ("pings", pa.large_list(PING_TYPE)),
            ("synth_addr", text),
            ("dst_addr", text),
            ("af", pa.int8()),
            ("start_time", pa.timestamp("us")),
        ):
            schema = schema.set(schema.get_field_index(name), pa.field(name, dtype))
        batch = pa.RecordBatch.from_pylist(ROWS, schema)
        for first in range(len(ROWS)):
            exploded = atlas.explode_bigquery(batch.slice(first), "from")
            check_exploded(exploded, first, len(ROWS))
            assert exploded.measurements.schema.field("src_addr").type == text
            assert exploded.measurements.schema.field("dst_addr").type == text
            assert exploded.measurements.schema.field("ip_version").type == pa.int8()
        file = bigquery_file(schema)
        assert atlas.bigquery_schema_problem(file.schema_arrow, "from") is None

    @pytest.mark.parametrize("compliant", [True, False])
    def test_columns(self, compliant: bool) -> None:
        """Whatever the writer calls the level between a list and its entries."""
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(ROWS, BIGQUERY_SCHEMA)
        if not compliant:
            pings = table.column("pings").cast(pa.list_(pa.field("item", PING_TYPE)))
            table = table.set_column(table.schema.get_field_index("pings"), "pings", pings)
        pq.write_table(table, sink, use_compliant_nested_type=compliant)
        file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
        level = "pings.list.element" if compliant else "pings.list.item"
        columns = atlas.bigquery_columns(file.schema, "src_addr")
        assert columns == [
            "af",
            "src_addr",
            "dst_addr",
            "start_time",
            *(f"{level}.{name}" for name in ("timeout", "error", "rtt")),
        ]
        batch = next(file.iter_batches(columns=columns))
        check_exploded(atlas.explode_bigquery(batch, "src_addr"), 0, len(ROWS), "src_addr")

    def test_is_bigquery_export(self) -> None:
        assert atlas.is_bigquery_export(BIGQUERY_SCHEMA)
        assert atlas.is_bigquery_export(pa.schema([("pings", pa.large_list(PING_TYPE))]))
        assert not atlas.is_bigquery_export(pa.schema([("pings", pa.int64())]))
        assert not atlas.is_bigquery_export(read_one(good()).measurements.schema)

    @pytest.mark.parametrize(
        ("name", "dtype", "problem"),
        [
            ("start_time", pa.string(), "column 'start_time' of type string, .* a timestamp"),
            ("synth_addr", pa.binary(), "column 'synth_addr' of type binary, .* a string"),
            ("af", pa.string(), "column 'af' of type string, .* an integer"),
            ("pings", pa.list_(pa.float64()), "type list<item: double>, .* a list of structs"),
            ("pings", PING_TYPE, "of type struct<.*>, which must be a list of structs"),
            (
                "pings",
                pa.list_(pa.struct(list(PING_TYPE)[1:])),
                "which must have one field 'timeout'",
            ),
            (
                "pings",
                pa.list_(pa.struct([*list(PING_TYPE)[:3], ("rtt", pa.string())])),
                "has field 'pings.rtt' of type string, which must be a floating-point number",
            ),
            ("synth_addr", None, "must have one column 'synth_addr' and has 0 .of af, prb_id"),
            ("pings", None, "export start_time, synth_addr, dst_addr, af and pings of the table"),
        ],
    )
    def test_schema_problem(self, name: str, dtype: pa.DataType | None, problem: str) -> None:
        index = BIGQUERY_SCHEMA.get_field_index(name)
        schema = BIGQUERY_SCHEMA.remove(index)
        if dtype is not None:
            schema = schema.insert(index, pa.field(name, dtype))
        found = atlas.bigquery_schema_problem(schema, "from")
        assert found is not None
        assert "\n" not in found
        assert re.search(problem, found)
