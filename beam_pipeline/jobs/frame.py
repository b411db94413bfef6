"""The frame of every job: check, take the output, run the pipeline, commit.

A job provides a `JobSpec` and a function that adds its transforms and returns its `Commit`; `run`
does the rest; `convert/job.py` is the shortest example. A commit proves that what was planned was
read (`check_read`), moves files to their final names, and writes the manifest, then the success
file.

A commit may run again in another attempt, after any of its steps. `commit` skips it if the output
is finished, treats a lost lease as an error unless another attempt finished, and cleans up. Until
then, workers write below `run.folder`.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import apache_beam as beam
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console
from rich.live import Live

from beam_pipeline import __version__
from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs import dataflow, monitoring, output_folder, portable
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.local_runner import local_workers
from beam_pipeline.jobs.monitoring import Snapshot, logged
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.jobs.output_lease import LostOutputError
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    delete_files,
    exists,
    is_folder,
    is_gcs,
    is_local,
    unique_path,
    write_file,
)
from beam_pipeline.storage.matching import FileVersion

FAULT = "this is a bug in Probeline or the runner; please report it"
_EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One run of a job, before its output is touched."""

    output: str
    files: OutputFiles
    inputs: Sequence[str]  # paths; none may be among the files of the output
    num_units: int  # approximate work units, an upper limit for local workers
    dataflow_job: DataflowJob | None = None  # as returned by `check_runner`
    overwrite: bool = False
    append: bool = False  # leave a finished output as it is; `build` adds to it
    look: Callable[[str], Snapshot] | None = None  # returns the progress, given the run's folder


class Commit(NamedTuple):
    """The last step of a job."""

    label: str  # of the transform and in the log
    write: Callable[..., None]  # takes `sides`; may be repeated; ends with `JobRun.finish`
    sides: Sequence[Any] = ()  # side inputs and constant arguments
    is_finished: Callable[[], bool] | None = None  # by default, if the success file exists
    tidy: Callable[[], None] | None = None  # called before the run's files are removed


Build = Callable[[beam.Pipeline, JobRun], Commit]


def check_runner(
    beam_options: PipelineOptions, paths: Iterable[tuple[str, str]]
) -> DataflowJob | None:
    """Checks what would otherwise fail late; returns the Dataflow job, if any.

    Raises UsageError if the job server does not answer, the Dataflow options are incomplete, or one
    of the `paths`, (flag, path), is local, where Dataflow's workers cannot read it.
    """
    runners.check_job_server(beam_options)
    dataflow_job = dataflow.job_of(beam_options)
    for flag, path in paths if dataflow_job is not None else ():
        if is_local(path):
            raise UsageError(
                f"--{flag}={path} is on this machine, where Dataflow's workers do not see it: "
                "give a path on gs://"
            )
    return dataflow_job


def inspected[File](
    matched: Sequence[FileVersion], inspect: Callable[[FileVersion], File]
) -> list[File]:
    """Inspects files in parallel; a terminal shows the progress.

    No thread may remain, since workers are forked next; auto-refresh would leave one.
    """
    found: list[File] = []
    with (
        ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool,
        Live(console=Console(stderr=True), auto_refresh=False, transient=True) as line,
    ):
        for file in pool.map(inspect, matched):
            found.append(file)
            shown = f"Inspecting the input: {len(found)} of {len(matched)} files"
            line.update(shown, refresh=True)
    return found


def run(spec: JobSpec, build: Build, beam_options: PipelineOptions) -> bool:
    """Runs a job to its end; returns False if it only wrote a template.

    `build` adds the job's transforms while the run holds the output. Raises ProbelineError if the
    job failed; the output then does not look finished.
    """
    runners.use_cores(beam_options, at_most=spec.num_units)
    with (
        local_workers(beam_options),
        output_folder.taken(
            spec.output,
            spec.overwrite,
            spec.dataflow_job,
            append=spec.append,
            files=spec.files,
            inputs=spec.inputs,
        ) as job_run,
    ):
        job_run.end_with_launcher()
        pipeline = new_pipeline(beam_options)
        add_transforms(pipeline, job_run, build)
        if not _run_to_end(pipeline, spec, job_run):
            return False
    if not job_run.is_finished():
        raise ProbelineError(
            f"the runner reported success, but {spec.output} has no {spec.files.success}: check "
            "the runner's log, then run the same command again"
        )
    return True


def new_pipeline(beam_options: PipelineOptions) -> beam.Pipeline:
    """Returns an empty pipeline; UsageError for options that Beam rejects."""
    try:
        return beam.Pipeline(options=beam_options)
    except ValueError as error:
        raise UsageError(f"Beam refuses the options: {one_line(error)}") from error


def _run_to_end(pipeline: beam.Pipeline, spec: JobSpec, job_run: JobRun) -> bool:
    """Runs a pipeline to its end; returns False if it only wrote a template.

    A submitted Dataflow job takes over the output.
    """
    if spec.dataflow_job is not None:
        try:
            return dataflow.submit_and_wait(pipeline, spec.dataflow_job, job_run.hand_over)
        except dataflow.JobFailedError:
            job_run.is_handed_over = False  # the job is over and will not tidy up
            raise
    watching = contextlib.nullcontext()
    if spec.look is not None and is_local(job_run.folder):
        watching = monitoring.watched(partial(spec.look, job_run.folder), sys.stderr)
    with watching:
        if portable.has_job_server(pipeline.options):
            portable.run_to_end(pipeline, job_run.folder)
        else:
            pipeline.run().wait_until_finish()
    return True


def add_transforms(pipeline: beam.Pipeline, job_run: JobRun, build: Build) -> None:
    """Adds a job to a pipeline: the check of rights, the job's transforms, the commit."""
    checked: Any = pipeline | "Check rights" >> CheckRights(job_run.folder)
    last = build(pipeline, job_run)
    _ = checked | last.label >> beam.Map(commit, job_run, last._replace(sides=()), *last.sides)


def commit(_: bytes, job_run: JobRun, last: Commit, *sides: Any) -> None:
    """Commits unless another attempt has, and cleans up; may be repeated."""
    is_finished = last.is_finished or job_run.is_finished
    with logged(last.label, output=job_run.output):
        try:
            if not is_finished():
                job_run.check()
                last.write(*sides)
        except LostOutputError:  # an attempt that has finished releases the marker
            if not is_finished():
                raise
        if last.tidy is not None:
            last.tidy()
        job_run.tidy_up()


def check_rights(begun: bytes, folder: str) -> bytes:
    """Writes, finds, lists and deletes a file below `folder`; ProbelineError without the rights."""
    attempt = unique_path(folder, "rights")
    path = f"{attempt}/file"
    with logged("Check rights", path=path):
        try:
            write_file(path, b"may be deleted")
            if not (exists(path) and is_folder(attempt)):
                raise ProbelineError(
                    f"misses {path}, which it has just written: stop whatever else removes files "
                    "from the output, such as a lifecycle rule"
                )
            delete_files([path])
        except ProbelineError as error:
            account = gcs.account_of(path) if is_gcs(path) else ""
            who = f"a worker, which runs as {account}," if account else "a worker"
            raise ProbelineError(f"{who} {error}") from error
    return begun


class CheckRights(beam.PTransform):
    """Yields the input of a job's last step; for a remote output, after a worker checked rights.

    The workers' account may have fewer rights than the launcher's, and most workers write late. The
    last step takes its input from here, so nothing is written after its cleanup.
    """

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        begun = pipeline | "Begin" >> beam.Impulse()
        if is_local(self._folder):
            return begun
        return (
            begun
            | "Write and delete" >> beam.Map(check_rights, self._folder)
            # Otherwise a runner would fuse this with the last step.
            | "Apart from the end" >> beam.Reshuffle()
        )


def check_read(planned: Iterable[tuple[Any, int]], read: Iterable[tuple[Any, int]]) -> None:
    """Raises ProbelineError unless every planned work unit was read exactly once, to its last row.

    Both arguments have the key and the number of rows of each work unit, in any order.
    """
    planned, read = sorted(planned), sorted(read)
    if planned != read:
        pairs = itertools.zip_longest(planned, read)
        unit, rows = next((a for a, b in pairs if a != b), None) or read[-1]
        raise ProbelineError(
            f"{len(planned)} work units with {sum(n for _, n in planned)} rows were planned, "
            f"{len(read)} with {sum(n for _, n in read)} rows were read, and unit {unit} with "
            f"{rows} rows is the first difference: {FAULT}"
        )


def manifest_bytes(values: Mapping[str, Any], *, sort_keys: bool = False) -> bytes:
    """Returns a manifest as JSON: two spaces, a final newline."""
    form = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(values, option=form | (orjson.OPT_SORT_KEYS if sort_keys else 0))


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Probeline and of the packages that shape an output."""
    return {"probeline": __version__, **{name: metadata.version(name) for name in packages}}


def start_time() -> str:
    """Returns the start time for an output: UTC, ISO 8601.

    It is SOURCE_DATE_EPOCH (reproducible-builds.org), seconds since 1970, if that is set, so that
    two runs write the same bytes in every file. Raises UsageError if that is not an integer.
    """
    given = os.environ.get(_EPOCH_VARIABLE)
    try:
        now = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{_EPOCH_VARIABLE}={given} is not a time: give whole seconds since 1970, or unset it"
        ) from error
    return now.isoformat(timespec="microseconds")
