"""Clean and dirty evaluation instances by each rule, and the fields that are hit.

  HITS → the highest score of each instance → overlap_rules, and a list for each set and verdict
       → the scores of each field of a row → overlap_fields

An instance has one verdict, so all its rows are in one list. Without a hit its score is 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.evaluation_sources import name_with_field
from beam_pipeline.overlap.results.instances import Instances, row_lines
from beam_pipeline.overlap.results.layout import RULES, rule_list_name
from beam_pipeline.overlap.results.output_files import json_floats, json_line
from beam_pipeline.overlap.results.rules import Rule, Verdict


def row_scores(rule: Rule, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the HITS at the n of a rule, and their scores."""
    found = hits[hits["n"] == np.minimum(hits["num_tokens"], rule.n)]
    if rule.score == "coverage":
        return found, found["num_covered_tokens"] / found["num_tokens"]
    return found, found["num_shared_places"] / found["num_informative_places"]


class RuleResult:
    """The verdicts of a rule."""

    def __init__(self, rule: Rule, hits: np.ndarray, instance_of_row: np.ndarray, num: int):
        self.rule = rule
        found, scores = row_scores(rule, hits)
        # float64 [instances], the highest of each instance's rows.
        self.scores, self._long_scores = np.zeros(num), np.zeros(num)
        instances = instance_of_row[found["number"]]
        np.maximum.at(self.scores, instances, scores)
        is_long = found["num_tokens"] >= rule.n
        np.maximum.at(self._long_scores, instances[is_long], scores[is_long])

    def has(self, verdict: Verdict) -> np.ndarray:
        """Returns whether each instance has a verdict."""
        if verdict == "dirty":
            return self.scores >= self.rule.dirty_from
        if verdict == "clean":
            return self.scores < self.rule.clean_below
        return (self.scores >= self.rule.clean_below) & (self.scores < self.rule.dirty_from)

    def record(self, dataset: str, instances: slice) -> dict[str, Any]:
        """Returns the line of an evaluation set, whose instances are consecutive."""
        is_dirty = self.has("dirty")[instances]
        by_short = is_dirty & (self._long_scores[instances] < self.rule.dirty_from)
        return {
            "eval_dataset": dataset,
            "rule": self.rule.name,
            "n": self.rule.n,
            "score": self.rule.score,
            "num_instances": len(is_dirty),
            "num_clean": int(self.has("clean")[instances].sum()),
            "num_between": int(self.has("between")[instances].sum()),
            "num_dirty": int(is_dirty.sum()),
            "num_dirty_by_short_texts": int(by_short.sum()),
        }


def rule_lines(
    rules: Sequence[Rule], instances: Instances, hits: np.ndarray
) -> dict[str, Iterable[bytes | memoryview]]:
    """Returns the lines of each file about rules, by name."""
    if not rules:
        return {}
    of_row, firsts, datasets = instances.of_row, instances.firsts, instances.rows.datasets
    results = [RuleResult(rule, hits, of_row, firsts[-1]) for rule in rules]
    sets = [(name, slice(*firsts[at : at + 2])) for at, name in enumerate(datasets)]
    records = (result.record(*each) for each in sets for result in results)
    lines: dict[str, Iterable[bytes | memoryview]] = {RULES: map(json_line, records)}
    for result in results:
        for dataset, of_set in sets:
            for verdict in result.rule.verdicts:
                name = rule_list_name(result.rule.name, dataset, verdict)
                lines[name] = _listed(result, verdict, instances, of_set)
    return lines


def _listed(
    result: RuleResult, verdict: Verdict, instances: Instances, of_set: slice
) -> Iterator[memoryview]:
    """Yields the rows of a set's instances with a verdict, and the instance's score."""
    chosen = np.zeros(len(result.scores), bool)
    chosen[of_set] = result.has(verdict)[of_set]
    numbers = np.flatnonzero(chosen[instances.of_row])
    if len(numbers):
        scores = json_floats(result.scores[instances.of_row[numbers]])
        yield from row_lines(instances.rows, numbers, score=scores)


# --- fields -------------------------------------------------------------------------------------


def _best(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ascending numbers of texts, with coverage and n-gram coverage at the best n."""
    numbers, of_hit = np.unique(hits["number"], return_inverse=True)
    coverage, ngram_coverage = np.zeros((2, len(numbers)))
    np.maximum.at(coverage, of_hit, hits["num_covered_tokens"] / hits["num_tokens"])
    shares = hits["num_shared_places"] / hits["num_informative_places"]
    np.maximum.at(ngram_coverage, of_hit, shares)
    return numbers, coverage, ngram_coverage


def field_records(
    rows: EvaluationRows, fields: Sequence[str], hits: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a record for each evaluation row with a hit in some field.

    With --eval_fields=each the texts of a field are an evaluation set of their own, `SET:FIELD`.
    """
    # By index of the evaluation set, path and row.
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    numbers, *scores = _best(hits)
    for row, *shares in zip(rows.some(numbers), *(each.tolist() for each in scores), strict=True):
        place = rows.datasets.index(row.eval_dataset)
        field = fields[place % len(fields)]
        record = found.setdefault(
            (place // len(fields), row.eval_path, row.eval_row),
            {
                "eval_dataset": row.eval_dataset.removesuffix(name_with_field("", field)),
                "instance_id": row.instance_id,
                "eval_path": row.eval_path,
                "eval_row": row.eval_row,
                "fields_hit": [],
                "coverage": {},
                "ngram_coverage": {},
            },
        )
        record["fields_hit"].append(field)
        record["coverage"][field], record["ngram_coverage"][field] = shares
    for key in sorted(found):
        yield found[key]
