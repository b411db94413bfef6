"""Options that change what the figures of a report count, each beside the figures that it touches.

options and counts of progress_summary.json, lists of what is left out → [Cap]
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, NamedTuple

from beam_pipeline.report.tables import number_of

Touched = Literal["sets", "texts"]


class Cap(NamedTuple):
    """An option that took effect, and what it did."""

    touches: Touched  # the figures beside which it stands
    flag: str
    effect: str


def caps_of(
    options: dict[str, Any],
    counts: dict[str, Any],
    num_boilerplate: int,
    left_out: Counter[str],
) -> list[Cap]:
    """Returns the options that left something out, in the order of the page.

    Args:
      num_boilerplate: n-grams that are listed as boilerplate.
      left_out: of the details: pairs, pair_matches, files, file_matches.
    """
    found: list[Cap] = []

    def add(touches: Touched, name: str, count: int, effect: str) -> None:
        if count:
            found.append(Cap(touches, f"--{name}={options[name]}", effect))

    add(
        "sets",
        "limit_test_instances",
        options["limit_test_instances"],
        "only the first rows of each evaluation set were looked up",
    )
    if num_boilerplate:
        found.append(_boilerplate_cap(options, num_boilerplate))
    num_short = counts.get("short_eval_rows", 0)
    add("sets", "min_tokens", num_short, f"{number_of(num_short, 'shorter row')} not looked up")
    num_degenerate = counts["degenerate_eval_rows"] if options["degenerate"] == "skip" else 0
    rows = number_of(num_degenerate, "evaluation row")
    add("sets", "degenerate", num_degenerate, f"{rows} without a word not looked up")
    if options["details"] == "none":
        add("texts", "details", 1, "the result has no texts")
    matches, pairs = left_out["pair_matches"], left_out["pairs"]
    add(
        "texts",
        "max_details_per_pair",
        pairs,
        f"{matches:,} matches of {number_of(pairs, 'pair')} of an evaluation row and a training "
        "row are not in the details",
    )
    matches, files = left_out["file_matches"], left_out["files"]
    add(
        "texts",
        "max_details",
        files,
        f"{matches:,} matches of {number_of(files, 'training file')} are not in the details",
    )
    return found


def _boilerplate_cap(options: dict[str, Any], num_ngrams: int) -> Cap:
    """Returns the options by which n-grams of training documents are not counted."""
    ngrams, dropped = number_of(num_ngrams, "n-gram"), options["drop_ngrams"]
    flags = [f"--drop_ngrams={path}" for path in dropped]
    if most := options["max_document_frequency"]:
        flags.insert(0, f"--max_document_frequency={most}")
    where = "of training documents" if dropped else "in more training documents"
    return Cap("sets", " ".join(flags), f"{ngrams} {where} not counted")
