"""The check of the workers' rights: what a worker lacks ends a job as soon as it starts."""

import time
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.auth.credentials import AnonymousCredentials

from beam_pipeline.convert.__main__ import main as convert
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import frame
from beam_pipeline.jobs.frame import CheckRights, check_rights
from beam_pipeline.main import main as probe_rows
from beam_pipeline.overlap.__main__ import main as overlap
from beam_pipeline.storage import files
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty
from tests.support.helpers import measurements_table

WORKER = "worker@my-project.iam.gserviceaccount.com"


@pytest.fixture
def folder(gcs: Gcs) -> str:
    return f"{gcs.make_bucket()}/out/.probeline-temp/run"


def test_an_attempt_that_was_killed_does_not_hinder_the_next(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(frame, "delete_files", lambda paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            check_rights(b"", folder)
    (left,) = stored_objects(folder)
    assert check_rights(b"", folder) == b"" and list(stored_objects(folder)) == [left]
    files.remove_folder(folder)  # as the end of a run, or the next run, does
    assert stored_objects(folder) == {}


@pytest.mark.parametrize(
    ("method", "right", "action"),
    [("POST", "create", "write"), ("GET", "get", "read"), ("DELETE", "delete", "remove")],
)
def test_the_line_names_the_account_the_right_the_place_and_the_cure(
    folder: str, gcs: Gcs, monkeypatch: pytest.MonkeyPatch, method: str, right: str, action: str
) -> None:
    def refuses(given: str, sent: str) -> bool:
        is_batch = given == "POST" and sent.startswith("/batch")
        return is_batch if method == "DELETE" and given == "POST" else given == method

    monkeypatch.setattr(AnonymousCredentials, "service_account_email", WORKER, raising=False)
    with faulty(gcs.endpoint, refuses=refuses) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        started = time.monotonic()
        with pytest.raises(ProbelineError) as raised:
            check_rights(b"", folder)
    error = str(raised.value)
    assert error.startswith(f"a worker, which runs as {WORKER}, cannot {action} {folder}/rights-")
    assert f"storage.objects.{right}" in error and "the role Storage Object " in error
    assert "\n" not in error and time.monotonic() - started < 20  # a refusal is not repeated


def test_what_something_else_removes(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "exists", lambda path: False)
    with pytest.raises(ProbelineError, match="lifecycle rule"):
        check_rights(b"", folder)


def test_a_local_output_is_not_checked(tmp_path: Path) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | CheckRights(str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == []


def inputs(folder: Path, job: str) -> list[str]:
    """Writes what a job reads; returns its flags without that of the output."""
    if job == "overlap":
        (folder / "e.jsonl").write_text('{"id": "1", "text": "one two three"}\n')
        (folder / "t.jsonl").write_text('{"id": "1", "text": "one two three four"}\n')
        sets = f"--decontaminate_source=set={folder}/e.jsonl"
        return [f"--input_path={folder}/t.jsonl", sets, "--ngram_length=2"]
    if job == "convert":
        (folder / "t.jsonl").write_text('{"text": "one"}\n')
        return [f"--input={folder}/t.jsonl"]
    pq.write_table(measurements_table(100, seed=1), folder / "m.parquet")
    return [f"--input={folder}/m.parquet"]


JOBS = {"probe_rows": probe_rows, "overlap": overlap, "convert": convert}


@pytest.mark.parametrize("job", JOBS)
def test_every_job_ends_before_its_work_begins(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, job: str
) -> None:
    """The launcher may do everything, a worker may not write what the check writes."""
    bucket, flag = gcs.make_bucket(), "output_path" if job == "overlap" else "output"
    flags = [*inputs(tmp_path, job), f"--{flag}={bucket}/out"]
    with faulty(
        gcs.endpoint, refuses=lambda method, sent: method == "POST" and "/rights-" in sent
    ) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        assert JOBS[job](flags) == 1
        staged = {request.name for request in proxy.requests if request.method in ("POST", "PUT")}
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and "Traceback" not in error
    assert "a worker" in error and "storage.objects.create" in error
    assert "Storage Object User" in error
    # The reading of evaluation sets begins at the same time.
    begun = ("lock.json", "/progress/", "/evaluation", "/upload/")
    assert all(any(each in name for each in begun) for name in staged), staged
    left = stored_objects(f"{bucket}/out")
    assert not [name for name in left if "SUCCESS" in name or "rights" in name]
