"""The same pings in any form give the same measurements; what is not pings is refused by name."""

import json
import os
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.main import main
from beam_pipeline.sources import mapping, reading
from beam_pipeline.sources.inputs import inspect, match_files
from beam_pipeline.sources.mapping import problem_of
from beam_pipeline.sources.options import Mapping, ReadOptions, parse_columns
from beam_pipeline.sources.reading import UnreadableInputError
from tests.support.forms import (
    FORMS,
    SRC,
    Ping,
    as_table,
    measured,
    options,
    parquet,
    pings,
    read,
    wide,
    with_type,
)


@pytest.mark.parametrize("form", FORMS)
@given(rows=pings)
def test_the_same_pings_in_any_form(form: str, folder: Path, rows: list[Ping]) -> None:
    if form == "fping":  # its lines have no source: all pings are of one
        rows = [(at, SRC, dst, rtt) for at, _, dst, rtt in rows]
    (folder / "plain").write_bytes(parquet()(rows))
    expected = measured(read(folder / "plain", options()))
    assert len(expected) == len(rows)
    write, how = FORMS[form]
    (folder / "form").write_bytes(write(rows))
    batches = list(read(folder / "form", how))
    assert measured(iter(batches)) == expected
    assert sum(batch.num_rows for batch in batches) == len(rows)
    assert not any(batch.letters for batch in batches)


@given(rows=pings, as_list=st.booleans())
def test_several_rtts_in_a_row(rows: list[Ping], as_list: bool, folder: Path) -> None:
    (folder / "plain").write_bytes(parquet()([row for row in rows for _ in range(2)]))
    if as_list:
        both = with_type(rtt=lambda c: pa.array([[v, v] for v in c.to_pylist()]))
        (folder / "wide").write_bytes(parquet(both)(rows))
        how = options()
    else:
        (folder / "wide").write_bytes(wide(rows))
        columns = "event_time=ts,src_addr=a,dst_addr=b,rtt=ping1,ping2"
        how = options(columns, time_unit="s")
    assert measured(read(folder / "wide", how)) == measured(read(folder / "plain", options()))


@given(rows=pings, data=st.data())
@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_loses_nothing_silently(
    form: str, folder: Path, rows: list[Ping], data: st.DataObject
) -> None:
    """Cut anywhere, or with a byte changed: every row read is a measurement or a dead letter."""
    write, how = FORMS[form]
    content = bytearray(write(rows))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        # A Parquet footer stays intact: it has no checksum, and pyarrow aborts the process for some
        # damaged ones, where `RowGroupMetaData.column` lets an exception of C++ pass.
        footer = 8 + int.from_bytes(content[-8:-4], "little") if content[-4:] == b"PAR1" else 0
        at = data.draw(st.integers(0, len(content) - footer - 1))
        content[at] = data.draw(st.integers(0, 255))
    (folder / "bad").write_bytes(content)
    try:
        for batch in read(folder / "bad", how):
            kept = len(batch.block) if batch.block is not None else 0
            assert batch.num_rows == kept + len(batch.letters) + batch.num_left_out
    except (ProbelineError, UnreadableInputError) as error:
        assert str(folder / "bad") in str(error)


@pytest.mark.parametrize("index", [2, -1])
def test_an_entry_that_a_dictionary_lacks(index: int) -> None:
    indices = pa.array([0, None, index], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    with pytest.raises(pa.ArrowInvalid, match="a dictionary lacks entries"):
        reading._check_indices(column)


def test_a_carriage_return_in_a_line_does_not_hide_what_is_wrong(folder: Path) -> None:
    (folder / "bad").write_bytes(b"event_time,src_addr,dst_addr,rtt\n1,192.0.2.1,192.0\r.2.2,3\n")
    with pytest.raises(ProbelineError, match="numbers without a unit"):
        list(read(folder / "bad", options()))


# --- rows that cannot be read -------------------------------------------------------------------

HEAD = "event_time,src_addr,dst_addr,rtt"
GOOD = "2026-01-01T00:00:00Z,192.0.2.1,198.51.100.1,1.5"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"{GOOD},7", "csv_columns"),
        (f"{GOOD},\xfc", "csv_columns"),
        ("2026-01-01T00:00:00Z,192.0.2.\xfc,198.51.100.1,1.5", "src_addr_invalid"),
        ("1767225600,192.0.2.1,198.51.100.1,1.5", "event_time_unreadable"),
        (",192.0.2.1,198.51.100.1,1.5", "event_time_null"),
        ("2026-01-01T00:00:00Z,192.0.2.1,198.51.100.1,timeout", "rtt_unreadable"),
        ("2026-01-01T00:00:00Z,192.0.2.1,198.51.100.1,", "rtt_null"),
    ],
)
def test_a_bad_row_of_text(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "x").write_text("\n".join([HEAD, GOOD, line, GOOD]), "latin-1")
    batches = list(read(tmp_path / "x", options()))
    (letter,) = [letter for batch in batches for letter in batch.letters]
    assert (letter.row, letter.reason) == (1, reason)
    assert len(measured(iter(batches))) == 2
    if reason == "rtt_unreadable":  # the value as the file has it
        assert '"rtt":"timeout"' in letter.value


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("blank", ["", "\n", "\n\n  \n", "\ufeff\n\t\n"])
def test_blank_lines_of_text(tmp_path: Path, blank: str, end: str) -> None:
    content = blank + "\n".join([HEAD, GOOD, "", "x", "", GOOD])
    (tmp_path / "x").write_bytes(content.replace("\n", end).encode())
    batches = list(read(tmp_path / "x", options()))
    letters = [(each.row, each.reason) for batch in batches for each in batch.letters]
    assert letters == [(1, "csv_columns")]
    assert len(measured(iter(batches))) == 2


def test_columns_of_atlas_results(tmp_path: Path) -> None:
    """Named columns are read from any JSON, also from what looks like a result of RIPE Atlas."""
    result = {"prb_id": 1, "timestamp": 1_767_225_600, "from": "192.0.2.1", "dst_addr": "192.0.2.2"}
    (tmp_path / "x").write_text(json.dumps({**result, "avg": 1.5, "result": [{"rtt": 1.5}] * 3}))
    how = options("event_time=timestamp,src_addr=from,rtt=avg", time_unit="s")
    assert len(measured(read(tmp_path / "x", how))) == 1
    assert len(measured(read(tmp_path / "x", options()))) == 3


NUMBERS = """1.5 -1 +1 1e3 1. . .5 inf -INF nan NaN Infinity 0x1p3 1_0 1,5 ١ 1e --1 1e999 nan(1)
    nan(-) infinite -.5e-3"""
TIMES = """
    2026-01-01 2026-01-01T01 2026-01-01T01:02 2026-01-01T01:02:03Z 2026-01-01T01:02:03.1234567
    2026-01-01T01:02:03+0200 2026-01-01T01:02:03+02 2026-1-1 20260101 2026-01-01T01:02:60
    2026-01-01T24:00 2026-13-01 2026-01-01T01:02:03. 2026-01-01T01:02:03.1Z 2026-01-01Z
    2026-01-01T01Z 0000-01-01 9999-12-31T23:59:59 10000-01-01 2026-01-01t01:02:03
    2026-01-01T01:02:03z 2026-01-01T01:02:03+02:00 20260101T010203.5Z 2026-01-01~01:02:03,5
    2026-01-01~01:02:03~UTC 2026-01-01~01:02:03~+0200 2026-01-01T01:02:03Z~UTC
"""


@pytest.mark.parametrize(
    ("read_texts", "texts", "good"),
    [
        (mapping._numbers, NUMBERS, "2.5"),
        *((mapping._iso_times, TIMES, f"2026-05-05 00:00:00{zone}") for zone in ("", "Z", " UTC")),
    ],
)
def test_a_text_does_not_depend_on_its_neighbours(read_texts, texts: str, good: str) -> None:
    """Batches of good texts are cast at once, others text by text."""

    def value(column: list[str], at: int) -> tuple[str, bool]:
        values, bad = read_texts(pa.array(column))
        number = values.cast(pa.float64() if "." in good else pa.int64())[at]
        return repr(number.as_py()), bool(bad[at])

    for text in [text.replace("~", " ") for text in texts.split()]:
        found = {value([text], 0), value([good, text], 1), value([text, "?"], 0)}
        assert len(found | {value(["?", good, text], 2)}) == 1, text


def test_rows_without_rtts_are_dead_letters(tmp_path: Path) -> None:
    table = as_table([(1_767_225_600_000_000, "192.0.2.1", "192.0.2.2", 1.0)] * 4)
    lists = pa.array([[1.0, 2.0], [], None, [3.0]], pa.list_(pa.float64()))
    pq.write_table(table.set_column(4, "rtt", lists), tmp_path / "x")
    batches = list(read(tmp_path / "x", options()))
    letters = [(each.row, each.reason) for batch in batches for each in batch.letters]
    assert letters == [(1, "rtt_null"), (2, "rtt_null")]
    assert [row[-1] for row in measured(iter(batches))] == [1.0, 2.0, 3.0]


def test_int96_of_any_year(tmp_path: Path) -> None:
    times = [datetime(year, 1, 1) for year in (1980, 2026, 2600, 9999)]
    table = as_table([(0, "192.0.2.1", "192.0.2.2", 1.0)] * 4)
    table = table.set_column(0, "event_time", pa.array(times, pa.timestamp("us")))
    pq.write_table(table, tmp_path / "x", use_deprecated_int96_timestamps=True)
    found = [row[0] for row in measured(read(tmp_path / "x", options()))]
    assert found == [int((t - datetime(1970, 1, 1)).total_seconds()) * 10**6 for t in times]


# --- files of another kind -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "x", "type": "ping", "target": "a", "results": []}', "Globalping"),
        (b'{"start_time": 1, "synth_addr": "192.0.2.1", "pings": []}', "BigQuery"),
        (b'{"2": [{"prb_id": 2}]}', r"select.has..prb_id"),
        (b'{"ts": 1, "a": {"from": "x", "to": "y"}}', "=ts,src_addr=a.from,dst_addr=a.to,rtt=NAME"),
        (b"ts,src_addr\n1,2\n", "'dst_addr', 'rtt' .*event_time=ts,dst_addr=NAME,rtt=NAME"),
        (b'{"a":' * 1020 + b"1" + b"}" * 1020, "only a.a.a.a.a."),
        (b"Time;Probe;Target;RTT (ms)\n", "'event_time=Time,src_addr=.*,rtt=RTT .ms.'"),
        (b"1,192.0.2.1,192.0.2.2,3.5\n", "positions, counted from 1"),
        (b"1 192.0.2.1  192.0.2.2 3.5\n", "tr -s"),
        (b"ORC" + bytes(20), "an ORC file"),
        (b"PK\3\4" + bytes(20), "unzip"),
        (b"\x12\5\0\1" + bytes(20), "sc_warts2json"),
        (b"event_time src_addr dst_addr rtt\n", "tr -s"),
        (b"sep=;\nevent_time;rtt\n", "grep -v"),
        (b"a page\n\nof text\n", "docs/your_data.md"),
        (bytes(257) + b"ustar" + bytes(250), "tar -xf"),
        (b'{"n": {"v": 1}, "a": {"b": [%s]}}' % b",".join([b'{"rtt": 1}'] * 9999), "select.has"),
        (b'{"event_time": [%s]}' % b",".join([b"1"] * 99999), "orient='records'"),
        (b"\x89PNG" + bytes(range(256)), "docs/your_data.md"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    file = match_files([str(tmp_path / "x")])[0]
    with pytest.raises(ProbelineError, match=message) as caught:
        inspect(file, ReadOptions())
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "x")) and "\n" not in line
    assert len(line) <= 500 + len(str(tmp_path))
    assert inspect(file, ReadOptions(skip_bad_files=True)).problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"event_time": pa.int64()}, "a number without a unit: pass --time_unit=s, ms, us or ns"),
        ({"event_time": pa.date32()}, "must be a timestamp, a number or an ISO 8601 text"),
        ({"src_addr": pa.uint32()}, "pass --columns src_addr=src_addr:packed"),
        ({"rtt": pa.struct({"::1": pa.float32()})}, "of type struct: name a field of it, as in"),
        ({"rtt": pa.list_(pa.float32())}, None),
        ({"rtt": pa.null(), "ip_version": pa.string()}, None),
        ({"src_addr": pa.dictionary(pa.int32(), pa.large_binary())}, None),
    ],
)
def test_types_of_columns(change: dict, problem: str | None) -> None:
    types = {"event_time": pa.timestamp("ns"), "src_addr": pa.string(), "dst_addr": pa.string()}
    schema = pa.schema({**types, "ip_version": pa.int8(), "rtt": pa.float32(), **change})
    found = problem_of(schema, Mapping())
    assert found is None if problem is None else problem in (found or "")


def test_missing_and_duplicate_columns() -> None:
    with pytest.raises(UsageError, match="mixes positions and names"):
        parse_columns("rtt=3,event_time=1")
    schema = as_table([(0, "192.0.2.1", "192.0.2.2", 1.0)]).schema
    twice = problem_of(schema.append(schema.field("rtt")), Mapping())
    assert twice == "has 2 columns named 'rtt'; it must be one"
    assert "in --columns rtt=NAME" in (problem_of(schema.remove(4), Mapping()) or "")
    given = "src_addr=src_addr:packed,dst_addr==192.0.2.1,event_time=at"
    packed = schema.set(1, pa.field("src_addr", pa.int64()))
    problem = problem_of(packed, Mapping(parse_columns(given))) or ""
    # What was given and holds is part of the cure.
    assert problem.endswith("event_time=event_time,src_addr=src_addr:packed,dst_addr==192.0.2.1")


# --- which files ---------------------------------------------------------------------------------


def test_hidden_names_and_further_names_are_left_out(tmp_path: Path, capsys) -> None:
    data = parquet()([(1_767_225_600_000_000, "192.0.2.1", "192.0.2.2", 1.0)])
    for name in ("a", "x/b", "_temporary/0/c", ".ipynb_checkpoints/d", "x/._b", "_SUCCESS"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.link(tmp_path / "in/a", tmp_path / "in/hard")
    (tmp_path / "in/y").symlink_to(tmp_path / "in/x")

    def names(pattern: str) -> list[str]:
        files = match_files([f"{tmp_path}/in{pattern}"])
        return [os.path.relpath(file.path, tmp_path / "in") for file in files]

    assert names("/**") == ["a", "x/b"]
    assert "a file with two names is read once" in capsys.readouterr().err
    assert names("") == names("/*") == ["a"]
    assert names("/_temporary/**") == ["_temporary/0/c"]
    assert names("/*/._b") == ["x/._b"]


@pytest.mark.parametrize(
    ("mark", "pattern"),
    [
        ("_delta_log/0.json", "/day=1/*.parquet"),
        ("_delta_log/0.json", "/../t*/day=*/*"),
        ("metadata/version-hint.text", "/data/**/*.parquet"),
        ("metadata/v1.metadata.json", "/data/day=1/"),
    ],
)
def test_a_table_with_removed_files_is_refused(tmp_path: Path, mark: str, pattern: str) -> None:
    files = ["part-0.parquet", "day=1/x.parquet", "data/day=1/x.parquet", "../other/x.parquet"]
    for path in [tmp_path / "in/table" / name for name in [mark, *files]]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    kind = "Delta" if "delta" in mark else "Iceberg"
    with pytest.raises(UsageError, match=rf"table is a {kind} table.*{kind.lower()}_scan"):
        match_files([f"{tmp_path}/in/table{pattern}"])
    assert len(match_files([f"{tmp_path}/in/*/x.parquet"])) == 1  # reaches no file of the table


def test_values_in_the_path(tmp_path: Path) -> None:
    rows = [(1_767_225_600_000_000, "192.0.2.1", "192.0.2.2", 1.0)]
    path = tmp_path / "src_addr=2001%3Adb8%3A%3A1/x.parquet"
    path.parent.mkdir()
    path.write_bytes(parquet(lambda table: table.drop_columns(["src_addr"]))(rows))
    (tmp_path / "plain").write_bytes(parquet()([(rows[0][0], "2001:db8::1", *rows[0][2:])]))
    assert measured(read(path, options())) == measured(read(tmp_path / "plain", options()))


# --- a run that kept nothing ------------------------------------------------------------------


def run(tmp_path: Path, *flags: str) -> tuple[int, Path]:
    return main([f"--output={tmp_path}/out", *flags]), tmp_path / "out"


def test_a_dead_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [(1_767_225_600_000_000 + n, "192.0.2.1", "192.0.2.2", 1.0) for n in range(5)]
    (tmp_path / "good").write_bytes(parquet()(rows))
    bad = with_type(src_addr=lambda c: pa.array([f"{v}/32" for v in c.to_pylist()]))
    (tmp_path / "bad").write_bytes(parquet(bad)(rows))
    code, output = run(tmp_path, f"--input={tmp_path}/good", f"--input={tmp_path}/bad")
    assert code == 0
    (warning,) = open_dataset(str(output)).manifest.warnings
    assert warning.startswith(f"{tmp_path}/bad: all 5 rows are dead letters")
    assert "192.0.2.1/32" in warning and "without prefix or port" in warning
    assert warning in capsys.readouterr().out
    assert warning in (output / "README.md").read_text()


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("192.0.2.1/32", [], "all 1 rows of 1 file are dead letters (1 src_addr_invalid)"),
        ("192.0.2.1", ["--since=2026-02-01"], "none of 1 rows is in the sample"),
        ("", [], "the 1 input files have no rows"),
    ],
)
def test_a_run_that_kept_nothing_fails(
    tmp_path: Path, capsys, content: str, flags: list[str], message: str
) -> None:
    line = f"2026-01-01T00:00:00Z,{content},198.51.100.1,1.5\n" if content else ""
    (tmp_path / "x.csv").write_text(f"{HEAD}\n{line}")
    code, output = run(tmp_path, f"--input={tmp_path}/x.csv", *flags)
    assert code == 1 and message in capsys.readouterr().err
    assert not (output / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("time_us", "rtt", "messages"),
    [
        (4_000_000_000_000_000, 90_000.0, ("after tomorrow", "RTTs are over 60 s")),
        (1_767_225_600_000, 0.005, ("before 2000", "RTTs are under 10 µs")),
    ],
)
def test_a_wrong_unit_is_pointed_out(
    tmp_path: Path, time_us: int, rtt: float, messages: tuple[str, str]
) -> None:
    (tmp_path / "x").write_bytes(parquet()([(time_us, "192.0.2.1", "192.0.2.2", rtt)]))
    code, output = run(tmp_path, f"--input={tmp_path}/x")
    warnings = open_dataset(str(output)).manifest.warnings
    assert code == 0 and len(warnings) == 2
    assert messages[0] in warnings[0] and messages[1] in warnings[1]
