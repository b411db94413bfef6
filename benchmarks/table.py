"""Turns the newest results of a bench into the tables of a document.

    python -m benchmarks.table [--bench=loading] [--document=FILE] [--results=benchmarks/results]

Replaces what stands between <!-- bench:NAME --> and <!-- /bench:NAME --> in the document that
DOCUMENTS names; `headlines`, the README's, takes a line or two of each bench. The learning bench's
curves are drawn, too. Of the grouping bench, all results of the newest day are shown.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    engines_table,
    headlines,
    learning_report,
    loading_table,
    overlap_table,
    scale_table,
)
from benchmarks import markdown as md
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


def rows(results: Results) -> list[list[str]]:
    """Returns the table's cells, a row a contender and size; sizes ascending, fastest first."""
    lines = medians(results.runs)
    lines.sort(key=lambda line: (line.case["num_measurements"], line.figures.get("cpu_s", 1e99)))
    duckdb = {
        line.case["num_measurements"]: line.figures["cpu_s"]
        for line in lines
        if line.case["contender"] == DUCKDB and line.figures
    }
    return [_row(line, duckdb.get(line.case["num_measurements"])) for line in lines]


def _row(line: Median, duckdb_cpu_s: float | None) -> list[str]:
    size, figures = line.case["num_measurements"], line.figures
    cells = [_title(line.case["contender"]), _count(size)]
    if not figures:
        return [*cells, "failed", "", "", "", ""]
    return [
        *cells,
        f"{size / figures['cpu_s'] / 1e6:.2f}",
        f"{figures['wall_s']:.1f}",
        f"{figures['cpu_s']:.1f}",
        f"{figures['peak_mib']:,.0f}",
        f"{duckdb_cpu_s / figures['cpu_s']:.2f}" if duckdb_cpu_s else "",
    ]


def _count(number: int) -> str:
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number:,}"


def notes(results: Results) -> list[str]:
    """Returns what a reader must know to judge the table, a sentence each."""
    options = results.options
    lines = [
        md.circumstances(results),
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
        f"{_title(line.case['contender'])} failed {line.num_failed} of {line.num_runs} runs at "
        f"{_count(line.case['num_measurements'])}."
        for line in medians(results.runs)
        if line.num_failed
    ]
    return lines


def _title(contender: str) -> str:
    return CONTENDERS[contender].title if contender in CONTENDERS else contender


def markdown(results: Results) -> str:
    """Returns the table of a grouping bench and its notes."""
    return "\n".join([md.table(COLUMNS, rows(results)), "", *notes(results)])


@dataclass(frozen=True)
class Document:
    """Where the tables of a bench go, and what makes them of a folder of results."""

    path: Path
    markdown: Callable[[Path], str]


def _newest(bench: str, to_markdown: Callable[[Results], str]) -> Callable[[Path], str]:
    return lambda folder: to_markdown(results_files.newest(bench, folder))


def _newest_day(folder: Path) -> str:
    day = results_files.newest_day("grouping", folder)
    return "\n\n".join(markdown(results) for results in day)


DOCUMENTS = {
    "engines": Document(Path("docs/engines.md"), _newest("engines", engines_table.markdown)),
    "grouping": Document(Path("docs/pipeline.md"), _newest_day),
    "headlines": Document(Path("README.md"), headlines.markdown),
    "learning": Document(Path("docs/learning.md"), _newest("learning", learning_report.markdown)),
    "loading": Document(Path("docs/training_speed.md"), _newest("loading", loading_table.markdown)),
    "overlap": Document(Path("docs/overlap_speed.md"), _newest("overlap", overlap_table.markdown)),
    "scale": Document(Path("docs/dataflow.md"), _newest("scale", scale_table.markdown)),
}


def main(argv: list[str] | None = None) -> int:
    """Writes the tables; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes a bench's tables into a document.")
    parser.add_argument("--bench", choices=[*DOCUMENTS], default="grouping")
    parser.add_argument("--document", type=Path, help="if not the bench's own")
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    document = DOCUMENTS[args.bench]
    path = args.document or document.path
    try:
        tables = document.markdown(args.results)
        path.write_text(md.insert(path.read_text(), args.bench, tables))
        if args.bench == "learning":
            newest = results_files.newest(args.bench, args.results)
            learning_report.draw_curves(newest, path.with_suffix(".svg"))
    except (OSError, ValueError) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
