"""Scores of the recall bench: planted rows found, and false findings.

A unit is what a tool reports: a pair of a document and an evaluation row, a row, or a document. A
finding is false if it was not planted, unless its row is kin of a row planted there
(`recall_corpus.Plant`): that is neither right nor wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from beam_pipeline.overlap.results.layout import COVERAGE, MATCHES, SUMMARY, rule_list_name
from beam_pipeline.overlap.results.rules import (
    PUBLISHED,
    SHORT_TOKENS,
    THRESHOLD,
    Rule,
    threshold_rule,
)
from benchmarks.recall_corpus import GUARD, Place

LENGTHS = (8, 13)
THRESHOLD_SHARE = 0.5  # of --threshold, at the shortest of LENGTHS
FALSE_ROWS = ("short rows", "long rows")
FALSE_DOCUMENTS = ("boilerplate", "near", "background")


def scores(output: str, truth: str) -> dict[str, Any]:
    """Returns {"scores": as by `score`, "version" of a peer} of an output."""
    known = orjson.loads(Path(truth).read_bytes())
    path = Path(output)
    if path.is_dir():
        found = _of_job(path, known["num_tokens"])
        return {"scores": [score(known, what, items) for what, items in found]}
    told = orjson.loads(path.read_bytes())
    found = [score(known, what, items) for what, items in _of_peer(told)]
    return {"scores": found, "version": told["version"]}


def score(truth: dict[str, Any], what: tuple[str, str], items: set) -> dict[str, Any]:
    """Scores the findings of one detector.

    Args:
      truth: of `Corpus.truth`.
      what: unit (pairs, rows, documents) and detector.
      items: (document, set, row), (set, row), or documents.

    Returns:
      {"unit", "detector", "planted", "found": by kind, "false": by cause, "precision"}
    """
    unit, detector = what
    plants, allowed = {}, set()
    for plant in truth["plants"]:
        document, place = plant["document"], tuple(plant["place"])
        plants[{"pairs": (document, *place), "rows": place, "documents": document}[unit]] = plant
        kin = map(tuple, plant["kin"])
        allowed |= {(document, *each) for each in kin} if unit == "pairs" else {*kin}
    planted = Counter(plant["kind"] for plant in plants.values())
    found = Counter(plants[item]["kind"] for item in items if item in plants)
    false = Counter(_cause(truth, unit, item) for item in items - plants.keys() - allowed)
    right, wrong = found.total(), false.total()
    return {
        "unit": unit,
        "detector": detector,
        "planted": dict(planted),
        "found": {kind: found[kind] for kind in planted},
        "false": dict(false),
        "precision": right / (right + wrong) if right + wrong else None,
    }


def _cause(truth: dict[str, Any], unit: str, item: Any) -> str:
    """Returns the category of a false finding."""
    if unit == "documents":
        return truth["documents"][item]
    dataset, row = item[-2:]
    return FALSE_ROWS[truth["num_tokens"][dataset][row] >= GUARD]


def _of_peer(told: dict[str, Any]) -> Iterator[tuple[tuple[str, str], set]]:
    """Yields the findings of a peer; the tables name its detector by the case."""
    if "pairs" in told:
        pairs = {(document, *_place(row)) for document, row in told["pairs"]}
        yield ("pairs", ""), pairs
        yield ("documents", ""), {document for document, *_ in pairs}
    if "rows" in told:
        yield ("rows", ""), {_place(row) for row in told["rows"]}
    if "documents" in told:
        yield ("documents", ""), {*told["documents"]}


def _place(name: str) -> Place:
    dataset, _, row = name.rpartition("-")
    return dataset, int(row)


def _of_job(output: Path, datasets: Iterable[str]) -> Iterator[tuple[tuple[str, str], set]]:
    """Yields the findings of the job: with any n-gram, by n, and by each rule."""
    coverage = map(orjson.loads, (output / COVERAGE).read_bytes().splitlines())
    num_tokens = {(row["eval_dataset"], row["eval_row"]): row["num_tokens"] for row in coverage}
    columns = ["train_doc_id", "eval_dataset", "eval_row", "n"]
    matches = pq.read_table(output / MATCHES, columns=columns).group_by(columns).aggregate([])
    found = [tuple(match[name] for name in columns) for match in matches.to_pylist()]
    preset = orjson.loads((output / SUMMARY).read_bytes())["options"]["preset"]
    shortest = SHORT_TOKENS if preset == "precise" else 0  # of rows that contaminate documents
    for length in LENGTHS:
        pairs = {match[:3] for match in found if match[3] == min(length, num_tokens[match[1:3]])}
        yield ("pairs", f"n = {length}"), pairs
        documents = {pair[0] for pair in pairs if num_tokens[pair[1:]] >= shortest}
        yield ("documents", f"n = {length}"), documents
        yield ("rows", f"n = {length}"), {pair[1:] for pair in pairs}
    for rule in (*PUBLISHED.values(), threshold_rule(LENGTHS[0], THRESHOLD_SHARE)):
        listed: set = set()
        for verdict in reversed(rule.verdicts[1:]):  # dirty, then everything not clean
            for dataset in datasets:
                lines = (output / rule_list_name(rule.name, dataset, verdict)).read_bytes()
                rows = map(orjson.loads, lines.splitlines())
                listed = listed | {(dataset, row["eval_row"]) for row in rows}
            yield ("rows", _title(rule, verdict)), listed


def _title(rule: Rule, verdict: str) -> str:
    if rule.name == THRESHOLD:
        return f"--threshold={THRESHOLD_SHARE:g}, n = {rule.n}"
    between = {"dirty": ": dirty", "between": ": not clean"} if len(rule.verdicts) > 2 else {}
    return f"{rule.name}{between.get(verdict, '')}"
