"""The frame of every job: the proof of the plan, and a commit that may be repeated."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import frame, output_folder
from beam_pipeline.jobs.frame import Commit, JobSpec, check_read, commit, start_time
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.jobs.output_lease import LostOutputError
from tests.support.engines import Gcs

FILES = OutputFiles("output", "result", "_SUCCESS", {"": "data|manifest.json"})


@pytest.mark.parametrize(
    ("read", "named"),
    [
        ([(0, 10)], "unit 1 with 20 rows"),
        ([(1, 19), (0, 10)], "unit 1 with 20 rows"),
        ([(0, 10), (0, 10), (1, 20)], "unit 1 with 20 rows"),
        ([(0, 10), (1, 20), (1, 20)], "unit 1 with 20 rows"),
        ([], "unit 0 with 10 rows"),
    ],
)
def test_unit_not_read_exactly_once(read: list[tuple[int, int]], named: str) -> None:
    plan = [(0, 10), (1, 20)]
    check_read(plan, reversed(plan))
    with pytest.raises(ProbelineError, match=f"2 work units with 30 rows were planned.*{named}"):
        check_read(plan, read)


# --- the commit ---------------------------------------------------------------------------------


@pytest.fixture(params=["local", "gcs"])
def job_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobRun]:
    if request.param == "local":
        output = str(tmp_path / "out")
    else:
        gcs: Gcs = request.getfixturevalue("gcs")
        output = f"{gcs.make_bucket()}/out"
    with output_folder.taken(output, False, files=FILES) as run:
        yield run


def write(run: JobRun, during: Callable[[], None] = lambda: None) -> None:
    run.write(run.path("manifest.json"), b"{}")
    during()
    run.finish(b"stamp")


def test_commit_after_commit_changes_nothing(job_run: JobRun) -> None:
    calls: list[JobRun] = []
    last = Commit("Commit", lambda run: (calls.append(run), write(run)))  # type: ignore[func-returns-value]
    for _ in range(2):
        commit(b"", job_run, last, job_run)
    assert len(calls) == 1
    assert job_run.is_finished()


def test_no_commit_after_the_launcher_has_ended(tmp_path: Path) -> None:
    """A cluster may still run the job, while another run takes the output."""
    with output_folder.taken(str(tmp_path / "out"), False, files=FILES) as run:
        run.end_with_launcher()
        run.check()
    with pytest.raises(LostOutputError, match="the launcher has ended"):
        commit(b"", run, Commit("Commit", write), run)
    assert not list((tmp_path / "out").iterdir())


def test_workers_of_every_run_end_with_the_launcher(tmp_path: Path) -> None:
    spec = JobSpec(output=str(tmp_path), files=FILES, inputs=[], num_units=1)

    def build(pipeline: Pipeline, run: JobRun) -> Commit:
        run.check()
        run.tidy_up()  # as when the launcher ends
        run.check()
        raise AssertionError

    with pytest.raises(LostOutputError, match="the launcher has ended"):
        frame.run(spec, build, PipelineOptions([]))


# --- start time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "today", "1e9", "99999999999999999999"])
def test_source_date_epoch(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert start_time() == "2023-11-14T22:13:20.000000+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", given)
    with pytest.raises(UsageError, match=f"SOURCE_DATE_EPOCH={given} is not a time"):
        start_time()
