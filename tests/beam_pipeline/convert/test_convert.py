"""The conversion as a command, in memory: what it writes, what it counts, what it refuses."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.convert import job
from beam_pipeline.convert.__main__ import main
from beam_pipeline.convert.options import MANIFEST, SUCCESS
from beam_pipeline.storage.files import checksum_text, size_and_checksum
from tests.support.conversions import (
    flags_of,
    records_of,
    small_units,
    write_sources,
    write_tfrecord,
)
from tests.support.repository import files_below


def shards_of(output: Path) -> list[str]:
    return sorted(map(str, output.glob("*.array_record")))


def manifest_of(output: Path) -> dict[str, Any]:
    return orjson.loads((output / MANIFEST).read_bytes())


__all__ = ["small_units"]
ONE = "--direct_num_workers=1"


def convert(source: Path, output: Path, *flags: str) -> Path:
    assert main([f"--input={source}", f"--output={output}", ONE, *flags]) == 0
    return output


def dead_letters(output: Path) -> list[tuple[str, int, str]]:
    """Returns file name, row and reason of each dead letter."""
    rows = pa.concat_tables(map(pq.read_table, sorted(output.glob("dead_letters/*")))).to_pylist()
    return [(Path(row["file"]).name, row["row"], row["reason"]) for row in rows]


@pytest.mark.usefixtures("small_units")
def test_records_of_every_format_keep_their_order_and_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = write_sources(tmp_path / "in")
    output = tmp_path / "c4"
    assert main([*flags_of(tmp_path / "in", output), ONE]) == 0
    assert "1,600 records of 5 files in 3 shards" in capsys.readouterr().out
    assert records_of(output) == records
    source: Any = grain.sources.ArrayRecordDataSource(shards_of(output))
    assert [source[at] for at in range(len(source))] == records

    manifest = manifest_of(output)
    assert manifest["counts"] == {
        "records_in": 1600,
        "records_out": 1600,
        "dead_letters": {},
        "blank_lines": 299,
    }
    names = [Path(each["path"]).name for each in manifest["inputs"]]
    assert names == ["a.jsonl", "b.jsonl.gz", "c.parquet", "d.tfrecord", "e.tfrecord.gz"]
    assert [each["records_out"] for each in manifest["inputs"]] == [600, 300, 300, 200, 200]
    first = (tmp_path / "in/a.jsonl").stat()
    assert manifest["inputs"][0]["num_bytes"] == first.st_size
    assert manifest["inputs"][0]["version"] == first.st_mtime_ns
    shards = manifest["shards"]
    assert [output / shard["path"] for shard in shards] == list(map(Path, shards_of(output)))
    assert shards[0]["path"] == "c4-00000-of-00003.array_record"
    assert [shard["first_record"] for shard in shards] == [0, 533, 1066]
    for shard in shards:
        num_bytes, checksum = size_and_checksum(str(output / shard["path"]))
        assert (shard["num_bytes"], shard["crc32c"]) == (num_bytes, checksum_text(checksum))
    names = {*(shard["path"] for shard in shards), "convert_manifest.json", SUCCESS}
    assert set(files_below(output)) == names


@pytest.mark.slow
def test_maxtext_reads_what_parquet_and_json_become(tmp_path: Path) -> None:
    from maxtext.input_pipeline.input_pipeline_utils import ParseFeatures

    rows = [{"text": f"row {n}", "ids": [n, n + 1]} for n in range(5)]
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), source / "a.parquet")
    (source / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = convert(source, tmp_path / "out", "--record=tf_example")
    data: Any = grain.sources.ArrayRecordDataSource(shards_of(output))
    parse = ParseFeatures(["text", "ids"], tokenize=True)
    found = [parse.map(data[at]) for at in range(len(data))]
    read = [{"text": each["text"][0].decode(), "ids": each["ids"].tolist()} for each in found]
    assert read == rows + rows
    only = convert(source, tmp_path / "text", "--record=tf_example", "--fields=text")
    with pytest.raises(ValueError, match=r"Available columns: \['text'\]"):
        parse.map(records_of(only)[0])


@pytest.mark.slow
def test_bad_records_and_files_become_dead_letters(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_bytes(b'{"a": 1}\nnot json\n\n{"a": 2}\n')
    lines = [b"%d" % (n * n * 7919) for n in range(300_000)]
    (source / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines))[:-30])
    (source / "c").write_bytes(b"\x00" * 50)
    write_tfrecord(source / "d.tfrecord", [b"first", b"second"])
    whole = (source / "d.tfrecord").read_bytes()
    (source / "d.tfrecord").write_bytes(whole[:-5])
    flags = ["--on_bad_file=dead_letter", "--on_bad_record=dead_letter", "--record=auto"]
    output = convert(source, tmp_path / "out", *flags, "--record=bytes")
    assert records_of(output)[:3] == [b'{"a": 1}', b"not json", b'{"a": 2}']  # taken unseen
    assert records_of(output)[-1] == b"first"
    (source / "d.tfrecord").unlink()
    output = convert(source, tmp_path / "out", *flags, "--record=json", "--overwrite")
    counts = manifest_of(output)["counts"]
    kept = counts["records_out"] - 2
    assert 100_000 < kept < 300_000
    assert records_of(output) == [b'{"a": 1}', b'{"a": 2}', *lines[:kept]]
    assert counts["dead_letters"] == {"file_unreadable": 2, "json_invalid": 1}
    assert counts["records_in"] == counts["records_out"] + 3
    assert dead_letters(output) == [
        ("a.jsonl", 1, "json_invalid"),
        ("b.jsonl.gz", kept, "file_unreadable"),
        ("c", 0, "file_unreadable"),
    ]


def _tfrecord(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_tfrecord(path, [b"first", b"second"])
        path.write_bytes(change(path.read_bytes()))

    return write


def _table(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(columns), path)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


_truncated = _tfrecord(lambda data: data[:-5])
_damaged = _tfrecord(lambda data: data.replace(b"second", b"SECOND"))


@pytest.mark.parametrize(
    ("write", "flags", "code", "message"),
    [
        (_truncated, [], 1, "x (row 1): it ends within record 1, after 5 of its 6 bytes"),
        (_damaged, [], 1, "x (row 1) cannot be converted, record_damaged"),
        (_text("{}\nno\n"), ["--record=json"], 1, "x (row 1) cannot be converted, json_invalid"),
        (_text("a,b\n1,2\n"), [], 1, "neither Parquet nor TFRecord nor JSON lines"),
        (_text("{}"), ["--input_format=parquet"], 1, "cannot read"),
        (_table(a=[1]), ["--fields=b"], 1, "x has 0 columns named 'b'"),
        (_table(a=[1]), ["--record=bytes"], 1, "--record=bytes takes strings or binary"),
        (_table(a=["x"], b=["x"]), ["--record=bytes"], 2, "takes one column"),
        (_table(a=[{"b": 1}]), [], 1, "the column 'a' of"),
        (_table(a=["x", None]), ["--record=bytes"], 1, "x (row 1) cannot be converted, value_null"),
        (_table(a=["x"]), ["--record=json"], 2, "--record=json is for JSON lines"),
        (_text("{}"), ["--fields=a"], 2, "requires --record=tf_example"),
        (_text("{}"), ["--num_shards=1", "--shard_bytes=9"], 2, "both set the number of shards"),
        (_text("{}"), ["--array_record_options=brotly"], 2, "not understood by ArrayRecord"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_conversion_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Path], object],
    flags: list[str],
    code: int,
    message: str,
) -> None:
    write(tmp_path / "x")
    output = tmp_path / "out"
    assert main([f"--input={tmp_path}/x", f"--output={output}", ONE, *flags]) == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and message in shown
    assert files_below(output) == {}


def test_finished_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text('{"a": 1}\n{"a": 2}\n')
    flags = [f"--input={source}", f"--output={output}", ONE]
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    assert main([*flags, "--num_shards=2"]) == 0
    assert main(flags) == 2
    assert "holds a finished set of records" in capsys.readouterr().err
    assert main([*flags, "--overwrite"]) == 0
    assert [Path(path).name for path in shards_of(output)] == ["out-00000-of-00001.array_record"]
    assert (output / "notes.txt").read_text() == "mine"
    inside = output / "out-00000-of-00001.array_record"
    assert main([*flags[1:], f"--input={inside}", "--input_format=jsonl", "--overwrite"]) == 2
    assert "is among the files of --output" in capsys.readouterr().err


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("name", ["c.parquet", "e.tfrecord.gz"])
def test_input_file_changed_during_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_sources(tmp_path / "in")
    changed, original = tmp_path / "in" / name, job.read_batches

    def changing(unit: Any, options: Any) -> Any:
        if unit.path.endswith(name) and unit.number == 0:
            changed.write_bytes(changed.read_bytes()[:-1])
        return original(unit, options)

    monkeypatch.setattr(job, "read_batches", changing)
    bad = ["--on_bad_file=dead_letter", "--on_bad_record=dead_letter"]
    assert main([*flags_of(tmp_path / "in", tmp_path / "out"), ONE, *bad]) == 1
    assert f"{name} was changed while the job ran" in capsys.readouterr().err
    assert files_below(tmp_path / "out") == {}


def test_lost_records_at_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sources(tmp_path / "in")
    original = job.BlockWriter.write

    def losing(self: Any, records: list[bytes]) -> None:
        original(self, records[:-1])

    monkeypatch.setattr(job.BlockWriter, "write", losing)
    assert main([*flags_of(tmp_path / "in", tmp_path / "out"), ONE]) == 1
    assert "records were read, but" in capsys.readouterr().err
    assert files_below(tmp_path / "out") == {}


def test_empty_input_is_one_empty_shard(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\n \n")
    output = convert(tmp_path / "x.jsonl", tmp_path / "out")
    assert records_of(output) == []
    source: Any = grain.sources.ArrayRecordDataSource(shards_of(output))
    assert len(source) == 0
    assert orjson.loads((output / "convert_manifest.json").read_bytes())["counts"] == {
        "records_in": 0,
        "records_out": 0,
        "dead_letters": {},
        "blank_lines": 2,
    }
