"""The results of a bench as JSON in results/: the machine, the options, every run, the medians.

Files contain neither machine names nor folders.
"""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil

FOLDER = Path(__file__).parent / "results"
_PACKAGES = ("apache-beam", "array-record", "duckdb", "numba", "numpy", "polars", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One run of a case."""

    case: dict[str, Any]  # parameters, the same in all rounds
    figures: dict[str, float]
    error: str | None = None  # why the run does not count
    round: int = 0
    load_before: float = 0.0  # load average over the minute before
    details: dict[str, Any] = field(default_factory=dict)  # such as a digest or a command


@dataclass
class Results:
    """All runs of one execution of a bench, and the cases that could not run, with reasons."""

    bench: str
    date: str  # ISO 8601, UTC
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    skipped: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Median:
    """The medians of a case's successful runs; without figures if all failed."""

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
    """Returns the versions of Python and of the installed ones of some packages."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def medians(runs: Sequence[Run]) -> list[Median]:
    """Returns the medians of each case, in the order of first runs."""
    cases: dict[tuple[Any, ...], list[Run]] = {}
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
    """Returns the name of a new file, numbered after the first of a day."""
    tag = f"{results.machine['cores']}cpu-{results.machine['memory_gib']}gib"
    stem = f"{results.bench}-{results.date[:10]}-{tag}"
    path, number = folder / f"{stem}.json", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.json", number + 1
    return path


def save(results: Results, path: Path) -> None:
    """Writes the results with their medians."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        line.case | {"num_runs": line.num_runs, "num_failed": line.num_failed} | line.figures
        for line in medians(results.runs)
    ]
    content = asdict(results) | {"medians": lines}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> Results:
    """Inverts `save`."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def newest(bench: str, folder: Path) -> Results:
    """Returns the latest results of a bench, with that day's other runs of the same options.

    FileNotFoundError if there are none.
    """
    day = newest_day(bench, folder)
    alike = [results for results in day if results.options == day[-1].options]
    return replace(day[-1], runs=[run for results in alike for run in results.runs])


def newest_day(bench: str, folder: Path) -> list[Results]:
    """Returns the results of the latest day, earliest first; FileNotFoundError without results."""
    found = sorted((load(path) for path in folder.glob(f"{bench}-*.json")), key=lambda r: r.date)
    if not found:
        raise FileNotFoundError(f"no {bench}-*.json in {folder}: run the bench first")
    return [results for results in found if results.date[:10] == found[-1].date[:10]]
