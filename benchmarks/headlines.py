"""The README's table of figures, from the newest results of each bench.

A line is a question with the figures of Probeline and of its peers in the same bench, in the same
unit, whoever was faster. A line is omitted if its bench has no such run.
"""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.grouping import CONTENDERS, DUCKDB, NUM_PROBES
from benchmarks.learning import rtt_errors
from benchmarks.loading_cases import LOADERS, Case
from benchmarks.overlap_contenders import CONTENDERS as OVERLAP_CONTENDERS
from benchmarks.overlap_contenders import PROBELINE
from benchmarks.results import Median, Results, medians

COLUMNS = ("what", "unit", "Probeline", "beside it", "bench, day, runs")
_LEARNED = {"last seen": "last RTT to that destination", "destination": "destination’s median"}


class Headline(NamedTuple):
    """A question, the unit of its answers, ours, and the peers' by name."""

    question: str
    unit: str
    own: str
    peers: dict[str, str]


def markdown(folder: Path) -> str:
    """Returns the table, with a note on the machine."""
    lines, machines = [], set()
    for bench, headlines in _HEADLINES.items():
        for results in _newest(bench, folder):
            for line in headlines(results):
                peers = "; ".join(f"{name} {answer}" for name, answer in line.peers.items())
                lines.append([line.question, line.unit, line.own, peers, _source(results)])
                machines.add(md.machine(results))
    notes = (
        f"Measured on {'; '.join(sorted(machines))}. CPU is of all processes of a command, "
        "start included, MiB their peak. "
        "The peers run in the same bench on the same data; what is compared, and what the peers "
        "leave out, is in benchmarks/README.md, every run in benchmarks/results."
    )
    return "\n".join([md.table(COLUMNS, lines, num_words=2), "", notes])


def _newest(bench: str, folder: Path) -> list[Results]:
    if bench == "learning":  # each seed may have its own file
        return [results_files.newest(bench, folder)]
    return results_files.newest_day(bench, folder)


def _source(results: Results) -> str:
    num_rounds = results.options["rounds"]
    runs = "1 round" if num_rounds == 1 else f"median of {num_rounds}"
    if results.bench == "learning":
        runs = f"{len(results.runs)} seeds"
    return f"{results.bench}, {results.date[:10]}, {runs}"


def _good(results: Results) -> list[Median]:
    return [line for line in medians(results.runs) if line.figures]


_COSTS = "wall s / CPU-s"


def _costs(line: Median) -> str:
    wall_s, cpu_s, peak_mib = (line.figures[name] for name in ("wall_s", "cpu_s", "peak_mib"))
    return f"{wall_s:.1f} / {cpu_s:.1f} ({peak_mib:,.0f} MiB)"


def _grouping(results: Results) -> Iterator[Headline]:
    if results.options["num_probes"] != NUM_PROBES:
        return  # used for the cost of a probe, in the bench's own table
    sizes: dict[int, dict[str, str]] = {}
    for line in _good(results):
        sizes.setdefault(line.case["num_measurements"], {})[line.case["contender"]] = _costs(line)
    for size, found in sizes.items():
        if "main" in found:
            peers = {
                CONTENDERS[name].title.partition(",")[0]: found[name]
                for name in (DUCKDB, "polars")
                if name in found
            }
            question = f"{size / 1e6:g} M measurements to rows"
            yield Headline(question, _COSTS, f"**{found['main']}**", peers)


def _loading(results: Results) -> Iterator[Headline]:
    for dataset, question in (
        ("mixed", "batches of 5,000 probes of all sizes"),
        ("compact-8m-none", "batches of rows of 8 MiB"),
    ):
        found = {
            line.case["loader"]: line.figures["tokens_per_cpu_s"] / 1e6
            for line in _good(results)
            if line.case["dataset"] == dataset and Case(**line.case).is_plain
        }
        if {"shards", "cache"} <= found.keys():
            peers = {LOADERS[n]: f"{found[n]:.2f}" for n in ("seed",) if n in found}
            own = f"**{found['shards']:.1f}** shards, **{found['cache']:.1f}** cache"
            yield Headline(question, "M tokens/CPU-second", own, peers)


def _overlap(results: Results) -> Iterator[Headline]:
    def headline(line: Median, peers: dict[str, str]) -> Headline:
        text_mb, lengths = line.figures["text_mb"], line.case["lengths"]
        question = f"overlap with {text_mb:,.0f} MB of text, n = {lengths}"
        return Headline(question, _COSTS, f"**{_costs(line)}**", peers)

    contests: dict[str, dict[str, Median]] = {}
    formats: list[Median] = []
    for line in _good(results):
        if line.case["part"] == "peers":
            contests.setdefault(line.case["lengths"], {})[line.case["contender"]] = line
        elif line.case["part"] == "formats":
            formats.append(line)
    for same in contests.values():
        own = same.pop(PROBELINE, None)
        if own is not None:
            peers = {OVERLAP_CONTENDERS[name].title: _costs(line) for name, line in same.items()}
            yield headline(own, peers)
    for line in formats[:1]:
        yield headline(line, {})


def _learning(results: Results) -> Iterator[Headline]:
    runs = [run for run in results.runs if not run.error]
    if not runs:
        return
    errors = [rtt_errors(run.details["evaluation"]) for run in runs]

    def error(method: str) -> str:
        return f"{statistics.median(line[method] for line in errors):.1%}"

    minutes = statistics.median(run.figures["cpu_minutes"] for run in runs)
    question = f"RTT of probes never seen, after {minutes:.0f} CPU-minutes of training"
    peers = {title: error(method) for method, title in _LEARNED.items()}
    yield Headline(question, "median error", f"**{error('model')}**", peers)


_HEADLINES = {
    "grouping": _grouping,
    "loading": _loading,
    "overlap": _overlap,
    "learning": _learning,
}
