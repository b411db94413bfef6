"""The README's table of figures: what a reader asks first, from the newest results of each bench.

A line is a question. It has what Probeline did and what its peers did in the same bench, in the
same unit, whoever was faster. Where a bench has no such run, its line is left out.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.contenders import CONTENDERS, DUCKDB
from benchmarks.learning_report import rtt_errors
from benchmarks.loading_cases import LOADERS
from benchmarks.overlap_contenders import CONTENDERS as OVERLAP_CONTENDERS
from benchmarks.results import Median, Results, medians

COLUMNS = ("what", "unit", "Probeline", "beside it", "bench, day, runs")
_LEARNED = {"last seen": "last RTT to that destination", "destination": "destination’s median"}


def markdown(folder: Path) -> str:
    """Returns the table and on what it was measured."""
    lines, used = [], []
    for bench, rows in _ROWS.items():
        for results in results_files.newest_day(bench, folder):
            cells = [list(row) for row in rows(results)]
            if cells:
                used.append(results)
            lines += [[*row, _source(results)] for row in cells]
    machines = sorted({_machine(results) for results in used})
    notes = (
        f"Measured on {'; '.join(machines)}. CPU is of all processes of a command, "
        "start included, MiB their peak. "
        "The peers run in the same bench on the same data; what is compared, and what the peers "
        "leave out, is in benchmarks/README.md, every run in benchmarks/results."
    )
    return "\n".join([md.table(COLUMNS, lines, num_words=2), "", notes])


def _source(results: Results) -> str:
    return f"{results.bench}, {results.date[:10]}, {_rounds(results)}"


def _rounds(results: Results) -> str:
    if results.bench == "learning":
        return f"{len(results.runs)} seeds"
    rounds = results.options["rounds"]
    return "1 round" if rounds == 1 else f"median of {rounds}"


def _machine(results: Results) -> str:
    machine = results.machine
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"


def _grouping(results: Results) -> Iterator[tuple[str, ...]]:
    lines = [line for line in medians(results.runs) if line.figures]
    for size in dict.fromkeys(line.case["num_measurements"] for line in lines):
        by_name = {
            line.case["contender"]: line for line in lines if line.case["num_measurements"] == size
        }
        if "main" not in by_name:
            continue
        peers = [
            f"{CONTENDERS[name].title.partition(',')[0]} {_grouping_cell(by_name[name], size)}"
            for name in (DUCKDB, "polars")
            if name in by_name
        ]
        yield (
            f"{size / 1e6:g} M measurements to rows",
            "M/CPU-second",
            f"**{_grouping_cell(by_name['main'], size)}**",
            "; ".join(peers),
        )


def _grouping_cell(line: Median, size: int) -> str:
    rate = size / line.figures["cpu_s"] / 1e6
    return f"{rate:.2f} ({line.figures['peak_mib']:,.0f} MiB)"


def _loading(results: Results) -> Iterator[tuple[str, ...]]:
    for dataset, what in (
        ("mixed", "batches of 5,000 probes of all sizes"),
        ("compact-8m-none", "batches of rows of 8 MiB"),
    ):
        found = {
            line.case["loader"]: line.figures["tokens_per_cpu_s"] / 1e6
            for line in medians(results.runs)
            if line.figures and line.case["dataset"] == dataset and _is_alone(line.case)
        }
        if {"shards", "cache"} <= found.keys():
            peers = [f"{LOADERS[n]} {found[n]:.2f}" for n in ("plan1", "seed") if n in found]
            own = f"**{found['shards']:.1f}** shards, **{found['cache']:.1f}** cache"
            yield what, "M tokens/CPU-second", own, "; ".join(peers)


def _is_alone(case: dict[str, Any]) -> bool:
    return not (case["num_workers"] or case["num_threads"] or case["step_ms"])


def _overlap(results: Results) -> Iterator[tuple[str, ...]]:
    lines = [line for line in medians(results.runs) if line.figures]
    peers = [line for line in lines if line.case["part"] == "peers"]
    for lengths in dict.fromkeys(line.case["lengths"] for line in peers):
        same = {line.case["contender"]: line for line in peers if line.case["lengths"] == lengths}
        own = same.pop("probeline", None)
        if own is None:
            continue
        text = own.figures["text_mb"]
        yield (
            _overlap_title(lengths, text),
            "MB/CPU-second",
            f"**{_overlap_rate(own)}**",
            "; ".join(
                f"{OVERLAP_CONTENDERS[name].title} {_overlap_rate(line)}"
                for name, line in same.items()
            ),
        )
    formats = [line for line in lines if line.case["part"] == "formats"]
    for line in formats[:1]:
        yield (
            _overlap_title(line.case["lengths"], line.figures["text_mb"]),
            "MB/CPU-second",
            f"**{_overlap_rate(line)}**",
            "",
        )


def _overlap_title(lengths: str, text_mb: float) -> str:
    return f"overlap with {text_mb:,.0f} MB of text, n = {lengths}"


def _overlap_rate(line: Median) -> str:
    return f"{line.figures['text_mb'] / line.figures['cpu_s']:.1f}"


def _learning(results: Results) -> Iterator[tuple[str, ...]]:
    runs = [run for run in results.runs if not run.error]
    if not runs:
        return
    errors = [rtt_errors(run.evaluation) for run in runs]

    def error(method: str) -> str:
        return f"{statistics.median(line[method] for line in errors):.1%}"

    minutes = statistics.median(run.figures["minutes"] for run in runs)
    yield (
        f"RTT of probes never seen, after {minutes:.0f} minutes of training",
        "median error",
        f"**{error('model')}**",
        "; ".join(f"{title} {error(method)}" for method, title in _LEARNED.items()),
    )


_ROWS = {
    "grouping": _grouping,
    "loading": _loading,
    "overlap": _overlap,
    "learning": _learning,
}
