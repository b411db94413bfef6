"""What the last step reads of many work units, joined by others: consecutive training files.

  (group, [ExpandedUnit]) → FileGroup: hits by training file, matches, contaminated documents,
                            dead letters

So the last step opens a file or three for each group, not for each work unit.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import dead_letters
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA
from beam_pipeline.overlap.results.expansion import PAIRS, ExpandedUnit
from beam_pipeline.overlap.results.match_files import letters_path
from beam_pipeline.overlap.results.output_files import LazyFiles, parquet_writer
from beam_pipeline.storage.many_files import join_files, local_copies
from beam_pipeline.storage.parquet import read_row_groups

MAX_GROUPS = 512
_FILES = "hits", "letters.parquet", "documents.parquet"
FILE_HITS = np.dtype([("file", "<u4"), *PAIRS.descr])


class FileGroup(NamedTuple):
    """The files of a group, None where there is nothing to write."""

    number: int
    hits_path: str | None  # FILE_HITS, sorted: the evaluation rows hit by each training file
    matches_path: str | None  # for `read_tables`
    letters_path: str | None  # of the training files
    documents_path: str | None


def group_of(file_number: int, num_files: int) -> int:
    """Returns the group of a training file."""
    return file_number * min(num_files, MAX_GROUPS) // num_files


def join_units(
    number: int, units: Iterable[ExpandedUnit], prefix: str, temp_folder: str
) -> FileGroup:
    """Writes the files of a group, in the order of its work units."""
    ordered = sorted(units, key=lambda unit: unit.scanned.order)
    with LazyFiles(prefix, temp_folder) as files:
        with_hits = [unit for unit in ordered if unit.hits_path is not None]
        copies = local_copies(unit.hits_path or "" for unit in with_hits)
        numbers = (unit.scanned.order[0] for unit in with_hits)
        for number_of_file, of_file in groupby(zip(numbers, copies, strict=True), itemgetter(0)):
            files.get("hits").write(_hits(number_of_file, (path for _, path in of_file)).tobytes())
        paths = (unit.documents_path for unit in ordered if unit.documents_path is not None)
        for path in local_copies(paths):
            for table in read_row_groups(path):
                writer = files.get("documents.parquet", parquet_writer, schema=DOCUMENTS_SCHEMA)
                writer.write_table(table)
        with_letters = [unit.scanned for unit in ordered if unit.scanned.summary.letters]
        paths = (letters_path(scanned.paths[0]) for scanned in with_letters)
        for scanned, path in zip(with_letters, local_copies(paths), strict=True):
            for table in read_row_groups(path):
                rows = pa.array(table.column("row").to_numpy() + scanned.row_offset)
                files.get(
                    "letters.parquet", parquet_writer, schema=dead_letters.SCHEMA
                ).write_table(table.set_column(1, "row", rows))
    matches = [unit.matches_path for unit in ordered if unit.matches_path is not None]
    matches_path = f"{prefix}.matches.arrow" if matches else None
    if matches_path is not None:
        join_files(matches_path, temp_folder, matches)
    hits, letters, documents = map(files.path, _FILES)
    return FileGroup(number, hits, matches_path, letters, documents)


def _hits(file_number: int, paths: Iterable[str]) -> np.ndarray:
    """Returns the FILE_HITS of a training file, each once, from the PAIRS of its work units."""
    found = np.empty(0, PAIRS)
    for path in paths:
        found = np.unique(np.append(found, np.fromfile(path, PAIRS)))
    hits = np.empty(len(found), FILE_HITS)
    hits["file"], hits["number"], hits["n"] = file_number, found["number"], found["n"]
    return hits
