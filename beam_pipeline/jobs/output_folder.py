"""The output folder before and after a run: taken, cleaned of what a dead run left, given back.

What a job leaves in it, `OutputFiles` says. A finished output is not touched unless asked to. A
run that died leaves files without the one that says that they are finished, and a temporary
folder; the next run removes both. What keeps it from removing what a live run is writing is,
locally, a lock file that the operating system frees when its process dies, and on `gs://` a
marker object, see `gcs_marker`. Other filesystems have neither: there a run refuses a folder with
temporary files.
"""

import contextlib
import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset.data_card import CARD_NAME, FIRST_LINE
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    SUCCESS_NAME,
)
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.jobs import output_lease
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.output_lease import Holder, Marker
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import exists, is_gcs, is_local, match, open_file, remove_folder

TEMP_FOLDER = ".probeline-temp"
_LOCK_NAME, _MARKER_NAME = "lock", "lock.json"


@dataclass(frozen=True)
class OutputFiles:
    """What a job writes to its output: what a run may remove there.

    Attributes:
      flag: of the output folder.
      name: of what the output is, in one word.
      success: the file that says that the output is finished.
      patterns: by folder, a regular expression of the names of the job's files in it.
      folders: folders that are the job's with all that is below them.
      marked: by name, how a file begins that is the job's; one that begins otherwise is not.
    """

    flag: str
    name: str
    success: str
    patterns: Mapping[str, str]
    folders: tuple[str, ...] = ()
    marked: Mapping[str, str] = field(default_factory=dict)


def _shard_or_index(split: str) -> str:
    return rf"({split}_shard_\d+-of-\d+\.(arrayrecord|tfrecord)|{INDEX_NAME})"


DATASET_FILES = OutputFiles(
    flag="output",
    name="dataset",
    success=SUCCESS_NAME,
    patterns={
        "": rf"{MANIFEST_NAME}|({SUCCESS_NAME}|{MANIFEST_NAME}|{CARD_NAME})\.\d+\.tmp",
        **{split: _shard_or_index(split) for split in SPLITS},
        DEAD_LETTER_FOLDER: r"dead_letter_\d+-of-\d+\.parquet",
    },
    marked={CARD_NAME: FIRST_LINE},
)


@dataclass
class Run:
    """A run that holds its output.

    Attributes:
      folder: the run's own folder for temporary files, on the filesystem of the output.
      marker: what workers look at before they give files their names, on `gs://`.
      is_handed_over: a job elsewhere writes the output now and will tidy up itself.
    """

    folder: str
    marker: Marker | None
    holder: Holder | None = None
    is_handed_over: bool = False

    def hand_over(self, job: DataflowJob) -> None:
        """Leaves the output to a job: from now on nothing here removes its files."""
        self.is_handed_over = True
        if self.holder is not None:
            self.holder.stop()
            if job.id:
                self.holder.name_job(job)

    def tidy_up(self) -> None:
        """Removes the run's temporary files and its marker; may be done again."""
        remove_folder(self.folder)
        if self.marker is not None:
            self.marker.release()


@contextlib.contextmanager
def taken(
    output: str,
    overwrite: bool,
    job: DataflowJob | None = None,
    files: OutputFiles = DATASET_FILES,
) -> Iterator[Run]:
    """Holds the output folder for one run, of this process or of a Dataflow job.

    Raises:
      UsageError: a finished output is there and `overwrite` is not set, or a run is writing it.
      ProbelineError: the folder cannot be written.
    """
    temp = FileSystems.join(output, TEMP_FOLDER)
    given = f"--{files.flag}={output}"
    name = uuid.uuid4().hex[:12]
    run = Run(FileSystems.join(temp, name), None)
    with contextlib.ExitStack() as stack:
        if is_local(output):
            stack.enter_context(_locked(temp, given))
        elif is_gcs(output):
            marker_path = FileSystems.join(temp, _MARKER_NAME)
            run.holder = stack.enter_context(output_lease.held(given, marker_path, name, job))
            run.marker = run.holder.marker
        try:
            _clear(output, temp, overwrite, files)
            yield run
        finally:
            if not run.is_handed_over:
                run.tidy_up()


def _clear(output: str, temp: str, overwrite: bool, files: OutputFiles) -> None:
    """Removes what earlier runs left; UsageError if that is finished and is to stay."""
    success = FileSystems.join(output, files.success)
    is_finished = exists(success)
    if is_finished and not overwrite:
        raise UsageError(
            f"--{files.flag}={output} holds a finished {files.name}: choose another folder, or "
            "say --overwrite to replace it"
        )
    if is_local(output):
        _remove_dead_runs(temp)
    elif is_gcs(output):
        dead = (
            path for path in gcs.objects_below(f"{temp}/") if not path.endswith(f"/{_MARKER_NAME}")
        )
        gcs.delete_objects(dead)
    else:
        _refuse_other_runs(temp, files)
    if is_finished:
        _delete([success])
    _delete(_leftovers(output, files))
    for folder in files.folders:
        remove_folder(FileSystems.join(output, folder))


@contextlib.contextmanager
def _locked(temp: str, given: str) -> Iterator[None]:
    with explained_os_errors("write", temp):
        lock = _open_lock(temp, given)
    with lock:
        try:
            yield
        finally:
            # While it is held, so that nobody can take a file that is about to go.
            with contextlib.suppress(OSError):  # another run may have begun by now
                os.remove(lock.name)
                os.rmdir(temp)


def _open_lock(temp: str, given: str) -> TextIO:
    """Returns the lock file, locked; UsageError if a live process holds the output `given`."""
    path = os.path.join(temp, _LOCK_NAME)
    while True:
        os.makedirs(temp, exist_ok=True)
        lock = open(path, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise UsageError(
                f"{given} is being written by process {owner}: wait for it or choose another folder"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock.fileno()).st_ino:
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                return lock
        lock.close()  # its last holder removed it between our two calls: try again


def _leftovers(output: str, files: OutputFiles) -> list[str]:
    """Returns what an unfinished run may have left, and nothing that is not ours."""
    ours = [
        FileSystems.join(path, name)
        for folder, pattern in files.patterns.items()
        for path in (FileSystems.join(output, folder) if folder else output,)
        for name in _names(path)
        if re.fullmatch(pattern, name)
    ]
    marked = [
        path
        for name, first_line in files.marked.items()
        for path in (FileSystems.join(output, name),)
        if exists(path) and begins_with(path, first_line)
    ]
    return ours + marked


def begins_with(path: str, text: str) -> bool:
    """Tells whether a file begins with a text."""
    head = text.encode()
    with explained_os_errors("read", path), open_file(path, len(head)) as file:
        return file.read(len(head)) == head


def _names(folder: str) -> list[str]:
    if is_local(folder):  # whose name may have characters that a pattern means otherwise
        return os.listdir(folder) if os.path.isdir(folder) else []
    return [FileSystems.split(path)[1] for path, _ in match(folder + "/*")]


def _remove_dead_runs(temp: str) -> None:
    """Removes the temporary folders of all other runs; the lock says that they are dead."""
    for entry in os.scandir(temp):
        if entry.name != _LOCK_NAME:
            remove_folder(entry.path)


def _refuse_other_runs(temp: str, files: OutputFiles) -> None:
    """Object stores have no lock that ends with its process, so a person has to tell."""
    found = match(temp + "/**")
    if found:
        raise UsageError(
            f"{temp} holds files of another run, such as {found[0][0]}: if that run is over, "
            f"remove the folder, else choose another --{files.flag}"
        )


def _delete(paths: list[str]) -> None:
    if not paths:
        return
    if is_gcs(paths[0]):
        gcs.delete_objects(paths)
        return
    remove = os.remove if is_local(paths[0]) else lambda path: FileSystems.delete([path])
    for path in paths:
        with explained_os_errors("remove", path):
            remove(path)
