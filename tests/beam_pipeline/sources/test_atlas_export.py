"""RIPE Atlas results as daily dumps and as a BigQuery export give the same dataset.

The export has the forms that Parquet has for a list of structs. Every dataset must have the same
bytes and hold the results.
"""

import bz2
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources import atlas
from beam_pipeline.sources.options import AtlasSource
from tests.support import documents
from tests.support.atlas_results import BIGQUERY_SCHEMA, PING_TYPE, good, read_one, rows_of
from tests.support.job_runs import files_of, make_dataset

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


# --- dumps and exports ----------------------------------------------------------------------------


def write_dumps(folder: Path, results: list[dict[str, Any]], hours: int = 3) -> Path:
    """Writes a file per hour, as the daily dumps do."""
    folder.mkdir(parents=True)
    for hour, part in enumerate(np.array_split(np.arange(len(results)), hours)):
        lines = "".join(json.dumps(results[i]) + "\n" for i in part)
        (folder / f"ping-{DAY}T{hour:02}00.bz2").write_bytes(bz2.compress(lines.encode()))
    return folder / "ping-*.bz2"


_NEEDED = ("dst_addr", "af", "pings")


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


@pytest.mark.parametrize(
    "layout",
    [
        Layout(nullable=False, compression="zstd"),
        Layout("item", True, "snappy", 7, ("start_time", "synth_addr", "src_addr", *_NEEDED)),
    ],
    ids=["required", "item-few-columns"],
)
def test_an_export_is_the_same_as_the_dumps(
    of_dumps: tuple[str, Path], tmp_path: Path, layout: Layout
) -> None:
    source, dumps = of_dumps
    assert {reason for _, reason in letters_of(dumps)} >= {"no_results", "rtt_null"}
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


# --- rows and schemas of an export ----------------------------------------------------------------


OK, DUP = {"timeout": False, "error": False, "rtt": 12.5}, {"rtt": 1635.5, "dup": 1}
ERROR = {"timeout": False, "error": True, "error_message": "sendto failed", "rtt": 3.0}
ODD_PINGS = [[OK], None, [ERROR], [], [{"rtt": None}, None, {"rtt": float("nan")}], [OK, DUP]]


def with_type(name: str, dtype: pa.DataType | None) -> pa.Schema:
    index = BIGQUERY_SCHEMA.get_field_index(name)
    schema = BIGQUERY_SCHEMA.remove(index)
    return schema.insert(index, pa.field(name, dtype)) if dtype is not None else schema


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_pings_that_no_dump_can_have(list_of) -> None:
    """Nulls in place of lists, pings and RTTs, in a part of a batch."""
    row = {"af": 4, "dst_addr": "193.0.14.1", "synth_addr": "80.56.151.1", "start_time": 10**15}
    rows = [{**row, "prb_id": number, "pings": each} for number, each in enumerate(ODD_PINGS)]
    schema = with_type("pings", list_of(PING_TYPE))
    batch = pa.RecordBatch.from_pylist(rows, schema).slice(1)
    found = atlas.explode_bigquery(batch, "from")
    assert [str(rtt) for *_, rtt in rows_of(found.batch)] == [
        *("-1.0", "None", "None", "nan", "12.5", "1635.5")
    ]
    assert found.rows.tolist() == [1, 3, 3, 3, 4, 4] and found.next_row == 5
    assert found.bad_rows == [(0, "no_results", ""), (2, "no_results", "")]


def test_an_export_is_recognised_by_its_pings() -> None:
    assert atlas.is_bigquery_export(with_type("pings", pa.large_list(PING_TYPE)))
    assert not atlas.is_bigquery_export(with_type("pings", pa.int64()))
    assert not atlas.is_bigquery_export(read_one(good()).batch.schema)


@pytest.mark.parametrize(
    ("name", "dtype", "problem"),
    [
        ("start_time", pa.string(), "column 'start_time' of type string, .* a timestamp"),
        (
            "pings",
            pa.list_(pa.struct(list(PING_TYPE)[1:])),
            "which must have one field 'timeout'",
        ),
        ("pings", None, "export start_time, synth_addr, dst_addr, af and pings of the table"),
    ],
)
def test_schema_problem(name: str, dtype: pa.DataType | None, problem: str) -> None:
    found = atlas.bigquery_schema_problem(with_type(name, dtype), "from")
    assert found is not None and "\n" not in found and re.search(problem, found)
