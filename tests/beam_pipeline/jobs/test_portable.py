"""Jobs on a job server: what a launcher says and does when it ends before its job, or waits."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_pipeline.jobs import portable


class Job:
    """A job on a job server; it has Beam's interface of a pipeline and of a result."""

    def __init__(self, wait: Callable[[], None], state: str = PipelineState.RUNNING, flags=()):
        self.options = PipelineOptions(["--job_name=a-job", *flags])
        self.wait_until_finish, self.state = wait, state
        self.is_cancelled = False
        self.when_submitted: Callable[[], None] = lambda: None

    def run(self) -> "Job":
        self.when_submitted()
        return self

    def cancel(self) -> None:
        self.is_cancelled = True


def fail(error: BaseException) -> None:
    raise error


def ended(job: Any, folder: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        portable.run_to_end(job, str(folder))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_launcher_that_ends_first_cancels(error, tmp_path, capfd) -> None:
    job = Job(lambda: fail(error()))
    ended(job, tmp_path, error)
    assert job.is_cancelled
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("asked the job server to cancel job a-job-")
    assert "; on a Flink cluster --flink_master=" in line
    ended(Job(lambda: fail(error()), flags=["--environment_type=LOOPBACK"]), tmp_path, error)
    assert "Flink" not in capfd.readouterr().err


def test_a_job_that_failed_is_not_cancelled(tmp_path: Path, capfd) -> None:
    job = Job(lambda: fail(RuntimeError()), PipelineState.FAILED)
    ended(job, tmp_path, RuntimeError)
    assert not job.is_cancelled and capfd.readouterr().err == ""


def test_a_job_server_that_is_gone_is_named(tmp_path: Path, capfd) -> None:
    job = Job(lambda: fail(KeyboardInterrupt()))
    job.cancel = lambda: fail(OSError("nobody there"))
    ended(job, tmp_path, KeyboardInterrupt)
    said = capfd.readouterr().err
    assert said.startswith("could not cancel job a-job-") and "(nobody there)" in said


def test_an_interrupt_waits_for_the_result(tmp_path: Path) -> None:
    """A job is submitted in some seconds, and can be cancelled after that."""
    job = Job(lambda: None)
    job.when_submitted = lambda: os.kill(os.getpid(), signal.SIGINT)
    ended(job, tmp_path, KeyboardInterrupt)
    assert job.is_cancelled
    job.when_submitted = lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]
    job.is_cancelled = False
    ended(job, tmp_path, KeyboardInterrupt)
    assert not job.is_cancelled
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("file", "expected"), [("held", 1), ("chunks/unit-000000-a", 0)])
def test_a_line_if_no_worker_has_written(file: str, expected: int, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(portable, "_SILENCE_S", 0.05)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    portable.run_to_end(Job(lambda: time.sleep(0.5)), str(tmp_path))  # type: ignore[arg-type]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == expected
    assert all(line.startswith("no worker has written anything for 0 s") for line in lines)


def test_a_job_that_the_job_server_still_prepares_is_awaited_on_flink(tmp_path, monkeypatch, capfd):
    states = iter([[], [], ["RUNNING"], ["CANCELLING"], ["CANCELED"]])
    calls: list[str] = []

    def answer(url: str, method: str = "GET") -> dict[str, Any]:
        calls.append(f"{method} {url}")
        jobs = next(states) if method == "GET" else []
        name = job.options.view_as(GoogleCloudOptions).job_name
        return {"jobs": [{"name": name, "jid": "7", "state": state} for state in jobs]}

    monkeypatch.setattr(portable, "_answer", answer)
    job = Job(lambda: fail(KeyboardInterrupt()), flags=["--flink_master=host:1"])
    ended(job, tmp_path, KeyboardInterrupt)
    assert "PATCH http://host:1/jobs/7?mode=cancel" in calls
    assert re.fullmatch(
        r"job a-job-\w{12} on Flink at host:1 is canceled\n", capfd.readouterr().err
    )
