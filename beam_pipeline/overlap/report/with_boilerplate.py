"""How many instances would be hit, covered and dirty if boilerplate counted, by evaluation set.

  overlap_coverage, overlap_boilerplate_scores → a line for each row and n → [Effect]

An instance has the highest score of its rows, as everywhere. N-grams of too many evaluation rows
(--max_eval_rows_per_ngram) count in neither figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.report.rows import ROW_KEY
from beam_pipeline.overlap.report.sets import LEVELS
from beam_pipeline.overlap.results.layout import BOILERPLATE_SCORES, COVERAGE
from beam_pipeline.overlap.results.rules import Rule

_WITH = "_with_boilerplate"
_SCORES = ("coverage", "ngram_coverage")
_KEY = (*ROW_KEY, "n")
_COVERAGE_SCHEMA = pa.schema(
    [
        ("eval_dataset", pa.string()),
        ("eval_path", pa.string()),
        ("eval_row", pa.int64()),
        ("n", pa.int64()),
        ("instance_id", pa.string()),
        ("num_tokens", pa.int64()),
        *((name, pa.float64()) for name in _SCORES),
    ]
)
_EFFECTS_SCHEMA = pa.schema(
    [*_COVERAGE_SCHEMA, *((f"{name}{_WITH}", pa.float64()) for name in _SCORES)]
)


class Effect(NamedTuple):
    """How many instances of a set have something, and would if boilerplate counted."""

    eval_dataset: str
    measure: str  # such as "dirty by gpt3"
    num_instances: int
    num_with_boilerplate: int


class _Measure(NamedTuple):
    """What is counted: instances whose score is at least `least`, and more than nothing."""

    name: str
    score: str
    least: float
    n: int | None = None  # of a rule; None is any n


def read_effects(output: Output, rules: Sequence[Rule]) -> list[Effect]:
    """Returns what boilerplate does to each evaluation set that shares some, by name of the set."""
    effects = _read(output, BOILERPLATE_SCORES, _EFFECTS_SCHEMA)
    if not len(effects):
        return []
    names = sorted(pc.unique(effects.column("eval_dataset")).to_pylist())
    plain = _read(output, COVERAGE, _COVERAGE_SCHEMA)
    plain = plain.filter(pc.is_in(plain.column("eval_dataset"), pa.array(names)))
    for name in _SCORES:
        plain = plain.append_column(f"{name}{_WITH}", plain.column(name))
    plain = plain.join(effects.select(_KEY), list(_KEY), join_type="left anti")
    lines = pa.concat_tables([plain.select(effects.column_names), effects])
    measures = list(_measures(rules))
    counts = [[_count(lines, one, suffix) for suffix in ("", _WITH)] for one in measures]
    return [
        Effect(name, one.name, without.get(name, 0), with_it.get(name, 0))
        for name in names
        for one, (without, with_it) in zip(measures, counts, strict=True)
    ]


def _read(output: Output, name: str, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *output.tables(name, schema)])


def _measures(rules: Sequence[Rule]) -> Iterator[_Measure]:
    for level in LEVELS:
        name = f"at least {100 * level:.0f} % covered" if level else "hit"
        yield _Measure(name, "coverage", level)
    for rule in rules:
        yield _Measure(f"dirty by {rule.name}", rule.score, rule.dirty_from, rule.n)
        if "between" in rule.verdicts:
            name = f"dirty or in between by {rule.name}"
            yield _Measure(name, rule.score, rule.clean_below, rule.n)


def _count(lines: pa.Table, measure: _Measure, suffix: str) -> dict[str, int]:
    """Returns how many instances of each set reach a measure."""
    score = lines.column(measure.score + suffix)
    reaches = pc.and_(pc.greater_equal(score, measure.least), pc.greater(score, 0))
    if measure.n is not None:
        length = pc.min_element_wise(lines.column("num_tokens"), measure.n)
        reaches = pc.and_(reaches, pc.equal(lines.column("n"), length))
    found = lines.filter(reaches).group_by(["eval_dataset", "instance_id"]).aggregate([])
    counts = found.column("eval_dataset").value_counts().to_pylist()
    return {pair["values"]: pair["counts"] for pair in counts}
