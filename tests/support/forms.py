"""Pings in every form that is read: their bytes, the options that read them, and what is read."""

import bz2
import csv
import gzip
import io
import ipaddress
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import COLUMNS, Mapping, ReadOptions, parse_columns
from beam_pipeline.sources.reading import CheckedBatch, read_piece

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ADDRESSES = ["192.0.2.1", "198.51.100.7", "2001:db8::1", "::ffff:203.0.113.9", "2001:db8::2:1"]
Ping = tuple[int, str, str, float]  # µs, source, destination, RTT in ms or -1

pings = st.lists(
    st.tuples(
        st.integers(1_600_000_000_000_000, 1_800_000_000_000_000),
        st.sampled_from(ADDRESSES),
        st.sampled_from(ADDRESSES),
        st.just(-1.0) | st.integers(1, 10**9).map(lambda us: us / 1000),
    ),
    min_size=1,
    max_size=30,
)


def iso(time_us: int, form: str = "Z") -> str:
    time = EPOCH + timedelta(microseconds=time_us)
    return {
        "Z": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "UTC": time.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        "basic": time.strftime("%Y%m%dT%H%M%S,%fZ"),
        "plain": time.strftime("%Y-%m-%d %H:%M:%S.%f"),
        "ns": time.strftime("%Y-%m-%dT%H:%M:%S.%f") + "789",
        "zone": (time + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f+02:00"),
    }[form]


# --- writers: bytes of pings, and the options with which they are read ----------------------------

Form = tuple[Callable[[list[Ping]], bytes], ReadOptions]


def options(columns: str = "", **mapping: Any) -> ReadOptions:
    return ReadOptions(mapping=Mapping(parse_columns(columns), **mapping))


def delimited(delimiter: str, time: str, lost: str, header: bool = True) -> Callable:
    def write(rows: list[Ping]) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter)
        if header:
            writer.writerow(["seq", "event_time", "src_addr", "dst_addr", "rtt"])
        for number, (at, src, dst, rtt) in enumerate(rows):
            writer.writerow([number, iso(at, time), src, dst, lost if rtt < 0 else repr(rtt)])
        return out.getvalue().encode()

    return write


def objects(rows: list[Ping]) -> list[dict]:
    return [
        {"event_time": iso(at), "src_addr": src, "dst_addr": dst, "rtt": rtt}
        for at, src, dst, rtt in rows
    ]


def nested(rows: list[Ping]) -> bytes:
    values = [
        {"when": {"us": at}, "ends": {"a": src, "b": dst}, "ping.rtt": {"s": rtt / 1e3}, "x": [1]}
        for at, src, dst, rtt in rows
    ]
    return "\n".join(map(json.dumps, values)).encode()


def as_table(rows: list[Ping]) -> pa.Table:
    at, src, dst, rtt = map(list, zip(*rows, strict=True))
    versions = [6 if ":" in each and "." not in each else 4 for each in dst]
    types = {"event_time": pa.timestamp("us")}
    columns = zip(COLUMNS, (at, src, dst, versions, rtt), strict=True)
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns})


def parquet(change: Callable[[pa.Table], pa.Table] = lambda table: table) -> Callable:
    def write(rows: list[Ping]) -> bytes:
        sink = io.BytesIO()
        pq.write_table(change(as_table(rows)), sink)
        return sink.getvalue()

    return write


def with_type(**columns: Callable[[pa.ChunkedArray], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        for name, convert in columns.items():
            table = table.set_column(table.column_names.index(name), name, convert(table[name]))
        return table

    return change


def packed(column: pa.ChunkedArray) -> pa.Array:
    values = [ipaddress.ip_address(each) for each in column.to_pylist()]
    wide = [v.packed if v.version == 6 else b"\0" * 10 + b"\xff\xff" + v.packed for v in values]
    return pa.array(wide, pa.binary(16))


def arrow(rows: list[Ping]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, as_table(rows).schema) as writer:
        writer.write_table(as_table(rows), max_chunksize=7)
    return sink.getvalue()


def wide(rows: list[Ping]) -> bytes:
    lines = [f"{at / 1e6:.6f} | {src} | {dst} | {rtt!r} | {rtt!r}" for at, src, dst, rtt in rows]
    return "\n".join(["ts|a|b|ping1|ping2", *lines]).encode()


def scamper(rows: list[Ping]) -> bytes:
    records = []
    for at, src, dst, rtt in rows:
        time = {"sec": at // 10**6, "usec": at % 10**6}
        reply = {"from": dst, "seq": 0, "rtt": rtt, "tx": time}
        record = {"type": "ping", "version": "0.4", "src": src, "dst": dst, "ping_sent": 1}
        records.append({**record, "start": time, "responses": [reply] if rtt >= 0 else []})
    return "\n".join(
        map(json.dumps, [{"type": "cycle-start", "list_name": "x"}, *records])
    ).encode()


SRC = "192.0.2.1"


def fping(rows: list[Ping]) -> bytes:
    """Returns lines of `fping -D -J -c`, of pings from SRC."""
    lines = [{"warning": {"host": "host.example", "message": "Name or service not known"}}]
    for number, (at, _, dst, rtt) in enumerate(rows):
        ping = {"timestamp": f"{at / 1e6:.6f}", "host": dst, "seq": number}
        reply = {"resp": {**ping, "size": 64, "rtt": rtt}}
        lines.append({"timeout": ping} if rtt < 0 else reply)
    sums = {"vSum": {"host": "h", "values": [None, 1.5]}, "stats": {"targets": 1}}
    return "\n".join(map(json.dumps, [*lines, *({k: v} for k, v in sums.items())])).encode()


POSITIONS = "event_time=2,src_addr=3,dst_addr=4,rtt=5"
FORMS: dict[str, Form] = {
    "comma": (delimited(",", "Z", "-1"), options()),
    "tab, gzip": (lambda rows: gzip.compress(delimited("\t", "ns", "-5")(rows)), options()),
    "semicolon, bzip2": (
        lambda rows: bz2.compress(delimited(";", "plain", "*")(rows)),
        options(failed=("*",)),
    ),
    "no header, zstd": (
        lambda rows: pa.compress(delimited(",", "zone", "", False)(rows), "zstd", asbytes=True),
        options(POSITIONS, failed=("null",)),
    ),
    "comma, BigQuery": (delimited(",", "UTC", "-1"), options()),
    "tab, ISO 8601's basic format": (delimited("\t", "basic", "-1"), options()),
    "JSON lines": (lambda rows: "\n".join(map(json.dumps, objects(rows))).encode(), options()),
    "JSON array": (lambda rows: json.dumps(objects(rows), indent=1).encode(), options()),
    "JSON, pretty": (
        lambda rows: "\n".join(json.dumps(each, indent=2) for each in objects(rows)).encode(),
        options(),
    ),
    "JSON, joined": (lambda rows: "".join(map(json.dumps, objects(rows))).encode(), options()),
    "RFC 7464": (
        lambda rows: "".join(f"\x1e{json.dumps(each)}\n" for each in objects(rows)).encode(),
        options(),
    ),
    "JSON, mixed types": (
        lambda rows: "\n".join(
            json.dumps({**each, "rtt": "lost" if each["rtt"] < 0 else each["rtt"]})
            for each in objects(rows)
        ).encode(),
        options(failed=("lost",)),
    ),
    "JSON, nested": (
        nested,
        options(
            "event_time=when.us,src_addr=ends.a,dst_addr=ends.b,rtt=ping.rtt.s",
            time_unit="us",
            rtt_unit="s",
        ),
    ),
    "Parquet": (parquet(), options()),
    "Parquet, texts": (
        parquet(
            with_type(
                event_time=lambda c: pa.array([iso(v.value) for v in c]),
                src_addr=lambda c: c.cast(pa.binary()),
                ip_version=lambda c: pa.array([f"IPv{v}" for v in c.to_pylist()]),
                rtt=lambda c: pa.array([repr(v) for v in c.to_pylist()]),
            )
        ),
        options(),
    ),
    "Parquet, numbers": (
        parquet(
            with_type(
                event_time=lambda c: c.cast(pa.int64()),
                dst_addr=packed,
                ip_version=lambda c: c.cast(pa.float64()),
                rtt=lambda c: pa.array(
                    [Decimal(repr(v)) for v in c.to_pylist()], pa.decimal128(18, 4)
                ),
            )
        ),
        options("dst_addr=dst_addr:packed", time_unit="us"),
    ),
    "Parquet, no version": (parquet(lambda t: t.drop_columns(["ip_version"])), options()),
    "Arrow": (arrow, options()),
    "scamper": (scamper, ReadOptions()),
    "fping": (fping, options(f"src_addr=={SRC}")),
}


def read(path: Path | str, how: ReadOptions) -> Iterator[CheckedBatch]:
    files = [inspect(file, how) for file in match_files([str(path)])]
    for unit in plan_units(files):
        for piece in unit.pieces:
            yield from read_piece(piece, how)


def measured(batches: Iterator[CheckedBatch]) -> list[Ping]:
    found = []
    for batch in batches:
        if (block := batch.block) is not None:
            ends = [(side.hi[side.codes], side.lo[side.codes]) for side in (block.src, block.dst)]
            columns = [block.event_time, *ends[0], *ends[1], block.rtt]
            found += zip(*(column.tolist() for column in columns), strict=True)
    return sorted(found)
