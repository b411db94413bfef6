"""Turns the results of the newest day into the README's tables.

    python -m benchmarks.table [--readme README.md] [--results benchmarks/results]

Replaces what stands between <!-- bench:grouping --> and <!-- /bench:grouping -->.
"""

import argparse
import re
import sys
from pathlib import Path

from benchmarks import results as results_files
from benchmarks.contenders import CONTENDERS, DUCKDB
from benchmarks.results import Median, Results, medians

COLUMNS = (
    "contender",
    "measurements",
    "M measurements per CPU-second",
    "wall s",
    "CPU s",
    "peak MiB",
    "ratio to DuckDB",
)
_BEGIN, _END = "<!-- bench:grouping -->", "<!-- /bench:grouping -->"


def rows(results: Results) -> list[list[str]]:
    """Returns the table's cells, a row a contender and size; sizes ascending, fastest first."""
    lines = medians(results.runs)
    lines.sort(key=lambda line: (line.num_measurements, line.cpu_s or float("inf")))
    duckdb = {line.num_measurements: line.cpu_s for line in lines if line.contender == DUCKDB}
    return [_row(line, duckdb.get(line.num_measurements)) for line in lines]


def _row(line: Median, duckdb_cpu_s: float | None) -> list[str]:
    contender = CONTENDERS.get(line.contender)
    cells = [contender.title if contender else line.contender, _count(line.num_measurements)]
    if line.cpu_s is None or line.wall_s is None or line.peak_mib is None:
        return [*cells, "failed", "", "", "", ""]
    return [
        *cells,
        f"{line.num_measurements / line.cpu_s / 1e6:.2f}",
        f"{line.wall_s:.1f}",
        f"{line.cpu_s:.1f}",
        f"{line.peak_mib:,.0f}",
        f"{duckdb_cpu_s / line.cpu_s:.2f}" if duckdb_cpu_s else "",
    ]


def _count(number: int) -> str:
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number:,}"


def notes(results: Results) -> list[str]:
    """Returns what a reader must know to judge the table, a sentence each."""
    machine, options = results.machine, results.options
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    rounds = "one round"
    if options["rounds"] > 1:
        rounds = f"medians of {options['rounds']} rounds, the contenders interleaved"
    lines = [
        f"{results.date[:10]}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {rounds}; {versions}.",
        f"Simulated measurements of {options['num_probes']:,} probes; all write arrow-encoded "
        f"records of at most {options['max_row_size_mb']} MiB with ArrayRecord options "
        f"`{options['array_record_options']}`; the engines of the peers have "
        f"{options['threads']} threads. CPU, wall and memory are of the whole process tree, "
        "start of the interpreter included.",
        "The peers do less, which favours them: they do not check or canonicalise addresses, "
        "write no manifest or row index, and one file a split.",
    ]
    lines += [
        f"{_title(skip['contender'])} did not run at {_count(skip['num_measurements'])}: "
        f"{skip['reason']}."
        for skip in results.skipped
    ]
    lines += [
        f"{_title(line.contender)} failed {line.num_failed} of {line.num_runs} runs at "
        f"{_count(line.num_measurements)}."
        for line in medians(results.runs)
        if line.num_failed
    ]
    return lines


def _title(contender: str) -> str:
    return CONTENDERS[contender].title if contender in CONTENDERS else contender


def markdown(results: Results) -> str:
    """Returns the table and its notes."""
    aligned = ["---", *["---:"] * (len(COLUMNS) - 1)]
    table = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, aligned, *rows(results))]
    return "\n".join([*table, "", *notes(results)])


def insert(readme: str, table: str) -> str:
    """Returns the README's text with the table between the markers.

    Raises:
      ValueError: the markers are not there, once each and in order.
    """
    if readme.count(_BEGIN) != 1 or readme.count(_END) != 1:
        raise ValueError(f"needs one line {_BEGIN} and after it one line {_END}")
    pattern = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{_BEGIN}\n{table}\n{_END}", readme)
    if count != 1:
        raise ValueError(f"{_END} stands before {_BEGIN}")
    return replaced


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the README's table of the grouping bench.")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    try:
        day = results_files.newest_day("grouping", args.results)
        table = "\n\n".join(markdown(results) for results in day)
        args.readme.write_text(insert(args.readme.read_text(), table))
    except (OSError, ValueError) as error:
        print(f"error: {args.readme}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
