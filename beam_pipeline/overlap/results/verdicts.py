"""Which evaluation instances are clean and which are dirty, by each rule.

  HITS → the highest score of each instance → overlap_rules, and a list for each set and verdict

An instance has one verdict, so that its rows, if it has several, are in one list. Instances
without a hit have a score of 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.results.layout import RULES, rule_list_name
from beam_pipeline.overlap.results.rules import Rule, Verdict


def row_scores(rule: Rule, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the HITS at the n of a rule, and their scores."""
    found = hits[hits["n"] == np.minimum(hits["num_tokens"], rule.n)]
    if rule.score == "coverage":
        return found, found["num_covered_tokens"] / found["num_tokens"]
    return found, found["num_shared_places"] / found["num_informative_places"]


class RuleResult:
    """The verdicts of a rule.

    Attributes:
      scores: float64 [instances], the highest of an instance's rows.
    """

    def __init__(self, rule: Rule, hits: np.ndarray, instance_of_row: np.ndarray, num: int):
        self.rule = rule
        found, scores = row_scores(rule, hits)
        self.scores, self._long_scores = np.zeros(num), np.zeros(num)
        instances = instance_of_row[found["number"]]
        np.maximum.at(self.scores, instances, scores)
        is_long = found["num_tokens"] >= rule.n
        np.maximum.at(self._long_scores, instances[is_long], scores[is_long])

    def has(self, verdict: Verdict) -> np.ndarray:
        """Tells of each instance whether it has a verdict."""
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
    rules: Sequence[Rule],
    rows: EvaluationRows,
    hits: np.ndarray,
    instance_of_row: np.ndarray,
    firsts: Sequence[int],
) -> dict[str, Iterable[dict[str, Any]]]:
    """Returns the records of each file about rules, by its name.

    Args:
      instance_of_row: int64 [rows], the number of each row's instance.
      firsts: the number of the first instance of each evaluation set, and of all instances.
    """
    if not rules:
        return {}
    results = [RuleResult(rule, hits, instance_of_row, firsts[-1]) for rule in rules]
    sets = [(name, slice(*firsts[at : at + 2])) for at, name in enumerate(rows.datasets)]
    lines: dict[str, Iterable[dict[str, Any]]] = {
        RULES: [result.record(*each) for each in sets for result in results]
    }
    for result in results:
        for dataset, instances in sets:
            for verdict in result.rule.verdicts:
                name = rule_list_name(result.rule.name, dataset, verdict)
                lines[name] = _listed(result, verdict, rows, instance_of_row, instances)
    return lines


def _listed(
    result: RuleResult,
    verdict: Verdict,
    rows: EvaluationRows,
    instance_of_row: np.ndarray,
    instances: slice,
) -> Iterator[dict[str, Any]]:
    """Yields the rows of the instances of a set that have a verdict, with the instance's score."""
    chosen = np.zeros(len(result.scores), bool)
    chosen[instances] = result.has(verdict)[instances]
    numbers = np.flatnonzero(chosen[instance_of_row])
    scores = result.scores[instance_of_row[numbers]].tolist()
    for row, score in zip(rows.some(numbers), scores, strict=True):
        place = {"id": row.instance_id, "eval_path": row.eval_path, "eval_row": row.eval_row}
        yield {**place, "score": score}
