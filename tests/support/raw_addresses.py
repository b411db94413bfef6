"""Input of three formats whose addresses nobody may see, and the search for them.

Files are searched for each address as text in any spelling, and as bytes in both orders. Parquet
is decompressed for it.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.helpers import as_number, canonical, measurements_table, spellings_of

START = 1_700_000_000


@dataclass(frozen=True)
class Input:
    """A file of input, the flags that it takes and what it has of its measurements in order."""

    path: Path
    flags: tuple[str, ...]
    addresses: frozenset[str]
    reasons: dict[str, int]


# --- input of three formats ---------------------------------------------------------------------


def bad_rows(good: dict) -> list[dict]:
    """Returns rows that become dead letters, each of which would show an address."""
    changes: list[dict] = [
        {"src_addr": "203.0.113.300"},
        {"src_addr": "fe80::aaaa:1%eth0"},
        {"dst_addr": "host-203-0-113-77"},
        {"dst_addr": "203.0.113.78 "},
        {"rtt": float("nan")},
        {"src_addr": None},
        {"ip_version": 5},
    ]
    return [{**good, **change} for change in changes]


REASONS = {
    "dst_addr_invalid": 2,
    "ip_version_not_4_or_6": 1,
    "rtt_not_finite": 1,
    "src_addr_invalid": 1,
    "src_addr_null": 1,
    "src_addr_zone_id": 1,
}
BAD_TEXTS = ("203.0.113", "fe80::aaaa", "203-0-113")


def plain_table() -> pa.Table:
    return measurements_table(1500, seed=4, num_probes=12)


def addresses_of(table: pa.Table) -> frozenset[str]:
    texts = table["src_addr"].to_pylist() + table["dst_addr"].to_pylist()
    return frozenset(canonical(as_number(text)) for text in texts)


def parquet_input(folder: Path) -> Input:
    table = plain_table()
    good = {**table.slice(0, 1).to_pylist()[0], "src_addr": "198.51.100.99"}
    bad = pa.Table.from_pylist(bad_rows(good), table.schema)
    whole = pa.concat_tables([table.slice(0, 700), bad, table.slice(700)])
    pq.write_table(whole, folder / "input.parquet", row_group_size=400)
    addresses = addresses_of(table) | {"198.51.100.99"}
    return Input(folder / "input.parquet", (), addresses, REASONS)


def results() -> list[dict]:
    """RIPE Atlas results of the measurements of `plain_table`, two pings each."""
    return [
        {
            "type": "ping",
            "af": row["ip_version"],
            "from": row["src_addr"],
            "src_addr": "172.29.77.3",
            "dst_addr": row["dst_addr"],
            "timestamp": START + number,
            "result": [{"x": "*"} if row["rtt"] < 0 else {"rtt": row["rtt"]}, {"rtt": 2.5}],
        }
        for number, row in enumerate(plain_table().slice(0, 500).to_pylist())
    ]


def json_input(folder: Path) -> Input:
    lines = [json.dumps(result) for result in results()]
    first = results()[0]
    lines[100:100] = [
        lines[0][:80],
        json.dumps({**first, "result": []}),
        json.dumps({**first, "result": [], "dnserr": "no host-203-0-113-77"}),
        json.dumps({**first, "from": "fe80::aaaa:1%eth0"}),
        json.dumps([first]),
    ]
    (folder / "ping.json").write_text("\n".join(lines))
    addresses = addresses_of(plain_table().slice(0, 500)) | {"172.29.77.3"}
    reasons = {
        "dns_error": 1,
        "json_invalid": 1,
        "json_not_an_object": 1,
        "no_results": 1,
        "src_addr_zone_id": 2,
    }
    return Input(folder / "ping.json", (), addresses, reasons)


def bigquery_input(folder: Path) -> Input:
    rows = [
        {
            "af": result["af"],
            "src_addr": result["src_addr"],
            "synth_addr": result["from"],
            "dst_addr": result["dst_addr"],
            "start_time": result["timestamp"],
            "pings": [{"timeout": "x" in e, "error": False, "rtt": e.get("rtt")} for e in entries],
        }
        for result in results()
        for entries in [result["result"]]
    ]
    rows[50]["pings"] = []
    rows[60]["synth_addr"] = "203.0.113.300"
    ping = pa.struct([("timeout", pa.bool_()), ("error", pa.bool_()), ("rtt", pa.float64())])
    schema = pa.schema(
        [
            ("af", pa.int64()),
            *((name, pa.string()) for name in ("src_addr", "synth_addr", "dst_addr")),
            ("start_time", pa.timestamp("s", "UTC")),
            ("pings", pa.list_(ping)),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "export.parquet", row_group_size=99)
    addresses = addresses_of(plain_table().slice(0, 500)) | {"172.29.77.3"}
    flags = ("--input_format=atlas_bigquery",)
    return Input(
        folder / "export.parquet", flags, addresses, {"no_results": 1, "src_addr_invalid": 2}
    )


INPUTS = {"parquet": parquet_input, "json": json_input, "bigquery": bigquery_input}


# --- the search ---------------------------------------------------------------------------------


def forms_of(addresses: Iterable[str]) -> list[bytes]:
    """Returns all that would show one of these addresses.

    Four bytes of IPv4 can be anywhere by chance. With the key and seeds of the tests they are not;
    one single hit of that kind after a change of libraries may be such.
    """
    forms: set[bytes] = {text.encode() for text in BAD_TEXTS}
    for address in addresses:
        number = as_number(address)
        forms.update(text.encode() for text in spellings_of(number))
        if ":" not in address:
            forms.update((number & 0xFFFF_FFFF).to_bytes(4, order) for order in ("big", "little"))
            continue
        halves = number >> 64, number & (1 << 64) - 1
        forms.update(half.to_bytes(8, order) for half in halves for order in ("big", "little"))
    return sorted(forms)


def shown(data: bytes, pattern: re.Pattern[bytes]) -> set[bytes]:
    """Returns what is found in some bytes, as they are or, if that is Parquet, in its values."""
    found = set(pattern.findall(data))
    if data.startswith(b"PAR1") and data.endswith(b"PAR1"):
        table = pq.read_table(pa.BufferReader(data))
        found |= set(pattern.findall(repr(table.to_pylist()).encode()))
    return found


def search(
    folders: Iterable[Path], addresses: Iterable[str], *said: bytes
) -> dict[str, set[bytes]]:
    """Returns what is found of addresses, by the file that it is in."""
    pattern = re.compile(b"|".join(re.escape(form) for form in forms_of(addresses)))
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {str(path): shown(path.read_bytes(), pattern) for path in paths}
    found |= {f"output {number}": shown(text, pattern) for number, text in enumerate(said)}
    found |= {f"name of {path}": shown(path.name.encode(), pattern) for path in paths}
    return {name: what for name, what in found.items() if what}
