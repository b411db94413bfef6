"""The instances of the evaluation sets that documents have something in common with.

  documents, evaluation rows, n → lines {eval_dataset, n, instance_ids, train_path, …}

An instance is all rows of a set that have one id.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.documents.batch import array_buffers, encode
from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.token_texts import slices_of
from beam_pipeline.overlap.results.json_columns import (
    json_lines,
    json_numbers,
    json_strings,
    piece,
)


class Instances:
    """The instances of all evaluation sets, numbered in the order of sets and ids."""

    def __init__(self, rows: EvaluationRows):
        names = pa.array(list(map(encode, rows.datasets)), pa.large_binary())
        self._datasets = json_strings(names)
        # Each is the number of a set in 4 bytes, and an id.
        of_rows = pa.array(rows.instance_keys(), pa.large_binary()).dictionary_encode()
        order = pc.sort_indices(of_rows.dictionary)  # pyright: ignore[reportAttributeAccessIssue]
        rank = np.empty(len(order), np.int64)
        rank[order.to_numpy()] = np.arange(len(order))
        self._of_row = rank[of_rows.indices.to_numpy()]
        utf8, bounds = array_buffers(of_rows.dictionary.take(order))
        heads = [utf8[bounds[:-1] + at].astype(np.int64) << 24 - 8 * at for at in range(4)]
        self._dataset_of = np.sum(heads, axis=0)
        self._ids = json_strings(slices_of(utf8, bounds[:-1] + 4, bounds[1:]))

    def datasets_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of the evaluation sets of evaluation rows."""
        return self._dataset_of[self._of_row[rows]]

    def lines(
        self,
        documents: np.ndarray,
        rows: np.ndarray,
        lengths: np.ndarray,
        ends: pa.LargeBinaryArray,
    ) -> pa.LargeBinaryArray:
        """Returns a line for each document, evaluation set and n, in this order.

        Args:
          documents: int64 [m], with evaluation rows and n that they share.
          ends: the rest of the lines of each document, from `train_path` on.
        """
        numbers = self._of_row[rows]
        keys = documents, self._dataset_of[numbers], lengths, numbers
        order = np.lexsort(keys[::-1])
        documents, datasets, lengths, numbers = (key[order] for key in keys)
        starts_line = _differs(documents, datasets, lengths)
        is_first = starts_line | _differs(numbers)
        line_of_id = np.cumsum(starts_line)[is_first] - 1
        starts = np.flatnonzero(starts_line)
        bounds = np.searchsorted(line_of_id, np.arange(len(starts) + 1))
        ids = pa.LargeListArray.from_arrays(bounds, self._ids.take(pa.array(numbers[is_first])))
        joined = pc.binary_join(ids, piece(b","))  # pyright: ignore[reportAttributeAccessIssue]
        return json_lines(
            [
                piece(b'{"eval_dataset":'),
                self._datasets.take(pa.array(datasets[starts])),
                piece(b',"n":'),
                json_numbers(lengths[starts]),
                piece(b',"instance_ids":['),
                joined,
                piece(b"],"),
                ends.take(pa.array(documents[starts])),
            ]
        )


def _differs(*keys: np.ndarray) -> np.ndarray:
    """Tells where a key is not that before."""
    differs = np.zeros(len(keys[0]), bool)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return differs
