"""The check of the workers' rights: what a worker lacks ends a job as soon as it starts."""

import importlib
import time
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.auth.credentials import AnonymousCredentials

from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import frame
from beam_pipeline.jobs.frame import CheckRights, check_rights
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty
from tests.support.helpers import quick_and_slow
from tests.support.job_cases import JOBS

WORKER = "worker@my-project.iam.gserviceaccount.com"


@pytest.fixture
def folder(gcs: Gcs) -> str:
    return f"{gcs.make_bucket()}/out/.probeline-temp/run"


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


@pytest.mark.parametrize("name", quick_and_slow(["probe rows", "overlap"], ["probe rows"]))
def test_a_job_ends_before_its_work_begins(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, name: str
) -> None:
    """The launcher may do everything, a worker may not write what the check writes."""
    job, bucket = JOBS[name], gcs.make_bucket()
    flags = [*job.prepare(tmp_path), f"--{job.output_flag}={bucket}/out"]
    with faulty(
        gcs.endpoint, refuses=lambda method, sent: method == "POST" and "/rights-" in sent
    ) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        assert importlib.import_module(job.module).main(flags) == 1
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
