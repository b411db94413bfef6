"""The README's table of figures, from the newest results of each bench.

A line per bench, of the last results of its newest day: a question with the figures of Probeline
and of its peers in the same bench, in the same unit, whoever was faster.
"""

from pathlib import Path
from typing import NamedTuple

from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.grouping import DUCKDB, NUM_PROBES
from benchmarks.loading_cases import LOADERS, Case
from benchmarks.overlap_contenders import CONTENDERS as OVERLAP_CONTENDERS
from benchmarks.overlap_contenders import PROBELINE
from benchmarks.results import Median, Results, medians

COLUMNS = ("what", "Probeline", "beside it")


class Headline(NamedTuple):
    """A question with the unit of its answers, ours, and the peers' by name."""

    question: str
    own: str
    peers: dict[str, str]


def markdown(folder: Path) -> str:
    """Returns the table, with a note on the machine."""
    lines, machines, sources = [], set[str](), dict[str, None]()
    for bench, headline in _HEADLINES.items():
        day = [(headline(each), each) for each in results_files.newest_day(bench, folder)]
        for line, results in [(line, results) for line, results in day if line][-1:]:
            peers = "; ".join(f"{name} {answer}" for name, answer in line.peers.items())
            lines.append([line.question, line.own, peers])
            machines.add(md.machine(results))
            sources[_source(results)] = None
    notes = (
        f"{'; '.join(sorted(machines))}; {'; '.join(sources)}. CPU is of all processes of a "
        "command, start-up included, MiB their peak."
    )
    return "\n".join([md.table(COLUMNS, lines), "", notes])


def _source(results: Results) -> str:
    num_rounds = results.options["rounds"]
    runs = "1 round" if num_rounds == 1 else f"median of {num_rounds}"
    return f"{results.date[:10]}, {runs}"


def _good(results: Results) -> list[Median]:
    return [line for line in medians(results.runs) if line.figures]


_COSTS = ", wall s / CPU-s"


def _costs(line: Median) -> str:
    wall_s, cpu_s, peak_mib = (line.figures[name] for name in ("wall_s", "cpu_s", "peak_mib"))
    return f"{wall_s:.1f} / {cpu_s:.1f} ({peak_mib:,.0f} MiB)"


def _grouping(results: Results) -> Headline | None:
    """The largest size that DuckDB ran, too."""
    if results.options["num_probes"] != NUM_PROBES:
        return None
    sizes: dict[int, dict[str, str]] = {}
    for line in _good(results):
        sizes.setdefault(line.case["num_measurements"], {})[line.case["contender"]] = _costs(line)
    both = [size for size, found in sizes.items() if {"main", DUCKDB} <= found.keys()]
    if not both:
        return None
    found = sizes[size := max(both)]
    question = f"{size / 1e6:g} M measurements to rows{_COSTS}"
    return Headline(question, f"**{found['main']}**", {"DuckDB": found[DUCKDB]})


def _loading(results: Results) -> Headline | None:
    found = {
        line.case["loader"]: line.figures["tokens_per_cpu_s"] / 1e6
        for line in _good(results)
        if line.case["dataset"] == "mixed" and Case(**line.case).is_plain
    }
    if not {"shards", "cache"} <= found.keys():
        return None
    peers = {LOADERS[n]: f"{found[n]:.2f}" for n in ("seed",) if n in found}
    own = f"**{found['shards']:.1f}** shards, **{found['cache']:.1f}** cache"
    return Headline("batches of 5,000 probes, M tokens/CPU-second", own, peers)


def _overlap(results: Results) -> Headline | None:
    contest: dict[str, Median] = {}
    for line in _good(results):
        if line.case["part"] == "peers" and line.case["lengths"] == "13":
            contest[line.case["contender"]] = line
    own = contest.pop(PROBELINE, None)
    if own is None:
        return None
    question = f"overlap with {own.figures['text_mb']:,.0f} MB of text, n = 13{_COSTS}"
    peers = {OVERLAP_CONTENDERS[name].title: _costs(line) for name, line in contest.items()}
    return Headline(question, f"**{_costs(own)}**", peers)


_HEADLINES = {"grouping": _grouping, "loading": _loading, "overlap": _overlap}
