"""Lines of RIPE Atlas: everything one can have wrong, and batches that they become."""

import gzip
import io
import json
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS
from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.options import AtlasSource
from beam_pipeline.storage.json_array import ArrayError
from beam_pipeline.storage.lines import decompressed
from tests.support.atlas_results import good, read, read_one, rows_of
from tests.support.properties import num_examples


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

    def test_file_without_line_ends(self) -> None:
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

    @pytest.mark.parametrize("form", ["[%s,%s]", "\r\n\t[\n%s,\n%s\n]\n", "\ufeff[%s,%s]"])
    def test_json_array(self, form: str) -> None:
        array = form % (good().decode(), good(timestamp=1).decode())
        (batch,) = atlas.read_json(io.BytesIO(array.encode()), "from")
        lines = read_one(good(), good(timestamp=1))
        assert rows_of(batch.measurements) == rows_of(lines.measurements)
        assert batch.lines.tolist() == [0] * 3 + [1] * 3 and batch.num_lines == 2

    def test_truncated_json_array(self) -> None:
        batches = atlas.read_json(io.BytesIO(b"[" + good() + b"," + good()[:9]), "from")
        assert len(next(batches).lines) == 3
        with pytest.raises(ArrayError, match="does not end"):
            next(batches)

    def test_truncated_compressed_file(self) -> None:
        data = gzip.compress(b"\n".join([good()] * 20_000))
        batches = atlas.read_json(decompressed(io.BytesIO(data[: len(data) // 2])), "from")
        num_lines = next(batches).num_lines
        with pytest.raises(EOFError):
            next(batches)
        assert 5_000 < num_lines < 15_000

    def test_blank_lines_are_not_parsed(self, monkeypatch) -> None:
        monkeypatch.setattr(atlas, "_parse", None)
        (batch,) = atlas.read_json(io.BytesIO(b"\n" * 1_000_000 + b" \r\n"), "from")
        assert batch.num_lines == 1_000_001 and not batch.bad_lines


class TestBatches:
    lines = (good(), b"", b"{", good(timestamp=1), b" \t\r", good(result=[{"x": "*"}]), b"")

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

    def test_short_reads(self) -> None:
        """Nothing depends on where a read ends; only `read` is called."""

        class Slow:
            def __init__(self, content: bytes) -> None:
                self.rest = content

            def read(self, size: int) -> bytes:
                part, self.rest = self.rest[: min(7, size)], self.rest[min(7, size) :]
                return part

        (batch,) = atlas.read_json(Slow(b"\n".join(self.lines)), "from")  # type: ignore[arg-type]
        assert rows_of(batch.measurements) == rows_of(read_one(*self.lines).measurements)


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
