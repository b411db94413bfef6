"""A row and a context are what the dataset and training hold; errors are one line."""

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

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


# --- errors, packages and gs:// -------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "message"), [
    (["--row=train:999"], "there is no row train:999; train has 0 to 119"),
    (["--row=dev:1"], "'dev:1' is not a row"),
    ([f"--context={2**63},0,0"], "the seed is over"),
    (["--context=1,0"], "--context=1,0 is not SEED,ROW,K, such as 7,train:12,3"),
    (["--context=1,0,99"], "K is 99, row train:0 gives contexts 0 to "),
])  # fmt: skip
def test_invalid_flags(flags, message: str, alike: Path, capsys) -> None:
    assert message in refusal(capsys, 2, str(alike), *flags)


def test_unwritable_page(tmp_path: Path, capsys) -> None:
    assert "is not a finished dataset" in refusal(capsys, 1, str(tmp_path))
    write_dataset(tmp_path / "rows", [], "compact")
    (tmp_path / "file").touch()
    page = f"{tmp_path}/file/page.html"
    line = refusal(capsys, 1, f"{tmp_path}/rows", f"--html={page}")
    assert f"cannot write {page}: " in line


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


# --- gs:// ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dataset_on_gs(gcs: Gcs, tmp_path: Path, capsys, wide) -> None:
    pq.write_table(measurements_table(900, seed=2), tmp_path / "in.parquet")
    assert main([f"--input={tmp_path}/in.parquet", f"--output={tmp_path}/rows"]) == 0
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
