"""RIPE Atlas results as daily dumps and as a BigQuery export give the same dataset.

The export has the forms that Parquet has for a list of structs. Every dataset must have the same
bytes and hold the results.
"""

import bz2
import ipaddress
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources import atlas
from beam_pipeline.sources.options import COLUMNS, AtlasSource
from beam_pipeline.sources.tables import TableBatch
from tests.support import documents
from tests.support.atlas_results import BIGQUERY_SCHEMA, PING_TYPE, good, read_one, rows_of
from tests.support.helpers import as_number
from tests.support.job_runs import files_of, history, make_dataset, read_rows

DAY, START = "2026-11-01", 1_793_491_200  # its first second
PINGS: list[dict[str, Any]] = [
    {"rtt": 12.25, "ttl": 51},
    {"rtt": 7},
    {"rtt": 1635.5, "ttl": 51, "dup": 1},
    {"rtt": 3.5, "srcaddr": "198.51.100.9"},
    {"x": "*"},
    {"error": "sendto failed: Network is unreachable"},
    {"error": "Destination host unreachable", "rtt": 9.5},
]
SENT_ONLY = {"late": 1, "ttl": 60}  # neither an RTT nor a failure


def make_results(num_results: int) -> list[dict[str, Any]]:
    """Returns results of both families as RIPE Atlas has them, some of which cannot be used."""
    rng = np.random.default_rng(6)
    results = []
    for number in range(num_results):
        probe, target, is_ipv6 = rng.integers(1, 9), rng.integers(1, 4), rng.random() < 0.4
        result: dict[str, Any] = {
            "fw": 5080,
            "type": "ping",
            "msm_id": 1001,
            "prb_id": int(probe),
            "timestamp": START + int(rng.integers(0, 40)),
            "af": 6 if is_ipv6 else 4,
            "from": f"2001:db8::{probe}" if is_ipv6 else f"192.0.2.{probe}",
            "src_addr": f"2001:db8::{probe}" if is_ipv6 else f"192.168.1.{probe % 3}",
            "dst_addr": f"2001:DB8:1::{target}" if is_ipv6 else f"198.51.100.{target}",
            "result": [PINGS[i] for i in rng.integers(0, len(PINGS), rng.integers(1, 6))],
        }
        if number % 10 == 3:
            result["result"] = []
        elif number % 10 == 5:
            result["result"] = [PINGS[0], SENT_ONLY]
        elif number % 10 == 7:
            del result[("from", "dst_addr", "timestamp")[number // 10 % 3]]
        results.append(result)
    return [*results, *results[:10]]  # the same results once more


RESULTS = make_results(120)


def expected(results: list[dict[str, Any]], source: str) -> tuple[dict, Counter]:
    """Returns each probe's measurements, and how many dead letters have each (result, reason)."""
    probes, letters = defaultdict(list), Counter()
    needed = {"timestamp": "event_time", source: "src_addr", "dst_addr": "dst_addr"}
    for number, result in enumerate(results):
        missing = [f"{column}_null" for name, column in needed.items() if name not in result]
        if not result["result"]:
            letters[number, "no_results"] += 1
        for entry in result["result"]:
            if missing or entry is SENT_ONLY:
                letters[number, missing[0] if missing else "rtt_null"] += 1
                continue
            rtt = -1.0 if "x" in entry or "error" in entry else float(entry["rtt"])
            measurement = (result["timestamp"] * 1_000_000, as_number(result["dst_addr"]), rtt)
            probes[str(ipaddress.ip_address(result[source]))].append(measurement)
    return {probe: sorted(found) for probe, found in probes.items()}, letters


# --- dumps and exports ----------------------------------------------------------------------------


def write_dumps(folder: Path, results: list[dict[str, Any]], hours: int = 3) -> Path:
    """Writes a file per hour, as the daily dumps do."""
    folder.mkdir(parents=True)
    for hour, part in enumerate(np.array_split(np.arange(len(results)), hours)):
        lines = "".join(json.dumps(results[i]) + "\n" for i in part)
        (folder / f"ping-{DAY}T{hour:02}00.bz2").write_bytes(bz2.compress(lines.encode()))
    return folder / "ping-*.bz2"


class Layout(NamedTuple):
    """What may differ between two Parquet files with the same rows."""

    level: str = "element"  # the name of what is between a list and its fields
    nullable: bool = True
    compression: str = "snappy"
    row_group_size: int = 1000
    columns: tuple[str, ...] = ()  # all of the table's, unless some are named


def export_schema(layout: Layout) -> pa.Schema:
    element = pa.field(layout.level, PING_TYPE, nullable=layout.nullable)
    pings = pa.field("pings", pa.list_(element), nullable=layout.nullable)
    schema = BIGQUERY_SCHEMA.set(BIGQUERY_SCHEMA.get_field_index("pings"), pings)
    return pa.schema([schema.field(name) for name in layout.columns or schema.names])


def as_export_row(number: int, result: dict[str, Any], layout: Layout) -> dict[str, Any]:
    pings = [
        {
            **{name: entry.get(name) for name in ("rtt", "ttl", "dup")},
            "timeout": "x" in entry,
            "error": "error" in entry if number % 2 else ("error" in entry or None),
            "error_message": entry.get("error"),
            "reply_src_addr": entry.get("srcaddr"),
        }
        for entry in result["result"]
    ]
    time = result.get("timestamp")
    return {
        **{name: result.get(name) for name in ("af", "prb_id", "msm_id", "src_addr", "dst_addr")},
        "synth_addr": result.get("from"),
        "start_time": None if time is None else time * 1_000_000,
        "packets_sent": len(pings),
        "pings": None if not pings and layout.nullable and number % 20 == 3 else pings,
    }


def write_export(
    folder: Path, results: list[dict[str, Any]], layout: Layout | None = None, num_files: int = 4
) -> Path:
    """Writes files as EXPORT DATA names them."""
    folder.mkdir(parents=True)
    layout = layout or Layout()
    rows = [as_export_row(number, result, layout) for number, result in enumerate(results)]
    for file, part in enumerate(np.array_split(np.arange(len(rows)), num_files)):
        pq.write_table(
            pa.Table.from_pylist([rows[i] for i in part], export_schema(layout)),
            folder / f"ping-{file:012}.parquet",
            compression=layout.compression,
            row_group_size=layout.row_group_size,
            use_compliant_nested_type=layout.level == "element",
            store_schema=False,  # only Arrow's own writers leave one in the file
        )
    return folder / "ping-*.parquet"


def letters_of(dataset: Path) -> Counter:
    """Returns how many dead letters have each (result, reason), whatever the files."""
    letters = pq.read_table(dataset / "dead_letter").to_pylist()
    first_rows, num_rows = {}, 0
    for path in sorted({letter["file"] for letter in letters}):
        first_rows[path] = num_rows
        if path.endswith(".parquet"):
            num_rows += pq.read_metadata(path).num_rows
        else:
            num_rows += bz2.decompress(Path(path).read_bytes()).count(b"\n")
    return Counter(
        (first_rows[letter["file"]] + letter["row"], letter["reason"]) for letter in letters
    )


@pytest.fixture(scope="module", params=["from", "src_addr"])
def of_dumps(request, tmp_path_factory) -> tuple[str, Path]:
    """A source and the dataset of the daily dumps with it."""
    folder = tmp_path_factory.mktemp("dumps")
    dumps = write_dumps(folder / "in", RESULTS)
    return request.param, make_dataset(dumps, folder / "out", f"--atlas_source={request.param}")


def test_daily_dumps(of_dumps: tuple[str, Path]) -> None:
    source, dataset = of_dumps
    probes, letters = expected(RESULTS, source)
    assert history(read_rows(dataset)) == probes
    assert letters_of(dataset) == letters
    reasons = {reason for _, reason in letters}
    assert reasons >= {"no_results", "rtt_null", "dst_addr_null", "event_time_null"}
    assert any(":" in probe for probe in probes) and any("." in probe for probe in probes)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(nullable=False, compression="zstd"),
        Layout(level="item", row_group_size=7),
        Layout(columns=("start_time", "synth_addr", "src_addr", "dst_addr", "af", "pings")),
    ],
    ids=["element", "required", "item", "few-columns"],
)
def test_an_export_is_the_same_as_the_dumps(
    of_dumps: tuple[str, Path], tmp_path: Path, layout: Layout
) -> None:
    source, dumps = of_dumps
    export = write_export(tmp_path / "in", RESULTS, layout)
    dataset = make_dataset(export, tmp_path / "out", f"--atlas_source={source}")
    assert files_of(dataset) == files_of(dumps)
    assert letters_of(dataset) == letters_of(dumps)


# --- docs/ripe_atlas.md ---------------------------------------------------------------------------


def selected(statement: str) -> set[str]:
    """Returns the columns that a statement selects; fields of an array as `array.field`."""
    match = re.search(r"^SELECT\n(.*?)\nFROM", statement, re.DOTALL | re.MULTILINE)
    assert match
    names = set()
    for item in match[1].split(",\n"):
        fields = re.fullmatch(
            r"ARRAY\(SELECT AS STRUCT (.*) FROM UNNEST\((\w+)\)\) AS \2", item.strip()
        )
        names |= {f"{fields[2]}.{f}" for f in fields[1].split(", ")} if fields else {item.strip()}
    return names


@pytest.mark.parametrize("source", ["from", "src_addr"])
def test_the_documented_export_has_the_columns_of_the_job(
    source: AtlasSource, tmp_path: Path
) -> None:
    (statement,) = (
        b.text for b in documents.blocks("docs/ripe_atlas.md") if b.text.startswith("EXPORT DATA")
    )
    if source == "src_addr":
        statement = statement.replace("synth_addr", "src_addr")
    write_export(tmp_path / "in", RESULTS)
    schema = pq.ParquetFile(tmp_path / "in" / "ping-000000000000.parquet").schema
    read = {path.replace(".list.element.", ".") for path in atlas.bigquery_columns(schema, source)}
    assert selected(statement) == read


# --- rows of packets are exploded into measurements -----------------------------------------------


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
    exploded: TableBatch[pa.RecordBatch], first: int, last: int, source: AtlasSource = "from"
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
    batch = exploded.batch
    assert tuple(batch.schema.names) == COLUMNS
    times = batch.column("event_time").cast(pa.int64())
    batch = batch.set_column(0, "event_time", times)
    actual = [(*row, "nan" if rtt != rtt else rtt) for *row, rtt in rows_of(batch)]
    assert actual == expected
    assert exploded.rows.tolist() == parents
    assert exploded.bad_rows == [(row, "no_results", "") for row in empty]
    assert exploded.next_row == last - first


class TestBigQuery:
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
            assert exploded.batch.schema.field("src_addr").type == text
            assert exploded.batch.schema.field("dst_addr").type == text
            assert exploded.batch.schema.field("ip_version").type == pa.int8()
        file = bigquery_file(schema)
        assert atlas.bigquery_schema_problem(file.schema_arrow, "from") is None

    def test_is_bigquery_export(self) -> None:
        assert atlas.is_bigquery_export(BIGQUERY_SCHEMA)
        assert atlas.is_bigquery_export(pa.schema([("pings", pa.large_list(PING_TYPE))]))
        assert not atlas.is_bigquery_export(pa.schema([("pings", pa.int64())]))
        assert not atlas.is_bigquery_export(read_one(good()).batch.schema)

    @pytest.mark.parametrize(
        ("name", "dtype", "problem"),
        [
            ("start_time", pa.string(), "column 'start_time' of type string, .* a timestamp"),
            ("synth_addr", pa.binary(), "column 'synth_addr' of type binary, .* a string"),
            ("pings", pa.list_(pa.float64()), "type list<item: double>, .* a list of structs"),
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
