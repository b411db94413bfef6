"""Every rule that a measurement must keep, with its reason."""

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.dataset.row_codec import MAX_FIRST_SECOND, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.sources.measurements import REASONS, check
from tests.support.checked_batches import addresses_of, batch_of, reasons_of, times_of


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"event_time": None}, "event_time_null"),
        ({"event_time": 0}, None),
        ({"event_time": -1}, "event_time_before_1970"),
        ({"event_time": -(2**63)}, "event_time_before_1970"),
        ({"event_time": 2**63 - 1}, None),
        ({"src_addr": None}, "src_addr_null"),
        ({"src_addr": "fe80::1%eth0"}, "src_addr_zone_id"),
        ({"src_addr": "nowhere"}, "src_addr_invalid"),
        ({"src_addr": ""}, "src_addr_invalid"),
        ({"src_addr": "192.0.2.01"}, "src_addr_invalid"),
        ({"src_addr": "2001:db8::1"}, None),  # ip_version is the family of dst_addr alone
        ({"dst_addr": None}, "dst_addr_null"),
        ({"dst_addr": "fe80::1%eth0"}, "dst_addr_zone_id"),
        ({"dst_addr": "nowhere"}, "dst_addr_invalid"),
        ({"ip_version": None}, "ip_version_null"),
        ({"ip_version": 5}, "ip_version_not_4_or_6"),
        ({"ip_version": 0}, "ip_version_not_4_or_6"),
        ({"ip_version": -4}, "ip_version_not_4_or_6"),
        ({"ip_version": 6}, "ip_version_not_of_dst_addr"),
        ({"ip_version": 4, "dst_addr": "2001:db8::1"}, "ip_version_not_of_dst_addr"),
        ({"ip_version": 6, "dst_addr": "2001:db8::1"}, None),
        ({"ip_version": 4, "dst_addr": "::ffff:198.51.100.7"}, None),
        ({"ip_version": 6, "dst_addr": "::ffff:198.51.100.7"}, "ip_version_not_of_dst_addr"),
        ({"rtt": None}, "rtt_null"),
        ({"rtt": float("nan")}, "rtt_not_finite"),
        ({"rtt": float("inf")}, "rtt_not_finite"),
        ({"rtt": float("-inf")}, "rtt_not_finite"),
        ({"rtt": -3.5}, None),
        ({"rtt": 0.0}, None),
        ({"rtt": 3e38}, None),
    ],
)
def test_reason_of_each_rule(change, reason):
    rows = [{}, change, {}]
    assert reasons_of(batch_of(rows)) == [None, reason, None]


BREAKS = {
    "event_time_null": {"event_time": None},
    "event_time_before_1970": {"event_time": -1},
    "src_addr_null": {"src_addr": None},
    "src_addr_zone_id": {"src_addr": "::1%0"},
    "src_addr_invalid": {"src_addr": "x"},
    "dst_addr_null": {"dst_addr": None},
    "dst_addr_zone_id": {"dst_addr": "::1%0"},
    "dst_addr_invalid": {"dst_addr": "x"},
    "ip_version_null": {"ip_version": None},
    "ip_version_not_4_or_6": {"ip_version": 5},
    "ip_version_not_of_dst_addr": {"ip_version": 6},
    "rtt_null": {"rtt": None},
    "rtt_not_finite": {"rtt": float("nan")},
}


@pytest.mark.parametrize("later", list(BREAKS)[2:])
def test_first_broken_rule_counts(later):
    for earlier in list(BREAKS)[: list(BREAKS).index(later)]:
        if not BREAKS[earlier].keys() & BREAKS[later].keys():
            assert reasons_of(batch_of([BREAKS[earlier] | BREAKS[later]])) == [earlier]


def test_order_of_rules():
    """What a unit or an encoding cannot hold has tests of its own."""
    assert [reason for reason in REASONS if not reason.endswith("_out_of_range")] == list(BREAKS)


MAX_COMPACT_US = (MAX_FIRST_SECOND + 1) * 1_000_000 - 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rtt": 1e30}, "rtt_out_of_range"),
        ({"rtt": 4.3949e9}, "rtt_out_of_range"),
        ({"rtt": float(decode_rtt(np.array([0xFFFE]))[0])}, None),
        ({"rtt": 1e-9}, None),
        ({"rtt": -1e30}, None),
        ({"event_time": MAX_COMPACT_US + 1}, "event_time_out_of_range"),
        ({"event_time": MAX_COMPACT_US}, None),
    ],
)
def test_values_out_of_range_of_compact(values: dict, reason: str | None):
    """Its readers take the last time that is kept, and its largest RTT is kept when read again."""
    batch = batch_of([values])
    assert check(batch, "compact")[1].reasons == ([reason] if reason else [])
    assert reasons_of(batch) == [None]
    if reason is None:
        run = pregroup([check(batch, "compact")[0]], 1).narrow
        row = decode_record(encode_row(run, RowKey("1.2.3.4", 0), "compact"))
        rtt, kept = row.run["rtt"][0], np.float32(run["rtt"][0])
        assert row.run["event_time"][0] // 1_000_000 == run["event_time"][0] // 1_000_000
        assert rtt == kept == -1 or abs(rtt - kept) <= max(0.0005, kept * 2**-11)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 255])
def test_ip_version_does_not_hide_a_bad_destination(version):
    """The codes for bad addresses are numbers too."""
    for dst_addr, reason in [
        (None, "dst_addr_null"),
        ("x", "dst_addr_invalid"),
        ("::1%0", "dst_addr_zone_id"),
    ]:
        column = pa.array([version], pa.uint8())
        batch = batch_of([{"dst_addr": dst_addr}], ip_version=column)
        assert reasons_of(batch) == [reason]


def test_kept_rows_keep_their_order_and_values():
    rows = [
        {"event_time": 3, "src_addr": "::FFFF:1.2.3.4", "dst_addr": "9.9.9.9", "rtt": 1.5},
        {"event_time": 1, "src_addr": "bad"},
        {
            "event_time": 2,
            "src_addr": "2001:DB8:0::1",
            "dst_addr": "::5",
            "ip_version": 6,
            "rtt": -7,
        },
    ]
    block, faults = check(batch_of(rows))
    assert faults.rows.tolist() == [1]
    assert times_of(block) == [3, 2]
    assert addresses_of(block.src) == ["1.2.3.4", "2001:db8::1"]
    assert addresses_of(block.dst) == ["9.9.9.9", "::5"]
    assert block.rtt.tolist() == [1.5, -1.0]
