"""Files of JSON lines read in several spans."""

import bz2
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.main import main
from beam_pipeline.sources import atlas, spans
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from tests.support.atlas_results import good

LINES = [
    *(good(timestamp=n, **{"from": f"10.0.{n % 7}.{n % 11}"}) for n in range(500)),
    b"", b"{", good(type="dns"), good(result=[{"rtt": "a"}, {"x": "*"}]), good(dst_addr="a"),
] * 3  # fmt: skip
TEXT = b"\xef\xbb\xbf" + b"\n".join(LINES)


def write(path: Path, form: str) -> Path:
    lines = TEXT.splitlines(keepends=True)
    if form == "bz2":
        parts = [b"".join(lines[at : at + 20]) for at in range(0, len(lines), 20)]
        path.write_bytes(b"".join(map(bz2.compress, parts)))
    else:
        path.write_bytes(TEXT)
    return path


@pytest.fixture
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_SPAN_BYTES", {None: 20_000, "bzip2": 1000})


def run(path: Path, output: Path) -> tuple[list[dict], dict[str, bytes], dict]:
    """Returns the dead letters, the shards and the counts of a job over one file."""
    assert main([f"--input={path}", f"--output={output}", "--direct_num_workers=1"]) == 0
    letters = pq.read_table(output / "dead_letter").to_pylist()
    letters.sort(key=lambda letter: tuple(letter.values()))
    shards = {p.name: p.read_bytes() for p in sorted(output.glob("t*/*.arrayrecord"))}
    return letters, shards, open_dataset(str(output)).manifest.counts.__dict__


@pytest.mark.parametrize("form", ["plain", "bz2"])
def test_job(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards, counts and dead letters, with their lines, are those of the whole file."""
    path = write(tmp_path / "pings", form)
    whole = run(path, tmp_path / "whole")
    assert whole[1] and len(whole[0]) == 18
    small = {None: 20_000, "bzip2": 1000}
    monkeypatch.setattr(spans, "_SPAN_BYTES", small)
    units = plan_units([inspect(match_files([str(path)])[0], ReadOptions())])
    assert len(units) == 4
    assert run(path, tmp_path / "in spans") == whole


@pytest.mark.usefixtures("small_spans")
def test_files_that_are_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "pings"
    path.write_bytes(b" [" + TEXT)
    assert inspect(match_files([str(path)])[0], ReadOptions()).spans == ()
    write(path, "plain")
    assert inspect(match_files([str(path)])[0], ReadOptions()).spans
    # A later span would not notice that the file is damaged before it.
    assert inspect(match_files([str(path)])[0], ReadOptions(skip_bad_files=True)).spans == ()


@pytest.mark.parametrize("first", [b'["a"]', b"[", b'{"a":\n1}', b"\x1e{}"])
def test_a_span_is_read_as_lines(first: bytes) -> None:
    """Its first line does not make it an array or a sequence."""
    text = first + b"\n" + good() + b"\n"
    (batch,) = atlas.read_json(iter([text]), "from", is_span=True)
    assert batch.next_row == text.count(b"\n") == 1 + len(batch.bad_rows)
    assert len(batch.rows) == 3


@pytest.mark.usefixtures("small_spans")
@pytest.mark.parametrize("first", [b"{", b"[", b"\x1e", b'{"a":\n1}', b""])
def test_only_files_of_lines_are_cut(first: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pings"
    path.write_bytes(first + b"\n" + good() * 100 + b"\n" + TEXT[3:])
    assert spans.spans_of(match_files([str(path)])[0]) == ()
    path.write_bytes(b"\n" + good() + b"\n" + first + TEXT[3:])
    assert spans.spans_of(match_files([str(path)])[0])


@pytest.mark.usefixtures("small_spans")
def test_damage_in_a_later_span(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The message has the line of the file."""
    path = write(tmp_path / "pings", "bz2")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 30])
    assert main([f"--input={path}", f"--output={tmp_path}/out"]) == 1
    line = capsys.readouterr().err
    num_lines = TEXT.count(b"\n") // 20 * 20
    assert f"pings (row {num_lines}): Compressed file ended before the end" in line
