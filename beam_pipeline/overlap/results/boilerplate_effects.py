"""What boilerplate does to the scores of evaluation rows: lines of overlap_boilerplate_scores.

An evaluation row that shares boilerplate has a line for each n: its scores as they are, and as they
would be if boilerplate counted.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.overlap.documents.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.output_files import json_line
from beam_pipeline.overlap.results.row_overlaps import cover
from beam_pipeline.overlap.results.row_text import RowText
from beam_pipeline.storage.files import atomic_write


class NumEffects(NamedTuple):
    """How many evaluation rows and n share boilerplate."""

    rows: int = 0
    rows_with_nothing_else: int = 0


def boilerplate_effects(
    counts: np.ndarray,
    rows: EvaluationRows,
    tokenizer: Tokenizer,
    boilerplate: np.ndarray,
    shared: np.ndarray,
    common: np.ndarray,
) -> Iterator[dict[str, Any]]:
    """Yields a line for each row and n that shares boilerplate.

    Args:
      counts: NGRAM_COUNTS of these rows without boilerplate, sorted.
      boilerplate: NGRAM_KEYS that are not counted, sorted.
      shared: those of them that training documents have, sorted.
      common: those of them that too many evaluation rows have, sorted; they never count.
    """
    is_first = np.ones(len(shared), bool)
    is_first[1:] = (shared["number"][1:] != shared["number"][:-1]) | (
        shared["n"][1:] != shared["n"][:-1]
    )
    at_number, text = -1, RowText("", tokenizer)
    for found in np.split(shared, np.flatnonzero(is_first)[1:]) if len(shared) else ():
        number, n = int(found["number"][0]), int(found["n"][0])
        if number != at_number:
            at_number, text = number, RowText(rows.text(number), tokenizer)
        own = _places(text, n, counts, number)
        with_it = np.union1d(own, _places(text, n, found, number))
        num_all = len(text) - n + 1
        num_informative = num_all - len(_places(text, n, boilerplate, number))
        num_all -= len(_places(text, n, common, number))
        yield {
            **rows[number]._asdict(),
            "n": n,
            **_scores(own, n, len(text), num_informative, ""),
            **_scores(with_it, n, len(text), num_all, "_with_boilerplate"),
        }


def _places(text: RowText, n: int, keys: np.ndarray, number: int) -> np.ndarray:
    """Returns the first tokens of all places of the n-grams of a row that are among sorted keys."""
    of_row = keys[slice(*np.searchsorted(keys["number"], (number, number + 1)))]
    return text.all_places(n, text.first_places(n, of_row["token"][of_row["n"] == n]))


def _scores(
    places: np.ndarray, n: int, num_tokens: int, num_ngrams: int, suffix: str
) -> dict[str, float]:
    num_covered, longest_run = cover(places, n) if len(places) else (0, 0)
    return {
        f"coverage{suffix}": num_covered / num_tokens,
        f"ngram_coverage{suffix}": len(places) / num_ngrams if len(places) else 0.0,
        f"longest_run{suffix}": longest_run,
    }


def write_effects(path: str, temp_folder: str, effects: Iterable[dict[str, Any]]) -> NumEffects:
    """Writes the lines, and returns how many there are."""
    num = num_alone = 0
    with atomic_write(path, temp_folder) as stream:
        for effect in effects:
            stream.write(json_line(effect))
            num, num_alone = num + 1, num_alone + (not effect["coverage"])
    return NumEffects(num, num_alone)
