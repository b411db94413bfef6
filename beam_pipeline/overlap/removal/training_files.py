"""The training files of a finished result, and the contaminated documents of each.

  rows of TRAIN_FILES_SCHEMA → TrainingFile: the path of its new file, and its first document
  rows of DOCUMENTS_SCHEMA → Documents, read by ranges of the file's rows

Memory does not depend on the number of contaminated documents in a file.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.documents.files import Format, format_by_name
from beam_pipeline.errors import UsageError, program
from beam_pipeline.overlap.results import layout
from beam_pipeline.storage.files import exists, is_folder, is_local, read_file
from beam_pipeline.storage.matching import FileVersion, match
from beam_pipeline.storage.parquet import open_parquet, read_row_groups

_BATCH_ROWS = 8192
_FILE_COLUMNS = ["train_path", "num_bytes", "version", "num_rows", "num_text_chars"]
_COLUMNS = ["train_row", "num_covered_chars", "spans", "eval_datasets"]


class Counts(NamedTuple):
    """The counts of a file: of all its records, and of those contaminated by each set."""

    total: Counter[str]
    by_set: dict[str, Counter[str]]


class TrainingFile(NamedTuple):
    """A training file, the path of its new file, and its rows of DOCUMENTS_SCHEMA."""

    number: int
    file: FileVersion
    target: str
    num_rows: int
    num_chars: int  # in all texts
    first_document: int
    num_documents: int

    @property
    def format(self) -> Format:
        """The format by name: jsonl, json or parquet."""
        return format_by_name(self.file.path)


class Documents(NamedTuple):
    """Contaminated documents of a file, ordered by row; document i has rows[i]."""

    rows: np.ndarray  # int64 [d]
    covered_chars: np.ndarray  # int64 [d]
    spans: pa.Array  # [d], of DOCUMENTS_SCHEMA
    eval_datasets: pa.Array  # [d]

    def spans_at(self, index: int) -> list[tuple[int, int]]:
        """Returns the spans of a document, [start, end) in code points."""
        return [(span["start"], span["end"]) for span in self.spans[index].as_py()]

    def datasets_at(self, index: int) -> list[str]:
        """Returns the evaluation sets that contaminate a document."""
        return self.eval_datasets[index].as_py()


class DocumentReader:
    """Reads the contaminated documents of a training file, in row order."""

    def __init__(self, path: str, file: TrainingFile):
        self._tables = _read_documents(path, file.first_document, file.num_documents)
        self._held = pa.table({})

    def within(self, first_row: int, stop_row: int) -> Documents:
        """Returns the documents in [first_row, stop_row), and drops those before; ranges ascend."""
        tables = [self._held] if len(self._held) else []
        while not tables or tables[-1].column("train_row")[-1].as_py() < stop_row:
            table = next(self._tables, None)
            if table is None:
                break
            tables.append(table)
        if not tables:
            none = np.empty(0, np.int64)
            return Documents(none, none, pa.array([]), pa.array([]))
        held = pa.concat_tables(tables)
        first, stop = np.searchsorted(held.column("train_row").to_numpy(), [first_row, stop_row])
        self._held = held.slice(stop)
        found = held.slice(first, stop - first)
        rows, covered, *lists = (found.column(name).combine_chunks() for name in _COLUMNS)
        return Documents(rows.to_numpy(), covered.to_numpy(), *lists)


def _read_documents(path: str, first: int, count: int) -> Iterator[pa.Table]:
    """Yields consecutive rows of a table of DOCUMENTS_SCHEMA, a few thousand at a time."""
    at, stop = 0, first + count
    with open_parquet(path) as parquet:
        for number in range(parquet.num_row_groups if count else 0):
            size = parquet.metadata.row_group(number).num_rows
            if at < stop and at + size > first:
                for batch in parquet.iter_batches(_BATCH_ROWS, [number], _COLUMNS):
                    begin, end = max(first - at, 0), min(stop - at, len(batch))
                    if begin < end:
                        yield pa.Table.from_batches([batch.slice(begin, end - begin)])
                    at += len(batch)
                    if at >= stop:
                        return
            else:
                at += size


def read_result(path: str) -> dict[str, Any]:
    """Returns the summary of a result; raises UsageError if it is not finished."""
    data = read_file(f"{path}/{layout.SUMMARY}")
    names = (layout.SUCCESS_NAME, layout.DOCUMENTS, layout.TRAIN_FILES, layout.EVAL_TOKENS)
    is_whole = all(exists(f"{path}/{name}") for name in names)
    if data is None or not is_whole or not _has_columns(f"{path}/{layout.TRAIN_FILES}"):
        raise UsageError(
            f"--result_path={path} is not a finished result of this version's overlap job: run "
            f"{program('overlap', 'beam_pipeline.overlap')} first"
        )
    return orjson.loads(data)


def _has_columns(path: str) -> bool:
    with open_parquet(path) as parquet:
        return set(_FILE_COLUMNS) <= set(parquet.schema_arrow.names)


def plan_files(
    result_path: str,
    options: Mapping[str, Any],
    folder: str,
    new_name: Callable[[str], str] = str,
    input_path: str = "",
) -> list[TrainingFile]:
    """Returns the training files of a result in order; new paths keep the layout of the inputs.

    Args:
      options: those of the result.
      input_path: the folder to which the training files have moved; "" finds it.

    Raises:
      UsageError: two files would have the same name, a name is not allowed, or no training file is
        where it was, or where it is if corpus and result have moved together.
    """
    counts: Counter[str] = Counter()
    for table in read_row_groups(f"{result_path}/{layout.DOCUMENTS}", ["train_path"]):
        for pair in table.column("train_path").value_counts().to_pylist():
            counts[pair["values"]] += pair["counts"]
    with open_parquet(f"{result_path}/{layout.TRAIN_FILES}") as parquet:
        records = parquet.read(_FILE_COLUMNS).to_pylist()
    base = common_folder(options["input_path"], {record["train_path"] for record in records})
    moved_to = input_path.rstrip("/") if input_path else None
    if records and (moved_to or not match(records[0]["train_path"])):
        moved_to = _moved_to(records[0], base, moved_to or _beside(base, options, result_path))
    found: dict[str, TrainingFile] = {}
    first = 0
    for number, record in enumerate(records):
        path, below = record["train_path"], _below(record["train_path"], base)
        now_at = path if moved_to is None else f"{moved_to}/{below}"
        file = FileVersion(now_at, record["num_bytes"], record["version"])
        target = f"{folder}/{new_name(below)}"
        if target in found:
            raise UsageError(
                f"{path} and {found[target].file.path} would both become {target}: rename one and "
                "run the overlap job again"
            )
        sizes = record["num_rows"], record["num_text_chars"]
        found[target] = TrainingFile(number, file, target, *sizes, first, counts[path])
        first += counts[path]
    return list(found.values())


def _below(path: str, base: str) -> str:
    return _absolute(path).removeprefix(base).replace("://", "/").lstrip("/")


def _beside(base: str, options: Mapping[str, Any], result_path: str) -> str:
    """Returns the folder that is to the result as the inputs' folder was to the output."""
    if not base or not all(map(is_local, (base, options["output_path"], result_path))):
        return base.rstrip("/")
    way = os.path.relpath(base, options["output_path"])
    return os.path.normpath(os.path.join(result_path, way))


def _moved_to(first: Mapping[str, Any], base: str, folder: str) -> str:
    """Returns a folder that has the first training file, by size and version."""
    path, below = first["train_path"], _below(first["train_path"], base)
    file = FileVersion(f"{folder}/{below}", first["num_bytes"], first["version"])
    if (found := match(file.path)) == [file]:
        return folder
    there = f"{file.path} has {found[0]}, not {file}" if found else f"{file.path} is not there"
    raise UsageError(
        f"the training files have moved from {base or path}, and {there}: pass --input_path=FOLDER "
        f"with {below} in it, moved or copied with its time"
    )


def common_folder(input_paths: Sequence[str], files: set[str]) -> str:
    """Returns the common folder of all --input_path values, ending in a slash; "" if none."""
    folders = []
    for path in input_paths:
        if path not in files:
            path = path.rstrip("/") + "/"
            if not is_folder(path) and (wildcard := re.search(r"[*?\[]", path)):
                path = path[: wildcard.start()]
        folders.append(_absolute(path.rpartition("/")[0]).split("/"))
    depth = 0
    while depth < min(map(len, folders)) and len({folder[depth] for folder in folders}) == 1:
        depth += 1
    return "".join(f"{part}/" for part in folders[0][:depth])


def _absolute(path: str) -> str:
    return os.path.abspath(path) if is_local(path) else path
