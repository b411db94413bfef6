"""The end of an overlap run: files of work units and buckets become the files of the output.

One process gathers in order: it joins gzip members (on `gs://` the server does), streams the table
of matches, and makes stats and clean lists from which evaluation rows were hit. Its memory grows
with the evaluation rows and the work units, not with the matches. The names of the files, and
`.SUCCESS`, are left to the caller.
"""

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.dataset import dead_letters
from beam_pipeline.documents.batch import decode
from beam_pipeline.overlap.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA, train_files_table
from beam_pipeline.overlap.results.expansion import MATCHES_SCHEMA, ExpandedUnit
from beam_pipeline.overlap.results.file_groups import FILE_HITS, FileGroup
from beam_pipeline.overlap.results.output_files import (
    EMPTY_MEMBER,
    parquet_writer,
    parse_lines,
    read_tables,
    write_lines,
)
from beam_pipeline.overlap.results.row_overlaps import HITS, BucketFiles
from beam_pipeline.overlap.results.rules import Rule
from beam_pipeline.overlap.results.verdicts import rule_lines
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import atomic_write, unique_path
from beam_pipeline.storage.many_files import join_files, local_copies
from beam_pipeline.storage.parquet import read_row_groups

_ROWS_PER_GROUP = 1 << 16
_VALUES_PER_GROUP = 1 << 22  # places, of 8 bytes


class Results(NamedTuple):
    """What workers have written, in the order of the output."""

    units: Sequence[ExpandedUnit]  # by path of the training file, then by row
    groups: Sequence[FileGroup]  # the same, joined
    buckets: Sequence[BucketFiles]  # by number of the evaluation row
    boilerplate_paths: Sequence[str] | None  # of write_boilerplate_lines; None: nothing is filtered
    has_caps: bool
    has_texts: bool = False  # in files of their own
    short_rows: np.ndarray | None = None  # evaluation rows that are too short, and their tokens


def write_outputs(
    output_path: str,
    temp_folder: str,
    rows: EvaluationRows,
    lengths: Sequence[int],
    results: Results,
    num_files: int,
    rules: Sequence[Rule] = (),
) -> list[str]:
    """Writes all files of the output but `.SUCCESS`; returns their paths below the output.

    Args:
      lengths: the configured n, ascending, each once.
      num_files: the number of files of overlap_instances.
    """
    units, buckets = results.units, results.buckets
    hits = np.concatenate([np.empty(0, HITS), *(np.frombuffer(b.hits, HITS) for b in buckets)])
    instances = _Instances(rows)
    lines: dict[str, Iterable[dict]] = {
        layout.STATS: _stats_records(instances, lengths, hits),
        layout.STATS_BY_TRAIN_PATH: _path_records(instances, results),
    }
    names = iter(layout.clean_list_names(rows.datasets, tuple(lengths)))
    for dataset in range(len(rows.datasets)):
        for length in (None, *(lengths if len(lengths) > 1 else ())):
            found = hits
            if length is not None:
                found = hits[hits["n"] == np.minimum(hits["num_tokens"], length)]
            records = _clean_records(instances, dataset, found["number"])
            lines[f"{layout.CLEAN_FOLDER}/{next(names)}"] = records
    lines |= rule_lines(rules, rows, hits, instances.of_row, instances.firsts)
    if results.boilerplate_paths is not None:
        lines[layout.BOILERPLATE] = _boilerplate_records(results.boilerplate_paths)
    if results.short_rows is not None:
        lines[layout.SHORT_ROWS] = _short_records(rows, *results.short_rows)
    joined: dict[str, list[str | None]] = {
        layout.DETAILS: [unit.details_path for unit in units],
        layout.NGRAMS: [bucket.ngrams_path for bucket in buckets],
        layout.COVERAGE: [bucket.coverage_path for bucket in buckets],
    }
    if results.has_texts:
        joined[layout.TRAIN_TEXTS] = [unit.train_texts_path for unit in units]
        joined[layout.EVAL_TEXTS] = [bucket.texts_path for bucket in buckets]
    for number in range(num_files):
        first, stop = (len(units) * at // num_files for at in (number, number + 1))
        name = f"tmp/overlap_instances-{number:05d}-of-{num_files:05d}.jsonl.gz"
        joined[name] = [unit.instances_path for unit in units[first:stop]]
    if results.has_caps:
        by_file = unique_path(temp_folder, "left-out-by-file")
        write_lines(by_file, temp_folder, _left_out_records(units))
        joined[layout.DETAILS_LEFT_OUT] = [*(unit.pairs_left_out_path for unit in units), by_file]
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        paths = [f"{output_path}/{name}" for name in lines]
        list(pool.map(write_lines, paths, [temp_folder] * len(lines), lines.values()))
    for name, parts in joined.items():
        empty = EMPTY_MEMBER if name.endswith(".gz") else b""
        paths = [path for path in parts if path is not None]
        join_files(f"{output_path}/{name}", temp_folder, paths, empty)
    tables = _write_tables(output_path, temp_folder, results.groups)
    with atomic_write(f"{output_path}/{layout.TRAIN_FILES}", temp_folder) as stream:
        pq.write_table(train_files_table([unit.scanned for unit in units]), stream)
    return sorted([*lines, *joined, *tables, layout.TRAIN_FILES])


# --- stats and clean lists ----------------------------------------------------------------------


class _Instances:
    """The instances of each evaluation set: distinct ids of its rows that have a text.

    Sets are numbered as given, instances in the order of sets and ids.

    Attributes:
      of_row: int64 [rows], the number of each row's instance.
      firsts: the number of the first instance of each set, and how many instances there are.
    """

    def __init__(self, rows: EvaluationRows):
        self.rows = rows
        of_rows = rows.instance_keys()
        self._keys = sorted(set(of_rows))
        number_of = dict(zip(self._keys, range(len(self._keys)), strict=True))
        self.of_row = np.fromiter(map(number_of.__getitem__, of_rows), np.int64, len(of_rows))
        sets = range(len(rows.datasets) + 1)
        self.firsts = [bisect_left(self._keys, number.to_bytes(4)) for number in sets]

    def hit(self, hits: np.ndarray) -> dict[tuple[int, int], list[str]]:
        """Returns the sorted ids of evaluation rows by set and n, from FILE_HITS or HITS."""
        found = set(zip(self.of_row[hits["number"]].tolist(), hits["n"].tolist(), strict=True))
        ids: dict[tuple[int, int], list[str]] = defaultdict(list)
        for number, n in sorted(found):
            key = self._keys[number]
            ids[int.from_bytes(key[:4]), n].append(decode(key[4:]))
        return ids

    def without(self, dataset: int, numbers: np.ndarray) -> Iterator[EvaluationRow]:
        """Yields the rows of a set whose instances have none of the rows of these numbers."""
        is_left = np.zeros(len(self._keys), bool)
        is_left[slice(*self.firsts[dataset : dataset + 2])] = True
        is_left[self.of_row[numbers]] = False
        return self.rows.some(np.flatnonzero(is_left[self.of_row]))

    def record(self, dataset: int, n: int, ids: list[str]) -> dict[str, Any]:
        return {
            "eval_dataset": self.rows.datasets[dataset],
            "n": n,
            "num_instances": self.firsts[dataset + 1] - self.firsts[dataset],
            "instance_ids": ids,
        }


def _stats_records(
    instances: _Instances, lengths: Sequence[int], hits: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a record for each evaluation set and n that is configured or that has a hit."""
    hit = instances.hit(hits)
    for dataset in range(len(instances.rows.datasets)):
        for n in sorted({*lengths, *(n for number, n in hit if number == dataset)}):
            yield instances.record(dataset, n, hit.get((dataset, n), []))


def _path_records(instances: _Instances, results: Results) -> Iterator[dict[str, Any]]:
    """Yields a record for each training file, evaluation set and n that has a hit."""
    train_paths = {unit.scanned.order[0]: unit.scanned.unit.path for unit in results.units}
    paths = (group.hits_path for group in results.groups if group.hits_path is not None)
    for path in local_copies(paths):
        hits = np.fromfile(path, FILE_HITS)
        numbers, starts = np.unique(hits["file"], return_index=True)
        for number, found in zip(numbers.tolist(), np.split(hits, starts[1:]), strict=True):
            for key, ids in sorted(instances.hit(found).items()):
                yield {"train_path": train_paths[number], **instances.record(*key, ids)}


def _clean_records(
    instances: _Instances, dataset: int, hit: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields the rows of an evaluation set whose instance has no row that was hit."""
    for row in instances.without(dataset, hit):
        yield {"id": row.instance_id, "eval_path": row.eval_path, "eval_row": row.eval_row}


# --- other files --------------------------------------------------------------------------------


def _boilerplate_records(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines of sorted files in their order, each once."""
    key = itemgetter("n", "ngram")
    contents = [Path(path).read_bytes().splitlines() for path in local_copies(paths)]
    for _, same in groupby(heapq.merge(*map(parse_lines, contents), key=key), key=key):
        yield next(same)


def _short_records(
    rows: EvaluationRows, numbers: np.ndarray, num_tokens: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields evaluation rows that are too short to count."""
    for row, count in zip(rows.some(numbers), num_tokens.tolist(), strict=True):
        yield {**row._asdict(), "num_tokens": count}


def _left_out_records(units: Sequence[ExpandedUnit]) -> Iterator[dict[str, Any]]:
    """Yields how many details the cap on all left out, by training file."""
    for train_path, of_path in groupby(units, key=lambda unit: unit.scanned.unit.path):
        if count := sum(unit.num_left_out for unit in of_path):
            yield {"train_path": train_path, "num_left_out": count}


def _write_tables(output_path: str, temp_folder: str, groups: Sequence[FileGroup]) -> list[str]:
    """Writes the tables of all groups as one each; returns their paths below the output."""
    matches = [group.matches_path for group in groups]
    documents = [group.documents_path for group in groups]
    for name, schema, parts, read in (
        (layout.MATCHES, MATCHES_SCHEMA, matches, read_tables),
        (layout.DOCUMENTS, DOCUMENTS_SCHEMA, documents, read_row_groups),
    ):
        paths = (path for path in parts if path is not None)
        found = (table.cast(schema) for path in local_copies(paths) for table in read(path))
        _join_tables(f"{output_path}/{name}", temp_folder, schema, found)
    return [layout.MATCHES, layout.DOCUMENTS]


def _join_tables(
    path: str, temp_folder: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> None:
    """Writes tables as one Parquet file; row groups do not depend on how the input was cut.

    A row group ends where it has _ROWS_PER_GROUP rows, or their lists _VALUES_PER_GROUP values. The
    lists, of which one row may have millions of values, are written without a dictionary of them.
    """
    lists = [field.name for field in schema if pa.types.is_list(field.type)]
    others = [name for name in schema.names if name not in lists]
    with (
        atomic_write(path, temp_folder) as stream,
        parquet_writer(stream, schema, use_dictionary=others) as writer,
    ):
        group: list[pa.Table] = []
        num_rows = num_values = 0
        for table in tables:
            sizes = sum(
                pc.list_value_length(table.column(name)).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
                for name in lists
            )
            values, start = np.cumsum(sizes, dtype=np.int64), 0
            while start < len(table):
                before = values[start - 1] if start else 0
                most = before + _VALUES_PER_GROUP - num_values
                stop = max(int(np.searchsorted(values, most, "right")), start + (not group))
                stop = min(stop, start + _ROWS_PER_GROUP - num_rows)
                if stop > start:
                    group.append(table.slice(start, stop - start))
                    num_rows += stop - start
                    num_values += int(values[stop - 1] - before)
                if stop < len(table) or num_rows == _ROWS_PER_GROUP:
                    writer.write_table(pa.concat_tables(group).combine_chunks())
                    group, num_rows, num_values = [], 0, 0
                start = stop
        if group:
            writer.write_table(pa.concat_tables(group).combine_chunks())


def write_dead_letters(output_path: str, temp_folder: str, paths: Sequence[str]) -> str | None:
    """Writes the dead letters of a job run as one file; returns its path below the output.

    Args:
      paths: of the letters of the evaluation sets and of each group of training files, in order.
    """
    if not paths:
        return None
    with atomic_write(f"{output_path}/{layout.DEAD_LETTERS}", temp_folder) as stream:
        with parquet_writer(stream, dead_letters.SCHEMA) as writer:
            for path in local_copies(paths):
                for table in read_row_groups(path):
                    writer.write_table(table)
    return layout.DEAD_LETTERS
