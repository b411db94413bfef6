"""Rules by which an evaluation instance is clean, dirty or in between; docs/overlap.md has sources.

A rule compares a row's score at one n with two limits. A row with fewer tokens is compared whole,
as in the rest of the job. Imports nothing heavy, since it checks the command line.
"""

import math
from typing import Literal, NamedTuple

from beam_pipeline.errors import UsageError

Verdict = Literal["clean", "between", "dirty"]
# Rows of fewer tokens say little: a "yes" is in nearly any text. PaLM's n, and the least that
# NeMo Curator compares.
SHORT_TOKENS = 8
_ANY = math.nextafter(0, 1)  # the smallest positive share


class Rule(NamedTuple):
    """A rule: clean below one limit, dirty at or above another."""

    name: str
    n: int
    score: Literal["coverage", "ngram_coverage"]  # field of overlap_coverage
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
    """Returns the distinct published rules with comma-separated names; UsageError for others."""
    given = [] if names == NO_RULES else [name.strip() for name in names.split(",")]
    if unknown := [name for name in given if name not in PUBLISHED]:
        raise UsageError(
            f"--rules={names}: there is no rule {unknown[0]!r}; give {NO_RULES}, or some of "
            f"{', '.join(PUBLISHED)} with commas between"
        )
    return [PUBLISHED[name] for name in dict.fromkeys(given)]


def threshold_rule(n: int, share: float) -> Rule:
    """Returns the rule that an instance is dirty at or above a coverage."""
    return Rule(THRESHOLD, n, "coverage", share, share)


def rules_of(names: str, threshold: float, shortest: int) -> tuple[Rule, ...]:
    """Returns the published rules named by --rules, then that of --threshold unless it is 0."""
    rules = named_rules(names)
    if threshold:
        rules.append(threshold_rule(shortest, threshold))
    return tuple(rules)
