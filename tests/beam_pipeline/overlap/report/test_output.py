"""Reading an output: lines by number, and columns of JSON lines."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.report import output as reading
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.results.layout import COVERAGE, NGRAMS


def an_output(folder: Path, name: str, lines: list[bytes]) -> Output:
    (folder / "stats").mkdir(exist_ok=True)
    (folder / ".SUCCESS").touch()
    data = b"".join(line + b"\n" for line in lines)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return Output(str(folder))


@given(st.data())
def test_lines_are_those_of_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = data.draw(
        st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), min_size=1)
    )
    numbers = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1))))
    block_bytes = data.draw(st.integers(1, 12))
    output = an_output(tmp_path_factory.mktemp("lines"), NGRAMS, lines)
    text = b"".join(line + b"\n" for line in lines)
    blocks = [text[at : at + block_bytes] for at in range(0, len(text), block_bytes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "read_blocks", lambda _: iter(blocks))
        assert list(output.lines(NGRAMS, numbers)) == [lines[number] for number in numbers]
        with pytest.raises(ProbelineError, match=f"line {len(lines)} is missing"):
            list(output.lines(NGRAMS, [*numbers, len(lines)]))


def test_columns_of_records_with_lone_surrogates(tmp_path: Path) -> None:
    records = [{"name": "plain \U0001f600", "count": 1, "more": [1]}, {"count": 2, "name": "x"}]
    odd = [*records, {"name": "odd \ud800", "count": 3}]
    schema = pa.schema([("name", pa.string()), ("count", pa.int64())])
    for given_records in (records, odd):
        output = an_output(tmp_path, COVERAGE, [json.dumps(r).encode() for r in given_records])
        (table,) = output.tables(COVERAGE, schema)
        names = [r["name"].encode("utf-8", "backslashreplace").decode() for r in given_records]
        assert table.column("name").to_pylist() == names
        assert table.column("count").to_pylist() == [r["count"] for r in given_records]


@pytest.mark.parametrize("line", [b'{"name": "x"}', b'{"name": 3, "count": 1}', b"{", b"[]"])
def test_columns_of_damaged_records_are_refused(tmp_path: Path, line: bytes) -> None:
    schema = pa.schema([("name", pa.string()), ("count", pa.int64())])
    output = an_output(tmp_path, COVERAGE, [b'{"name": "x", "count": 1}', line])
    with pytest.raises(ProbelineError, match=r"overlap_coverage\.jsonl"):
        list(output.tables(COVERAGE, schema))
