"""RIPE Atlas results against the official parser, and field by field."""

import io
import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ripe.atlas.sagan import PingResult, TracerouteResult

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS
from beam_pipeline.documents.json_records import ArrayError
from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import AtlasSource, Hops
from beam_pipeline.storage import lines as storage_lines
from beam_pipeline.storage.lines import read_blocks
from tests.support.atlas_results import GOOD, fault_reasons, good, read, read_one, rows_of
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
        rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.batch)]
        assert rows == expected
        counts = np.bincount(batch.rows, minlength=len(self.lines))
        assert counts.tolist() == [len(rows_of_sagan(line, source)) for line in self.lines]
        assert len(expected) == 40
        dups = [packet.dup for line in self.lines for packet in PingResult(line.decode()).packets]
        assert sum(dups) == 4, "duplicates are measurements too"

    def test_results_without_pings(self) -> None:
        """Firmware 0 and 1 give only means over the pings, of which sagan makes no packets."""
        batch = read_one(*self.lines)
        assert [(line, reason) for line, reason, _ in batch.bad_rows] == [
            (0, "no_results"),
            (1, "no_results"),
        ]
        assert batch.bad_rows[0][2] == self.lines[0].decode()
        assert batch.next_row == len(self.lines) == 15


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
    rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.batch)]
    assert rows == rows_of_sagan(line, source)


def rows_of_traceroute(line: bytes, hops: Hops) -> list[tuple]:
    """Returns the measurements of a traceroute by what sagan finds in it."""
    result = TracerouteResult(line.decode(), on_error=TracerouteResult.ACTION_IGNORE)
    replies = [[each for each in hop.packets if each.origin] for hop in result.hops]
    if hops == "all":
        found = [(each.origin, each.rtt) for hop in replies for each in hop]
    else:
        last = next(filter(None, reversed(replies)), [])
        dst = result.destination_address
        found = [(dst, each.rtt) for each in last if each.origin == dst]
        last_hop = result.hops[-1]
        num_packets = 1 if last_hop.is_error else len(last_hop.packets)
        found = found or [(dst, -1.0)] * num_packets
    time = result.created.replace(tzinfo=None)
    return sorted((time, result.origin, dst, result.af, rtt) for dst, rtt in found)


ROUTERS = ["192.168.1.1", "10.0.0.1", "193.0.14.1"]
made_up_packets = (
    st.sampled_from([{"x": "*"}, {"late": 2, "from": ROUTERS[0], "ttl": 60}])
    | st.fixed_dictionaries(
        {"from": st.sampled_from([*ROUTERS, GOOD["dst_addr"]]), "rtt": st.floats(0.001, 5000)},
        optional={"err": st.sampled_from(["H", "A", 4]), "ttl": st.just(255), "itos": st.just(1)},
    )
)  # fmt: skip
made_up_hops = st.lists(
    st.fixed_dictionaries({"hop": st.integers(1, 255), "error": st.just("sendto failed")})
    | st.fixed_dictionaries(
        {"hop": st.integers(1, 255), "result": st.lists(made_up_packets, min_size=1, max_size=3)}
    ),
    min_size=1,
    max_size=5,
)


class TestTraceroute:
    @pytest.mark.parametrize("hops", ["last", "all"])
    def test_real_results_against_sagan(self, hops: Hops) -> None:
        lines = (REAL_RESULTS.parent / "sagan_traceroutes.jsonl").read_bytes().splitlines()
        batch = read_one(*lines, hops=hops)
        rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.batch)]
        rows = [
            sorted(row for row, of in zip(rows, batch.rows, strict=True) if of == number)
            for number in range(len(lines))
        ]
        assert rows == [rows_of_traceroute(line, hops) for line in lines]
        letters = [(line, reason) for line, reason, _ in batch.bad_rows]
        num_failed = sum(row[-1] < 0 for found in rows for row in found)
        if hops == "last":
            assert (len(batch.rows), num_failed, letters) == (64, 58, [])
        else:
            assert (len(batch.rows), num_failed, letters) == (
                530,
                0,
                [(12, "no_results"), (18, "no_results")],
            )

    @settings(max_examples=num_examples(200))
    @given(made_up_hops, st.sampled_from(["last", "all"]))
    def test_made_up_results_against_sagan(self, result: list[dict], hops: Hops) -> None:
        line = good(type="traceroute", result=result)
        batch = read_one(line, hops=hops)
        rows = [(*row, round(rtt, 3)) for *row, rtt in rows_of(batch.batch)]
        assert sorted(rows) == rows_of_traceroute(line, hops)
        letters = [] if rows else [(0, "no_results", line.decode())]
        assert batch.bad_rows == letters

    def test_unusable_entries(self) -> None:
        """Each is lost alone, and named."""
        reply = {"from": GOOD["dst_addr"], "rtt": 12.5}
        packets = [reply, 5, {**reply, "rtt": "1"}, {**reply, "from": 7}, {"x": 1}]
        line = good(type="traceroute", result=[7, {"hop": 2}, {"hop": 3, "result": packets}])
        assert [text for _, _, text in read_one(line).bad_rows] == [
            "result[2].result[1]: 5",
            'result[2].result[2]: {"from":"193.0.14.129","rtt":"1"}',
            'result[2].result[3]: {"from":7,"rtt":12.5}',
            'result[2].result[4]: {"x":1}',
        ]
        batch = read_one(line, hops="all")
        assert [text for _, _, text in batch.bad_rows][4:] == [
            'result[1]: {"hop":2}',
            "result[0]: 7",
        ]
        assert {reason for _, reason, _ in batch.bad_rows} == {"wrong_type"}
        assert batch.batch.column("rtt").to_pylist() == [12.5]


class TestFields:
    @pytest.mark.parametrize(
        ("entry", "rtt"),
        [
            ({"rtt": 2**60 + 1}, float(2**60)),
            ({"error": "", "rtt": 12.5}, -1.0),
            ({"rtt": None}, None),
            ({"late": 1, "ttl": 55}, None),
            ({}, None),
        ],
    )
    def test_rtt(self, entry: dict[str, Any], rtt: float | None) -> None:
        batch = read_one(good(result=[entry]))
        assert batch.batch.column("rtt").to_pylist() == [rtt]
        assert fault_reasons(batch.batch) == ["rtt_null"] * (rtt is None)

    @pytest.mark.parametrize(
        ("dst_addr", "version"),
        [
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
        assert batch.batch.column("ip_version").to_pylist() == [4] * 3 + [version] * 3 + [6] * 3


# --- lines and batches ----------------------------------------------------------------------------


class TestBadLines:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b'{"rtt": NaN}', "json_invalid"),
            (b'{"from": "\xff"}', "json_invalid"),
            (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "json_invalid"),
            (good() + good(), "json_invalid"),
            (b"17", "json_not_an_object"),
            (good(type="dns"), "not_a_ping"),
            (good(result=[]), "no_results"),
            (good(result=[], dnserr="non-recoverable failure in name resolution"), "dns_error"),
            (good(timestamp=-1e300), "event_time_out_of_range"),
            (good(af=128), "ip_version_not_4_or_6"),
            (good(timestamp=True), "wrong_type"),
            (good(dst_addr=["193.0.14.129"]), "wrong_type"),
            (good(af=..., pf="inet"), "wrong_type"),
            (good(result="traceroute to 2001:db8::1"), "wrong_type"),
            (good(note="x" * atlas.MAX_LINE_BYTES), "line_too_long"),
        ],
    )
    def test_reason(self, line: bytes, reason: str) -> None:
        batch = read_one(good(), line, good())
        expected = line[:MAX_VALUE_CHARS].decode("utf-8", "replace")
        assert batch.bad_rows == [(1, reason, expected)]
        assert batch.rows.tolist() == [0] * 3 + [2] * 3
        assert batch.next_row == 3

    @pytest.mark.parametrize(
        "entry",
        [
            5,
            {"rtt": True},
            {"x": None, "rtt": 1.0},
            json.loads("[" * 1000 + "]" * 1000),
        ],
    )
    def test_unusable_ping(self, entry: Any) -> None:
        """Only that ping is lost."""
        line = json.dumps({**GOOD, "result": [{"rtt": 1.0}, entry, {"x": "*"}]}).encode()
        batch = read_one(good(), line, good(result=[entry] if type(entry) is not list else [7]))
        assert [(line, reason) for line, reason, _ in batch.bad_rows] == [
            (1, "wrong_type"),
            (2, "wrong_type"),
        ]
        text = "deeply nested" if type(entry) is list else orjson.dumps(entry).decode()
        assert batch.bad_rows[0][2] == f"result[1]: {text}"
        assert batch.rows.tolist() == [0] * 3 + [1] * 2
        assert batch.batch.column("rtt").to_pylist()[3:] == [1.0, -1.0]

    def test_the_bound_on_lines(self) -> None:
        """A line of just the greatest length is taken, in the middle of a file and at its end."""
        length = atlas.MAX_LINE_BYTES
        fits, over = (good(note="x" * (n - len(good(note="")))) for n in (length, length + 1))
        assert (len(fits), len(over)) == (length, length + 1)
        over = over[:-2] + over[-1:] + b" "  # would be a result if it were cut
        batch = read_one(fits, over, fits, over)
        assert [(line, reason) for line, reason, _ in batch.bad_rows] == [
            (1, "line_too_long"),
            (3, "line_too_long"),
        ]
        assert batch.rows.tolist() == [0] * 3 + [2] * 3

    @pytest.mark.parametrize("form", ["[%s,%s]", "\r\n\t[\n%s,\n%s\n]\n", "\ufeff[%s,%s]"])
    def test_json_array(self, form: str) -> None:
        array = form % (good().decode(), good(timestamp=1).decode())
        (batch,) = atlas.read_json(read_blocks(io.BytesIO(array.encode())), "from")
        lines = read_one(good(), good(timestamp=1))
        assert rows_of(batch.batch) == rows_of(lines.batch)
        assert batch.rows.tolist() == [0] * 3 + [1] * 3 and batch.next_row == 2

    def test_truncated_json_array(self) -> None:
        stream = io.BytesIO(b"[" + good() + b"," + good()[:9])
        batches = atlas.read_json(read_blocks(stream), "from")
        assert len(next(batches).rows) == 3
        with pytest.raises(ArrayError, match="does not end"):
            next(batches)


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
some_fields = {
    "type": st.sampled_from(["ping", "traceroute"]) | json_values,
    "af": st.sampled_from([4, 6]) | json_values,
    "pf": json_values,
    "timestamp": st.integers(-5, 2**33) | json_values,
    "from": st.sampled_from(["1.2.3.4", "::1"]) | json_values,
    "src_addr": json_values,
    "dst_addr": st.sampled_from(["1.2.3.4", "::1", "::ffff:1.2.3.4"]) | json_values,
    "addr": json_values,
    "dnserr": json_values,
    "result": st.lists(entries, max_size=4) | json_values,
}
results = st.fixed_dictionaries({}, optional=some_fields)


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    line = good(**draw(st.sampled_from([{}, {"note": "\u00e9"}, {"note": [1.5, {"a": None}]}])))
    at = draw(st.integers(0, len(line)))
    return line[:at] + draw(st.binary(max_size=3)).replace(b"\n", b"") + line[at:]


any_line = (
    (results | json_values | results.map(lambda fields: {**GOOD, **fields})).map(
        lambda value: json.dumps(value).encode()
    )
    | damaged_lines()
    | st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b""))
)


@settings(max_examples=num_examples(400))
@given(
    lines=st.lists(any_line, max_size=8),
    source=st.sampled_from(["from", "src_addr"]),
    batch_rows=st.integers(1, 20),
    block_bytes=st.sampled_from([1, 1000, 1 << 20]),
)
def test_any_line_is_accounted_for(
    lines: list[bytes], source: AtlasSource, batch_rows: int, block_bytes: int
) -> None:
    """And the same in batches of any size."""
    # The first line shows that the file is no JSON array.
    lines = [good(), *lines]
    whole = read_one(*lines, source=source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_lines, "BLOCK_BYTES", block_bytes)
        batches = read(*lines, source=source, batch_rows=batch_rows)
    assert [row for batch in batches for row in rows_of(batch.batch)] == rows_of(whole.batch)
    sizes = [len(batch.rows) + len(batch.bad_rows) for batch in batches]
    assert all(size >= batch_rows for size in sizes[:-1])
    found = np.concatenate([batch.rows for batch in batches])
    letters = [letter for batch in batches for letter in batch.bad_rows]
    assert {reason for _, reason, _ in letters} <= set(atlas.LINE_REASONS)
    bad, bad_pings = set(), Counter()
    for number, _, text in letters:
        if text.startswith("result["):
            bad_pings[number] += 1
        else:
            bad.add(number)
    for number, line in enumerate(lines):
        num_found = np.count_nonzero(found == number) + bad_pings[number]
        if number in bad or not line.strip():
            assert num_found == 0
        elif (result := orjson.loads(line)).get("type") == "traceroute":
            assert num_found > 0
        else:
            assert num_found == len(result["result"])
    for batch in batches:
        block, faults = measurements.check(batch.batch)
        assert len(block) + len(faults.rows) == len(batch.rows)
        measurements.as_text(batch.batch, faults.rows)


class NothingIsPlain:
    def decode(self, text: str) -> None:
        raise ValueError

    decode_lines = decode


PLAIN = (
    good(),
    good(dst_addr="2001:7fd::1", af=6, note="}\\n{\u00e9"),
    good(dst_addr=..., result=[{"error": "dns resolution failed"}]),
    good(note=[{"a": [{}]}, 1e300, None], result=[{"rtt": 7}, {}, {"rtt": None}]),
)


class TestWholeBlocks:
    @pytest.mark.parametrize("lines", [PLAIN[:1], PLAIN, [b" " + PLAIN[0], PLAIN[1] + b"\r"]])
    def test_plain(self, lines: list[bytes]) -> None:
        results = atlas._plain_results(b"\n".join(lines), atlas._plain_decoder("from"))
        assert len(results) == len(lines)

    @pytest.mark.parametrize(
        "text",
        [
            PLAIN[0] + PLAIN[0] + b"\n\n" + PLAIN[0],
            PLAIN[0] + PLAIN[0] + b"\n" + PLAIN[0][:-1] + b"\n}",
            b'{"a":\n' + PLAIN[0] + b"}\n" + PLAIN[0] + PLAIN[0],
            PLAIN[0] + b"\n" + PLAIN[0][:-1] + b',"note":"}\n{"}',
        ],
    )
    def test_not_plain(self, text: bytes) -> None:
        assert atlas._plain_results(text, atlas._plain_decoder("from")) == []


@settings(max_examples=num_examples(400))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLAIN) | st.sampled_from(PLAIN) | any_line,
            st.sampled_from([b"\n"] * 12 + [b"", b"\n\n", b"\r\n", b" \n ", b"\n}", b"{\n"]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, 5000), max_size=3),
    st.sampled_from(["from", "src_addr"]),
)
def test_plain_results_break_no_rule(
    lines: list[tuple[bytes, bytes]], cuts: list[int], source: AtlasSource
) -> None:
    """Read in blocks cut anywhere, they are what the rules in Python give, line by line."""
    text = good() + b"\n" + b"".join(itertools.chain.from_iterable(lines))
    bounds = itertools.pairwise(sorted({0, *cuts, len(text)}))
    blocks = [text[start:end] for start, end in bounds if text[start:end]]
    (batch,) = atlas.read_json(iter(blocks), source, is_span=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlas, "_plain_decoder", lambda source: NothingIsPlain())
        (by_rules,) = atlas.read_json(iter([text]), source, is_span=True)
    assert batch.batch.equals(by_rules.batch)
    assert batch.rows.tolist() == by_rules.rows.tolist()
    assert batch.bad_rows == by_rules.bad_rows
    assert batch.next_row == by_rules.next_row == text.count(b"\n") + (text[-1:] != b"\n")


def test_a_number_that_is_not_read_may_exceed_floats() -> None:
    line = good(note=1)[:-1] + b"e999}"
    assert line.endswith(b'"note":1e999}')
    assert len(read_one(line).rows) == 3
