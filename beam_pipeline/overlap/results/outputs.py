"""The end of an overlap run: files of work units and buckets become the output's files.

  (group, [ExpandedUnit]) → FileGroup: joined files of consecutive training files, by many workers
  FileGroups, ExpandedUnits, BucketFiles → all output files but `.SUCCESS`, by one process

So the last step opens a few files per group, not per work unit. It joins gzip members (on `gs://`
the server does), streams the tables, and makes stats and clean lists from the evaluation rows that
were hit. Its memory grows with evaluation rows and work units, not with matches.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA, train_files_table
from beam_pipeline.overlap.results.details import COMPACT, DetailsOptions
from beam_pipeline.overlap.results.expansion import MATCHES_SCHEMA, PAIRS, ExpandedUnit
from beam_pipeline.overlap.results.instances import Instances
from beam_pipeline.overlap.results.output_files import (
    EMPTY_MEMBER,
    LazyFiles,
    json_line,
    parquet_writer,
    parse_lines,
    read_tables,
)
from beam_pipeline.overlap.results.row_overlaps import HITS, BucketFiles
from beam_pipeline.overlap.results.rules import Rule
from beam_pipeline.overlap.results.verdicts import RowVerdicts, field_records
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import atomic_write, unique_path
from beam_pipeline.storage.many_files import join_files, local_copies
from beam_pipeline.storage.parquet import read_row_groups

MAX_GROUPS = 512
FILE_HITS = np.dtype([("file", "<u4"), *PAIRS.descr])
_WORK_UNITS_PER_FILE = 1000  # of overlap_instances
_ROWS_PER_GROUP = 1 << 16
_VALUES_PER_GROUP = 1 << 22  # places, of 8 bytes
_FILE_OF = {
    layout.MATCHES: "matches.arrow",
    layout.DOCUMENTS: "documents.arrow",
    layout.DEAD_LETTERS: "letters.arrow",
}
_Chunks = Iterable[bytes | memoryview]


# --- groups of training files -------------------------------------------------------------------


class FileGroup(NamedTuple):
    """The files of a group.

    hits      FILE_HITS, sorted: evaluation rows hit by each training file
    *.arrow   matches, documents and dead letters, for `read_tables`
    """

    number: int
    paths: Mapping[str, str]  # of the files that are not empty, by name


def _paths(written: Iterable[ExpandedUnit | FileGroup], name: str) -> list[str]:
    """Returns the paths of all files of a name."""
    return [each.paths[name] for each in written if name in each.paths]


def group_of(file_number: int, num_files: int) -> int:
    """Returns the group of a training file."""
    return file_number * min(num_files, MAX_GROUPS) // num_files


def join_units(
    number: int, units: Iterable[ExpandedUnit], prefix: str, temp_folder: str
) -> FileGroup:
    """Writes the files of a group, in the order of its work units."""
    ordered = sorted(units, key=lambda unit: unit.scanned.order)
    with LazyFiles(prefix, temp_folder) as files:
        copies = local_copies(_paths(ordered, "hits"))
        numbers = (unit.scanned.order[0] for unit in ordered if "hits" in unit.paths)
        for number_of_file, of_file in groupby(zip(numbers, copies, strict=True), itemgetter(0)):
            files.get("hits").write(_hits(number_of_file, (path for _, path in of_file)).tobytes())
    written = files.paths
    for name in _FILE_OF.values():
        if parts := _paths(ordered, name):
            written[name] = f"{prefix}.{name}"
            join_files(written[name], temp_folder, parts)
    return FileGroup(number, written)


def _hits(file_number: int, paths: Iterable[str]) -> np.ndarray:
    """Returns the distinct FILE_HITS of a training file, from the PAIRS of its work units."""
    found = np.empty(0, PAIRS)
    for path in paths:
        found = np.unique(np.append(found, np.fromfile(path, PAIRS)))
    hits = np.empty(len(found), FILE_HITS)
    hits["file"], hits["number"], hits["n"] = file_number, found["number"], found["n"]
    return hits


# --- the output ---------------------------------------------------------------------------------


class OutputOptions(NamedTuple):
    """The options on which the output files depend, apart from the matches."""

    lengths: Sequence[int]  # every n, ascending
    details: DetailsOptions = DetailsOptions()
    rules: Sequence[Rule] = ()
    fields: Sequence[str] = ()  # of evaluation rows, if looked up separately
    min_tokens: int = 0  # shorter evaluation rows match nothing
    skip_degenerate: bool = False


class Results(NamedTuple):
    """The files that workers wrote, in the order of the output."""

    units: Sequence[ExpandedUnit]  # by training path, then row
    groups: Sequence[FileGroup]  # the joined files of `units`
    buckets: Sequence[BucketFiles]  # by evaluation row number
    verdicts: RowVerdicts
    options: OutputOptions
    boilerplate_paths: Sequence[str] | None = None  # None if every n-gram counts
    letters_paths: Sequence[str] = ()  # dead letters of the evaluation sets


def hits_of(buckets: Iterable[BucketFiles]) -> np.ndarray:
    """Returns the HITS of all evaluation rows."""
    hits = (np.frombuffer(bucket.hits, HITS) for bucket in buckets)
    return np.concatenate([np.empty(0, HITS), *hits])


def write_outputs(
    output_path: str, temp_folder: str, rows: EvaluationRows, results: Results
) -> list[str]:
    """Writes the output files made from match files; returns their names."""
    lines, joined = _line_files(rows, results), _joined_files(results)
    if results.options.details.has_caps:
        by_file = unique_path(temp_folder, "left-out-by-file")
        _write_chunks(by_file, temp_folder, map(json_line, _left_out_records(results.units)))
        joined[layout.DETAILS_LEFT_OUT] = [*_paths(results.units, "left_out"), by_file]
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        paths = [f"{output_path}/{name}" for name in lines]
        list(pool.map(_write_chunks, paths, [temp_folder] * len(lines), lines.values()))
    for name, parts in joined.items():
        empty = EMPTY_MEMBER if name.endswith(".gz") else b""
        join_files(f"{output_path}/{name}", temp_folder, parts, empty)
    tables = _write_tables(output_path, temp_folder, results)
    with atomic_write(f"{output_path}/{layout.TRAIN_FILES}", temp_folder) as stream:
        pq.write_table(train_files_table([unit.scanned for unit in results.units]), stream)
    return sorted([*lines, *joined, *tables, layout.TRAIN_FILES])


def _write_chunks(path: str, temp_folder: str, chunks: _Chunks) -> None:
    with atomic_write(path, temp_folder) as stream:
        for chunk in chunks:
            stream.write(chunk)


def _line_files(rows: EvaluationRows, results: Results) -> dict[str, _Chunks]:
    """Returns the contents of the JSON lines files written here, by name."""
    instances, hits, options = Instances(rows), results.verdicts.hits, results.options
    lines: dict[str, _Chunks] = {
        layout.STATS: instances.stats_lines(hits, options.lengths),
        layout.STATS_BY_TRAIN_PATH: _path_lines(instances, results),
        **results.verdicts.lines(),
        **results.verdicts.rule_lines(options.rules),
    }
    if options.fields:
        lines[layout.FIELD_HITS] = map(json_line, field_records(rows, options.fields, hits))
    if results.boilerplate_paths is not None:
        lines[layout.BOILERPLATE] = _boilerplate_lines(results.boilerplate_paths)
    return lines


def _joined_files(results: Results) -> dict[str, list[str]]:
    """Returns the parts of the files that workers wrote, by name."""
    units, buckets = results.units, results.buckets
    joined = {
        layout.DETAILS: _paths(units, "details.gz"),
        layout.NGRAMS: [bucket.ngrams_path for bucket in buckets],
        layout.COVERAGE: [bucket.coverage_path for bucket in buckets],
    }
    if results.options.details.mode == COMPACT:
        joined[layout.TRAIN_TEXTS] = _paths(units, "train_texts.gz")
        joined[layout.EVAL_TEXTS] = [bucket.texts_path for bucket in buckets if bucket.texts_path]
    num_files = max(1, -(-len(units) // _WORK_UNITS_PER_FILE))
    for number in range(num_files):
        first, stop = (len(units) * at // num_files for at in (number, number + 1))
        name = f"tmp/overlap_instances-{number:05d}-of-{num_files:05d}.jsonl.gz"
        joined[name] = _paths(units[first:stop], "instances.gz")
    return joined


def _path_lines(instances: Instances, results: Results) -> Iterator[memoryview]:
    """Yields a line for each training file, evaluation set and n with a hit."""
    train_paths = {unit.scanned.order[0]: unit.scanned.unit.path for unit in results.units}
    for path in local_copies(_paths(results.groups, "hits")):
        yield instances.path_lines(np.fromfile(path, FILE_HITS), train_paths)


def _boilerplate_lines(paths: Sequence[str]) -> Iterator[bytes]:
    """Merges the lines of sorted files."""
    key = itemgetter("n", "ngram")
    contents = [Path(path).read_bytes().splitlines() for path in local_copies(paths)]
    return map(json_line, heapq.merge(*map(parse_lines, contents), key=key))


def _left_out_records(units: Sequence[ExpandedUnit]) -> Iterator[dict[str, Any]]:
    """Yields the number of details that --max_details omitted, by training file."""
    for train_path, of_path in groupby(units, key=lambda unit: unit.scanned.unit.path):
        if count := sum(unit.num_left_out for unit in of_path):
            yield {"train_path": train_path, "num_left_out": count}


def _write_tables(output_path: str, temp_folder: str, results: Results) -> list[str]:
    """Writes the tables of all groups, joined; returns their names in the output."""
    names = [layout.MATCHES, layout.DOCUMENTS]
    for name, schema in zip(names, (MATCHES_SCHEMA, DOCUMENTS_SCHEMA), strict=True):
        tables = (table.cast(schema) for table in _tables(results.groups, _FILE_OF[name]))
        _join_tables(f"{output_path}/{name}", temp_folder, schema, tables)
    if results.letters_paths or _paths(results.groups, _FILE_OF[layout.DEAD_LETTERS]):
        names.append(layout.DEAD_LETTERS)
        with (
            atomic_write(f"{output_path}/{layout.DEAD_LETTERS}", temp_folder) as stream,
            parquet_writer(stream, dead_letters.SCHEMA) as writer,
        ):
            for table in _letters(results):
                writer.write_table(table)
    return names


def _letters(results: Results) -> Iterator[pa.Table]:
    """Yields the dead letters of the evaluation sets, then those of the training files."""
    for path in local_copies(results.letters_paths):
        yield from read_row_groups(path)
    yield from _tables(results.groups, _FILE_OF[layout.DEAD_LETTERS])


def _tables(groups: Sequence[FileGroup], name: str) -> Iterator[pa.Table]:
    for path in local_copies(_paths(groups, name)):
        yield from read_tables(path)


def _join_tables(
    path: str, temp_folder: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> None:
    """Writes tables as one Parquet file, with row groups independent of how the input was cut.

    A row group ends at _ROWS_PER_GROUP rows or _VALUES_PER_GROUP list values. Lists, of which one
    row may have millions of values, are written without dictionary encoding.
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
            sizes = sum(pc.list_value_length(table.column(name)).to_numpy() for name in lists)
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
