"""The contenders of the grouping bench, and the command that starts each of them.

All get the same ArrayRecord options, arrow encoding, largest row and share of training probes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.runner import module_command

MAX_ROW_SIZE_MB = 8
TRAIN_RATIO = 0.9


@dataclass(frozen=True)
class Job:
    """One run's input, a glob, its output folder and what all contenders share."""

    input: str
    output: Path
    threads: int  # of the engines that take a number
    array_record_options: str


@dataclass(frozen=True)
class Contender:
    """A contender; `obstacle` returns why it cannot take part here, or None."""

    title: str
    command: Callable[[Job], list[str]]
    max_measurements: int | None = None
    obstacle: Callable[[], str | None] = lambda: None


def _module(name: str, job: Job, **flags: object) -> list[str]:
    return module_command(
        name,
        input=job.input,
        output=job.output,
        array_record_options=job.array_record_options,
        max_row_size_mb=MAX_ROW_SIZE_MB,
        train_ratio=TRAIN_RATIO,
        **flags,
    )


def _main(job: Job) -> list[str]:
    return _module("beam_pipeline.main", job, measurement_encoding="arrow")


def _main_on_prism(job: Job) -> list[str]:
    return [*_main(job), *prism_flags()]


def _peer(name: str) -> Callable[[Job], list[str]]:
    return lambda job: _module(f"benchmarks.peers.{name}", job, threads=job.threads)


def prism_binary() -> Path:
    """Returns $PRISM_BINARY, else the one that the tests build, else that of `go install`."""
    if given := os.environ.get("PRISM_BINARY"):
        return Path(given).absolute()
    built = ROOT / ".engines" / "prism"
    return built if built.exists() else Path.home() / "go" / "bin" / "prism"


def prism_flags() -> tuple[str, str]:
    """Returns the flags that run a job on Prism."""
    return "--runner=PrismRunner", f"--prism_location={prism_binary()}"


def _no_prism() -> str | None:
    if os.access(prism_binary(), os.X_OK):
        return None
    return "no Prism binary: set PRISM_BINARY or go install it (see benchmarks/README.md)"


DUCKDB = "duckdb"
CONTENDERS = {
    "main": Contender("Probeline, in-memory runner", _main),
    "main-prism": Contender("Probeline, Prism", _main_on_prism, obstacle=_no_prism),
    DUCKDB: Contender("DuckDB, one ordered stream", _peer("duckdb_ordered")),
    "polars": Contender("Polars, sort in memory", _peer("polars_sorted")),
    "naive-beam": Contender(
        "naive Beam, in-memory runner", _peer("naive_beam"), max_measurements=1_000_000
    ),
}
