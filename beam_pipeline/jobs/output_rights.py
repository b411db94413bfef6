"""The first step of a job's end: makes sure that workers may write to the output.

The workers' account may have fewer rights than the launcher's, and most workers write late. On a
remote output one of them therefore writes a file, looks at it and deletes it as soon as the job
starts. The last step gets its input from here, so nothing is written after that has tidied up.
"""

import apache_beam as beam

from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.monitoring import logged
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


def check_rights(begun: bytes, folder: str) -> bytes:
    """Writes a file, asks for it, lists its folder, deletes it; returns the first argument.

    Args:
      folder: of the job run's temporary files; each attempt has a folder of its own in it.

    Raises:
      ProbelineError: this process may not do one of these things.
    """
    attempt = unique_path(folder, "rights")
    path = f"{attempt}/file"
    with logged("Check rights", path=path):
        try:
            write_file(path, b"may be deleted")
            if not (exists(path) and is_folder(attempt)):
                raise ProbelineError(
                    f"misses {path}, which it has just written: let nothing else remove files from "
                    "the output, such as a lifecycle rule"
                )
            delete_files([path])
        except ProbelineError as error:
            account = gcs.account_of(path) if is_gcs(path) else ""
            who = f"a worker, which runs as {account}," if account else "a worker"
            raise ProbelineError(f"{who} {error}") from error
    return begun


class CheckRights(beam.PTransform):
    """Yields one element for a job's last step; before, on a remote output, a worker checks."""

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
            # Otherwise a runner would do this together with the last step.
            | "Apart from the end" >> beam.Reshuffle()
        )
