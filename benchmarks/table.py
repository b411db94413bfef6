"""Writes the newest results of a bench as tables into a document.

    python -m benchmarks.table [--bench=loading] [--document=FILE] [--results=benchmarks/results]

Replaces the text between <!-- bench:NAME --> and <!-- /bench:NAME --> in the document named by
DOCUMENTS. `headlines`, for the README, has a line per bench; `grouping`,
`growing` and `histories` show all results of the newest day.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import ProbelineError
from benchmarks import (
    arena,
    engines,
    grouping,
    growing,
    headlines,
    loading_table,
    overlap_hits,
    overlap_table,
    planning,
    reading,
    recall_table,
    scale_table,
    sources,
)
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.results import Results


@dataclass(frozen=True)
class Document:
    """The place of a bench's tables, and the function that makes them from a folder of results."""

    path: Path
    markdown: Callable[[Path], str]


def _newest(bench: str, to_markdown: Callable[[Results], str]) -> Callable[[Path], str]:
    return lambda folder: to_markdown(results_files.newest(bench, folder))


def _newest_day(
    bench: str, to_markdown: Callable[[Sequence[Results]], str]
) -> Callable[[Path], str]:
    return lambda folder: to_markdown(results_files.newest_day(bench, folder))


_ROWS, _BATCHES, _OVERLAP = (
    Path(f"docs/{name}.md") for name in ("measured", "measured_batches", "measured_overlap")
)
DOCUMENTS = {
    "arena": Document(Path("docs/learning.md"), _newest("arena", arena.markdown)),
    "engines": Document(_ROWS, _newest("engines", engines.markdown)),
    "grouping": Document(_ROWS, _newest_day("grouping", grouping.markdown)),
    "growing": Document(_ROWS, _newest_day("growing", growing.markdown)),
    "histories": Document(_ROWS, _newest_day("histories", grouping.histories)),
    "headlines": Document(Path("README.md"), headlines.markdown),
    "loading": Document(_BATCHES, _newest("loading", loading_table.markdown)),
    "overlap": Document(_OVERLAP, _newest("overlap", overlap_table.markdown)),
    "overlap_hits": Document(_OVERLAP, _newest("overlap_hits", overlap_hits.markdown)),
    "planning": Document(_BATCHES, _newest("planning", planning.markdown)),
    "reading": Document(_ROWS, _newest("reading", reading.markdown)),
    "recall": Document(Path("docs/overlap_recall.md"), _newest("recall", recall_table.markdown)),
    "sources": Document(_ROWS, _newest("sources", sources.markdown)),
    "scale": Document(Path("docs/dataflow_estimate.md"), _newest("scale", scale_table.markdown)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the tables; returns the exit code."""
    return run_command(argv, _run, "stopped")


def _run(argv: Sequence[str]) -> None:
    parser = OneLineParser("benchmarks.table", "Writes a bench's tables into a document.")
    parser.add_argument("--bench", choices=[*DOCUMENTS], default="grouping")
    parser.add_argument("--document", type=Path, help="if not the bench's own")
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    document = DOCUMENTS[args.bench]
    path = args.document or document.path
    try:
        path.write_text(md.insert(path.read_text(), args.bench, document.markdown(args.results)))
    except ValueError as error:
        raise ProbelineError(f"{path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
