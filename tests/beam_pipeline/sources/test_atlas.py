"""RIPE Atlas results against the official parser, and everything a line can have wrong."""

import gzip
import io
import json
import re
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ripe.atlas.sagan import PingResult

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS
from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import COLUMNS, AtlasSource
from beam_pipeline.storage.json_array import ArrayError
from beam_pipeline.storage.lines import decompressed
from tests.support.bigquery import BIGQUERY_SCHEMA, PING_TYPE
from tests.support.properties import num_examples
from tests.support.repository import ROOT

# The results of the tests of ripe.atlas.sagan 2.0.1, firmware 0 to 4650, a line each.
REAL_RESULTS = ROOT / "tests/golden/atlas/sagan_pings.jsonl"

GOOD: dict[str, Any] = {
    "fw": 5080,
    "af": 4,
    "dst_addr": "193.0.14.129",
    "src_addr": "192.168.1.7",
    "from": "80.56.151.3",
    "msm_id": 1001,
    "prb_id": 202,
    "timestamp": 1_700_000_000,
    "type": "ping",
    "result": [{"rtt": 12.5}, {"x": "*"}, {"rtt": 13.5, "ttl": 51}],
}


def good(**changes: Any) -> bytes:
    """Returns the line of a good result with other fields; a field set to ... is left out."""
    fields = {**GOOD, **changes}
    return orjson.dumps({name: value for name, value in fields.items() if value is not ...})


def read(
    *lines: bytes, source: AtlasSource = "from", batch_rows: int = 131_072
) -> list[atlas.JsonBatch]:
    return list(atlas.read_json(io.BytesIO(b"\n".join(lines)), source, batch_rows))


def read_one(*lines: bytes, source: AtlasSource = "from") -> atlas.JsonBatch:
    (batch,) = read(*lines, source=source)
    return batch


def rows_of(batch: pa.RecordBatch) -> list[tuple]:
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    return list(zip(*columns, strict=True))


def fault_reasons(batch: pa.RecordBatch) -> list[str]:
    return measurements.check(batch)[1].reasons


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

    def test_check_takes_them_all(self) -> None:
        batch = read_one(*self.lines)
        block, faults = measurements.check(batch.measurements)
        assert len(block) == 40
        assert not len(faults.rows)

    def test_check_finds_the_missing_source(self) -> None:
        """The result of firmware 4570 has no src_addr; sagan says None too."""
        batch = read_one(*self.lines, source="src_addr")
        assert fault_reasons(batch.measurements) == ["src_addr_null"] * 3

    def test_numbers_as_text(self) -> None:
        """sagan takes the text "12.5" for a number; we take the word of no such line."""
        line = good(result=[{"rtt": "12.5"}])
        assert PingResult(line.decode()).packets[0].rtt == 12.5
        assert read_one(line).bad_lines == [(0, "wrong_type", line.decode())]

    def test_a_reply_with_an_error(self) -> None:
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
    def test_schema(self) -> None:
        schema = read_one(good()).measurements.schema
        text = pa.dictionary(pa.int32(), pa.string())
        types = [pa.timestamp("us"), text, text, pa.int8(), pa.float64()]
        assert schema == pa.schema(list(zip(COLUMNS, types, strict=True)))

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

    def test_fields_of_firmware_4400(self) -> None:
        """https://atlas.ripe.net/docs/apis/measurement-result-format/version-4400"""
        line = good(
            **dict.fromkeys(("type", "af", "dst_addr", "src_addr"), ...),
            fw=4400,
            addr="2001:7fd::1",
            srcaddr="2001:db8::5",
            mode="ICMP6",
        )
        assert [row[1:] for row in rows_of(read_one(line, source="src_addr").measurements)] == [
            ("2001:db8::5", "2001:7fd::1", 6, rtt) for rtt in (12.5, -1.0, 13.5)
        ]

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
    def test_what_check_says(self, changes: dict[str, Any], reason: str) -> None:
        batch = read_one(good(), good(**changes))
        block, faults = measurements.check(batch.measurements)
        assert len(block) == 3
        assert set(faults.reasons) == {reason}
        assert set(batch.lines[faults.rows]) == {1}
        assert not batch.bad_lines


class TestBadLines:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"{", "json_invalid"),
            (b'{"rtt": NaN}', "json_invalid"),
            (b"\xff\xfe{}", "json_invalid"),
            (b'{"from": "\xff"}', "json_invalid"),
            (b'{"from": "\\ud800"}', "json_invalid"),
            (b'{"rtt": 1e999}', "json_invalid"),
            (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "json_invalid"),
            (good() + good(), "json_invalid"),
            (b"17", "json_not_an_object"),
            (b"null", "json_not_an_object"),
            (b'["a"]', "json_not_an_object"),
            (good(type="traceroute"), "not_a_ping"),
            (good(type=None), "not_a_ping"),
            (b"{}", "no_results"),
            (good(result=...), "no_results"),
            (good(result=None), "no_results"),
            (good(result=[]), "no_results"),
            (good(result=[], dnserr="non-recoverable failure in name resolution"), "dns_error"),
            (good(timestamp=10**18), "event_time_out_of_range"),
            (good(timestamp=-1e300), "event_time_out_of_range"),
            (good(af=128), "ip_version_not_4_or_6"),
            (good(note="x" * atlas.MAX_LINE_BYTES), "line_too_long"),
        ],
    )
    def test_reason(self, line: bytes, reason: str) -> None:
        batch = read_one(good(), line, good())
        expected = line[:MAX_VALUE_CHARS].decode("utf-8", "replace")
        assert batch.bad_lines == [(1, reason, expected)]
        assert batch.lines.tolist() == [0] * 3 + [2] * 3
        assert batch.num_lines == 3

    @pytest.mark.parametrize(
        "changes",
        [
            {"timestamp": "abc"},
            {"timestamp": True},
            {"timestamp": [1]},
            {"from": 5},
            {"from": {"a": 1}},
            {"dst_addr": ["193.0.14.129"]},
            {"af": "4"},
            {"af": 4.0},
            {"af": True},
            {"af": ..., "pf": "inet"},
            {"result": {}},
            {"result": "traceroute to 2001:db8::1"},
            {"result": 0},
            {"result": False},
            {"result": [{"rtt": 1.0}, 5]},
            {"result": [None]},
            {"result": [{"rtt": 1.0}, {"rtt": [1.0]}]},
            {"result": [{"rtt": "1.0"}]},
            {"result": [{"rtt": True}]},
            {"result": [{"x": 1}]},
            {"result": [{"x": None, "rtt": 1.0}]},
            {"result": [{"error": False, "rtt": 1.0}]},
        ],
    )
    def test_wrong_type(self, changes: dict[str, Any]) -> None:
        line = good(**changes)
        batch = read_one(good(), line)
        assert batch.bad_lines == [(1, "wrong_type", line.decode())]
        assert batch.lines.tolist() == [0] * 3

    def test_the_other_source_is_not_looked_at(self) -> None:
        line = good(**{"from": 5})
        assert not read_one(line, source="src_addr").bad_lines

    def test_the_bound_on_lines(self) -> None:
        """A line of just the greatest length is taken, in the middle of a file and at its end."""
        length = atlas.MAX_LINE_BYTES
        fits, over = (good(note="x" * (n - len(good(note="")))) for n in (length, length + 1))
        assert (len(fits), len(over)) == (length, length + 1)
        batch = read_one(fits, over, fits, over)
        assert [(line, reason) for line, reason, _ in batch.bad_lines] == [
            (1, "line_too_long"),
            (3, "line_too_long"),
        ]
        assert batch.lines.tolist() == [0] * 3 + [2] * 3

    def test_a_file_without_line_ends_stays_out_of_memory(self) -> None:
        class Endless(io.RawIOBase):
            num_left = 40

            def read(self, size: int = -1) -> bytes:
                self.num_left -= 1
                return b"x" * size if self.num_left > 0 else b""

        tracemalloc.start()
        try:
            (batch,) = atlas.read_json(Endless(), "from")  # type: ignore[arg-type]
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 8 * atlas.MAX_LINE_BYTES
        assert batch.bad_lines == [(0, "line_too_long", "x" * MAX_VALUE_CHARS)]

    def test_long_text_is_cut_at_a_character(self) -> None:
        (letter,) = read_one("{é€😀".encode() * MAX_VALUE_CHARS).bad_lines
        assert letter[2] == ("{é€😀" * MAX_VALUE_CHARS)[:MAX_VALUE_CHARS]

    @pytest.mark.parametrize("form", ["[%s,%s]", "\r\n\t[\n%s,\n%s\n]\n", "\ufeff[%s,%s]"])
    def test_the_elements_of_a_json_array_count_as_lines(self, form: str) -> None:
        array = form % (good().decode(), good(timestamp=1).decode())
        (batch,) = atlas.read_json(io.BytesIO(array.encode()), "from")
        lines = read_one(good(), good(timestamp=1))
        assert rows_of(batch.measurements) == rows_of(lines.measurements)
        assert batch.lines.tolist() == [0] * 3 + [1] * 3 and batch.num_lines == 2

    def test_an_array_that_does_not_end_keeps_what_precedes_the_cut(self) -> None:
        batches = atlas.read_json(io.BytesIO(b"[" + good() + b"," + good()[:9]), "from")
        assert len(next(batches).lines) == 3
        with pytest.raises(ArrayError, match="does not end"):
            next(batches)

    def test_a_byte_order_mark_is_no_part_of_the_first_line(self) -> None:
        (batch,) = atlas.read_json(io.BytesIO(b"\xef\xbb\xbf" + good() + b"\n"), "from")
        assert len(batch.lines) == 3 and not batch.bad_lines

    def test_lines_before_a_cut_of_a_compressed_file_are_kept(self) -> None:
        data = gzip.compress(b"\n".join([good()] * 20_000))
        batches = atlas.read_json(decompressed(io.BytesIO(data[: len(data) // 2])), "from")
        num_lines = next(batches).num_lines
        with pytest.raises(EOFError):
            next(batches)
        assert 5_000 < num_lines < 15_000

    def test_lines_of_nothing_are_passed_over_without_a_parse(self, monkeypatch) -> None:
        monkeypatch.setattr(atlas, "_parse", None)
        (batch,) = atlas.read_json(io.BytesIO(b"\n" * 1_000_000 + b" \r\n"), "from")
        assert batch.num_lines == 1_000_001 and not batch.bad_lines


class TestBatches:
    lines = (good(), b"", b"{", good(timestamp=1), b" \t\r", good(result=[{"x": "*"}]), b"")

    def test_blank_lines_count(self) -> None:
        batch = read_one(*self.lines)
        assert batch.lines.tolist() == [0] * 3 + [3] * 3 + [5]
        assert [line for line, _, _ in batch.bad_lines] == [2]
        # The last line feed ends a line, and no other begins.
        assert batch.num_lines == 6

    @pytest.mark.parametrize("batch_rows", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    def test_batch_rows(self, batch_rows: int) -> None:
        """A result that reaches over the bound stays whole; a bad line counts as one row."""
        whole = read_one(*self.lines)
        batches = read(*self.lines, batch_rows=batch_rows)
        rows = [row for batch in batches for row in rows_of(batch.measurements)]
        assert rows == rows_of(whole.measurements)
        assert np.concatenate([batch.lines for batch in batches]).tolist() == whole.lines.tolist()
        assert [bad for batch in batches for bad in batch.bad_lines] == whole.bad_lines
        assert sum(batch.num_lines for batch in batches) == whole.num_lines
        assert len({batch.measurements.schema for batch in batches}) == 1
        sizes = [len(batch.lines) + len(batch.bad_lines) for batch in batches]
        assert all(size >= batch_rows for size in sizes[:-1])
        assert all(size < batch_rows + 3 for size in sizes)

    def test_batch_rows_1(self) -> None:
        batches = read(*self.lines, batch_rows=1)
        assert [len(batch.lines) for batch in batches] == [3, 0, 3, 1]
        assert [batch.num_lines for batch in batches] == [1, 2, 1, 2]
        assert [measurements.check(batch.measurements)[0].rtt.tolist() for batch in batches] == [
            [12.5, -1.0, 13.5],
            [],
            [12.5, -1.0, 13.5],
            [-1.0],
        ]

    def test_no_lines(self) -> None:
        assert read(b"") == []
        blank = read_one(b"", b"")
        assert (len(blank.lines), blank.bad_lines, blank.num_lines) == (0, [], 1)
        assert blank.measurements.schema == read_one(good()).measurements.schema

    def test_streams_that_read_little(self) -> None:
        """Nothing depends on where a read ends; only `read` is called."""

        class Slow:
            def __init__(self, content: bytes) -> None:
                self.rest = content

            def read(self, size: int) -> bytes:
                part, self.rest = self.rest[: min(7, size)], self.rest[min(7, size) :]
                return part

        (batch,) = atlas.read_json(Slow(b"\n".join(self.lines)), "from")  # type: ignore[arg-type]
        assert rows_of(batch.measurements) == rows_of(read_one(*self.lines).measurements)

    def test_only_a_line_feed_ends_a_line(self) -> None:
        """Not what Python's splitlines takes for one, and a carriage return is white space."""
        batch = read_one(good(note="a\u2028b\u0085c") + b"\r", good())
        assert batch.num_lines == 2
        assert not batch.bad_lines


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values),
    max_leaves=6,
)
entries = (
    st.sampled_from([{"rtt": 1.5}, {"x": "*"}, {"error": "e"}, {"late": 1}, {"dup": 1, "rtt": 2}])
    | st.fixed_dictionaries(
        {}, optional={"rtt": json_values, "x": json_values, "error": json_values}
    )
    | json_values
)
results = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("ping") | json_values,
        "af": st.sampled_from([4, 6]) | json_values,
        "pf": json_values,
        "timestamp": st.integers(-5, 2**33) | json_values,
        "from": st.sampled_from(["1.2.3.4", "::1"]) | json_values,
        "src_addr": json_values,
        "dst_addr": st.sampled_from(["1.2.3.4", "::1", "::ffff:1.2.3.4"]) | json_values,
        "addr": json_values,
        "dnserr": json_values,
        "result": st.lists(entries, max_size=4) | json_values,
    },
)
fuzzed_lines = st.lists(
    (results | json_values).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"")),
    max_size=8,
)


@settings(max_examples=num_examples(400))
@given(fuzzed_lines, st.sampled_from(["from", "src_addr"]), st.integers(1, 20))
def test_any_line_is_accounted_for(
    lines: list[bytes], source: AtlasSource, batch_rows: int
) -> None:
    # The first line shows that the file is no JSON array.
    lines = [good(), *lines]
    batches = read(*lines, source=source, batch_rows=batch_rows)
    found = np.concatenate([batch.lines for batch in batches])
    bad = {line: reason for batch in batches for line, reason, _ in batch.bad_lines}
    assert set(bad.values()) <= set(atlas.LINE_REASONS)
    for number, line in enumerate(lines):
        num_found = np.count_nonzero(found == number)
        if number in bad or not line.strip():
            assert num_found == 0
        else:
            assert num_found == len(orjson.loads(line)["result"])
    for batch in batches:
        block, faults = measurements.check(batch.measurements)
        assert len(block) + len(faults.rows) == len(batch.lines)
        measurements.as_text(batch.measurements, faults.rows)


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
    @pytest.mark.parametrize("source", ["from", "src_addr"])
    def test_from_parquet(self, source: AtlasSource) -> None:
        batch, _ = read_bigquery(source)
        assert set(batch.column("pings").type.value_type.names) == {"timeout", "error", "rtt"}
        check_exploded(atlas.explode_bigquery(batch, source), 0, len(ROWS), source)

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

    def test_a_null_list_over_values(self) -> None:
        """Arrow lets a null list have a range of values, which are none."""
        batch = pa.RecordBatch.from_pylist(ROWS, BIGQUERY_SCHEMA)
        lists = batch.column("pings")
        masked = pa.ListArray.from_arrays(
            lists.offsets,
            lists.values,
            mask=pa.array([number == 0 for number in range(len(ROWS))]),
        )
        index = batch.schema.get_field_index("pings")
        exploded = atlas.explode_bigquery(batch.set_column(index, "pings", masked), "from")
        assert exploded.rows.tolist() == [2, 4, 4, 4, 5, 5, 5]
        assert exploded.measurements.num_rows == 7
        # Beside rows 1 and 3.
        assert exploded.empty_rows.tolist() == [0, 1, 3]

    def test_small_batches(self) -> None:
        file = bigquery_file()
        for number, batch in enumerate(file.iter_batches(batch_size=1)):
            check_exploded(atlas.explode_bigquery(batch, "from"), number, number + 1)

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

    def test_read_as_dictionary(self) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ROWS, BIGQUERY_SCHEMA), sink)
        file = pq.ParquetFile(
            pa.BufferReader(sink.getvalue()), read_dictionary=["synth_addr", "dst_addr"]
        )
        (batch,) = file.iter_batches(columns=atlas.bigquery_columns(file.schema, "from"))
        check_exploded(atlas.explode_bigquery(batch, "from"), 0, len(ROWS))

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

    @pytest.mark.parametrize("source", ["from", "src_addr"])
    def test_the_schema_is_right(self, source: AtlasSource) -> None:
        _, file = read_bigquery()
        assert atlas.bigquery_schema_problem(file.schema_arrow, source) is None

    @pytest.mark.parametrize(
        ("name", "dtype", "problem"),
        [
            ("start_time", pa.string(), "column 'start_time' of type string, .* a timestamp"),
            ("synth_addr", pa.binary(), "column 'synth_addr' of type binary, .* a string"),
            ("dst_addr", pa.int64(), "column 'dst_addr' of type int64, .* a string"),
            ("af", pa.string(), "column 'af' of type string, .* an integer"),
            ("pings", pa.list_(pa.float64()), "type list<item: double>, .* a list of structs"),
            ("pings", PING_TYPE, "of type struct<.*>, which must be a list of structs"),
            *(
                (
                    "pings",
                    pa.list_(pa.struct([field for field in PING_TYPE if field.name != name])),
                    f"which must have one field '{name}'",
                )
                for name in ("timeout", "error", "rtt")
            ),
            (
                "pings",
                pa.list_(pa.struct([*list(PING_TYPE)[1:], ("timeout", pa.int64())])),
                "has field 'pings.timeout' of type int64, which must be a boolean",
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
