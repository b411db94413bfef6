"""The tables of the recall bench."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import markdown as md
from benchmarks.overlap_contenders import PROBELINE
from benchmarks.results import Results, Run

_KINDS = ("verbatim", "prefix", "suffix", "lines", "embedded", "paraphrase")
_LITERAL, _SHORT = _KINDS[:-1], "short"
_FALSE = {
    "pairs": ("short rows", "long rows"),
    "rows": ("short rows", "long rows"),
    "documents": ("boilerplate", "near", "background"),
}
_TITLES = {"rows": "**Evaluation rows**", "documents": "**Documents**"}
_SWEPT_N = 13

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


def _counts(score: Score, which: str, names: Sequence[str]) -> list[str]:
    return [f"{score[which].get(name, 0):,}" for name in names]


def _unit_table(runs: Sequence[Run], unit: str) -> list[str]:
    """Returns the titled table of a unit, or nothing."""
    lines = [*_scores([run for run in runs if not _is_swept(run.case)], unit)]
    if not lines:
        return []
    planted = lines[0][2]["planted"]
    kinds = [kind for kind in (*_KINDS, _SHORT) if kind in planted]
    titles = ["found by", *(f"{kind} ({planted[kind]})" for kind in kinds)]
    titles += [*(f"false: {name}" for name in _FALSE[unit]), "precision"]
    names: dict[tuple[str, ...], dict[str, list[str]]] = {}  # of the same counts
    for name, detector, score in lines:
        counts = *_counts(score, "found", kinds), *_counts(score, "false", _FALSE[unit])
        same = names.setdefault((*counts, _precision(score)), {}).setdefault(name, [])
        same += [detector] if detector else []
    rows = [
        ["; ".join(_joined(*each) for each in same.items()), *cells]
        for cells, same in names.items()
    ]
    return [_TITLES[unit], md.table(titles, rows)]


def _joined(name: str, detectors: list[str]) -> str:
    return f"{name}: {', '.join(detectors)}" if detectors else name


def _sweep_table(runs: Sequence[Run], flag: str, limit: str, other: str) -> list[str]:
    """Returns the titled table of a case's limit while the limit `other` is off, or nothing."""
    plain = {"contender": PROBELINE, "preset": "exact", "tokenizer": "", other: 0}
    swept = [run for run in runs if plain.items() <= run.case.items()]
    swept.sort(key=lambda run: run.case[limit])
    if len(swept) < 2:
        return []

    def cells(run: Run) -> list[str]:
        of = {
            score["unit"]: score
            for score in run.details.get("scores", ())
            if score["detector"] == f"n = {_SWEPT_N}"
        }
        found = of["pairs"]["found"]
        counts = [sum(found.get(kind, 0) for kind in _LITERAL), found.get(_SHORT, 0)]
        counts += [of[unit]["false"].get(cause, 0) for unit, cause in causes]
        return [f"{count:,}" for count in counts]

    causes = [(unit, cause) for unit in ("pairs", "rows") for cause in reversed(_FALSE[unit])]
    titles = [f"`{flag}`", "planted pairs found", "of short rows"]
    titles += [f"false {unit}: {cause}" for unit, cause in causes]
    rows = [[f"{run.case[limit] or 'off'}", *cells(run)] for run in swept if not run.error]
    return [f"**`{flag}`**, n = {_SWEPT_N}", md.table(titles, rows)]


def markdown(results: Results) -> str:
    """Returns all tables that have runs, and the notes."""
    tables = [part for unit in _TITLES for part in _unit_table(results.runs, unit)]
    limits = ("max_eval_rows", "min_tokens")
    tables += _sweep_table(results.runs, "K", *limits)
    tables += _sweep_table(results.runs, "--min_tokens", *reversed(limits))
    options = results.options
    corpus = (
        f"Up to {options['num_rows']:,} rows of {'a user’s' if options.get('own') else 'an'} "
        f"evaluation set, {options['num_per_kind']:,} "
        f"planted in each way, {options['num_background']:,} documents of background; seed "
        f"{options['seed']}. n-grams that more "
        "than K evaluation rows share are dropped by `--drop_ngrams`."
    )
    notes = [corpus, md.circumstances(results)]
    for name, version in options.get("versions_of_peers", {}).items():
        notes.append(f"{name}: version {version}.")
    return md.page(tables, [*notes, *md.shortfalls(results, _name, lambda _: "")])
