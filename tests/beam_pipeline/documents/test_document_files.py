"""Files of documents: which ones are matched, and what happens where they change."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.documents.files import InputFile, cut_into_work_units, match_documents
from beam_pipeline.documents.reading import read_texts
from beam_pipeline.errors import ProbelineError, UsageError
from tests.conftest import Gcs
from tests.support.documents_read import COMPRESSIONS, LINES, Seen, cut, seen


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.json.gz"])
def test_file_changed_after_the_plan(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": ["a", "b"]}), path)
    else:
        path.write_bytes(gzip.compress(LINES) if path.suffix == ".gz" else LINES)
    (file,) = match_documents([str(path)])
    (unit,) = cut_into_work_units(file)
    list(read_texts(unit))
    for change in (lambda: path.write_bytes(path.read_bytes()[:50]), path.unlink):
        change()
        with pytest.raises(ProbelineError, match=f"^{path} was changed while the job ran: it had"):
            list(read_texts(unit))


@pytest.mark.parametrize("name", ["x.jsonl", "x.json.zst"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    empty = [compress(b"") for compress in COMPRESSIONS.values()]
    for data in (b"", b"\xef\xbb\xbf", b"\n\n", *empty):
        path.write_bytes(data)
        assert seen(path) == Seen({}, {}, 0, 0)


def test_compression_contrary_to_the_name(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(LINES)  # as GCS hands out an object that it stores compressed
    assert seen(path).num_rows == 20_000
    path = tmp_path / "x.jsonl"
    path.write_bytes(gzip.compress(LINES))
    assert seen(path).num_rows == 20_000
    with pytest.raises(ProbelineError, match="is compressed, but its name"):
        seen(path, unit_bytes=100)


def test_match_folders_globs_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [
        *("a.jsonl", "b.json", "c.parquet", "sub/d.jsonl.gz", "sub/deep/e.json.zst"),
        *("x/f.ndjson", "x/g.JSONL.GZ", "x/h.Parquet", "x/i.json.zstd", "x/j.jsonl.bz2"),
        "x/k.ndjson.xz",
    ]
    ignored = [
        "_SUCCESS", ".a.jsonl", "_part.jsonl", "_tmp/a.jsonl", "sub/.git/a.jsonl", "readme.md",
        "a.jsonl.crc", "a.jsonl.lz4", "c.parquet.gz", "jsonl", "x.jsonlx",
    ]  # fmt: skip
    for name in good + ignored:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")

    def names(*patterns: str) -> list[str]:
        return [file.path for file in match_documents(patterns)]

    monkeypatch.chdir(tmp_path)
    expected = [str(tmp_path / name) for name in good]
    assert names(str(tmp_path)) == names(f"{tmp_path}/") == names(f"{tmp_path}/**") == expected
    assert names(f"{tmp_path}/**/*.js*") == [path for path in expected if ".js" in path]
    unread: list[str] = []
    match_documents([str(tmp_path)], unread=unread)
    assert sorted(unread) == sorted(
        str(tmp_path / name) for name in ignored if not re.search("(^|/)[._]", name)
    )
    formats = [file.format for file in match_documents([f"{tmp_path}/x"])]
    assert formats == ["jsonl", "jsonl", "parquet", "json", "jsonl", "jsonl"]
    assert names("sub", "sub/d*") == ["sub/d.jsonl.gz", "sub/deep/e.json.zst"]
    assert names("a.jsonl", "*.jsonl") == ["a.jsonl"]
    assert names("_tmp", "_part.jsonl") == ["_part.jsonl", "_tmp/a.jsonl"]
    found = match_documents(["b.json", "sub/d.jsonl.gz"])
    assert found == [
        InputFile(found[0].file, "json", False),
        InputFile(found[1].file, "jsonl", True, source=1),
    ]
    units = cut(["b.json"])
    os.utime("b.json", ns=(1, 1))  # it may have been written again, with as many bytes
    assert cut(["b.json"])[0].name != units[0].name
    (tmp_path / "bare").mkdir()
    for pattern in ("nothing", "readme.md", "bare", "*.txt", "sub/*.parquet"):
        with pytest.raises(UsageError, match=r"^--decontaminate_source=.* matches no file"):
            match_documents(["a.jsonl", pattern], option="--decontaminate_source")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "arrow", "txt"])
def test_other_files_are_converted_by_the_command_of_the_error(tmp_path: Path, suffix: str):
    path, lines = tmp_path / f"x.{suffix}", "one,\ttwo\nthree\nfour"
    path.write_text(lines if suffix == "txt" else 'text\n"one,\ttwo\nthree"\nfour\n')
    if suffix == "arrow":
        table = pa.table({"text": ["one,\ttwo\nthree", "four"]})
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(UsageError) as refused:
        match_documents([str(path)])
    command = re.search(r"""these: (python.*(parquet'\)"|jsonl))""", str(refused.value))
    assert command
    converted = command[1].replace("python", sys.executable, 1).replace("FILE", str(path))
    subprocess.run(converted, shell=True, check=True)
    found = seen(next(tmp_path.glob("x.*.*"))).texts
    assert "\n".join(text for text, _ in found.values()) == lines


def test_existing_path_is_not_a_glob(tmp_path: Path) -> None:
    """`data[1]` is the name of a folder, and would be a pattern for `data1`."""
    for name in ("data[1]/deep/a.jsonl", "data[1]/b[2].jsonl", "data1/a.jsonl", "data1/b2.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")

    def names(pattern: str) -> list[str]:
        paths = [Path(file.path) for file in match_documents([f"{tmp_path}/{pattern}"])]
        return [str(path.relative_to(tmp_path)) for path in paths]

    assert names("data[1]") == names("data[1]/") == ["data[1]/b[2].jsonl", "data[1]/deep/a.jsonl"]
    assert names("data[1]/b[2].jsonl") == ["data[1]/b[2].jsonl"]
    assert names("data[1]/a.jsonl") == ["data1/a.jsonl"]
    assert names("data[12]/a.jsonl") == ["data1/a.jsonl"]


def test_links_to_folders_without_cycles(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    for path in (folder / "sub/a.jsonl", elsewhere / "b.jsonl", elsewhere / "deep/c.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    (folder / "link").symlink_to(elsewhere)
    (folder / "sub/up").symlink_to(folder)
    (folder / "sub/here").symlink_to(".")
    (elsewhere / "deep/back").symlink_to(folder)
    expected = ["link/b.jsonl", "link/deep/c.jsonl", "sub/a.jsonl"]
    for pattern in (folder, f"{folder}/**", f"{folder}/**/*.jsonl"):
        found = [file.path for file in match_documents([str(pattern)])]
        assert found == [f"{folder}/{name}" for name in expected]
    assert [file.path for file in match_documents([f"{folder}/*/*.jsonl"])] == [
        f"{folder}/link/b.jsonl",
        f"{folder}/sub/a.jsonl",
    ]


def test_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "sub/b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    scandir = os.scandir

    def refusing(path: str):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(UsageError, match=rf"--input_path={tmp_path}: Permission denied"):
        match_documents([str(tmp_path)])
    assert len(match_documents([f"{tmp_path}/*.jsonl"])) == 1  # nothing below is asked for


def test_gcs_objects(gcs: Gcs, tmp_path: Path) -> None:
    for compression, compress in COMPRESSIONS.items():
        (tmp_path / f"x.jsonl{compression}").write_bytes(compress(LINES))
    pq.write_table(pa.table({"text": [f"{row}" for row in range(100)]}), tmp_path / "x.parquet")
    (tmp_path / "_SUCCESS").touch()
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, f"{bucket}/train")
    local, remote = match_documents([str(tmp_path)]), match_documents([f"{bucket}/train"])
    assert [file.path for file in remote] == [
        f"{bucket}/train/{Path(file.path).name}" for file in local
    ]
    assert match_documents([f"{bucket}/**/*.parquet"]) == remote[-1:]
    gcs.upload(tmp_path, f"{bucket}/data[1]")
    beside = match_documents([f"{bucket}/data[1]"])
    assert [file.path for file in beside] == [
        file.path.replace("/train/", "/data[1]/") for file in remote
    ]
    assert match_documents([beside[0].path]) == beside[:1]
    for here, there in zip(local, remote, strict=True):
        assert seen(here.path) == seen(there.path, unit_bytes=200_000)
    with pytest.raises(UsageError, match="matches no file"):
        match_documents([f"{bucket}/test"])
    (unit,) = cut_into_work_units(remote[-1])
    version = unit.file.file._replace(path=f"{bucket}/train/gone.jsonl")
    gone = unit._replace(file=InputFile(version, "jsonl"))
    with pytest.raises(ProbelineError, match="it was changed or removed while the job ran"):
        list(read_texts(gone))
    with pytest.raises(ProbelineError, match="no such object"):
        list(read_texts(gone._replace(file=InputFile(version._replace(version=0), "jsonl"))))
