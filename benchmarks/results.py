"""A bench's results: what ran where, every single run, medians; kept as JSON in results/.

Nothing in a file names the machine or a folder of it.
"""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).parent / "results"
_PACKAGES = ("apache-beam", "array-record", "duckdb", "numba", "numpy", "polars", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One run of the grouping bench; `error` is None if its output held all measurements."""

    contender: str
    num_measurements: int
    round: int
    load_before: float  # the machine's load average over the minute before
    wall_s: float
    cpu_s: float
    peak_mib: float
    error: str | None
    output: dict[str, int]  # what benchmarks.check counted

    @property
    def case(self) -> dict[str, Any]:
        """What is the same in all rounds."""
        return {"contender": self.contender, "num_measurements": self.num_measurements}

    @property
    def figures(self) -> dict[str, float]:
        """What was measured."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s, "peak_mib": self.peak_mib}


@dataclass(frozen=True)
class CaseRun:
    """One run of a case; `figures` are what its bench measured."""

    case: dict[str, Any]
    round: int
    load_before: float
    figures: dict[str, float]
    error: str | None


@dataclass(frozen=True)
class EngineRun(CaseRun):
    """One run of the engines bench; `dataset` is a digest of all that it wrote."""

    dataset: str


@dataclass(frozen=True)
class OverlapRun(CaseRun):
    """One run of the overlap bench; `digest` is of all n-grams found, None if it tells of none."""

    digest: str | None = None


@dataclass(frozen=True)
class LearningRun:
    """One seed of the learning bench: its command, its curve, and what evaluation.json says."""

    case: dict[str, Any]
    command: str
    figures: dict[str, float]
    error: str | None
    curve: list[dict[str, float]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)


_RUN_OF_BENCH = {
    "engines": EngineRun,
    "grouping": Run,
    "loading": CaseRun,
    "learning": LearningRun,
    "overlap": OverlapRun,
    "scale": CaseRun,
}
AnyRun = Run | CaseRun | LearningRun


@dataclass
class Results:
    """A whole bench; what its runs are follows from its name."""

    bench: str
    date: str  # ISO 8601, UTC
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    skipped: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Median:
    """The medians of a case's good runs; no figures where none was good."""

    case: dict[str, Any]
    num_runs: int
    num_failed: int
    figures: dict[str, float]


def machine() -> dict[str, Any]:
    """Describes the machine: CPU model, cores, memory."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.system(),
    }


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Returns the versions of Python and of the packages that do the work."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def medians(runs: Sequence[AnyRun]) -> list[Median]:
    """Returns a line a case, in the order in which they first ran."""
    cases: dict[tuple[Any, ...], list[AnyRun]] = {}
    for run in runs:
        cases.setdefault(tuple(run.case.items()), []).append(run)
    lines = []
    for same in cases.values():
        good = [run.figures for run in same if run.error is None]
        figures = {
            name: statistics.median(figures[name] for figures in good)
            for name in (good[0] if good else ())
        }
        lines.append(Median(same[0].case, len(same), len(same) - len(good), figures))
    return lines


def path_for(results: Results, folder: Path) -> Path:
    """Returns a new file's name; a second bench of the same day gets a number."""
    tag = f"{results.machine['cores']}cpu-{results.machine['memory_gib']}gib"
    stem = f"{results.bench}-{results.date[:10]}-{tag}"
    path, number = folder / f"{stem}.json", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.json", number + 1
    return path


def save(results: Results, path: Path) -> None:
    """Writes the results, medians included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        line.case | {"num_runs": line.num_runs, "num_failed": line.num_failed} | line.figures
        for line in medians(results.runs)
    ]
    content = asdict(results) | {"medians": lines}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> Results:
    """Reads what `save` wrote."""
    content = json.loads(path.read_text())
    del content["medians"]
    run_type = _RUN_OF_BENCH.get(content["bench"], Run)
    return Results(**content | {"runs": [run_type(**run) for run in content["runs"]]})


def newest(bench: str, folder: Path) -> Results:
    """Returns the latest results of a bench; FileNotFoundError if there are none."""
    return newest_day(bench, folder)[-1]


def newest_day(bench: str, folder: Path) -> list[Results]:
    """Returns the results of the last day that has any, in the order in which they were made.

    Raises:
      FileNotFoundError: there are none.
    """
    found = sorted((load(path) for path in folder.glob(f"{bench}-*.json")), key=lambda r: r.date)
    if not found:
        raise FileNotFoundError(f"no {bench}-*.json in {folder}: run the bench first")
    return [results for results in found if results.date[:10] == found[-1].date[:10]]
