"""What an overlap report shows: evaluation sets, instances, training files, and what is omitted.

  Output → Statistics

Memory grows with the instances that are hit and with one training file's hits, not with matches
or texts.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, NamedTuple

import msgspec

from beam_pipeline.overlap.report.instances import Document, Instance, worst_instances
from beam_pipeline.overlap.report.output import Advance, Output
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DETAILS_LEFT_OUT,
    STATS,
    STATS_BY_TRAIN_PATH,
    SUMMARY,
)

MAX_TABLE_ROWS = 50


class Hits(NamedTuple):
    """How many instances are hit, of how many."""

    num_hit: int
    num_instances: int

    @property
    def share(self) -> float:
        """The share of the instances that are hit; 0 if there are none."""
        return self.num_hit / self.num_instances if self.num_instances else 0.0

    def __str__(self) -> str:
        return f"{self.num_hit:,} of {self.num_instances:,}"


class EvaluationSet(NamedTuple):
    """An evaluation set: its hits by n, and at any n."""

    name: str
    by_length: dict[int, Hits]
    at_any: Hits


class TrainFile(NamedTuple):
    """A training file: how many instances it hits, by evaluation set."""

    path: str
    num_hit: int
    by_set: dict[str, int]


class Boilerplate(msgspec.Struct):
    """An n-gram in more documents than a cap allows; it is not counted."""

    ngram: str
    n: int
    documents: int


class Summary(msgspec.Struct):
    """What is shown of progress_summary.json."""

    ngram_lengths: list[int]
    tokenizer: str
    num_eval_files: int
    num_train_files: int
    num_shards: int
    max_parallelism: int
    counts: dict[str, Any]


@dataclass
class Statistics:
    """All that a report shows of an output; `lengths` are the n of all hits."""

    path: str
    summary: Summary
    sets: list[EvaluationSet]
    lengths: list[int]
    instances: list[Instance]
    train_files: list[TrainFile]  # those that hit most instances
    num_train_files_hit: int
    boilerplate: list[Boilerplate]  # the most frequent
    num_boilerplate: int
    left_out: Counter[str]  # of the details: pairs, pair_matches, files, file_matches

    @property
    def at_any(self) -> Hits:
        """The hits of all evaluation sets, at any n."""
        hits = [one.at_any for one in self.sets]
        return Hits(sum(one.num_hit for one in hits), sum(one.num_instances for one in hits))


def read_statistics(output: Output, num_instances: int, advance: Advance) -> Statistics:
    """Reads what a report shows; `num_instances` of them with their texts."""
    summary = output.record(SUMMARY, Summary)
    sets = list(_sets(output))
    instances = worst_instances(output, num_instances, advance)
    train_files = _first(_train_files(output), key=lambda file: (-file.num_hit, file.path))
    ngrams = output.records(BOILERPLATE, Boilerplate)
    boilerplate = _first(ngrams, key=lambda one: (-one.documents, one.n, one.ngram))
    left_out = _left_out(output, instances)
    lengths = sorted({n for one in sets for n in one.by_length})
    return Statistics(
        output.path, summary, sets, lengths, instances, *train_files, *boilerplate, left_out
    )


class _Stat(msgspec.Struct):
    eval_dataset: str
    n: int
    num_instances: int
    instance_ids: list[str]
    train_path: str = ""


def _sets(output: Output) -> Iterator[EvaluationSet]:
    by_length: dict[str, dict[int, Hits]] = defaultdict(dict)
    hit: dict[str, set[str]] = defaultdict(set)
    for stat in output.records(STATS, _Stat):
        by_length[stat.eval_dataset][stat.n] = Hits(len(stat.instance_ids), stat.num_instances)
        hit[stat.eval_dataset].update(stat.instance_ids)
    for name, lengths in by_length.items():
        num_instances = max(hits.num_instances for hits in lengths.values())
        yield EvaluationSet(name, lengths, Hits(len(hit[name]), num_instances))


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


def _first[T](items: Iterable[T], key: Callable[[T], Any]) -> tuple[list[T], int]:
    """Returns the first items in the order of `key`, and how many items there are."""
    counter = count()
    first = heapq.nsmallest(MAX_TABLE_ROWS, (item for item, _ in zip(items, counter)), key=key)
    return first, next(counter)


class _LeftOut(msgspec.Struct):
    """What a cap leaves out: of a pair of rows or, without an eval_row, of a training file."""

    train_path: str
    num_left_out: int
    eval_dataset: str | None = None
    eval_path: str | None = None
    eval_row: int | None = None
    train_row: int | None = None


def _left_out(output: Output, instances: Iterable[Instance]) -> Counter[str]:
    """Counts what caps leave out, and adds to the documents shown how much of their pair it is."""
    shown: dict[tuple, Document] = {
        (*instance.key, document.train_path, document.train_row): document
        for instance in instances
        for document in instance.documents
    }
    counts: Counter[str] = Counter()
    for one in output.records(DETAILS_LEFT_OUT, _LeftOut):
        place = "file" if one.eval_row is None else "pair"
        counts[f"{place}s"] += 1
        counts[f"{place}_matches"] += one.num_left_out
        pair = (one.eval_dataset, one.eval_path, one.eval_row, one.train_path, one.train_row)
        if document := shown.get(pair):
            document.num_left_out += one.num_left_out
    return counts
