"""A row and a context are what the dataset and training hold; errors are one line."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.cli.probeline import PROGRAMS
from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.main import main
from beam_pipeline.storage import files as storage_files
from tests.conftest import Gcs
from tests.support.helpers import measurements_table
from tests.support.inspected import day_of_pings, many_probes, refusal, said
from tests.support.probe_rows_on_disk import (
    RowSpec,
    damage_record,
    make_measurements,
    read_records,
    restamp,
    shard_paths,
    write_dataset,
    write_records,
)
from tests.support.repository import ROOT


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_row(encoding: Encoding, tmp_path: Path, capsys, wide) -> None:
    test = [RowSpec("9.9.9.9", day_of_pings(50, 9))]
    write_dataset(tmp_path / "rows", many_probes(3, 0), encoding, 2, test)
    text = said(capsys, str(tmp_path / "rows"), "--row=test:0")
    assert "Row test:0 is row 0 of probe 9.9.9.9 (test/test_shard_0000" in text
    assert "50 measurements of 5 destinations" in text and f", {encoding}," in text
    run = test[0].run
    fraction = "" if encoding == "compact" else rf"\.{int(run['event_time'][0]) % 10**6:06d}"
    shown = np.datetime64(int(run["event_time"][0]), "us").item().strftime("%Y-%m-%d %H:%M:%S")
    assert re.search(rf"^ +0 +{shown}{fraction} +198\.51\.100\.", text, re.MULTILINE)
    assert re.search(r"^ +49 ", text, re.MULTILINE) and not re.search(r"^ +10 ", text, re.MULTILINE)
    assert text.count("failed ") >= 1
    assert said(capsys, str(tmp_path / "rows"), "--row=0") == said(
        capsys, str(tmp_path / "rows"), "--row=train:0"
    )


def test_context_equals_that_of_training(alike: Path, capsys, wide) -> None:
    from training.rows.row_source import ProbeRowDataSource
    from training.sampler import ProbeRowSampler

    row = ProbeRowDataSource(str(alike / "test"))[6]
    context = ProbeRowSampler(seed=5).contexts(row)[2]
    text = said(capsys, str(alike), "--context=5,test:6,2")
    assert f"timestamp mode {context.mode}; {context.num_measurements} of a window" in text
    tokens = [*context.example["inputs"].tolist(), int(context.example["targets"][-1])]
    lines = [line for line in text.splitlines() if line.startswith("    start")]
    shown = [word for line in lines for word in line.split()]
    assert len(shown) == len(tokens) == 1025
    assert [int(word) + 11 for word in shown if word.isdecimal()] == [t for t in tokens if t > 10]
    assert shown.count("start") == tokens.count(0) == context.num_measurements
    measurements = re.findall(r"^ *\d+ (\S+) +→ (\S+) +(failed|[\d.]+ ms)", text, re.MULTILINE)
    assert len(measurements) in (len(lines), len(lines) - 1)  # the last one is cut
    assert {source for source, _, _ in measurements} == {row["src_addr"]}


def test_context_of_a_small_row(tmp_path: Path, capsys) -> None:
    write_dataset(tmp_path / "rows", [RowSpec("192.0.2.1", make_measurements(9, 1))], "compact")
    text = said(capsys, str(tmp_path / "rows"), "--context=1,0,0")
    assert "small row train:0" in text and text.count("192.0.2.1 ") >= 9


@pytest.mark.slow
def test_commands_of_the_docs(tmp_path: Path, monkeypatch, capsys, wide) -> None:
    text = (ROOT / "docs" / "inspect.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    for block in reversed(blocks):  # the second one makes what the first one shows
        for line in block.replace("\\\n", " ").splitlines():
            name, command, *arguments = shlex.split(line, comments=True)
            assert name == "probeline"
            assert importlib.import_module(PROGRAMS[command].module).main(arguments) == 0, line
    shown = capsys.readouterr().out
    assert "57.113.1.191, has 17 % of the measurements of train" in shown  # as in the picture
    assert "Row train:12 is row 0 of probe" in shown
    assert re.search(r"Context 1 of \d+ that row train:60 gives in epoch 0 with seed 7", shown)
    assert 100_000 < (tmp_path / "report.html").stat().st_size < 300_000
    query = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    ((row, probe),) = duckdb.execute(query).fetchall()
    assert f"of probe {probe} (" in said(capsys, "rows", f"--row={row}")


# --- errors, packages and gs:// -------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "message"), [
    (["--row=train:999"], "there is no row train:999; train has 0 to 119"),
    (["--row=dev:1"], "'dev:1' is not a row"),
    (["--context=1,0"], "--context=1,0 is not SEED,ROW,K, such as 7,train:12,3"),
    (["--context=1,0,99"], "K is 99, row train:0 gives contexts 0 to "),
    (["--context=1,test:60,0"], "there is no row test:60"),
    ([f"--context={2**63},0,0"], "the seed is over"),
])  # fmt: skip
def test_invalid_flags(flags, message: str, alike: Path, capsys) -> None:
    assert message in refusal(capsys, 2, str(alike), *flags)


@pytest.mark.parametrize(
    ("page", "code", "words"),
    [
        ("file/page.html", 1, "cannot write {folder}/file/page.html: "),
        pytest.param(  # loads Beam, which knows other schemes
            *("nosuch://bucket/page.html", 2, "give a local path or one on gs://"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_unwritable_page(page: str, code: int, words: str, tmp_path: Path, capsys) -> None:
    assert "is not a finished dataset" in refusal(capsys, 1, str(tmp_path))
    write_dataset(tmp_path / "rows", [], "compact")
    (tmp_path / "file").touch()
    path = page if "://" in page else f"{tmp_path}/{page}"
    assert words.format(folder=tmp_path) in refusal(
        capsys, code, f"{tmp_path}/rows", f"--html={path}"
    )


def test_damaged_files(tmp_path: Path, capsys) -> None:
    dataset = write_dataset(tmp_path / "rows", many_probes(6, 0), "compact", 1)
    damage_record(dataset, 0, 3, 0, b"\0" * 64)
    line = refusal(capsys, 1, str(dataset))
    assert "train_shard_00000-of-00001.arrayrecord record 3: " in line
    assert f"python -m beam_pipeline.verify {dataset}" in line
    path = shard_paths(dataset)[0]
    records = read_records(path)
    write_records(path, [*records[:3], records[2], *records[4:]])
    restamp(dataset)
    assert "record 3: its (src_id" in refusal(capsys, 1, str(dataset))
    index = dataset / "train" / "rows.parquet"
    index.write_bytes(index.read_bytes() + b"!")
    assert "rows.parquet has checksum" in refusal(capsys, 1, str(dataset))


def test_missing_packages(alike: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    find, lacking = importlib.util.find_spec, {"matplotlib", "jinja2"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in lacking else find(name, *a)
    )
    arguments = (str(alike), f"--html={tmp_path}/page.html")
    cure = "pip install 'probeline[report]'"
    assert f"--html needs matplotlib and jinja2: {cure}" in refusal(capsys, 2, *arguments)
    lacking.remove("matplotlib")
    assert f"--html needs jinja2: {cure}" in refusal(capsys, 2, *arguments)
    said(capsys, str(alike))


def test_light_imports(alike: Path) -> None:
    script = (
        "import json, sys\n"
        "from beam_pipeline.inspect import __main__ as inspect\n"
        f"assert inspect.main([{str(alike)!r}]) == 0\n"
        "heavy = 'apache_beam', 'training', 'grain', 'matplotlib', 'jinja2'\n"
        "print(json.dumps([n for n in heavy if n in sys.modules]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert json.loads(result.stdout.splitlines()[-1]) == []


# --- gs:// ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [[], pytest.param(["--output_format=tfrecord"], marks=pytest.mark.slow)]
)
def test_dataset_on_gs(flags, gcs: Gcs, tmp_path: Path, capsys, wide) -> None:
    pq.write_table(measurements_table(900, seed=2), tmp_path / "in.parquet")
    assert main([f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/rows", *flags]) == 0
    capsys.readouterr()
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path / "rows", f"{bucket}/rows")
    local = said(capsys, f"{tmp_path}/rows")
    assert said(capsys, f"{bucket}/rows") == local.replace(f"{tmp_path}/rows", f"{bucket}/rows")
    row = said(capsys, f"{tmp_path}/rows", "--row=train:0")
    assert said(capsys, f"{bucket}/rows", "--row=train:0") == row
    said(capsys, f"{tmp_path}/rows", f"--html={tmp_path}/page.html")
    told = said(capsys, f"{tmp_path}/rows", f"--html={bucket}/pages/page.html")
    assert f"{bucket}/pages/page.html: " in told
    page = (tmp_path / "page.html").read_bytes()
    assert storage_files.read_file(f"{bucket}/pages/page.html") == page
