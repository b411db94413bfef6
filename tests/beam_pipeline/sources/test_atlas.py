"""RIPE Atlas results against the official parser, and field by field."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ripe.atlas.sagan import PingResult

from beam_pipeline.sources import measurements
from beam_pipeline.sources.options import AtlasSource
from tests.support.atlas_results import fault_reasons, good, read_one, rows_of
from tests.support.properties import num_examples
from tests.support.repository import ROOT

# The results of the tests of ripe.atlas.sagan 2.0.1, firmware 0 to 4650, a line each.
REAL_RESULTS = ROOT / "tests/golden/atlas/sagan_pings.jsonl"


def rows_of_sagan(line: bytes, source: AtlasSource) -> list[tuple]:
    """Returns the packets that sagan finds, as `rows_of` does ours.

    Where it has no rtt, whatever the reason, we have a failed ping, -1.0. It lets an entry's own
    srcaddr, which says that a reply came in at another interface, win over the result's, and so
    can find two sources in one result; to us a result has one. In real results the two are equal.
    """
    result = PingResult(line.decode())
    return [
        (
            result.created.replace(tzinfo=None),
            result.origin if source == "from" else packet.source_address,
            result.destination_address,
            result.af,
            -1.0 if packet.rtt is None else packet.rtt,
        )
        for packet in result.packets
    ]


class TestAgainstSagan:
    lines = REAL_RESULTS.read_bytes().splitlines()

    @pytest.mark.parametrize("source", ["from", "src_addr"])
    def test_every_packet(self, source: AtlasSource) -> None:
        batch = read_one(*self.lines, source=source)
        expected = [row for line in self.lines for row in rows_of_sagan(line, source)]
        # sagan rounds to a microsecond.
        rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.measurements)]
        assert rows == expected
        counts = np.bincount(batch.lines, minlength=len(self.lines))
        assert counts.tolist() == [len(rows_of_sagan(line, source)) for line in self.lines]
        assert len(expected) == 40
        dups = [packet.dup for line in self.lines for packet in PingResult(line.decode()).packets]
        assert sum(dups) == 4, "duplicates are measurements too"

    def test_results_without_pings(self) -> None:
        """Firmware 0 and 1 give only means over the pings, of which sagan makes no packets."""
        batch = read_one(*self.lines)
        assert [(line, reason) for line, reason, _ in batch.bad_lines] == [
            (0, "no_results"),
            (1, "no_results"),
        ]
        assert batch.bad_lines[0][2] == self.lines[0].decode()
        assert batch.num_lines == len(self.lines) == 15

    def test_rtt_as_text(self) -> None:
        """sagan takes the text "12.5" for a number; we take the word of no such line."""
        line = good(result=[{"rtt": "12.5"}])
        assert PingResult(line.decode()).packets[0].rtt == 12.5
        assert read_one(line).bad_lines == [(0, "wrong_type", line.decode())]

    def test_reply_with_an_error(self) -> None:
        """An entry with an error is a failed ping, as in BigQuery; sagan looks at the rtt only."""
        line = good(result=[{"error": "sendto failed: Network is unreachable", "rtt": 12.5}])
        assert PingResult(line.decode()).packets[0].rtt == 12.5
        assert read_one(line).measurements.column("rtt").to_pylist() == [-1.0]


made_up_results = st.fixed_dictionaries(
    {
        "fw": st.sampled_from([4400, 4430, 4459, 4460, 4570, 4790, 5000, 5080]),
        "af": st.sampled_from([4, 6, None]),
        "dst": st.sampled_from(["193.0.14.129", "2001:7fd::1"]),
        "timestamp": st.integers(0, 2**32),
        "result": st.lists(
            st.sampled_from([{"x": "*"}, {"error": "sendto failed: Network is unreachable"}])
            | st.fixed_dictionaries(
                {"rtt": st.integers(0, 5000) | st.floats(0, 5000)},
                optional={"dup": st.just(1), "ttl": st.integers(1, 255)},
            ),
            min_size=1,
            max_size=5,
        ),
    }
)


@settings(max_examples=num_examples(100))
@given(made_up_results, st.sampled_from(["from", "src_addr"]))
def test_made_up_results_against_sagan(result: dict[str, Any], source: AtlasSource) -> None:
    """Old and new names of the fields, both families, af there or not, all kinds of entries."""
    af, dst = result.pop("af"), result.pop("dst")
    is_old = result["fw"] < 4460
    names = ("pf", "addr", "srcaddr") if is_old else ("af", "dst_addr", "src_addr")
    fields = dict(zip(names, (af, dst, "192.168.1.7"), strict=True))
    line = good(**{**dict.fromkeys(("af", "dst_addr", "src_addr"), ...), **fields, **result})
    batch = read_one(line, source=source)
    rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.measurements)]
    assert rows == rows_of_sagan(line, source)


class TestFields:
    @pytest.mark.parametrize(
        ("entry", "rtt"),
        [
            ({"rtt": 7}, 7.0),
            ({"rtt": 0}, 0.0),
            ({"rtt": 2**60 + 1}, float(2**60)),
            ({"rtt": 1635.423, "dup": 1, "ttl": 55}, 1635.423),
            ({"x": "*"}, -1.0),
            ({"x": "*", "srcaddr": "192.168.1.229"}, -1.0),
            ({"error": "sendto failed: Network is unreachable"}, -1.0),
            ({"error": ""}, -1.0),
            ({"rtt": None}, None),
            ({"late": 1, "ttl": 55}, None),
            ({}, None),
        ],
    )
    def test_rtt(self, entry: dict[str, Any], rtt: float | None) -> None:
        batch = read_one(good(result=[entry]))
        assert batch.measurements.column("rtt").to_pylist() == [rtt]
        assert fault_reasons(batch.measurements) == ["rtt_null"] * (rtt is None)

    @pytest.mark.parametrize(
        ("timestamp", "event_time"),
        [
            (1_700_000_000, 1_700_000_000_000_000),
            (1406561624.25, 1_406_561_624_250_000),
            (2200000000.000003, 2_200_000_000_000_003),
            (-1, -1_000_000),
            (9_223_372_036_854, 9_223_372_036_854_000_000),
            (None, None),
        ],
    )
    def test_event_time(self, timestamp: float | None, event_time: int | None) -> None:
        column = read_one(good(timestamp=timestamp)).measurements.column("event_time")
        assert column.cast(pa.int64()).to_pylist() == [event_time] * 3

    @pytest.mark.parametrize(
        ("dst_addr", "version"),
        [
            ("193.0.14.129", 4),
            ("2001:7fd::1", 6),
            ("::ffff:193.0.14.129", 4),
            ("k.root-servers.net", None),
            (..., None),
        ],
    )
    def test_missing_ip_version_follows_the_destination(
        self, dst_addr: Any, version: int | None
    ) -> None:
        """Beside a result that has it, and where both ways meet in one batch."""
        batch = read_one(good(), good(af=..., dst_addr=dst_addr), good(af=..., pf=6))
        assert (
            batch.measurements.column("ip_version").to_pylist() == [4] * 3 + [version] * 3 + [6] * 3
        )

    def test_failed_name_resolution(self) -> None:
        """As firmware reports it (eperd/ping.c): an entry with an error, and no destination."""
        line = good(dst_addr=..., result=[{"error": "dns resolution failed: no data"}])
        batch = read_one(line)
        assert rows_of(batch.measurements)[0][2:] == (None, 4, -1.0)
        assert fault_reasons(batch.measurements) == ["dst_addr_null"]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"timestamp": ...}, "event_time_null"),
            ({"timestamp": -5}, "event_time_before_1970"),
            ({"from": ...}, "src_addr_null"),
            ({"from": ""}, "src_addr_invalid"),
            ({"from": "fe80::1%eth0"}, "src_addr_zone_id"),
            ({"dst_addr": ...}, "dst_addr_null"),
            ({"dst_addr": "atlas.ripe.net"}, "dst_addr_invalid"),
            ({"dst_addr": "fe80::1%2", "af": ...}, "dst_addr_zone_id"),
            ({"af": 5}, "ip_version_not_4_or_6"),
            ({"af": 6}, "ip_version_not_of_dst_addr"),
            ({"result": [{"ttl": 51}]}, "rtt_null"),
        ],
    )
    def test_reasons_of_atlas_faults(self, changes: dict[str, Any], reason: str) -> None:
        batch = read_one(good(), good(**changes))
        block, faults = measurements.check(batch.measurements)
        assert len(block) == 3
        assert set(faults.reasons) == {reason}
        assert set(batch.lines[faults.rows]) == {1}
        assert not batch.bad_lines
