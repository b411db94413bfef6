"""Who takes part in the overlap bench, and the command each is started with."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import ROOT

OUTPUT_NAME = "found"  # a file of the peers, a folder of the job


@dataclass(frozen=True)
class OverlapJob:
    """What one run reads, looks for and writes.

    Attributes:
      num_shards: passes over the training text; 0 lets the job decide.
    """

    training: Sequence[Path]
    evaluation: Path
    lengths: Sequence[int]
    folder: Path
    num_shards: int = 0

    @property
    def output(self) -> Path:
        return self.folder / OUTPUT_NAME


@dataclass(frozen=True)
class Contender:
    """A contender and what it cannot do.

    Attributes:
      max_mb: training text of what it runs on at most, because it is too slow for more.
      most_lengths: values of n at a time.
      obstacle: says why it cannot take part here, or None.
    """

    title: str
    command: Callable[[OverlapJob], list[str]]
    max_mb: int | None = None
    most_lengths: int | None = None
    reads_parquet: bool = False
    obstacle: Callable[[], str | None] = lambda: None


def _flags(job: OverlapJob) -> list[str]:
    flags = [f"--input_path={path}" for path in job.training]
    return [*flags, *(f"--ngram_length={n}" for n in job.lengths)]


def _probeline(job: OverlapJob) -> list[str]:
    command = [sys.executable, "-m", "beam_pipeline.overlap", *_flags(job)]
    command += [f"--decontaminate_source=bench={job.evaluation}", f"--output_path={job.output}"]
    return [*command, f"--num_shards={job.num_shards}"]


def _joined(job: OverlapJob) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.peers.joined_strings", *_flags(job)]
    return [*command, f"--evaluation={job.evaluation}", f"--output={job.output}"]


def _datatrove(tokenizer: str) -> Callable[[OverlapJob], list[str]]:
    def command(job: OverlapJob) -> list[str]:
        script = ROOT / "benchmarks" / "peers" / "datatrove_decontamination.py"
        given = [f"--evaluation={job.evaluation}", f"--output={job.output}"]
        return [
            str(datatrove_python()), str(script), *_flags(job), *given, f"--tokenizer={tokenizer}"
        ]  # fmt: skip

    return command


def datatrove_python() -> Path:
    """Returns $DATATROVE_PYTHON, else that of the environment that the README makes."""
    given = os.environ.get("DATATROVE_PYTHON")
    # Not resolved: the link is what tells Python of which environment it is.
    return Path(given or ROOT / ".engines" / "datatrove" / "bin" / "python").absolute()


def _no_datatrove() -> str | None:
    if os.access(datatrove_python(), os.X_OK):
        return None
    return "datatrove has no environment: benchmarks/README.md tells how to make it"


PROBELINE, JOINED = "probeline", "joined"
CONTENDERS = {
    PROBELINE: Contender("Probeline, the whole job", _probeline, reads_parquet=True),
    JOINED: Contender("joined strings in a set", _joined),
    "datatrove-split": Contender(
        "datatrove, cut at spaces", _datatrove("split"), most_lengths=1, obstacle=_no_datatrove
    ),
    "datatrove": Contender(
        "datatrove, its English tokeniser", _datatrove("english"), 20, 1, obstacle=_no_datatrove
    ),
}
