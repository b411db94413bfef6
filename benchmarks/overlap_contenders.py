"""The contenders of the overlap bench, and their commands."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import ROOT
from benchmarks.runner import module_command

OUTPUT_NAME = "found"  # a file of the peers, a folder of the job
PROBELINE, JOINED = "probeline", "joined"


class OverlapJob(NamedTuple):
    """Input, task and output of a run; the job decides on `num_shards` if it is 0."""

    training: Sequence[Path]
    evaluation: Path
    lengths: Sequence[int]
    folder: Path
    num_shards: int = 0

    @property
    def output(self) -> Path:
        """The output path of the run."""
        return self.folder / OUTPUT_NAME


class Contender(NamedTuple):
    """A contender and its limits."""

    title: str
    max_lengths: int | None = None  # values of n at a time
    reads_parquet: bool = False  # in addition to JSON lines
    peer: str = ""  # whose environment it needs


CONTENDERS = {
    PROBELINE: Contender("Probeline, the whole job", reads_parquet=True),
    JOINED: Contender("joined strings in a set"),
    "datatrove-split": Contender("datatrove, cut at spaces", max_lengths=1, peer="datatrove"),
}


def command(name: str, job: OverlapJob) -> list[str]:
    flags = [f"--input_path={path}" for path in job.training]
    flags += [f"--ngram_length={n}" for n in job.lengths]
    if name == PROBELINE:
        program = module_command(
            "beam_pipeline.overlap",
            decontaminate_source=f"bench={job.evaluation}",
            output_path=job.output,
            num_shards=job.num_shards,
        )
        return [*program, *flags]
    flags += [f"--evaluation={job.evaluation}", f"--output={job.output}"]
    if name == JOINED:
        return [*module_command("benchmarks.peers.joined_strings"), *flags]
    script = ROOT / "benchmarks" / "peers" / "datatrove_decontamination.py"
    return [str(peer_python("datatrove")), str(script), *flags]


def obstacle(name: str, file_format: str, num_lengths: int) -> str | None:
    """Returns the reason why a contender cannot run on a format here, or None."""
    contender = CONTENDERS[name]
    if contender.peer and (missing := no_environment(contender.peer)):
        return missing
    if contender.max_lengths and num_lengths > contender.max_lengths:
        return f"it takes {contender.max_lengths} value of n at a time"
    if not file_format.startswith("jsonl") and not contender.reads_parquet:
        return f"it reads JSON lines, not .{file_format}"
    return None


def peer_python(name: str) -> Path:
    """Returns $NAME_PYTHON, else the Python of the peer's environment made by the README."""
    given = os.environ.get(f"{name.upper()}_PYTHON")
    # Not resolved: the link identifies the environment to Python.
    return Path(given or ROOT / ".engines" / name / "bin" / "python").absolute()


def no_environment(name: str) -> str | None:
    """Returns the reason if a peer lacks its environment, or None."""
    if os.access(peer_python(name), os.X_OK):
        return None
    return f"{name} has no environment: benchmarks/README.md tells how to make it"
