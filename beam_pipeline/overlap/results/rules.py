"""Rules by which an evaluation instance is clean, dirty or in between; docs/overlap.md has sources.

A rule compares a score of a row at one n with two limits. A row of fewer tokens is compared whole,
as everywhere in the job. Loads nothing: the command line is checked with it.
"""

import math
from typing import Literal, NamedTuple

from beam_pipeline.errors import UsageError

Verdict = Literal["clean", "between", "dirty"]
_ANY = math.nextafter(0, 1)  # the least share that is more than nothing


class Rule(NamedTuple):
    """A rule: clean below one limit, dirty from another one on."""

    name: str
    n: int
    score: Literal["coverage", "ngram_coverage"]  # of overlap_coverage
    clean_below: float
    dirty_from: float

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts that this rule can give."""
        has_between = self.clean_below < self.dirty_from
        return ("clean", "between", "dirty") if has_between else ("clean", "dirty")


PUBLISHED = {
    rule.name: rule
    for rule in (
        Rule("gpt3", 13, "ngram_coverage", _ANY, _ANY),
        Rule("palm", 8, "ngram_coverage", 0.7, 0.7),
        Rule("llama2", 11, "coverage", 0.2, 0.8),
    )
}
THRESHOLD = "threshold"
NO_RULES = "none"


def named_rules(names: str) -> list[Rule]:
    """Returns published rules by their names with commas between, each once.

    Raises:
      UsageError: there is no such rule.
    """
    given = [] if names == NO_RULES else [name.strip() for name in names.split(",")]
    if unknown := [name for name in given if name not in PUBLISHED]:
        raise UsageError(
            f"--rules={names}: there is no rule {unknown[0]!r}; give {NO_RULES}, or some of "
            f"{', '.join(PUBLISHED)} with commas between"
        )
    return [PUBLISHED[name] for name in dict.fromkeys(given)]


def threshold_rule(n: int, share: float) -> Rule:
    """Returns the rule that an instance is dirty from a coverage on."""
    return Rule(THRESHOLD, n, "coverage", share, share)


def rules_of(names: str, threshold: float, shortest: int) -> tuple[Rule, ...]:
    """Returns the rules of a run: published ones in their order, and that of --threshold.

    Args:
      names: as --rules has them.
      threshold: the least coverage that is dirty; 0 is no such rule.
      shortest: the shortest n of --ngram_length.
    """
    rules = named_rules(names)
    if threshold:
        rules.append(threshold_rule(shortest, threshold))
    return tuple(rules)
