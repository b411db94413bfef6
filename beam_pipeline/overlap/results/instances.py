"""The instances of the evaluation sets, and the files that list those that are hit.

  documents, evaluation rows, n → lines {eval_dataset, n, instance_ids, train_path, …}
  hits                          → lines of overlap_stats, also by training file

An instance is all rows of a set with the same id, as in marin. Everything else goes by rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.documents.batch import array_buffers, encode
from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.token_texts import slices_of
from beam_pipeline.overlap.results.matches import first_of_each
from beam_pipeline.overlap.results.output_files import (
    json_lists,
    json_numbers,
    json_strings,
    record_lines,
)


class Instances:
    """The instances of all evaluation sets, numbered in the order of sets and ids."""

    def __init__(self, rows: EvaluationRows):
        names = pa.array(list(map(encode, rows.datasets)), pa.large_binary())
        self.rows, self._datasets = rows, json_strings(names)
        # Each is a set's number in 4 bytes, followed by an id.
        of_rows = pa.array(rows.instance_keys(), pa.large_binary()).dictionary_encode()
        order = pc.sort_indices(of_rows.dictionary)
        rank = np.empty(len(order), np.int64)
        rank[order.to_numpy()] = np.arange(len(order))
        self.of_row = rank[of_rows.indices.to_numpy()]  # int64 [rows], each row's instance
        utf8, bounds = array_buffers(of_rows.dictionary.take(order))
        heads = [utf8[bounds[:-1] + at].astype(np.int64) << 24 - 8 * at for at in range(4)]
        self._dataset_of = np.sum(heads, axis=0)
        self._ids = json_strings(slices_of(utf8, bounds[:-1] + 4, bounds[1:]))
        sets = np.arange(len(rows.datasets) + 1)
        # The first instance of each set, and the number of instances.
        self.firsts: list[int] = np.searchsorted(self._dataset_of, sets).tolist()

    def datasets_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of the evaluation sets of evaluation rows."""
        return self._dataset_of[self.of_row[rows]]

    def _grouped(
        self, groups: np.ndarray, rows: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, pa.LargeBinaryArray]:
        """Returns columns of group, set, n and ids as a JSON list, in this order."""
        numbers = self.of_row[rows]
        keys = groups, self._dataset_of[numbers], lengths, numbers
        order = np.lexsort(keys[::-1])
        keys = tuple(key[order] for key in keys)
        distinct = first_of_each(keys)
        keys = tuple(key[distinct] for key in keys)
        firsts = first_of_each(keys[:3])
        ids = self._ids.take(pa.array(keys[3]))
        lists = json_lists(np.append(firsts, len(ids)), ids)
        return keys[0][firsts], keys[1][firsts], keys[2][firsts], lists

    def _fields(
        self, datasets: np.ndarray, lengths: np.ndarray, ids: pa.LargeBinaryArray
    ) -> dict[str, Any]:
        return {
            "eval_dataset": self._datasets.take(pa.array(datasets)),
            "n": json_numbers(lengths),
            "num_instances": json_numbers(np.diff(self.firsts)[datasets]),
            "instance_ids": ids,
        }

    def document_lines(
        self,
        documents: np.ndarray,
        rows: np.ndarray,
        lengths: np.ndarray,
        fields: dict[str, Any],
    ) -> memoryview:
        """Returns a line for each document, evaluation set and n, in this order.

        `fields` are the last fields of the lines, as JSON with an entry per document.
        """
        documents, *found = self._grouped(documents, rows, lengths)
        first = self._fields(*found)
        del first["num_instances"]
        which = pa.array(documents)
        last = {
            name: value.take(which) if isinstance(value, pa.Array) else value
            for name, value in fields.items()
        }
        return record_lines(first | last)

    def stats_lines(self, hits: np.ndarray, lengths: Sequence[int]) -> Iterator[memoryview]:
        """Yields a line for each evaluation set and n that is configured or has a hit."""
        _, datasets, found, ids = self._grouped(
            np.zeros(len(hits), np.int64), hits["number"], hits["n"].astype(np.int64)
        )
        keys = zip(datasets.tolist(), found.tolist(), strict=True)
        lists = dict(zip(keys, ids.to_pylist(), strict=True))
        sets = range(len(self.rows.datasets))
        wanted = sorted({*lists, *((at, n) for at in sets for n in lengths)})
        datasets, found = np.array(wanted, np.int64).reshape(-1, 2).T
        in_order = [lists.get(key, b"[]") for key in wanted]
        yield record_lines(self._fields(datasets, found, pa.array(in_order, pa.large_binary())))

    def path_lines(self, hits: np.ndarray, paths: dict[int, str]) -> memoryview:
        """Returns a line for each training file, evaluation set and n of some FILE_HITS."""
        numbers, of_hit = np.unique(hits["file"], return_inverse=True)
        names = [encode(paths[number]) for number in numbers.tolist()]
        files, *found = self._grouped(of_hit, hits["number"], hits["n"].astype(np.int64))
        path = json_strings(pa.array(names, pa.large_binary())).take(pa.array(files))
        return record_lines({"train_path": path, **self._fields(*found)})
