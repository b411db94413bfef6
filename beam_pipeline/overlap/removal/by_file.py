"""A job that writes one file for each training file of a finished result, and a manifest.

training files → one element each → WrittenFile → manifest, `.SUCCESS` last

The folder of new files has `.done` until the end: what each finished file is, so that a run that
resumes this one does not write it again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList

from beam_pipeline import __version__
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import dataflow, output_folder, running
from beam_pipeline.jobs.beam_options import check_job_server, use_cores
from beam_pipeline.jobs.frame import CheckRights
from beam_pipeline.jobs.local_runner import forked_workers
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.overlap.removal.training_files import DocumentReader, TrainingFile
from beam_pipeline.overlap.results import layout
from beam_pipeline.storage.files import (
    exists,
    is_folder,
    read_file,
    remove_folder,
    size_and_checksum,
    unique_path,
)
from beam_pipeline.storage.many_files import Move, move_files, write_guarded
from beam_pipeline.storage.matching import match, unchanged

_DONE = ".done"
Guard = Callable[[], None] | None  # raises if another run has taken the output


class Counts(NamedTuple):
    """What was counted in a file: of all its records, and of those that a set contaminates."""

    total: Counter[str]
    by_set: dict[str, Counter[str]]


class WrittenFile(NamedTuple):
    """A training file whose new file is written."""

    number: int
    path: str
    counts: Counts


@dataclass(frozen=True)
class FileJob:
    """What is written of each training file, and where.

    Attributes:
      name: what the output is, for messages.
      flag: of the output's folder.
      folder: of the new files, below the output.
      manifest: its path below the output; the same for `success`.
      write: writes the new file of a training file to a path and returns what it counted, of
        `total` at least `records_in` and `contaminated`.
      facts: what the manifest says beside the counts.
    """

    name: str
    flag: str
    result_path: str
    output_path: str
    folder: str
    manifest: str
    success: str
    write: Callable[[TrainingFile, DocumentReader, str], Counts]
    facts: dict[str, Any]

    @property
    def documents_path(self) -> str:
        """The table of contaminated documents."""
        return f"{self.result_path}/{layout.DOCUMENTS}"

    def path(self, name: str) -> str:
        """Returns a path below the output."""
        return f"{self.output_path.rstrip('/')}/{name}"

    def done_path(self, name: str = "") -> str:
        """Returns the path of a record of finished files, or that of their folder."""
        return self.path(f"{self.folder}/{_DONE}/{name}".rstrip("/"))


def run(
    job: FileJob,
    files: Sequence[TrainingFile],
    beam_options: PipelineOptions,
    overwrite: bool,
    skip_existing: bool,
) -> str | None:
    """Writes the files and returns the folder of the output; None if only a template was written.

    Args:
      overwrite: replace a finished output.
      skip_existing: go on where a run that died ended, or return its output if it is finished.

    Raises:
      UsageError: the output is not to be replaced.
      ProbelineError: a file was changed since it was scanned, or cannot be written.
    """
    check_job_server(beam_options)
    on_dataflow = dataflow.job_of(beam_options)
    if on_dataflow is not None:
        running.check_paths_are_shared(
            [("result_path", job.result_path), (job.flag, job.output_path)]
        )
    is_finished = exists(job.path(job.success))
    if is_finished and skip_existing and not overwrite:
        _check_same(job)
        return job.output_path
    use_cores(beam_options, at_most=len(files))
    _refuse_foreign(job)
    begun = f"{_fingerprint(job)}.begun"
    resumes = skip_existing and not is_finished and exists(job.done_path(begun))
    patterns = {} if "/" in job.manifest else {"": job.manifest.replace(".", r"\.")}
    folders = ((), (job.folder,)) if resumes else ((job.folder,), ())
    output_files = OutputFiles(job.flag, job.name, job.success, patterns, *folders)
    with (
        forked_workers(beam_options),
        output_folder.taken(
            job.output_path,
            overwrite,
            on_dataflow,
            files=output_files,
            inputs=[file.file.path for file in files],
        ) as job_run,
    ):
        guard = job_run.marker.check if job_run.marker else None
        write_guarded(job.done_path(begun), b"", job_run.folder, guard)
        pipeline = running.new_pipeline(beam_options)
        build(pipeline, job, files, job_run)
        if not running.run_to_end(pipeline, on_dataflow, job_run):
            return None
    return job.output_path


def _fingerprint(job: FileJob) -> str:
    return job.facts["fingerprint"]


def _check_same(job: FileJob) -> None:
    """Raises UsageError unless a finished output is the one that the job would write."""
    manifest = orjson.loads(read_file(job.path(job.manifest)) or b"{}")
    if manifest.get("fingerprint") != _fingerprint(job):
        difference = option_that_differs(manifest, job.facts["options"]) or (
            result_that_differs(manifest, job.result_path)
            or f"{job.result_path} has become another result since"
        )
        raise other_output(job.name, f"--{job.flag}={job.output_path}", difference)


def option_that_differs(manifest: dict[str, Any], options: dict[str, Any]) -> str | None:
    """Returns the first option, or the version, that differs from that of a manifest."""
    before = manifest.get("options", {})
    for name, value in options.items():
        if before.get(name) != value:
            return f"--{name} was {before.get(name)} and is {value}"
    if (version := manifest.get("version")) != __version__:
        return f"the version of Probeline was {version} and is {__version__}"
    return None


def result_that_differs(manifest: dict[str, Any], result_path: str) -> str | None:
    """Returns which other folder the result of a manifest was in; None if it was in that one."""
    before = manifest.get("result_path", "another result")
    is_same = os.path.normpath(before) == os.path.normpath(result_path)
    return None if is_same else f"it was made of {before}, not of {result_path}"


def other_output(name: str, given: str, difference: str) -> UsageError:
    """Returns the error of a finished output that is not the one to be written."""
    return UsageError(
        f"--skip_existing: {given} holds another {name}: {difference}; choose another folder, or "
        "say --overwrite to replace it"
    )


def _refuse_foreign(job: FileJob) -> None:
    """Raises UsageError where the folder of new files is not one of ours."""
    marks = (job.manifest, job.success, f"{job.folder}/{_DONE}")
    if is_folder(job.path(job.folder)) and not any(
        exists(job.path(mark)) or is_folder(job.path(mark)) for mark in marks
    ):
        raise UsageError(
            f"--{job.flag}={job.output_path} has a folder {job.folder} that no run has put "
            "there: choose another folder"
        )


def build(
    pipeline: beam.Pipeline, job: FileJob, files: Sequence[TrainingFile], run: JobRun
) -> None:
    """Adds the whole job to a pipeline."""
    run = JobRun(run.folder, run.marker)  # the lease stays with the launcher
    guard = run.marker.check if run.marker else None
    checked = pipeline | "Check rights" >> CheckRights(run.folder)

    def write(keyed: tuple[int, Iterable[TrainingFile]]) -> Iterator[WrittenFile]:
        for file in keyed[1]:
            with logged("Write", path=file.file.path):
                yield write_file(job, file, run.folder, guard)

    written: Any = (
        pipeline
        | "Files" >> beam.Create([(file.number, file) for file in files], reshuffle=False)
        | "Spread files" >> beam.GroupByKey()
        | "Write" >> beam.FlatMap(write)
    )
    _ = checked | "Finish" >> beam.Map(finish, job, run, AsList(written))


def write_file(job: FileJob, file: TrainingFile, temp_folder: str, guard: Guard) -> WrittenFile:
    """Writes the new file of a training file, unless that is done.

    Raises:
      ProbelineError: the file is not the one that was scanned, or cannot be written.
    """
    done_path = job.done_path(f"{file.number:06d}.json")
    if (counts := _read_done(done_path, file)) is not None:
        return WrittenFile(file.number, file.file.path, counts)
    documents = DocumentReader(job.documents_path, file)
    temporary = unique_path(temp_folder, "new")
    with unchanged(file.file):
        counts = job.write(file, documents, temporary)
    num_rows, contaminated = counts.total["records_in"], counts.total["contaminated"]
    if (num_rows, contaminated) != (file.num_rows, file.num_documents):
        raise ProbelineError(
            f"{file.file.path} has {num_rows} records, {contaminated} of them contaminated, and "
            f"the result says {file.num_rows} and {file.num_documents}: run the overlap job again"
        )
    if guard is not None:
        guard()
    move_files([Move(temporary, file.target, *size_and_checksum(temporary))])
    record = {"file": list(match(file.target)[0]), **counts._asdict()}
    write_guarded(done_path, orjson.dumps(record), temp_folder, guard)
    return WrittenFile(file.number, file.file.path, counts)


def _read_done(path: str, file: TrainingFile) -> Counts | None:
    """Returns what was counted in a file that an earlier attempt has finished."""
    if (data := read_file(path)) is None:
        return None
    record = orjson.loads(data)
    if [list(found) for found in match(file.target)] != [record["file"]]:
        return None
    by_set = {name: Counter(counts) for name, counts in record["by_set"].items()}
    return Counts(Counter(record["total"]), by_set)


def _counts_of(file: WrittenFile) -> dict[str, Any]:
    total, by_set = file.counts
    return {"path": file.path, **total, "by_evaluation_set": dict(sorted(by_set.items()))}


def finish(_: bytes, job: FileJob, run: JobRun, written: Iterable[WrittenFile]) -> None:
    """Writes the manifest and `.SUCCESS`."""
    guard = run.marker.check if run.marker else None
    files = sorted(written, key=lambda file: file.number)
    total: Counter[str] = Counter()
    by_set: dict[str, Counter[str]] = {}
    for file in files:
        total.update(file.counts.total)
        for name, counts in file.counts.by_set.items():
            by_set.setdefault(name, Counter()).update(counts)
    manifest = {
        "version": __version__,
        "result_path": job.result_path,
        **job.facts,
        "counts": total,
        "by_evaluation_set": dict(sorted(by_set.items())),
        "files": [_counts_of(file) for file in files],
    }
    text = orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"
    if not exists(job.path(job.success)):  # another attempt was faster
        write_guarded(job.path(job.manifest), text, run.folder, guard)
        remove_folder(job.done_path())  # the manifest tells that the folder is ours
        write_guarded(job.path(job.success), b"", run.folder, guard)
    run.tidy_up()
