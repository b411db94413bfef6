"""The contaminated training documents, one row each, and the training files that were scanned.

  rows of MATCHES_SCHEMA, in the order of documents → rows of DOCUMENTS_SCHEMA, spans merged
  work units → a row of TRAIN_FILES_SCHEMA for each training file

Removal and attributes go by both tables. They do not depend on caps of details.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.results.match_files import ScannedUnit
from beam_pipeline.overlap.results.output_files import escape_surrogates, make_table

_COLUMNS = ["train_path", "train_row", "train_doc_id", "eval_dataset", "train_offsets"]
_SPANS = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))
DOCUMENTS_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("train_row", pa.int64()),
        ("train_doc_id", pa.string()),
        ("eval_datasets", pa.list_(pa.string())),  # sorted
        ("spans", _SPANS),  # code points, those that meet as one
        ("num_covered_chars", pa.int64()),
    ]
)
TRAIN_FILES_SCHEMA = pa.schema(
    [
        ("train_path", pa.string()),
        ("num_bytes", pa.int64()),
        ("version", pa.int64()),  # of `FileVersion`
        ("num_rows", pa.int64()),
        ("num_texts", pa.int64()),
        ("num_without_text", pa.int64()),
        ("num_dead_letters", pa.int64()),
    ]
)
_PLACE_BITS = 32


class MergedSpans(NamedTuple):
    """Ranges [start, end) of d documents, those that meet as one."""

    counts: np.ndarray  # int64 [d]
    starts: np.ndarray  # int64
    ends: np.ndarray  # int64


def merge_spans_of(documents: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> MergedSpans:
    """Merges p ranges by document.

    Args:
      documents: int64 [p], from 0 to d - 1, each of them at least once.
    """
    bases = documents.astype(np.int64) << _PLACE_BITS
    order = np.argsort(bases | starts, kind="stable")
    firsts, reach = (bases | starts)[order], np.maximum.accumulate((bases | ends)[order])
    begins = np.append(True, firsts[1:] > reach[:-1])
    lasts = np.append(begins[1:], True)
    mask = (1 << _PLACE_BITS) - 1
    counts = np.bincount(documents[order][begins])
    return MergedSpans(counts, firsts[begins] & mask, reach[lasts] & mask)


def documents_of(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the documents of one training file or several, from tables of their matches."""
    rest = pa.table({})
    for table in tables:
        table = table.select(_COLUMNS)
        if len(rest):
            table = pa.concat_tables([rest, table])
        paths, rows = table.column("train_path"), table.column("train_row").to_numpy()
        is_last = pc.equal(paths, paths[-1]).to_numpy() & (rows == rows[-1])
        stop = len(table) - int(is_last.sum())  # the last document may go on in the next table
        if stop:
            yield _merge_documents(table.slice(0, stop))
        rest = table.slice(stop)
    if len(rest):
        yield _merge_documents(rest)


def _merge_documents(matches: pa.Table) -> pa.Table:
    rows = matches.column("train_row").to_numpy()
    paths = matches.column("train_path").combine_chunks().dictionary_encode()
    files = paths.indices.to_numpy()
    begins = np.append(True, (rows[1:] != rows[:-1]) | (files[1:] != files[:-1]))
    documents = np.cumsum(begins) - 1
    places = matches.column("train_offsets").combine_chunks()
    counts = np.diff(places.offsets.to_numpy())
    starts, ends = (each.to_numpy().astype(np.int64) for each in places.flatten().flatten())
    spans = merge_spans_of(np.repeat(documents, counts), starts, ends)
    offsets = _offsets(spans.counts)
    sets = matches.column("eval_dataset").combine_chunks().dictionary_encode()
    names = np.array(sets.dictionary.to_pylist(), object)
    order = np.argsort(names)
    place_of = np.empty(len(names), np.int64)
    place_of[order] = np.arange(len(names))
    pairs = np.unique(documents * len(names) + place_of[sets.indices.to_numpy()])
    heads = matches.select(_COLUMNS[:3]).filter(pa.array(begins))
    merged = pa.StructArray.from_arrays(
        [pa.array(spans.starts, pa.int32()), pa.array(spans.ends, pa.int32())], ["start", "end"]
    )
    columns = [
        *heads.columns,
        pa.ListArray.from_arrays(
            _offsets(np.bincount(pairs // len(names))),
            pa.array(names[order][pairs % len(names)], pa.string()),
        ),
        pa.ListArray.from_arrays(offsets, merged),
        np.add.reduceat(spans.ends - spans.starts, offsets[:-1]),
    ]
    return pa.table(columns, schema=DOCUMENTS_SCHEMA)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(counts)).astype(np.int32)


def train_files_table(units: Sequence[ScannedUnit]) -> pa.Table:
    """Returns what the scan read of each training file, from work units in order."""
    rows = []
    for _, of_file in groupby(units, key=lambda scanned: scanned.order[0]):
        parts = list(of_file)
        counts = [
            (each.num_rows, each.num_texts, each.num_without_text, sum(each.letters.values()))
            for each in (scanned.summary for scanned in parts)
        ]
        first = parts[0].unit
        totals = map(sum, zip(*counts, strict=True))
        rows.append((escape_surrogates(first.path), first.num_bytes, first.version, *totals))
    return make_table(rows, TRAIN_FILES_SCHEMA) if rows else TRAIN_FILES_SCHEMA.empty_table()
