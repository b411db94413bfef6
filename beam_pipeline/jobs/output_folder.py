"""The output folder of a job run: held, cleared of remains of dead runs, and released.

A finished output is replaced only on request. A dead run leaves unfinished files and a temporary
folder, which the next run removes. `output_lease` keeps two runs from writing to one folder.
Filesystems other than local ones and `gs://` have no lock: there, a run refuses a folder with
temporary files.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.output_lease import Lease, LostOutputError, Marker, lock_folder
from beam_pipeline.machine import path_key
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    begins_with,
    check_not_linked,
    delete_files,
    exists,
    is_gcs,
    is_local,
    real_path,
    remove_folder,
    write_file,
)
from beam_pipeline.storage.many_files import Move, move_files, write_guarded
from beam_pipeline.storage.matching import match

TEMP_FOLDER = ".probeline-temp"
_SUCCESS_NAMES = ("_SUCCESS", ".SUCCESS")  # of a dataset, of the other jobs' outputs
_LOCK_NAME, _MARKER_NAME, _HELD_NAME = "lock", "lock.json", "held"
_TEMPORARY = r"\.\d+\.tmp"  # the suffix of the temporary names of `write_durably`


@dataclass(frozen=True)
class OutputFiles:
    """The files that a job writes to its output, and that its next run may remove."""

    flag: str  # of the output folder
    name: str  # of the output's content, for messages
    success: str  # the file that marks a finished output
    patterns: Mapping[str, str]  # by folder, a regular expression for the names of the job's files
    folders: tuple[str, ...] = ()  # the job's, with everything below them
    kept_folders: tuple[str, ...] = ()  # the job's, from which this run resumes
    # By name, how a file of the job may begin; a file of that name with other content is foreign.
    marked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Completes what a dead run has committed, given the output, a folder for temporary files, and a
    # guard to call before a file gets its name.
    settle: Callable[[str, str, Callable[[], None] | None], None] | None = None


@dataclass
class JobRun:
    """One execution of a job, holding its output folder; workers get a copy without the lease."""

    folder: str  # for temporary files of this run, on the filesystem of the output
    marker: Marker | None = None  # on `gs://`; workers check it before files get final names
    held: str | None = None  # elsewhere, a file that workers check; see `end_with_launcher`
    output: str = ""  # without a trailing slash
    success: str = ""  # the name of the file that marks a finished output
    lease: Lease | None = None  # on `gs://`; the launcher's side of the marker
    is_handed_over: bool = False  # a Dataflow job now writes the output and cleans up itself

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "lease": None}

    @property
    def guard(self) -> Callable[[], None] | None:
        """Raises LostOutputError when called after another run has taken the output."""
        return self.marker.check if self.marker else None

    def below(self, name: str) -> str:
        """Returns the path of a folder for one kind of temporary file."""
        return f"{self.folder}/{name}"

    def path(self, name: str) -> str:
        """Returns the path of a file of the output."""
        return f"{self.output}/{name}"

    def is_finished(self) -> bool:
        """Returns whether the output has its success file."""
        return exists(self.path(self.success))

    def end_with_launcher(self) -> None:
        """Makes workers that outlive this process fail to commit, on a cluster for example."""
        if self.marker is None:
            self.held = self.below(_HELD_NAME)
            write_file(self.held, b"")

    def check(self) -> None:
        """Raises LostOutputError if another run has taken the output, or the launcher has ended."""
        if self.marker is not None:
            self.marker.check()
        elif self.held is not None and not exists(self.held):
            raise LostOutputError(
                f"{self.held} is gone: the launcher has ended, and the job stops before it changes "
                f"anything in {self.output}; run the command again"
            )

    def move(self, moves: Sequence[Move]) -> None:
        """Moves files to their final names, in parallel; may be repeated."""
        self.check()
        move_files(moves)

    def write(self, path: str, data: bytes) -> None:
        """Writes a small file of the output atomically."""
        write_guarded(path, data, self.below("commit"), self.guard)

    def finish(self, stamp: bytes = b"") -> None:
        """Writes the success file, which commits the output."""
        self.write(self.path(self.success), stamp)

    def hand_over(self, job: DataflowJob) -> None:
        """Leaves the output to a Dataflow job; from now on, nothing here removes its files."""
        self.is_handed_over = True
        if self.lease is not None:
            self.lease.close()
            if job.id:
                self.lease.name_job(job)

    def tidy_up(self) -> None:
        """Removes the run's temporary files and its marker; may be repeated."""
        remove_folder(self.folder)
        if self.marker is not None:
            self.marker.release()


@contextlib.contextmanager
def taken(
    output: str,
    overwrite: bool,
    job: DataflowJob | None = None,
    *,
    append: bool = False,
    files: OutputFiles,
    inputs: Iterable[str] = (),
) -> Iterator[JobRun]:
    """Holds an output folder for one run, of this process or of a Dataflow job.

    Remains of dead runs are removed, with `overwrite` also a finished output; `append` leaves it as
    it is. `job` is the Dataflow job about to be submitted, if any.

    Raises:
      UsageError: the output is finished and neither flag is set, another run is writing it, or one
        of the `inputs` is among the files that the run removes or replaces.
      ProbelineError: the folder cannot be written.
    """
    _refuse_inputs_inside(output, inputs, files)
    for folder in _own_folders(files):
        for end in [*(at for at, char in enumerate(folder) if char == "/"), None]:
            check_not_linked(os.path.join(output, folder[:end]))
    temp = os.path.join(output, TEMP_FOLDER)
    given = f"--{files.flag}={output}"
    name = uuid.uuid4().hex[:12]
    run = JobRun(os.path.join(temp, name), output=output.rstrip("/") or "/", success=files.success)
    with contextlib.ExitStack() as stack:
        if is_local(output):
            stack.enter_context(lock_folder(temp, _LOCK_NAME, given))
        elif not is_gcs(output):
            with explained_os_errors("write", output):  # before anything there needs a cleanup
                match(f"{temp}/**")
        else:
            run.marker = Marker(os.path.join(temp, _MARKER_NAME), name)
            run.lease = stack.enter_context(contextlib.closing(Lease(given, run.marker, job)))
        try:
            _clear(output, run, overwrite, append, files)
            yield run
        except BaseException:
            if not run.is_handed_over:
                with contextlib.suppress(ProbelineError):  # of the same cause
                    run.tidy_up()
            raise
        if not run.is_handed_over:
            run.tidy_up()


def _own_folders(files: OutputFiles) -> set[str]:
    """Returns the job's own folders in an output."""
    return {*files.patterns, *files.folders, *files.kept_folders, TEMP_FOLDER} - {""}


def _refuse_inputs_inside(output: str, inputs: Iterable[str], files: OutputFiles) -> None:
    """Raises UsageError for an input in one of the job's folders, or named like its files."""
    folders = {path_key(name.split("/")[0]) for name in _own_folders(files)}
    top_files = rf"{re.escape(files.success)}|{files.patterns.get('', '')}"
    flags = re.IGNORECASE if path_key("A") == "a" else re.NOFLAG
    below = real_path(output).rstrip("/") + "/"
    for path in inputs:
        inside = real_path(path)
        if not inside.startswith(below):
            continue
        folder, slash, _ = (name := inside.removeprefix(below)).partition("/")
        is_ours = folder in folders if slash else bool(re.fullmatch(top_files, name, flags))
        if is_ours or name in map(path_key, files.marked):
            raise UsageError(
                f"the input {path} is among the files of --{files.flag}={output}, which the run "
                "replaces: choose another output, or move the input"
            )


def _clear(output: str, run: JobRun, overwrite: bool, append: bool, files: OutputFiles) -> None:
    """Removes remains of earlier runs; UsageError if that includes a finished output to keep."""
    success = os.path.join(output, files.success)
    is_finished = exists(success)
    if is_finished and not (overwrite or append):
        raise UsageError(
            f"--{files.flag}={output} holds a finished {files.name}: choose another folder, or "
            "pass --overwrite to replace it"
        )
    is_for_folder = "/" not in files.success  # attributes lie beside the corpus that they are of
    for other in _SUCCESS_NAMES if is_for_folder else ():
        if other != files.success and exists(os.path.join(output, other)):
            raise UsageError(
                f"--{files.flag}={output} holds {other}, the mark of what another program has "
                "finished there: choose another folder"
            )
    _remove_dead_runs(os.path.dirname(run.folder), files.flag)
    if files.settle:
        files.settle(output, run.folder, run.guard)
    if append:
        return
    if is_finished:
        delete_files([success])  # first: a partly removed output must not look finished
    delete_files(list(leftovers(output, files)))
    for folder in files.folders:
        remove_folder(os.path.join(output, folder))


def _remove_dead_runs(temp: str, flag: str) -> None:
    """Removes files of other runs, dead under our lock; UsageError where there are no locks."""
    if is_local(temp):
        for entry in os.scandir(temp):
            if entry.name == _LOCK_NAME:
                continue
            if not entry.is_dir(follow_symlinks=False):
                raise UsageError(
                    f"{temp} holds {entry.name}, which Probeline did not create: move it away"
                )
            remove_folder(entry.path)
    elif is_gcs(temp):
        marker = os.path.join(temp, _MARKER_NAME)
        gcs.delete_objects(path for path in gcs.list_objects(f"{temp}/") if path != marker)
    elif found := match(f"{temp}/**"):
        raise UsageError(
            f"{temp} holds files of another run, such as {found[0].path}: if that run is over, "
            f"remove the folder, else choose another --{flag}"
        )


def leftovers(output: str, files: OutputFiles) -> Iterator[str]:
    """Yields the files of an unfinished run, but no foreign files."""
    for folder, pattern in files.patterns.items():
        path = os.path.join(output, folder).rstrip("/")
        ours = rf"({pattern})({_TEMPORARY})?"
        if not folder:
            ours += f"|{re.escape(files.success)}{_TEMPORARY}"
        names = (name for name in _names(path) if re.fullmatch(ours, name))
        yield from (os.path.join(path, name) for name in names)
    for name, heads in files.marked.items():
        path = os.path.join(output, name)
        if exists(path) and begins_with(path, *heads):
            yield path


def _names(folder: str) -> list[str]:
    if is_local(folder):  # no pattern: the folder's name may contain special characters
        return os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.basename(file.path) for file in match(folder + "/*")]
