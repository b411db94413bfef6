"""How many instances of each evaluation set are hit, at each n and coverage, and the sets' ranks.

overlap_stats, HitRows → [EvaluationSet], the one with most covered tokens first
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.report.rows import HitRows
from beam_pipeline.overlap.results.layout import STATS
from beam_pipeline.overlap.results.output_files import escape_surrogates

LEVELS = (0.0, 0.2, 0.5, 0.8)  # of coverage; at the first any hit counts


class Hits(NamedTuple):
    """How many instances are hit, of how many, and how many tokens of their rows are covered."""

    num_hit: int
    num_instances: int
    covered_tokens: int

    @property
    def share(self) -> float:
        """The share of the instances that are hit; 0 if there are none."""
        return self.num_hit / self.num_instances if self.num_instances else 0.0

    def __str__(self) -> str:
        return f"{self.num_hit:,} of {self.num_instances:,}"


class Level(NamedTuple):
    """The instances of which a row has some coverage or more."""

    min_coverage: float
    by_length: list[Hits]  # at each configured n
    at_any: Hits


class EvaluationSet(NamedTuple):
    """An evaluation set, at each of LEVELS."""

    name: str
    levels: list[Level]


class _Stat(msgspec.Struct):
    eval_dataset: str
    num_instances: int


def read_sets(output: Output, rows: HitRows) -> list[EvaluationSet]:
    """Returns all sets, those with most covered tokens first."""
    num_instances = {
        escape_surrogates(stat.eval_dataset): stat.num_instances
        for stat in output.records(STATS, _Stat)
    }
    by_level = [list(_levels(rows, level, num_instances)) for level in LEVELS]
    sets = [
        EvaluationSet(name, list(levels))
        for name, levels in zip(num_instances, zip(*by_level, strict=True), strict=True)
    ]
    return sorted(sets, key=lambda one: -one.levels[0].at_any.covered_tokens)


def all_sets(sets: Sequence[EvaluationSet]) -> list[Hits]:
    """Returns what all sets together have at each of LEVELS, at any n."""
    found = [[one.levels[at].at_any for one in sets] for at in range(len(LEVELS))]
    return [Hits(*map(sum, zip(Hits(0, 0, 0), *hits, strict=True))) for hits in found]


def _levels(rows: HitRows, level: float, num_instances: dict[str, int]) -> Iterator[Level]:
    """Yields what each set has at a level."""
    of_row, set_of_instance, names = rows.instances()
    set_of_row = set_of_instance[of_row]
    found: list[list[tuple[int, int]]] = []  # by n, then by set: instances, covered tokens
    tokens = np.vstack([rows.scores["num_covered_tokens"], rows.covered])
    for is_there, covered in zip(rows.at_least(level), tokens, strict=True):
        is_hit = np.zeros(len(set_of_instance), bool)
        is_hit[of_row[is_there]] = True
        hits = np.bincount(set_of_instance[is_hit], minlength=len(names))
        sums = np.bincount(set_of_row[is_there], covered[is_there], len(names))
        found.append(list(zip(hits.tolist(), map(int, sums), strict=True)))
    place_of = {name: place for place, name in enumerate(names)}
    for name, number in num_instances.items():
        counts = [one[place_of[name]] if name in place_of else (0, 0) for one in found]
        *by_length, at_any = (Hits(num_hit, number, covered) for num_hit, covered in counts)
        yield Level(level, by_length, at_any)
