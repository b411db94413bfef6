"""What a user can get wrong: one line with the value, the limit and the cure, and the exit code."""

import errno
import gzip
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import split_of
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.main import main
from beam_pipeline.probe_rows import packets
from beam_pipeline.sources.inputs import plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import read_piece
from beam_pipeline.sources.stored_rows import shards_of
from tests.support.atlas_results import good
from tests.support.forms import FORMS, read
from tests.support.helpers import fail_reads, measurements_table
from tests.support.job_runs import make_dataset
from tests.support.properties import num_examples
from tests.support.warm_python import warm_python

ERRORS = "IO STALE TIMEDOUT ACCES MFILE NOMEM"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(measurements_table(300, seed=1), path, row_group_size=100)
    return path


def fails(capsys: pytest.CaptureFixture, code: int, output: Path, *flags: str) -> str:
    """Runs a job that must fail; returns its one line."""
    capsys.readouterr()
    assert main([f"--output={output}", *flags]) == code
    captured = capsys.readouterr()
    others = "reading: ", "This process cannot fork: "  # the latter beside threads of other tests
    lines = [line for line in captured.err.splitlines() if line and not line.startswith(others)]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in captured.err
    assert not (output / "_SUCCESS").exists()
    assert not list(output.glob(".probeline-temp/*")) if output.is_dir() else True
    return lines[0]


def damaged(source: Path, how: str) -> None:
    data = source.read_bytes()
    if how == "truncated":
        source.write_bytes(data[: len(data) // 2])
    else:  # damaged pages behind an intact footer
        source.write_bytes(data[:1500] + b"\xff" * 600 + data[2100:])


@pytest.mark.parametrize("how", ["truncated", "pages"])
def test_unreadable_file(source: Path, tmp_path: Path, capsys, monkeypatch, how: str) -> None:
    """Beam's own temporary files go, too."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    damaged(source, how)
    line = fails(capsys, 1, tmp_path / "out", f"--input={source}")
    assert str(source) in line and "--on_bad_file=dead_letter" in line
    assert list((tmp_path / "tmp").iterdir()) == []


def test_unreadable_file_as_dead_letter(source: Path, tmp_path: Path) -> None:
    pq.write_table(measurements_table(50, seed=2), tmp_path / "good.parquet")
    damaged(source, "pages")
    output = tmp_path / "out"
    flags = [f"--input={tmp_path}/*.parquet", f"--output={output}", "--on_bad_file=dead_letter"]
    assert main(flags) == 0
    counts = open_dataset(str(output)).manifest.counts
    assert counts.dead_letters == {"file_unreadable": 1}
    assert counts.measurements >= 50
    letter = pq.read_table(output / "dead_letter").to_pylist()[0]
    assert letter["file"] == str(source) and letter["value"]


def test_truncated_json(tmp_path: Path) -> None:
    data = gzip.compress((good() + b"\n") * 5000)
    (tmp_path / "pings.json.gz").write_bytes(data[:-20])
    output = tmp_path / "kept"
    flags = [f"--input={tmp_path}/pings.json.gz", f"--output={output}"]
    assert main([*flags, "--on_bad_file=dead_letter"]) == 0
    kept = open_dataset(str(output)).manifest.counts.measurements
    (letter,) = pq.read_table(output / "dead_letter").to_pylist()
    assert letter["row"] * 3 == kept > 0


@pytest.mark.slow
def test_disk_full(tmp_path: Path) -> None:
    """The shard does not fit: an error of its writer, without a number."""
    table = measurements_table(90_000, seed=1, num_probes=30)
    pq.write_table(table, tmp_path / "in.parquet")
    output = tmp_path / "out"
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20)); "
        "from beam_pipeline.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [
        *warm_python(), "-c", script, f"--input={tmp_path}/in.parquet",
        f"--output={output}", "--array_record_options=group_size:1,uncompressed", "--train_ratio=1",
        f"--inline_bytes={1 << 20}", "--measurement_encoding=arrow",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 1, result.stderr
    assert len(errors) == 1 and "error: cannot write" in errors[0], result.stderr
    assert "_shard_" in errors[0] and "unexpected" not in errors[0]
    assert "Traceback" not in result.stderr
    assert not (output / "_SUCCESS").exists()
    assert not (output / "manifest.json").exists()


@pytest.mark.parametrize("train_ratio", [1, 0.5])
def test_src_id_collision(tmp_path: Path, capsys, monkeypatch, train_ratio: float) -> None:
    """In one shard, or one in train and one in test."""
    monkeypatch.setattr(packets, "src_ids", lambda hi, lo: np.full(len(lo), 7))
    table = measurements_table(40, seed=1, num_probes=2, ipv6_share=0)
    probes = {probe for probe in table["src_addr"].to_pylist() if ":" not in probe}
    seed = next(
        seed for seed in range(100) if len({split_of(probe, 0.5, seed) for probe in probes}) == 2
    )
    pq.write_table(table, tmp_path / "in.parquet")
    flags = [f"--input={tmp_path}/in.parquet", f"--train_ratio={train_ratio}"]
    flags += [f"--split_seed={seed}"]
    line = fails(capsys, 1, tmp_path / "out", *flags)
    assert "same src_id 7" in line
    assert len(probes) == 2 and all(probe in line for probe in probes)


@given(
    form=st.sampled_from([*FORMS, "atlas"]),
    number=st.sampled_from([getattr(errno, f"E{name}") for name in ERRORS.split()]),
    share=st.floats(0, 1),
)
@settings(max_examples=num_examples(400, quick=60))
def test_failed_storage_is_not_a_bad_file(
    tmp_path_factory: pytest.TempPathFactory, form: str, number: int, share: float
) -> None:
    """Not even --on_bad_file=dead_letter continues without the file, wherever reading fails."""
    write, options = FORMS.get(form, (lambda rows: b"\n".join([good()] * len(rows)), ReadOptions()))
    path = tmp_path_factory.mktemp("storage") / "pings"
    path.write_bytes(write([(10**15 + i, "192.0.2.1", "192.0.2.2", i / 8) for i in range(400)]))
    with pytest.MonkeyPatch.context() as patch:
        # Arrow opens a local Parquet file itself.
        patch.setattr("beam_pipeline.storage.parquet.is_local", lambda path: False)
        reads: list[int] = []
        fail_reads(patch, number, reads)
        reads[:] = [10**6]
        list(read(path, replace(options, skip_bad_files=True)))
        reads[:] = [int(share * (10**6 - 1 - reads[0]))]
        with pytest.raises(ProbelineError, match=rf"^cannot .*{os.strerror(number)}; "):
            list(read(path, replace(options, skip_bad_files=True)))


def test_failed_call_of_array_record_is_not_damage(
    source: Path, tmp_path: Path, monkeypatch
) -> None:
    def failing() -> None:
        raise RuntimeError("pread() failed: Stale file handle; reading a chunk")

    dataset = open_dataset(str(make_dataset(source, tmp_path / "rows")))
    pieces = [piece for unit in plan_units(shards_of(dataset)) for piece in unit.pieces]
    shard = SimpleNamespace(num_records=lambda: 1, read=failing)
    monkeypatch.setattr("beam_pipeline.dataset.rows._open_shard", lambda path: shard)
    with pytest.raises(ProbelineError, match=r"^cannot read .*: Stale file handle; "):
        list(read_piece(pieces[0], ReadOptions(skip_bad_files=True)))
