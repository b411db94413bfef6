"""What removal would take of the training data, by training file and by evaluation set.

  overlap_documents, overlap_train_files → RemovalEffects

Lengths of documents are not in the result: characters are those that are shared, which a mask
takes, and those within the margin that a split takes beside them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.job.removal_config import RemovalConfig
from beam_pipeline.overlap.report.output import Output, reading
from beam_pipeline.overlap.results.contaminated import merge_spans_of
from beam_pipeline.overlap.results.layout import DOCUMENTS, TRAIN_FILES
from beam_pipeline.storage.parquet import read_row_groups

MARGIN_CHARS = RemovalConfig.margin_chars


class Taken(NamedTuple):
    """What removal would take: documents, and of them characters."""

    num_documents: int = 0
    num_spans: int = 0
    num_shared_chars: int = 0
    num_margin_chars: int = 0  # within MARGIN_CHARS of shared ones, those included

    def __add__(self, other: tuple) -> Taken:
        return Taken(*map(sum, zip(self, other, strict=True)))


@dataclass
class RemovalEffects:
    """What removal would take of all training files, of each and for each evaluation set."""

    total: Taken
    by_file: dict[str, Taken]  # of contaminated ones
    by_set: dict[str, Taken]  # a document may be of several
    num_texts: Counter[str]  # of every file


def read_removal_effects(output: Output) -> RemovalEffects:
    """Reads both tables, in row groups."""
    by_file: dict[str, Taken] = defaultdict(Taken)
    by_set: dict[str, Taken] = defaultdict(Taken)
    with reading(output.file(DOCUMENTS)):
        columns = ["train_path", "eval_datasets", "spans"]
        for table in read_row_groups(output.file(DOCUMENTS), columns):
            if not len(table):
                continue
            taken = _taken(table.column("spans").combine_chunks())
            paths = table.column("train_path").combine_chunks().dictionary_encode()
            _add(by_file, paths, taken)
            sets = table.column("eval_datasets").combine_chunks()
            documents = np.repeat(np.arange(len(table)), np.diff(sets.offsets.to_numpy()))
            _add(by_set, sets.flatten().dictionary_encode(), taken[:, documents])
    num_texts: Counter[str] = Counter()
    with reading(output.file(TRAIN_FILES)):
        for table in read_row_groups(output.file(TRAIN_FILES), ["train_path", "num_texts"]):
            values = table.column("train_path").to_pylist(), table.column("num_texts").to_pylist()
            num_texts.update(dict(zip(*values, strict=True)))
    total = sum(by_file.values(), Taken())
    return RemovalEffects(
        total, by_num_documents(by_file.items()), by_num_documents(by_set.items()), num_texts
    )


def by_num_documents(taken: Iterable[tuple[str, Taken]]) -> dict[str, Taken]:
    """Returns what is taken by name, most documents first, then by name."""
    return dict(sorted(taken, key=lambda item: (-item[1].num_documents, item[0])))


def _taken(spans: pa.ListArray) -> np.ndarray:
    """Returns the fields of `Taken` of each document, int64 [fields, documents]."""
    counts = np.diff(spans.offsets.to_numpy())
    starts, ends = (each.to_numpy().astype(np.int64) for each in spans.flatten().flatten())
    documents = np.repeat(np.arange(len(spans)), counts)
    wide = merge_spans_of(documents, np.maximum(starts - MARGIN_CHARS, 0), ends + MARGIN_CHARS)
    return np.stack(
        [
            np.ones(len(spans), np.int64),
            counts.astype(np.int64),
            np.bincount(documents, ends - starts, len(spans)),
            np.bincount(wide.documents, wide.ends - wide.starts, len(spans)),
        ]
    )


def _add(totals: dict[str, Taken], names: pa.DictionaryArray, taken: np.ndarray) -> None:
    """Adds what is taken of documents to the totals of their names."""
    places = names.indices.to_numpy()
    sums = [np.bincount(places, values, len(names.dictionary)) for values in taken]
    for name, *values in zip(names.dictionary.to_pylist(), *sums, strict=True):
        totals[name] += tuple(map(int, values))
