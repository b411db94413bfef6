"""docs/ripe_atlas.md: its statements, its commands, and the same dataset from both sources.

The same results are written as daily dumps and as a BigQuery export, in the forms that Parquet has
for a list of structs. Every dataset must have the same bytes and hold the results.
"""

import bz2
import importlib
import ipaddress
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.probe_rows.options import make_parser, parse
from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import AtlasSource
from tests.support import documents
from tests.support.bigquery import BIGQUERY_SCHEMA, PING_TYPE
from tests.support.docs_commands import Desk
from tests.support.helpers import as_number
from tests.support.job_runs import files_of, history, make_dataset, read_rows
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "ripe_atlas.md").read_text()
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


def what_comes_of(results: list[dict[str, Any]], source: str) -> tuple[dict, Counter]:
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


# --- The two ways ---------------------------------------------------------------------------------


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
def of_dumps(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A source and the dataset of the daily dumps with it."""
    folder = tmp_path_factory.mktemp("dumps")
    dumps = write_dumps(folder / "in", RESULTS)
    return request.param, make_dataset(dumps, folder / "out", f"--atlas_source={request.param}")


def test_daily_dumps(of_dumps: tuple[str, Path]) -> None:
    source, dataset = of_dumps
    probes, letters = what_comes_of(RESULTS, source)
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
    flags = ("--input_format=atlas_bigquery", f"--atlas_source={source}")
    dataset = make_dataset(export, tmp_path / "out", *flags)
    assert files_of(dataset) == files_of(dumps)
    assert letters_of(dataset) == letters_of(dumps)


# --- The page -------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    """Returns the blocks of the page in a language."""
    found = [b.text for b in documents.blocks("docs/ripe_atlas.md") if b.language == language]
    assert found
    return found


def selected(statement: str) -> set[str]:
    """Returns what a statement of the page selects; fields of an array as `array.field`."""
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
def test_the_export_selects_what_the_job_reads(source: AtlasSource, tmp_path: Path) -> None:
    (statement,) = blocks("sql")
    if source == "src_addr":
        assert "write `src_addr` instead of `synth_addr`" in PAGE
        statement = statement.replace("synth_addr", "src_addr")
    write_export(tmp_path / "in", RESULTS)
    schema = pq.ParquetFile(tmp_path / "in" / "ping-000000000000.parquet").schema
    read = {path.replace(".list.element.", ".") for path in atlas.bigquery_columns(schema, source)}
    assert selected(statement) == read


def test_shell_blocks_are_bash() -> None:
    for block in blocks("sh"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)


def block_with(text: str) -> str:
    (block,) = (block for block in blocks("sh") if text in block)
    return block


def run_bash(block: str, folder: Path) -> None:
    """Runs a block in a folder that holds export.sql, with a `bq` that keeps what it is given."""
    (folder / "export.sql").write_text(blocks("sql")[0])
    desk = Desk(folder)
    desk.stand_in("bq", 'cat > "given-$(ls given-* 2>/dev/null | wc -l)"')
    desk.sh(block)


def test_the_dry_run_is_of_the_query_alone(tmp_path: Path) -> None:
    run_bash(block_with("--dry_run"), tmp_path)
    (statement,) = blocks("sql")
    query = (tmp_path / "given-0").read_text()
    assert query.startswith("SELECT\n") and statement.endswith(query)


def test_the_loop_exports_seven_days(tmp_path: Path) -> None:
    run_bash(block_with("for day in"), tmp_path)
    given = [path.read_text() for path in tmp_path.glob("given-*")]
    days = {f"2026-11-{day:02}" for day in range(1, 8)}
    assert {day for text in given for day in re.findall(r"atlas/([\d-]+)/ping", text)} == days
    assert {tuple(set(re.findall(r"2026-\d\d-\d\d", text))) for text in given} == {
        (day,) for day in days
    }


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_a_day_is_downloaded(tmp_path: Path) -> None:
    server = tmp_path / "server"
    write_dumps(server / DAY, RESULTS, hours=24)
    block = block_with("curl --fail")
    url = "https://data-store.ripe.net/datasets/atlas-daily-dumps"
    assert url in block
    run_bash(block.replace(url, server.as_uri()), tmp_path)
    got, offered = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (tmp_path / "dumps" / DAY, server / DAY)
    )
    assert got == offered and len(got) == 24


def pipeline_commands() -> list[list[str]]:
    """Returns the words of each `python -m beam_pipeline…` of the page, from the module on."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("python -m beam_pipeline")]


def without_beams_flags(arguments: list[str]) -> list[str]:
    """Checks the flags as the job does; leaves out Beam's, so that the job runs here."""
    parse(arguments)
    _, for_beam = make_parser().parse_known_args(arguments)
    return [argument for argument in arguments if argument not in for_beam]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a laptop's files and, in a folder for a bucket, on Dataflow's: one dataset, four times."""
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path, tmp_path / "bucket"):
        write_dumps(root / "dumps" / DAY, RESULTS)
        write_export(root / "atlas" / DAY, RESULTS[:70])
        write_export(root / "atlas" / "2026-11-02", RESULTS[70:])
    for module, *words in pipeline_commands():
        arguments = [word.replace("gs://BUCKET", f"{tmp_path}/bucket") for word in words]
        if module == "beam_pipeline.main":
            arguments = without_beams_flags(arguments)
        is_package = (ROOT / module.replace(".", "/")).is_dir()
        program = importlib.import_module(f"{module}.__main__" if is_package else module)
        assert program.main(arguments) == 0
    datasets = [path.parent for path in tmp_path.rglob("_SUCCESS")]
    assert len(datasets) == 4
    expected = files_of(datasets[0])
    assert expected and all(files_of(dataset) == expected for dataset in datasets)
    _, *words = shlex.split(block_with("rows/dead_letter"))
    letters = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    assert "'reason': " in letters.stdout


def test_the_costs_follow_from_the_bytes() -> None:
    rows = re.findall(r"\[([\d,]{9,})\]\[costs\] \| (\d+\.\d\d) \|", PAGE)
    assert len(rows) == 2
    for num_bytes, dollars in rows:
        assert f"{int(num_bytes.replace(',', '')) / 2**40 * 6.25:.2f}" == dollars


def test_the_dead_letters_have_these_reasons() -> None:
    (bullet,) = re.findall(
        r"^- \*\*Dead letters\.\*\*.*?(?=^\S|\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
    named = set(re.findall(r"`([a-z_]+)`", bullet))
    assert {"no_results", "dns_error", "rtt_null"} <= named
    assert named <= {*atlas.LINE_REASONS, *measurements.REASONS}
