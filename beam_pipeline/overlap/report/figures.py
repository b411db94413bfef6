"""The numbers of an overlap report: which sets are hit, by which files, and what is not shown.

Enter a job's output; leave `Figures`. Memory is bounded by the number of instances that are hit
and of one training file's hits, not by matches or texts.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from beam_pipeline.overlap.report.instances import Instance, worst_instances
from beam_pipeline.overlap.report.output import Advance, Output, reading
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DEAD_LETTER_FOLDER,
    DETAILS_LEFT_OUT,
    STATS,
    STATS_BY_TRAIN_PATH,
    SUMMARY,
)

TRAIN_FILES = 50
BOILERPLATE_NGRAMS = 50
_OPTIONS = ("ngram_lengths", "tokenizer")


class Hits(NamedTuple):
    """How many instances of an evaluation set are hit, of how many."""

    num_hit: int
    num_instances: int

    @property
    def share(self) -> float:
        return self.num_hit / self.num_instances if self.num_instances else 0.0


@dataclass
class EvaluationSet:
    """An evaluation set: its hits by n, and at any n at all."""

    name: str
    by_length: dict[int, Hits]
    in_all: Hits


class TrainFile(NamedTuple):
    """A training file: how many instances it hits, by evaluation set."""

    path: str
    num_hit: int
    by_set: dict[str, int]


class Boilerplate(NamedTuple):
    """An n-gram that stands in too many documents to count."""

    ngram: str
    n: int
    num_documents: int


@dataclass
class LeftOut:
    """What caps keep out of the details."""

    num_pairs: int = 0
    num_of_pairs: int = 0
    num_files: int = 0
    num_of_files: int = 0


@dataclass
class Figures:
    """All that a report shows of an output."""

    path: str
    sets: list[EvaluationSet]
    lengths: list[int]  # with those of texts that are shorter
    configured: list[int]
    facts: dict[str, int]
    options: dict[str, str]
    instances: list[Instance]
    train_files: list[TrainFile]
    num_train_files_hit: int
    dead_letters: dict[str, int]
    left_out: LeftOut | None
    boilerplate: list[Boilerplate] = field(default_factory=list)
    num_boilerplate: int = 0

    @property
    def in_all(self) -> Hits:
        """The hits of all evaluation sets, at any n."""
        hits = [one.in_all for one in self.sets]
        return Hits(sum(one.num_hit for one in hits), sum(one.num_instances for one in hits))


def read_figures(output: Output, num_instances: int, advance: Advance) -> Figures:
    """Reads what a report shows.

    Args:
      num_instances: how many instances are shown with their texts.
      advance: is told of bytes of the details read.

    Raises:
      ProbelineError: a file is missing, damaged or of another version.
    """
    sets = _sets(output)
    summary = output.json(SUMMARY)
    with reading(output.file(SUMMARY)):
        facts, options = _facts(summary)
        configured = [int(n) for n in summary["ngram_lengths"]]
    train_files, num_train_files_hit = _train_files(output)
    boilerplate, num_boilerplate = _boilerplate(output)
    return Figures(
        path=output.path,
        sets=sets,
        lengths=sorted({n for one in sets for n in one.by_length}),
        configured=configured,
        facts=facts,
        options=options,
        instances=worst_instances(output, num_instances, advance),
        train_files=train_files,
        num_train_files_hit=num_train_files_hit,
        dead_letters=_dead_letters(output),
        left_out=_left_out(output),
        boilerplate=boilerplate,
        num_boilerplate=num_boilerplate,
    )


def _sets(output: Output) -> list[EvaluationSet]:
    by_length: dict[str, dict[int, Hits]] = defaultdict(dict)
    hit: dict[str, set[str]] = defaultdict(set)
    for record in output.records(STATS):
        with reading(output.file(STATS)):
            name, ids = record["eval_dataset"], record["instance_ids"]
            by_length[name][int(record["n"])] = Hits(len(ids), int(record["num_instances"]))
            hit[name].update(ids)
    return [
        EvaluationSet(
            name, lengths, Hits(len(hit[name]), max(h.num_instances for h in lengths.values()))
        )
        for name, lengths in by_length.items()
    ]


def _facts(summary: dict[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """Returns numbers and options of progress_summary.json, by their names there."""
    facts = {**summary, **summary["counts"]}
    numbers = {name: value for name, value in facts.items() if isinstance(value, int)}
    options = {name: summary[name] for name in _OPTIONS}
    lengths = ", ".join(map(str, options["ngram_lengths"]))
    return numbers, {**options, "ngram_lengths": lengths}


def _train_files(output: Output) -> tuple[list[TrainFile], int]:
    """Returns the files that hit most instances, and how many files hit any.

    The lines of a file stand together.
    """
    num_files = 0

    def files():
        nonlocal num_files
        for path, records in groupby(
            output.records(STATS_BY_TRAIN_PATH), lambda record: record["train_path"]
        ):
            hit: dict[str, set[str]] = defaultdict(set)
            for record in records:
                hit[record["eval_dataset"]].update(record["instance_ids"])
            by_set = {name: len(ids) for name, ids in hit.items() if ids}
            if by_set:
                num_files += 1
                yield TrainFile(path, sum(by_set.values()), by_set)

    with reading(output.file(STATS_BY_TRAIN_PATH)):
        most = heapq.nsmallest(TRAIN_FILES, files(), key=lambda file: (-file.num_hit, file.path))
    return most, num_files


def _boilerplate(output: Output) -> tuple[list[Boilerplate], int]:
    num_ngrams = 0

    def ngrams():
        nonlocal num_ngrams
        for record in output.records(BOILERPLATE):
            num_ngrams += 1
            yield Boilerplate(record["ngram"], int(record["n"]), int(record["documents"]))

    with reading(output.file(BOILERPLATE)):
        most = heapq.nsmallest(
            BOILERPLATE_NGRAMS, ngrams(), key=lambda one: (-one.num_documents, one.n, one.ngram)
        )
    return most, num_ngrams


def _dead_letters(output: Output) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for path in output.find(f"{DEAD_LETTER_FOLDER}/*.parquet"):
        for batch in output.batches(path, ["reason"]):
            counts.update(batch["reason"].to_pylist())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _left_out(output: Output) -> LeftOut | None:
    if not output.has(DETAILS_LEFT_OUT):
        return None
    found = LeftOut()
    for record in output.records(DETAILS_LEFT_OUT):
        with reading(output.file(DETAILS_LEFT_OUT)):
            if "eval_row" in record:
                found.num_pairs += 1
                found.num_of_pairs += record["num_left_out"]
            else:
                found.num_files += 1
                found.num_of_files += record["num_left_out"]
    return found
