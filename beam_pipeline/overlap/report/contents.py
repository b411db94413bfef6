"""The overlap report's figures, which the job writes to report.json and the page renders.

A coverage line is a row at one n. A row with fewer than n tokens is compared whole, at its own
length, so it counts at every longer configured n. Memory grows with the rows hit, not with matches
or texts; each table of report.json has at most MAX_ROWS rows.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.results.contaminated import merge_spans_of, places_of
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    COVERAGE,
    DOCUMENTS,
    FIELD_HITS,
    MATCHES,
    REMOVAL_MANIFEST,
    REPORT,
    RULES,
    STATS_BY_TRAIN_PATH,
    SUCCESS_NAME,
    TRAIN_FILES,
    VERDICTS,
)
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.overlap.results.rules import SHORT_TOKENS
from beam_pipeline.storage import files
from beam_pipeline.storage.lines import explained_damage

VERSION = 2
LEVELS = (0.0, 0.2, 0.5, 0.8)  # min coverage; at 0, any hit counts
MAX_ROWS = 1_000  # evaluation rows, all in the browser's memory
MAX_FILES = MAX_NGRAMS = 50
MAX_SHORT_ROWS = 5
MARGIN_CHARS = 200  # the default of --margin_chars
ROW_KEY = ("eval_dataset", "eval_path", "eval_row")
_COVERAGE_SCHEMA = pa.schema(
    [
        ("eval_dataset", pa.string()),
        ("eval_path", pa.string()),
        ("eval_row", pa.int64()),
        ("instance_id", pa.string()),
        ("n", pa.int64()),
        ("num_tokens", pa.int64()),
        ("num_covered_tokens", pa.int64()),
        ("num_train_documents", pa.int64()),
        ("longest_run", pa.int64()),
    ]
)


class Hits(msgspec.Struct, frozen=True):
    """Evaluation rows that are hit, rows that were looked up, and covered tokens."""

    num_hit: int
    num_looked_up: int
    covered_tokens: int

    @property
    def share(self) -> float:
        """The share of rows that are hit; 0 if none was looked up."""
        return self.num_hit / self.num_looked_up if self.num_looked_up else 0.0

    def __str__(self) -> str:
        return f"{self.num_hit:,} of {self.num_looked_up:,}"


class RowCounts(msgspec.Struct):
    """A line of overlap_verdicts; without n it is of any n."""

    eval_dataset: str
    n: int | None
    num_rows: int
    num_hit: int
    num_hit_short: int
    num_clean: int
    num_not_looked_up: int

    @property
    def num_looked_up(self) -> int:
        """The rows that were looked up."""
        return self.num_rows - self.num_not_looked_up


class Level(msgspec.Struct):
    """Rows of at least `min_coverage`."""

    min_coverage: float
    by_length: list[Hits]  # at each configured n
    at_any: Hits


class EvaluationSet(msgspec.Struct):
    """An evaluation set at each of LEVELS."""

    name: str
    num_not_looked_up: int
    num_hit_short: int  # rows of fewer than SHORT_TOKENS
    levels: list[Level]


class Score(msgspec.Struct):
    """A row's coverage by shared n-grams of one n."""

    n: int
    coverage: float
    num_covered_tokens: int
    longest_run: int
    num_train_documents: int


class Row(msgspec.Struct):
    """An evaluation row with a hit at any n; lone surrogates are escaped."""

    eval_dataset: str
    eval_path: str
    eval_row: int
    instance_id: str
    num_tokens: int
    num_covered_tokens: int
    coverage: float
    num_train_documents: int
    scores: list[Score]  # at each configured n with a hit


class TrainFile(msgspec.Struct):
    """The number of instances a training file hits, in all and by evaluation set."""

    path: str
    num_hit: int
    by_set: dict[str, int]


class Taken(msgspec.Struct):
    """The documents and characters that a removal would take."""

    name: str  # training file or evaluation set
    num_documents: int
    num_spans: int
    num_shared_chars: int
    num_margin_chars: int  # shared characters and those within MARGIN_CHARS of them
    num_texts: int = 0  # for a training file


class Removal(msgspec.Struct):
    """The effect of a removal: in all, by evaluation set and by training file."""

    total: Taken
    by_set: list[Taken]  # a document may count in several sets
    by_file: list[Taken]  # the first MAX_FILES
    num_files: int


class Verdicts(msgspec.Struct):
    """A rule's verdicts on the rows of an evaluation set."""

    eval_dataset: str
    rule: str
    n: int
    num_rows: int
    num_clean: int
    num_between: int
    num_dirty: int
    num_dirty_by_short_texts: int
    num_not_looked_up: int


class FieldHits(msgspec.Struct):
    """The number of rows of an evaluation set hit in exactly these fields."""

    eval_dataset: str
    fields: str
    num_rows: int


class Boilerplate(msgspec.Struct):
    """An n-gram that does not count, and the number of training documents with it."""

    ngram: str
    n: int
    documents: int


class Report(msgspec.Struct, kw_only=True):
    """The contents of report.json."""

    version: int = VERSION
    lengths: list[int]  # the configured n, ascending
    sets: list[EvaluationSet]  # most covered tokens first
    num_matches: int  # without boilerplate
    verdicts: list[Verdicts]
    rows: list[Row]  # the first MAX_ROWS by tokens covered
    num_rows: int
    short_rows: list[Row]  # of fewer than SHORT_TOKENS, in most training documents
    train_files: list[TrainFile]  # the first MAX_FILES by instances hit
    num_train_files: int  # with a hit
    removal: Removal
    fields: list[FieldHits]  # with --eval_fields=each
    boilerplate: list[Boilerplate]  # the MAX_NGRAMS most frequent
    num_boilerplate: int

    @property
    def overall(self) -> list[Hits]:
        """The hits of all evaluation sets together, at each of LEVELS and any n."""
        found = [[one.levels[at].at_any for one in self.sets] for at in range(len(LEVELS))]
        sums = ([*map(sum, zip(*map(msgspec.structs.astuple, of_level)))] for of_level in found)
        return [Hits(*(each or (0, 0, 0))) for each in sums]


def contents(output: Output, lengths: Sequence[int]) -> Report:
    """Returns the figures of an output, read from its result files."""
    lengths = sorted(lengths)
    lines = _with_coverage(output.table(COVERAGE, _COVERAGE_SCHEMA))
    rows = _rows(lines)
    train_files, num_train_files = _first(
        _train_files(output), MAX_FILES, lambda file: (-file.num_hit, file.path)
    )
    boilerplate, num_boilerplate = _first(
        output.records(BOILERPLATE, Boilerplate),
        MAX_NGRAMS,
        lambda one: (-one.documents, one.n, one.ngram),
    )
    return Report(
        lengths=lengths,
        sets=_sets(output, lines, rows, lengths),
        num_matches=output.num_rows(MATCHES),
        verdicts=list(output.records(RULES, Verdicts)),
        rows=list(_first_rows(lines, rows, lengths)),
        num_rows=len(rows),
        short_rows=_short_rows(rows),
        train_files=train_files,
        num_train_files=num_train_files,
        removal=_removal(output),
        fields=_field_hits(output),
        boilerplate=boilerplate,
        num_boilerplate=num_boilerplate,
    )


def write_contents(folder: str, temp_folder: str, lengths: Sequence[int]) -> Report:
    """Writes report.json to a folder that has all result files, and returns its contents."""
    report = contents(Output(folder), lengths)
    with files.atomic_write(f"{folder}/{REPORT}", temp_folder) as stream:
        stream.write(msgspec.json.encode(report) + b"\n")
    return report


def read_contents(output: Output, lengths: Sequence[int]) -> Report:
    """Reads report.json, or recomputes its contents if the output is from another version."""

    class Version(msgspec.Struct):
        version: int

    is_there = files.exists(output.file(REPORT))
    if is_there and output.record(REPORT, Version).version == VERSION:
        return output.record(REPORT, Report)
    return contents(output, lengths)


def _first[T](values: Iterable[T], count: int, key: Callable[[T], tuple]) -> tuple[list[T], int]:
    """Returns the `count` smallest values in order, and the number of all values."""
    numbers = itertools.count()
    counted = (value for value, _ in zip(values, numbers, strict=False))
    return heapq.nsmallest(count, counted, key), next(numbers)


# --- evaluation rows and sets ---------------------------------------------------------------------


def _with_coverage(table: pa.Table) -> pa.Table:
    covered = pc.cast(table["num_covered_tokens"], pa.float64())
    return table.append_column("coverage", pc.divide(covered, table["num_tokens"]))


def _rows(lines: pa.Table) -> pa.Table:
    """Returns the rows with a hit, each with its maxima over all n, in the order of the lines."""
    largest = ("num_covered_tokens", "num_train_documents")
    keys = [*ROW_KEY, "instance_id", "num_tokens"]
    numbered = lines.append_column("line", pa.array(np.arange(len(lines))))
    rows = numbered.group_by(keys, use_threads=False).aggregate(
        [*((name, "max") for name in largest), ("line", "min")]
    )
    return _with_coverage(
        rows.select([*keys, *(f"{n}_max" for n in largest), "line_min"]).rename_columns(
            [*keys, *largest, "line"]
        )
    )


def _at(lines: pa.Table, length: int) -> pa.Table:
    """Returns the lines that count at a configured n."""
    return lines.filter(pc.equal(lines["n"], pc.min_element_wise(lines["num_tokens"], length)))


def _sets(
    output: Output, lines: pa.Table, rows: pa.Table, lengths: Sequence[int]
) -> list[EvaluationSet]:
    """Returns all evaluation sets, most covered tokens first."""

    counts: dict[str, dict[int | None, RowCounts]] = defaultdict(dict)
    for one in output.records(VERDICTS, RowCounts):
        counts[one.eval_dataset][one.n] = one
    tables = {**{length: _at(lines, length) for length in lengths}, None: rows}
    found = {(level, n): _hits(each, level) for level in LEVELS for n, each in tables.items()}
    sets = []
    for name, of_set in counts.items():
        levels = []
        for level in LEVELS:
            by_n = {n: found[level, n].get(name, (0, 0)) for n in tables}
            *by_length, of_any = (
                Hits(num_hit, of_set[n].num_looked_up, tokens)
                for n, (num_hit, tokens) in by_n.items()
            )
            levels.append(Level(level, by_length, of_any))
        at_any = of_set[None]
        sets.append(EvaluationSet(name, at_any.num_not_looked_up, at_any.num_hit_short, levels))
    return sorted(sets, key=lambda one: -one.levels[0].at_any.covered_tokens)


def _hits(table: pa.Table, level: float) -> dict[str, tuple[int, int]]:
    """Returns by set the number of rows of at least that coverage, and their covered tokens."""
    coverage = pc.field("coverage")
    reached = table.filter((coverage >= level) & (coverage > 0))
    found = reached.group_by("eval_dataset").aggregate(
        [("eval_row", "count"), ("num_covered_tokens", "sum")]
    )
    columns = "eval_row_count", "num_covered_tokens_sum"
    return {one["eval_dataset"]: (one[columns[0]], one[columns[1]]) for one in found.to_pylist()}


def _short_rows(rows: pa.Table) -> list[Row]:
    short = rows.filter(pc.field("num_tokens") < SHORT_TOKENS).drop_columns("line")
    first = short.sort_by([("num_train_documents", "descending")]).slice(0, MAX_SHORT_ROWS)
    return [Row(**row, scores=[]) for row in first.to_pylist()]


def _first_rows(lines: pa.Table, rows: pa.Table, lengths: Sequence[int]) -> Iterator[Row]:
    """Yields the rows with the most covered tokens; ties by highest coverage."""
    descending = ("num_covered_tokens", "coverage", "num_train_documents")
    order = [*((name, "descending") for name in descending), ("line", "ascending")]
    first = rows.sort_by(order).slice(0, MAX_ROWS).drop_columns("line")
    by_row: dict[tuple, dict[int, dict]] = defaultdict(dict)
    names = list(ROW_KEY)
    for line in lines.join(first.select(names), names, join_type="left semi").to_pylist():
        by_row[tuple(line[name] for name in names)][line["n"]] = line
    for row in first.to_pylist():
        of_row = by_row[tuple(row[name] for name in names)]
        at = {n: of_row.get(min(n, row["num_tokens"])) for n in lengths}
        fields = Score.__struct_fields__[1:]
        scores = [Score(n, *(line[f] for f in fields)) for n, line in at.items() if line]
        yield Row(**row, scores=scores)


# --- training files -------------------------------------------------------------------------------


def _train_files(output: Output) -> Iterator[TrainFile]:
    """Yields the training files that hit an instance; a file's lines are consecutive."""

    class Stat(msgspec.Struct):
        eval_dataset: str
        train_path: str
        instance_ids: list[str]

    stats = output.records(STATS_BY_TRAIN_PATH, Stat)
    for path, stats_of_file in itertools.groupby(stats, lambda stat: stat.train_path):
        hit: dict[str, set[str]] = defaultdict(set)
        for stat in stats_of_file:
            hit[stat.eval_dataset].update(stat.instance_ids)
        by_set = {name: len(ids) for name, ids in hit.items() if ids}
        if by_set:
            yield TrainFile(path, sum(by_set.values()), by_set)


_TAKEN = ("num_documents", "num_spans", "num_shared_chars", "num_margin_chars")
_TAKEN_SCHEMA = pa.schema([("name", pa.string()), *((name, pa.int64()) for name in _TAKEN)])


def _removal(output: Output) -> Removal:
    """Sums the effect of a removal on each contaminated document.

    Results lack document lengths, so only shared characters and margins are counted.
    """
    by_file, by_set = [_TAKEN_SCHEMA.empty_table()], [_TAKEN_SCHEMA.empty_table()]
    columns = ["train_path", "eval_datasets", "spans"]
    for table in output.row_groups(DOCUMENTS, columns):
        taken = _taken(table["spans"].combine_chunks())
        by_file.append(_sums(taken.add_column(0, "name", table["train_path"])))
        sets = table["eval_datasets"]
        repeated = taken.take(pc.list_parent_indices(sets))
        by_set.append(_sums(repeated.add_column(0, "name", pc.list_flatten(sets))))
    order = [("num_documents", "descending"), ("name", "ascending")]
    of_files, of_sets = (_sums(pa.concat_tables(each)).sort_by(order) for each in (by_file, by_set))
    num_texts = _num_texts(output)
    sums = {name: pc.sum(of_files[name]).as_py() or 0 for name in _TAKEN}
    first = of_files.slice(0, MAX_FILES).to_pylist()
    return Removal(
        total=Taken(name="", **sums, num_texts=num_texts.total()),
        by_set=[Taken(**one) for one in of_sets.to_pylist()],
        by_file=[Taken(**one, num_texts=num_texts[one["name"]]) for one in first],
        num_files=len(of_files),
    )


def _num_texts(output: Output) -> Counter[str]:
    found: Counter[str] = Counter()
    for table in output.row_groups(TRAIN_FILES, ["train_path", "num_texts"]):
        for one in table.to_pylist():
            found[one["train_path"]] += one["num_texts"]
    return found


def _sums(taken: pa.Table) -> pa.Table:
    """Returns the sums by name."""
    sums = taken.group_by("name", use_threads=False).aggregate([(name, "sum") for name in _TAKEN])
    return sums.select(["name", *(f"{name}_sum" for name in _TAKEN)]).rename_columns(
        _TAKEN_SCHEMA.names
    )


def _taken(spans: pa.ListArray) -> pa.Table:
    """Returns the effect of a removal on each document, from its merged spans."""
    num, (documents, starts, ends) = len(spans), places_of(spans)
    wide = merge_spans_of(documents, np.maximum(starts - MARGIN_CHARS, 0), ends + MARGIN_CHARS)
    columns = (
        np.ones(num),
        np.bincount(documents, minlength=num),
        np.bincount(documents, ends - starts, num),
        np.bincount(wide.documents, wide.ends - wide.starts, num),
    )
    return pa.table([one.astype(np.int64) for one in columns], names=list(_TAKEN))


# --- fields --------------------------------------------------------------------------------------


def _field_hits(output: Output) -> list[FieldHits]:
    class FieldsHit(msgspec.Struct):
        eval_dataset: str
        fields_hit: list[str]

    rows = output.records(FIELD_HITS, FieldsHit)
    found = Counter((row.eval_dataset, ", ".join(row.fields_hit)) for row in rows)
    return [
        FieldHits(name, escape_surrogates(fields), count)
        for (name, fields), count in sorted(found.items())
    ]


# --- removals that were run -----------------------------------------------------------------------


class Lost(msgspec.Struct):
    """Losses of contaminated documents, in all or for one evaluation set."""

    contaminated: int
    records_removed: int
    pieces: int
    contaminated_chars: int
    chars_removed: int


class Removed(msgspec.Struct):
    """The effect of a removal, from its manifest."""

    options: dict[str, Any]
    counts: Lost
    by_evaluation_set: dict[str, Lost]
    path: str = ""


def read_removed(folder: str, removal: Removal) -> Removed:
    """Reads the manifest of a removal; raises UsageError unless it was made from this result."""
    folder = folder.rstrip("/")
    if not files.exists(f"{folder}/{SUCCESS_NAME}"):
        raise UsageError(
            f"--removed={folder} is not a finished clean corpus: it has no {SUCCESS_NAME}; give "
            "the --output_path of beam_pipeline.overlap.remove"
        )
    path = f"{folder}/{REMOVAL_MANIFEST}"
    cure = "run the removal again with --overwrite"
    with explained_damage(path, cure, more=(ValueError,)), files.open_file(path) as stream:
        removed = msgspec.json.decode(stream.read(), type=Removed)
    removed.path = folder
    found = {name: lost.contaminated for name, lost in removed.by_evaluation_set.items()}
    if found != {taken.name: taken.num_documents for taken in removal.by_set}:
        raise UsageError(
            f"--removed={folder} was made from a different result: it had "
            f"{removed.counts.contaminated:,} contaminated documents, this result has "
            f"{removal.total.num_documents:,}; give a corpus that was cleaned with this result"
        )
    return removed
