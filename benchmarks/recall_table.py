"""The table of the recall bench."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import markdown as md
from benchmarks.overlap_contenders import PROBELINE
from benchmarks.results import Results, Run

_KINDS = {  # of what is planted, by their title
    "literal copies": ("verbatim", "prefix", "suffix", "lines", "embedded"),
    "paraphrases": ("paraphrase",),
    "short rows": ("short",),
}
_UNITS = ("rows", "documents")

type Score = dict[str, Any]


def _name(case: dict[str, Any]) -> str:
    """Returns the table's name of a case without the detectors of its scores."""
    if case["contender"] != PROBELINE:
        return case["contender"] + (f", n = {case['n']}" if case["n"] else "")
    limits = {"K": case["max_eval_rows"], "min_tokens": case["min_tokens"]}
    given = [name for name in (case["preset"], case["tokenizer"]) if name not in ("", "exact")]
    given += [f"{name} = {value}" for name, value in limits.items() if value]
    return ", ".join(["Probeline", *given])


def _scores(runs: Sequence[Run], unit: str) -> Iterator[tuple[str, str, Score]]:
    """Yields (name, detector, score) of a unit, in run order; rules not of the default."""
    for run in runs:
        is_plain = run.case["contender"] == PROBELINE and _name(run.case) == "Probeline"
        for score in run.details.get("scores", ()):
            is_rule = not score["detector"].startswith("n = ")
            if score["unit"] == unit and not (is_plain and is_rule):
                yield _name(run.case), score["detector"], score


def _is_swept(case: dict[str, Any]) -> bool:
    """Returns whether a case has exactly one of the limits."""
    return bool(case["max_eval_rows"]) != bool(case["min_tokens"])


def _precision(score: Score) -> str:
    return "" if score["precision"] is None else f"{score['precision']:.1%}"


def _sum(counts: dict[str, int], kinds: Sequence[str]) -> int:
    return sum(counts.get(kind, 0) for kind in kinds)


def _lines(runs: Sequence[Run], unit: str) -> list[list[str]]:
    """Returns the lines of a unit; cases of the same counts share one."""
    names: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, detector, score in _scores([run for run in runs if not _is_swept(run.case)], unit):
        cells = [f"{_sum(score['found'], kinds):,}" for kinds in _KINDS.values()]
        cells += [f"{sum(score['false'].values()):,}", _precision(score)]
        same = names.setdefault(tuple(cells), {}).setdefault(name, [])
        same += [detector] if detector else []
    return [
        [unit, "; ".join(_joined(*each) for each in same.items()), *cells]
        for cells, same in names.items()
    ]


def _joined(name: str, detectors: list[str]) -> str:
    return f"{name}: {', '.join(detectors)}" if detectors else name


def markdown(results: Results) -> str:
    """Returns the table and the notes."""
    planted = next(score["planted"] for _, _, score in _scores(results.runs, _UNITS[0]))
    titles = [f"{title} ({_sum(planted, kinds)})" for title, kinds in _KINDS.items()]
    lines = [line for unit in _UNITS for line in _lines(results.runs, unit)]
    table = md.table(["what", "found by", *titles, "false", "precision"], lines, num_words=2)
    options = results.options
    corpus = (
        f"Up to {options['num_rows']:,} rows of {'a user’s' if options.get('own') else 'an'} "
        f"evaluation set, {options['num_per_kind']:,} "
        f"planted in each way, {options['num_background']:,} documents of background; seed "
        f"{options['seed']}."
    )
    notes = [corpus, md.circumstances(results)]
    for name, version in options.get("versions_of_peers", {}).items():
        notes.append(f"{name}: version {version}.")
    return md.page([table], [*notes, *md.shortfalls(results, _name, lambda _: "")])
