"""The end of an overlap run: what workers wrote of units and buckets becomes the output's files.

One process gathers in order: it copies gzip members, streams the table of matches, and makes stats
and clean lists of which evaluation rows were hit. It holds what grows with the evaluation rows and
the units, never what grows with the matches. `.SUCCESS` is left to the caller, who writes it last.
"""

import heapq
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset import dead_letters
from beam_pipeline.overlap.documents.parquet import open_parquet
from beam_pipeline.overlap.results.details import MATCHES_SCHEMA, PAIRS, ExpandedUnit
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    CLEAN_FOLDER,
    COVERAGE,
    DEAD_LETTERS,
    DETAILS,
    DETAILS_LEFT_OUT,
    MATCHES,
    NGRAMS,
    STATS,
    STATS_BY_TRAIN_PATH,
    clean_list_names,
)
from beam_pipeline.overlap.results.match_files import letters_path
from beam_pipeline.overlap.results.output_files import (
    empty_member,
    join_files,
    write_lines,
)
from beam_pipeline.overlap.results.row_overlaps import HITS, BucketFiles, Rows
from beam_pipeline.storage.files import atomic_write, open_file

_ROWS_OF_A_GROUP = 1 << 16


class Results(NamedTuple):
    """What workers have written, in the order of the output."""

    units: Sequence[ExpandedUnit]  # by path of the training file, then by row
    buckets: Sequence[BucketFiles]  # by number of the evaluation row
    boilerplate_paths: Sequence[str] | None  # of write_boilerplate_lines; None: nothing is filtered
    has_caps: bool


def write_outputs(
    output_path: str,
    temp_folder: str,
    rows: Rows,
    lengths: Sequence[int],
    results: Results,
    num_files: int,
) -> list[str]:
    """Writes all files of the output but `.SUCCESS`; returns their paths below the output.

    Args:
      output_path: the folder.
      temp_folder: where files are before they are whole.
      lengths: the configured n, ascending, each once.
      num_files: how many files of overlap_instances there are.
    """
    units, buckets = results.units, results.buckets
    hits = np.concatenate([np.empty(0, HITS), *(np.frombuffer(b.hits, HITS) for b in buckets)])
    instances = _Instances(rows)
    lines: dict[str, Iterable[dict]] = {
        STATS: stats_records(instances, lengths, hits),
        STATS_BY_TRAIN_PATH: path_records(instances, units),
    }
    for (dataset, length), name in clean_files(rows.datasets, lengths).items():
        lines[name] = clean_records(instances, dataset, _hit_at(hits, length))
    if results.boilerplate_paths is not None:
        lines[BOILERPLATE] = _boilerplate_records(results.boilerplate_paths)
    joined = {
        DETAILS: [unit.details_path for unit in units],
        NGRAMS: [bucket.ngrams_path for bucket in buckets],
        COVERAGE: [bucket.coverage_path for bucket in buckets],
    } | _instances_files(units, num_files)
    for name, records in lines.items():
        write_lines(f"{output_path}/{name}", temp_folder, records)
    for name, parts in joined.items():
        empty = empty_member() if name.endswith(".gz") else b""
        paths = [path for path in parts if path is not None]
        join_files(f"{output_path}/{name}", temp_folder, paths, empty)
    _write_matches(f"{output_path}/{MATCHES}", temp_folder, units)
    written = [*lines, *joined, MATCHES]
    if results.has_caps:
        _write_left_out(f"{output_path}/{DETAILS_LEFT_OUT}", temp_folder, units)
        written.append(DETAILS_LEFT_OUT)
    return sorted(written)


# --- stats and clean lists ----------------------------------------------------------------------


class _Instances:
    """The instances of each evaluation set: distinct ids of its rows that have a text."""

    def __init__(self, rows: Rows):
        self.rows = rows
        self.order = {name: at for at, name in enumerate(rows.datasets)}
        self.ids = [rows.id(number) for number in range(len(rows))]
        self._datasets = [rows.dataset(number) for number in range(len(rows))]
        self.numbers: dict[str, list[int]] = {name: [] for name in rows.datasets}
        for number, dataset in enumerate(self._datasets):
            self.numbers[dataset].append(number)
        self._count = {
            name: len({self.ids[number] for number in numbers})
            for name, numbers in self.numbers.items()
        }

    def hit(self, pairs: Iterable[tuple[int, int]]) -> dict[tuple[str, int], set[str]]:
        """Returns the ids of evaluation rows by evaluation set and n, from (row, n)."""
        ids: dict[tuple[str, int], set[str]] = defaultdict(set)
        for number, n in pairs:
            ids[self._datasets[number], n].add(self.ids[number])
        return ids

    def record(self, dataset: str, n: int, ids: set[str]) -> dict[str, Any]:
        return {
            "eval_dataset": dataset,
            "n": n,
            "num_instances": self._count[dataset],
            "instance_ids": sorted(ids),
        }


def stats_records(
    instances: _Instances, lengths: Sequence[int], hits: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a record for each evaluation set and n that is configured or that has a hit."""
    hit = instances.hit(_pairs_of(hits))
    for dataset in instances.order:
        for n in sorted({*lengths, *(n for name, n in hit if name == dataset)}):
            yield instances.record(dataset, n, hit.get((dataset, n), set()))


def path_records(instances: _Instances, units: Sequence[ExpandedUnit]) -> Iterator[dict[str, Any]]:
    """Yields a record for each training file, evaluation set and n that has a hit."""
    for train_path, of_path in groupby(units, key=lambda unit: unit.train_path):
        found = np.empty(0, PAIRS)
        for path in (unit.hits_path for unit in of_path):
            if path is not None:
                with open_file(path) as stream:
                    found = np.unique(np.append(found, np.frombuffer(stream.read(), PAIRS)))
        hit = instances.hit(_pairs_of(found))
        for dataset, n in sorted(hit, key=lambda key: (instances.order[key[0]], key[1])):
            yield {
                "train_path": train_path,
                **instances.record(dataset, n, hit[dataset, n]),
            }


def _pairs_of(hits: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(hits["number"].tolist(), hits["n"].tolist(), strict=True)


def clean_files(
    datasets: Sequence[str], lengths: Sequence[int]
) -> dict[tuple[str, int | None], str]:
    """Returns the name of each list of clean instances, by evaluation set and n (None: any n)."""
    several = lengths if len(lengths) > 1 else ()
    lists = [(dataset, length) for dataset in datasets for length in (None, *several)]
    names = clean_list_names(list(datasets), tuple(lengths))
    return {key: f"{CLEAN_FOLDER}/{name}" for key, name in zip(lists, names, strict=True)}


def _hit_at(hits: np.ndarray, length: int | None) -> set[int]:
    """Returns the numbers of the rows that have a hit at a configured n (None: at any)."""
    if length is not None:
        hits = hits[hits["n"] == np.minimum(hits["num_tokens"], length)]
    return set(hits["number"].tolist())


def clean_records(instances: _Instances, dataset: str, hit: set[int]) -> Iterator[dict[str, Any]]:
    """Yields the rows of an evaluation set of whose instance no row was hit."""
    rows, ids, numbers = instances.rows, instances.ids, instances.numbers[dataset]
    hit_ids = {ids[number] for number in numbers if number in hit}
    for number in numbers:
        if ids[number] not in hit_ids:
            yield {
                "id": ids[number],
                "eval_path": rows.path(number),
                "eval_row": rows.row(number),
            }


# --- what is gathered ---------------------------------------------------------------------------


def _instances_files(units: Sequence[ExpandedUnit], num_files: int) -> dict[str, list[str | None]]:
    """Returns which units' members make up each file: runs of units of about one length."""
    files: dict[str, list[str | None]] = {}
    for number in range(num_files):
        first, stop = (len(units) * at // num_files for at in (number, number + 1))
        name = f"tmp/overlap_instances-{number:05d}-of-{num_files:05d}.jsonl.gz"
        files[name] = [unit.instances_path for unit in units[first:stop]]
    return files


def _boilerplate_records(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines of sorted files in their order, each once."""
    lines = heapq.merge(*map(_read_lines, paths), key=lambda line: (line["n"], line["ngram"]))
    for _, same in groupby(lines, key=lambda line: (line["n"], line["ngram"])):
        yield next(same)


def _read_lines(path: str) -> Iterator[dict[str, Any]]:
    with open_file(path) as stream:
        for line in stream:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:  # a lone surrogate, which orjson refuses
                yield json.loads(line)


def _write_left_out(path: str, temp_folder: str, units: Sequence[ExpandedUnit]) -> None:
    """Writes what caps left out: by pair, from files, then by training file."""
    write_lines(path, temp_folder, _left_out_records(units))


def _left_out_records(units: Sequence[ExpandedUnit]) -> Iterator[dict[str, Any]]:
    for unit in units:
        if unit.pairs_left_out_path is not None:
            yield from _read_lines(unit.pairs_left_out_path)
    for train_path, of_path in groupby(units, key=lambda unit: unit.train_path):
        count = sum(unit.num_left_out for unit in of_path)
        if count:
            yield {"train_path": train_path, "num_left_out": count}


def _write_matches(path: str, temp_folder: str, units: Sequence[ExpandedUnit]) -> None:
    """Joins the tables of matches; row groups do not depend on how the input was cut."""
    with atomic_write(path, temp_folder) as stream:
        with pq.ParquetWriter(stream, MATCHES_SCHEMA, compression="zstd") as writer:
            pending = MATCHES_SCHEMA.empty_table()
            for table in _match_tables(units):
                pending = pa.concat_tables([pending, table])
                while len(pending) >= _ROWS_OF_A_GROUP:
                    writer.write_table(pending.slice(0, _ROWS_OF_A_GROUP).combine_chunks())
                    pending = pending.slice(_ROWS_OF_A_GROUP)
            if len(pending):
                writer.write_table(pending.combine_chunks())


def _match_tables(units: Sequence[ExpandedUnit]) -> Iterator[pa.Table]:
    for path in (unit.matches_path for unit in units):
        if path is not None:
            with open_parquet(path) as file:
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group)


def write_dead_letters(
    output_path: str, temp_folder: str, parts: Sequence[tuple[str, int]]
) -> str | None:
    """Writes the dead letters of parts as one file; returns its path below the output.

    Args:
      parts: the path of each part that has dead letters, in order, and what is to be added to
        their rows.
    """
    if not parts:
        return None
    with atomic_write(f"{output_path}/{DEAD_LETTERS}", temp_folder) as stream:
        with pq.ParquetWriter(stream, dead_letters.SCHEMA, compression="zstd") as writer:
            for path, first_row in parts:
                with open_parquet(letters_path(path)) as file:
                    for group in range(file.num_row_groups):
                        table = file.read_row_group(group)
                        places = pa.array(table.column("row").to_numpy() + first_row)
                        writer.write_table(table.set_column(1, "row", places))
    return DEAD_LETTERS
