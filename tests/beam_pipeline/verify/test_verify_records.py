"""What is wrong with one record, and whether the command finds it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.row_codec import COMPACT_HEADER, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.sorted_run import widen
from beam_pipeline.verify import __main__ as verify
from tests.support.damaged_dataset import (
    TIED,
    DamagedDataset,
    edit,
    found_by,
    one_batch,
)
from tests.support.helpers import ipc_stream, make_run


def other_spelling(address: str) -> str:
    return f"::ffff:{address}" if "." in address else address.upper()


COLUMN_EDITS = {
    "src_id": ("identity", lambda row: {"src_id": row.src_id + 1}),
    "src_addr_spelling": ("identity", lambda row: {"src_addr": other_spelling(row.src_addr)}),
    "src_addr_none": ("identity", lambda row: {"src_addr": "nowhere"}),
    "n_measurements": ("row_columns", lambda row: {"n_measurements": row.n_measurements + 1}),
    "first": ("row_columns", lambda row: {"first_timestamp": row.first_timestamp_us - 1}),
    "last": ("row_columns", lambda row: {"last_timestamp": row.last_timestamp_us + 1}),
    "span": ("row_columns", lambda row: {"time_span_seconds": row.time_span_seconds + 1e-6}),
    "span_nan": ("row_columns", lambda row: {"time_span_seconds": float("nan")}),
}


@pytest.mark.parametrize("name", COLUMN_EDITS)
def test_wrong_row_column(
    name: str, copy: DamagedDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    check, change = COLUMN_EDITS[name]
    record = copy.single()
    where = copy.replace(record, edit(record, **change(decode_record(record))))
    found = found_by(capsys, copy.folder)
    assert set(found) == {check} and set(found[check]) == {where}


def exchange(lists: dict[str, list], at: int) -> None:
    for values in lists.values():
        values[at], values[at + 1] = values[at + 1], values[at]


def assign(column: str, value: Any) -> Callable[[dict[str, list], int], None]:
    def change(lists: dict[str, list], at: int) -> None:
        lists[column][at] = value(lists[column][at]) if callable(value) else value

    return change


MEASUREMENT_EDITS = {
    "order": ("order", exchange),
    "rtt_negative": ("rtt", assign("rtt", -2.0)),
    "rtt_negative_zero": ("rtt", assign("rtt", -0.0)),
    "rtt_nan": ("rtt", assign("rtt", float("nan"))),
    "rtt_infinite": ("rtt", assign("rtt", float("inf"))),
    "ip_version": ("destinations", assign("ip_version", 6)),
    "dst_addr_spelling": ("destinations", assign("dst_addr", other_spelling)),
    "dst_addr_none": ("destinations", assign("dst_addr", lambda text: text[:-1] + "x")),
    "null": ("records", assign("rtt", None)),
}


@pytest.mark.parametrize("name", MEASUREMENT_EDITS)
def test_wrong_measurement(
    name: str, copy: DamagedDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    check, change = MEASUREMENT_EDITS[name]
    record = copy.single()
    lists = one_batch(one_batch(record).to_pydict()["measurements"][0]).to_pydict()
    times, versions = lists["event_time"], lists["ip_version"]
    # To IPv4, and without ties beside it, so that nothing else can be out of order.
    at = next(
        i for i in range(1, len(times) - 2)
        if times[i - 1] < times[i] < times[i + 1] and versions[i] == 4
    )  # fmt: skip
    can_be_read = name not in ("dst_addr_none", "null")
    edited = edit(record, lambda lists: change(lists, at))
    where = copy.replace(record, edited, index=can_be_read)
    found = found_by(capsys, copy.folder)
    assert found == {check: [where]}


def test_ties_out_of_order(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.rows(TIED)[-1]
    where = copy.replace(record, edit(record, lambda lists: exchange(lists, 3)))
    assert found_by(capsys, copy.folder) == {"order": [where]}


def test_not_a_record(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.single()
    two_rows = pa.RecordBatch.from_pylist(
        one_batch(record).to_pylist() * 2, row_codec.RECORD_SCHEMA
    )
    for other in (b"nonsense", ipc_stream(two_rows), edit(record, measurements=b"")):
        where = copy.replace(record, other, index=False)
        assert found_by(capsys, copy.folder) == {"records": [where]}
        record = other
    assert verify.main([str(copy.folder)]) == 1
    assert "partly" in capsys.readouterr().out  # other checks did not see all


def test_row_too_large(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.single()
    key = RowKey(decode_record(record).src_addr, 0)
    where = copy.replace(record, encode_row(make_run(900, seed=1), key, "arrow"))
    assert found_by(capsys, copy.folder) == {"size": [where]}


# --- compact rows -------------------------------------------------------------------------------


def swap_seconds(row: Any) -> dict[str, Any]:
    data = np.frombuffer(row.measurements, np.uint8).copy()
    seconds = data[COMPACT_HEADER.size :][: 4 * row.n_measurements].view("<u4")
    at = int(np.flatnonzero(np.diff(seconds[1:-1]))[0]) + 1
    seconds[[at, at + 1]] = seconds[[at + 1, at]]
    return {"measurements": data.tobytes()}


def ipv4_as_ipv6(row: Any) -> dict[str, Any]:
    run = widen(row.run)
    n = len(run)
    head = COMPACT_HEADER.pack(
        row_codec.COMPACT_MAGIC, n, n, int(run["event_time"][0]) // 1_000_000
    )
    columns = bytes(row.measurements[COMPACT_HEADER.size :][: 6 * n])
    halves = np.stack([run["dst_hi"], run["dst_lo"]], axis=1).astype(">u8")
    return {"measurements": head + columns + halves.tobytes()}


def another_code_for_an_rtt(row: Any) -> dict[str, Any]:
    data = np.frombuffer(row.measurements, np.uint8).copy()
    n = row.n_measurements
    codes = data[COMPACT_HEADER.size + 4 * n :][: 2 * n].view("<u2")
    at = int(np.flatnonzero((codes >= 2048) & (codes < 0xFFFF) & (codes % 2 == 0))[0])
    codes[at] += 2048 - (codes[at] % 2048) // 2  # half the mantissa, one more exponent
    return {"measurements": data.tobytes()}


def seconds_that_do_not_begin_with_zero(row: Any) -> dict[str, Any]:
    data = bytearray(row.measurements)
    magic, n, num_ipv6, first = COMPACT_HEADER.unpack_from(data)
    seconds = np.frombuffer(data, "<u4", n, COMPACT_HEADER.size) + np.uint32(1)
    COMPACT_HEADER.pack_into(data, 0, magic, n, num_ipv6, first - 1)
    data[COMPACT_HEADER.size : COMPACT_HEADER.size + 4 * n] = seconds.tobytes()
    return {"measurements": bytes(data)}


COMPACT_EDITS = {
    "order": ("order", swap_seconds),
    "destinations": ("destinations encoding", ipv4_as_ipv6),
    "rtt": ("encoding", another_code_for_an_rtt),
    "seconds": ("encoding", seconds_that_do_not_begin_with_zero),
    "first": ("row_columns", lambda row: {"first_timestamp": row.first_timestamp_us - 1_000_000}),
    "n_measurements": ("row_columns", lambda row: {"n_measurements": row.n_measurements + 1}),
    "cut": ("records", lambda row: {"measurements": bytes(row.measurements[:-1])}),
}


@pytest.mark.parametrize("name", COMPACT_EDITS)
def test_wrong_compact_row(
    name: str, compact_copy: DamagedDataset, capsys: pytest.CaptureFixture[str]
) -> None:
    checks, change = COMPACT_EDITS[name]
    record = compact_copy.single()
    edited = edit(record, **change(decode_record(record)))
    where = compact_copy.replace(record, edited, index=name != "cut")
    found = found_by(capsys, compact_copy.folder)
    assert set(found) == set(checks.split())
    assert all(set(places) == {where} for places in found.values())
