"""What an overlap report shows: evaluation sets, rows, training files, and what is omitted.

  Output → Statistics

Memory grows with the rows that are hit and with one training file's hits, not with matches or
texts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from beam_pipeline.overlap.report.caps import Cap, caps_of
from beam_pipeline.overlap.report.instances import Instance, worst_instances
from beam_pipeline.overlap.report.output import Advance, Output
from beam_pipeline.overlap.report.removal_effects import RemovalEffects, read_removal_effects
from beam_pipeline.overlap.report.removed import Removed, read_removed
from beam_pipeline.overlap.report.rows import HitRows, read_rows
from beam_pipeline.overlap.report.search_index import SearchIndex, make_search_index
from beam_pipeline.overlap.report.sets import EvaluationSet, Hits, all_sets, read_sets
from beam_pipeline.overlap.report.texts import add_texts, text_files
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DETAILS_LEFT_OUT,
    FIELD_HITS,
    MATCHES,
    NGRAMS,
    RULES,
    STATS_BY_TRAIN_PATH,
    SUMMARY,
)

MAX_TABLE_ROWS = 50


class TrainFile(NamedTuple):
    """A training file: how many instances it hits, by evaluation set."""

    path: str
    num_hit: int
    by_set: dict[str, int]


class Boilerplate(msgspec.Struct):
    """An n-gram that is not counted, and how many documents have it."""

    ngram: str
    n: int
    documents: int


class FieldHits(NamedTuple):
    """How many rows of an evaluation set were hit in these fields, and in no other."""

    dataset: str
    fields: str
    num_rows: int


class Verdicts(msgspec.Struct):
    """What a rule says of the instances of an evaluation set."""

    eval_dataset: str
    rule: str
    n: int
    num_instances: int
    num_clean: int
    num_between: int
    num_dirty: int
    num_dirty_by_short_texts: int


class Summary(msgspec.Struct):
    """What is shown of progress_summary.json."""

    started_at: str
    ngram_lengths: list[int]
    num_eval_files: int
    num_train_files: int
    num_shards: int
    max_parallelism: int
    options: dict[str, Any]
    versions: dict[str, str]
    counts: dict[str, Any]


@dataclass
class Statistics:
    """All that a report shows of an output."""

    path: str
    summary: Summary
    sets: list[EvaluationSet]  # those with most covered tokens first
    verdicts: list[Verdicts]
    rows: HitRows
    index: SearchIndex
    instances: list[Instance]
    train_files: list[TrainFile]  # those that hit most instances first
    removal: RemovalEffects
    removed: list[Removed]
    fields: list[FieldHits]  # with --eval_fields=each
    boilerplate: list[Boilerplate]  # the most frequent first
    num_matches: int  # without those of boilerplate
    caps: list[Cap]

    @property
    def lengths(self) -> list[int]:
        """The configured n."""
        return self.rows.lengths

    @property
    def num_not_looked_up(self) -> int:
        """How many evaluation rows were left out for what they are."""
        counts, skips = self.summary.counts, self.summary.options["degenerate"] == "skip"
        return counts.get("short_eval_rows", 0) + skips * counts["degenerate_eval_rows"]

    @property
    def overall(self) -> list[Hits]:
        """What all evaluation sets have at each of LEVELS, at any n."""
        return all_sets(self.sets)

    @property
    def at_any(self) -> Hits:
        """The hits of all evaluation sets, at any n and coverage."""
        return self.overall[0]


def num_bytes_read(output: Output) -> int:
    """Returns the size of the large files that a report reads, for a bar of its progress."""
    options = output.record(SUMMARY, Summary).options
    return sum(map(output.num_bytes, (MATCHES, NGRAMS, *text_files(options))))


def read_statistics(
    output: Output, num_instances: int, advance: Advance, removed: Iterable[str] = ()
) -> Statistics:
    """Reads what a report shows.

    Args:
      num_instances: how many of the rows have their texts.
      removed: folders of clean corpora that were made by this output.
    """
    removal = read_removal_effects(output)
    of_removed = read_removed(removed, removal)
    summary = output.record(SUMMARY, Summary)
    options = summary.options
    rows = read_rows(output, sorted(summary.ngram_lengths))
    instances = worst_instances(output, rows, num_instances, advance)
    add_texts(output, instances, options, advance)
    boilerplate = sorted(output.records(BOILERPLATE, Boilerplate), key=_by_frequency)
    return Statistics(
        path=output.path,
        summary=summary,
        sets=read_sets(output, rows),
        verdicts=list(output.records(RULES, Verdicts)),
        rows=rows,
        index=make_search_index(output, rows, advance),
        instances=instances,
        train_files=sorted(_train_files(output), key=lambda file: (-file.num_hit, file.path)),
        removal=removal,
        removed=of_removed,
        fields=_field_hits(output),
        boilerplate=boilerplate,
        num_matches=output.num_rows(MATCHES),
        caps=caps_of(options, summary.counts, len(boilerplate), _left_out(output)),
    )


class _Stat(msgspec.Struct):
    eval_dataset: str
    train_path: str
    instance_ids: list[str]


def _train_files(output: Output) -> Iterator[TrainFile]:
    """Yields the training files that hit an instance; the lines of a file are consecutive."""
    stats = output.records(STATS_BY_TRAIN_PATH, _Stat)
    for path, stats_of_file in groupby(stats, lambda stat: stat.train_path):
        hit: dict[str, set[str]] = defaultdict(set)
        for stat in stats_of_file:
            hit[stat.eval_dataset].update(stat.instance_ids)
        by_set = {name: len(ids) for name, ids in hit.items() if ids}
        if by_set:
            yield TrainFile(path, sum(by_set.values()), by_set)


class _FieldsHit(msgspec.Struct):
    eval_dataset: str
    fields_hit: list[str]


def _field_hits(output: Output) -> list[FieldHits]:
    rows = output.records(FIELD_HITS, _FieldsHit)
    found = Counter((row.eval_dataset, ", ".join(row.fields_hit)) for row in rows)
    return [FieldHits(*key, num_rows) for key, num_rows in sorted(found.items())]


def _by_frequency(one: Boilerplate) -> tuple[int, int, str]:
    return -one.documents, one.n, one.ngram


class _LeftOut(msgspec.Struct):
    """What a cap leaves out: of a pair of rows or, without an eval_row, of a training file."""

    num_left_out: int
    eval_row: int | None = None


def _left_out(output: Output) -> Counter[str]:
    """Counts what caps leave out of the details."""
    counts: Counter[str] = Counter()
    for one in output.records(DETAILS_LEFT_OUT, _LeftOut):
        place = "file" if one.eval_row is None else "pair"
        counts[f"{place}s"] += 1
        counts[f"{place}_matches"] += one.num_left_out
    return counts
