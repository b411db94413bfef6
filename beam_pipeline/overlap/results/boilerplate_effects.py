"""What boilerplate does to the scores of evaluation rows: lines of overlap_boilerplate_scores.

An evaluation row that shares boilerplate has a line for each n: its scores as they are, and as they
would be if boilerplate counted.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts
from beam_pipeline.overlap.results.json_columns import (
    data_of,
    json_floats,
    json_numbers,
    record_lines,
)
from beam_pipeline.overlap.results.row_overlaps import row_fields
from beam_pipeline.overlap.results.row_places import RowLists
from beam_pipeline.storage.files import atomic_write


class NumEffects(NamedTuple):
    """How many evaluation rows and n share boilerplate."""

    rows: int = 0
    rows_with_nothing_else: int = 0


class BucketKeys(NamedTuple):
    """N-grams of a bucket of evaluation rows: sorted records that have NGRAM_KEYS."""

    counted: np.ndarray  # that training documents have
    boilerplate: np.ndarray  # not counted
    shared: np.ndarray  # of boilerplate, those that training documents have
    common: np.ndarray  # of boilerplate, those that too many evaluation rows have: they never count


def write_effects(
    path: str, temp_folder: str, keys: BucketKeys, rows: EvaluationRows, texts: TokenTexts
) -> NumEffects:
    """Writes a line for each row and n that shares boilerplate; returns how many there are.

    Args:
      texts: the tokens of all evaluation rows.
    """
    num = num_alone = 0
    with atomic_write(path, temp_folder) as stream:
        for shared in RowLists.of(keys.shared).pieces(texts):
            own, num_tokens = shared.of_same(keys.counted), shared.num_tokens(texts)
            num_all = num_tokens - shared.lengths + 1
            boilerplate, common = (
                shared.of_same(each).all_places(texts).sizes
                for each in (keys.boilerplate, keys.common)
            )
            fields = {
                **row_fields(shared, rows),
                "num_tokens": json_numbers(num_tokens),
                **_scores(own.all_places(texts), texts, num_all - boilerplate, ""),
                **_scores(
                    shared.with_those_of(own).all_places(texts),
                    texts,
                    num_all - common,
                    "_with_boilerplate",
                ),
            }
            stream.write(data_of(record_lines(fields)))
            num, num_alone = num + len(own.numbers), num_alone + int(np.sum(own.sizes == 0))
    return NumEffects(num, num_alone)


def _scores(
    places: RowLists, texts: TokenTexts, num_ngrams: np.ndarray, suffix: str
) -> dict[str, pa.LargeBinaryArray]:
    """Returns scores as JSON.

    Args:
      num_ngrams: int64, the places of informative n-grams; at least one where there is a place.
    """
    covered, longest = places.cover()
    return {
        f"coverage{suffix}": json_floats(covered / places.num_tokens(texts)),
        f"ngram_coverage{suffix}": json_floats(places.sizes / np.maximum(num_ngrams, 1)),
        f"longest_run{suffix}": json_numbers(longest),
    }
