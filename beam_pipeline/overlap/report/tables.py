"""The tables of a report: on the page, as CSV and as Markdown, from the same figures.

  Statistics → [Table] → CSV, one file each, with all rows; Markdown, one file, with the first rows

Shares are numbers from 0 to 1 in CSV, and percent elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from beam_pipeline.overlap.report.removal_effects import MARGIN_CHARS, Taken
from beam_pipeline.overlap.report.removed import Removed
from beam_pipeline.overlap.report.sets import EvaluationSet
from beam_pipeline.overlap.report.statistics import MAX_TABLE_ROWS, Statistics
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.report.page import shown
from beam_pipeline.report.tables import NONE, count_text, number_of, share_text

_COVERED = "tokens covered"
_SETS = (
    "evaluation set",
    "n",
    "coverage at least",
    "instances hit",
    "instances",
    "share",
    _COVERED,
)
_VERDICTS = {
    "eval_dataset": "evaluation set",
    "rule": "rule",
    "n": "n",
    "num_instances": "instances",
    "num_clean": "clean",
    "num_between": "in between",
    "num_dirty": "dirty",
    "num_dirty_by_short_texts": "dirty by short texts alone",
}
_TAKEN = ("documents", "shared spans", "shared characters", f"within {MARGIN_CHARS} characters")
_FIELDS = ("evaluation set", "fields hit", "rows")
_REMOVED = (
    *("clean corpus", "--remove", "evaluation set", "contaminated documents", "dropped"),
    *("documents that remain of them", "characters", "characters removed"),
)


class Table(NamedTuple):
    """A table of strings, counts and shares, or float64 from 0 to 1."""

    name: str  # of its file
    title: str
    data: pa.Table

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.data)

    @property
    def first_rows(self) -> list[list[str]]:
        """The cells of the first rows as text."""
        columns = [column.to_pylist() for column in self.data.slice(0, MAX_TABLE_ROWS).columns]
        return [list(map(cell_text, row)) for row in zip(*columns, strict=True)]

    @property
    def num_left_out(self) -> int:
        """How many rows are not among the first."""
        return max(0, self.num_rows - MAX_TABLE_ROWS)


def cell_text(value: str | int | float | None) -> str:
    """Returns a value of a table as text."""
    if isinstance(value, str):
        return value
    if value is None:
        return NONE
    return share_text(value) if isinstance(value, float) else count_text(value)


def tables_of(statistics: Statistics) -> dict[str, Table]:
    """Returns all tables by name, in the order of the page."""
    removal = statistics.removal
    letters = statistics.summary.counts["dead_letters"].items()
    by_file = [[path, removal.num_texts[path], *_taken(t)] for path, t in removal.by_file.items()]
    verdicts = [[getattr(one, name) for name in _VERDICTS] for one in statistics.verdicts]
    tables = [
        _table(
            "sets",
            "Evaluation sets by n and coverage",
            _SETS,
            [line for one in statistics.sets for line in _set_lines(one, statistics.lengths)],
        ),
        _table(
            "rules",
            "Instances by rule",
            list(_VERDICTS.values()),
            verdicts,
        ),
        _table("fields", "Rows by the fields that were hit", _FIELDS, statistics.fields),
        _rows_table(statistics),
        _table("removal", "Ways of removal", ["--remove", "takes"], _ways_of(removal.total)),
        _table(
            "removal_by_file",
            "Contaminated documents by training file",
            ["training file", "texts", *_TAKEN],
            by_file,
        ),
        _table(
            "removal_by_set",
            "Contaminated documents by evaluation set",
            ["evaluation set", *_TAKEN],
            [[name, *_taken(taken)] for name, taken in removal.by_set.items()],
        ),
        _table(
            "removed",
            "What removals took",
            _REMOVED,
            [line for one in statistics.removed for line in _removed_lines(one)],
        ),
        _files_table(statistics),
        _table(
            "boilerplate",
            "N-grams that are not counted, by documents",
            ["n-gram", "n", "documents"],
            [[one.ngram, one.n, one.documents] for one in statistics.boilerplate],
        ),
        _table(
            "dead_letters",
            "Records that could not be read",
            ["reason", "records"],
            sorted(letters, key=lambda letter: -letter[1]),
        ),
        _table("run", "The run", ["name", "value"], run_facts(statistics)),
        _table("options", "Options", ["option", "value"], option_facts(statistics)),
    ]
    return {table.name: table for table in tables}


def started_text(statistics: Statistics) -> str:
    """Returns when the run began."""
    return f"{statistics.summary.started_at[:19].replace('T', ' ')} UTC"


def run_facts(statistics: Statistics) -> list[tuple[str, str]]:
    """Returns what is known of the run: name and value."""
    summary = statistics.summary
    counts = summary.counts
    numbers = {
        "evaluation files": summary.num_eval_files,
        "evaluation rows": counts["eval_rows"],
        "evaluation rows without a text": counts.get("eval_without_text"),
        "evaluation rows without a word": counts["degenerate_eval_rows"],
        "training files": summary.num_train_files,
        "training rows": counts["train_rows"],
        "training rows without a text": counts.get("train_without_text"),
        "matches (evaluation row, training row, n-gram)": statistics.num_matches,
        "matches of boilerplate, not counted": counts["matches"] - statistics.num_matches,
        "matches in the details": counts["details"],
        "matches left out of the details": counts["details_left_out"],
        "index shards": summary.num_shards,
        "maximum number of workers (0: chosen by the runner)": summary.max_parallelism,
    }
    return [
        ("result", statistics.path),
        ("started", started_text(statistics)),
        *((f"version of {name}", version) for name, version in summary.versions.items()),
        *((name, count_text(number)) for name, number in numbers.items() if number is not None),
    ]


def option_facts(statistics: Statistics) -> list[tuple[str, str]]:
    """Returns the options of the run: flag and value."""
    return [
        (f"--{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in statistics.summary.options.items()
    ]


# --- tables -------------------------------------------------------------------------------------


def _table(
    name: str,
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> Table:
    """Returns a table of rows; a lone surrogate, which Arrow has no place for, is an escape."""
    escaped = [
        [escape_surrogates(value) if isinstance(value, str) else value for value in row]
        for row in rows
    ]
    columns = zip(*escaped, strict=True) if escaped else ([] for _ in headings)
    arrays = [pa.array(list(column)) for column in columns]
    data = pa.Table.from_arrays(arrays, list(headings))
    return Table(name, title, data)


def _set_lines(one: EvaluationSet, lengths: Sequence[int]) -> Iterator[list[Any]]:
    for level in one.levels:
        names = [*map(str, lengths), "any"]
        for n, hits in zip(names, [*level.by_length, level.at_any], strict=True):
            counts = hits.num_hit, hits.num_instances, hits.share, hits.covered_tokens
            yield [one.name, n, level.min_coverage, *counts]


def _taken(taken: Taken) -> list[int]:
    return [taken.num_documents, taken.num_spans, taken.num_shared_chars, taken.num_margin_chars]


def _ways_of(taken: Taken) -> list[list[str]]:
    """Returns what each way of removal takes, in words; nothing if there is nothing to take."""
    if not taken.num_documents:
        return []
    characters = number_of(taken.num_shared_chars, "character")
    masks, margin = number_of(taken.num_spans, "mask"), count_text(taken.num_margin_chars)
    return [
        ["document", f"{number_of(taken.num_documents, 'document')}, whole"],
        ["mask", f"{characters}, for which {masks} stand"],
        [
            "split",
            f"these characters and up to {MARGIN_CHARS} on each side, {margin} in all where the "
            "texts go on so far; then pieces under 200 characters",
        ],
    ]


def _removed_lines(removed: Removed) -> Iterator[list[Any]]:
    for name, lost in [("all", removed.counts), *removed.by_evaluation_set.items()]:
        records = lost.contaminated, lost.records_removed, lost.pieces
        chars = lost.contaminated_chars, lost.chars_removed
        yield [removed.path, removed.way, name, *records, *chars]


def _rows_table(statistics: Statistics) -> Table:
    """Returns all rows with a hit, those with most covered tokens first."""
    rows = statistics.rows
    keys = rows.keys
    columns: dict[str, Any] = {
        "evaluation set": keys.column("eval_dataset"),
        "id": keys.column("instance_id"),
        "file": keys.column("eval_path"),
        "row": keys.column("eval_row"),
        "tokens": keys.column("num_tokens"),
        _COVERED: rows.covered,
        "coverage": rows.coverage[-1],
    }
    for name, heading in (
        ("num_covered_tokens", _COVERED),
        ("longest_run", "longest run"),
        ("num_train_documents", "training documents"),
    ):
        for n, values in zip(rows.lengths, rows.scores[name], strict=True):
            columns[f"{heading} at n = {n}"] = np.ascontiguousarray(values)
    title = "Evaluation rows with a hit, those with most covered tokens first"
    return Table("rows", title, pa.table(columns))


def _files_table(statistics: Statistics) -> Table:
    """Returns the matrix of training file by evaluation set."""
    names = [one.name for one in statistics.sets]
    lines = (
        [file.path, file.num_hit, *(file.by_set.get(name, 0) for name in names)]
        for file in statistics.train_files
    )
    headings = ["training file", "instances", *names]
    return _table("train_files", "Instances hit by training file", headings, lines)


# --- files --------------------------------------------------------------------------------------


def csv_of(table: Table) -> bytes:
    """Returns a table as CSV, with a line of headings."""
    stream = io.BytesIO()
    pyarrow.csv.write_csv(table.data, stream)
    return stream.getvalue()


def markdown_of(tables: Iterable[Table], heading: str) -> bytes:
    """Returns tables as one page of Markdown, of each the first rows."""
    parts = [f"# {_markdown(heading)}\n"]
    for table in tables:
        parts.append(f"\n## {table.title}\n\n")
        if not len(table.data):
            parts.append("None.\n")
            continue
        is_text = [pa.types.is_string(kind) for kind in table.data.schema.types]
        rules = ["---" if text else "---:" for text in is_text]
        lines = [table.data.column_names, rules, *table.first_rows]
        parts += [f"| {' | '.join(map(_markdown, line))} |\n" for line in lines]
        if table.num_left_out:
            parts.append(f"\n{count_text(table.num_left_out)} more are not shown.\n")
    return "".join(parts).encode()


def _markdown(text: str) -> str:
    """Returns a text on one line, in which nothing is markup."""
    one_line = " ".join(shown(text).split("\n")).replace("\r", " ")
    return one_line.translate({ord(char): f"\\{char}" for char in "\\|`*_[]<>#"})
