"""The contenders of the overlap bench, and the command that starts each of them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.runner import module_command

OUTPUT_NAME = "found"  # a file of the peers, a folder of the job


@dataclass(frozen=True)
class OverlapJob:
    """What one run reads, looks for and writes; the job decides on `num_shards` if it is 0."""

    training: Sequence[Path]
    evaluation: Path
    lengths: Sequence[int]
    folder: Path
    num_shards: int = 0

    @property
    def output(self) -> Path:
        """Where the run leaves what it finds."""
        return self.folder / OUTPUT_NAME

    @property
    def flags(self) -> list[str]:
        """The flags that all contenders have."""
        flags = [f"--input_path={path}" for path in self.training]
        return [*flags, *(f"--ngram_length={n}" for n in self.lengths)]


@dataclass(frozen=True)
class Contender:
    """A contender and what it cannot do.

    Attributes:
      max_mb: training text that it is given at most, because it is too slow for more.
      max_lengths: values of n at a time.
      obstacle: returns why it cannot take part here, or None.
    """

    title: str
    command: Callable[[OverlapJob], list[str]]
    max_mb: int | None = None
    max_lengths: int | None = None
    reads_parquet: bool = False
    obstacle: Callable[[], str | None] = lambda: None


def _probeline(job: OverlapJob) -> list[str]:
    command = module_command(
        "beam_pipeline.overlap",
        decontaminate_source=f"bench={job.evaluation}",
        output_path=job.output,
        num_shards=job.num_shards,
    )
    return [*command, *job.flags]


def _joined(job: OverlapJob) -> list[str]:
    given = {"evaluation": job.evaluation, "output": job.output}
    return [*module_command("benchmarks.peers.joined_strings", **given), *job.flags]


def _datatrove(tokenizer: str) -> Callable[[OverlapJob], list[str]]:
    script = ROOT / "benchmarks" / "peers" / "datatrove_decontamination.py"
    return lambda job: [
        *(str(datatrove_python()), str(script), *job.flags, f"--tokenizer={tokenizer}"),
        *(f"--evaluation={job.evaluation}", f"--output={job.output}"),
    ]


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
        "datatrove, cut at spaces", _datatrove("split"), max_lengths=1, obstacle=_no_datatrove
    ),
    "datatrove": Contender(
        "datatrove, its English tokeniser", _datatrove("english"), 20, 1, obstacle=_no_datatrove
    ),
}
