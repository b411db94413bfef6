"""A bench's results: what ran where, every single run, medians; kept as JSON in results/.

Nothing in a file names the machine or a folder of it.
"""

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(__file__).parent / "results"
_PACKAGES = ("apache-beam", "array-record", "duckdb", "numba", "numpy", "polars", "pyarrow")


@dataclass(frozen=True)
class Run:
    """One run of one contender; `error` is None if its output held all measurements."""

    contender: str
    num_measurements: int
    round: int
    load_before: float  # the machine's load average over the minute before
    wall_s: float
    cpu_s: float
    peak_mib: float
    error: str | None
    output: dict[str, int]  # what benchmarks.check counted


@dataclass
class Results:
    """A whole bench."""

    bench: str
    date: str  # ISO 8601, UTC
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    versions: dict[str, str] = field(default_factory=lambda: versions())
    skipped: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Median:
    """The medians of a contender's good runs at one size; None where no run was good."""

    contender: str
    num_measurements: int
    num_runs: int
    num_failed: int
    wall_s: float | None
    cpu_s: float | None
    peak_mib: float | None


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


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that do the work."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def medians(runs: list[Run]) -> list[Median]:
    """Returns a line a contender and size, in the order in which they first ran."""
    lines = []
    for contender, size in dict.fromkeys((run.contender, run.num_measurements) for run in runs):
        same = [r for r in runs if (r.contender, r.num_measurements) == (contender, size)]
        good = [run for run in same if run.error is None]

        def median(name: str, good: list[Run] = good) -> float | None:
            return statistics.median(getattr(run, name) for run in good) if good else None

        lines.append(
            Median(
                contender,
                size,
                num_runs=len(same),
                num_failed=len(same) - len(good),
                wall_s=median("wall_s"),
                cpu_s=median("cpu_s"),
                peak_mib=median("peak_mib"),
            )
        )
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
    content = asdict(results) | {"medians": [asdict(line) for line in medians(results.runs)]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def load(path: Path) -> Results:
    """Reads what `save` wrote."""
    content = json.loads(path.read_text())
    del content["medians"]
    return Results(**content | {"runs": [Run(**run) for run in content["runs"]]})


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
        raise FileNotFoundError(f"no {bench}-*.json in {folder}: run python -m benchmarks.{bench}")
    return [results for results in found if results.date[:10] == found[-1].date[:10]]
