"""One training file to one clean file, in its format and compression, and what was counted.

  CleanFile of the plan, rows of DOCUMENTS_SCHEMA → the file below `documents/`, CleanedFile

A file without a contaminated document is copied as it is. The new file gets its name when it is
complete and the run still holds the output.
"""

import contextlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.json import Fields
from beam_pipeline.overlap.removal.cutting import Cut, cut_text
from beam_pipeline.overlap.removal.json_lines import check_lines, rewrite_lines
from beam_pipeline.overlap.removal.parquet_files import rewrite_parquet
from beam_pipeline.overlap.results.output_files import GzipMember
from beam_pipeline.storage.files import (
    COPY_BYTES,
    create_file,
    open_file,
    size_and_checksum,
    unique_path,
)
from beam_pipeline.storage.lines import BLOCK_BYTES, decompressed
from beam_pipeline.storage.many_files import Move, move_files
from beam_pipeline.storage.matching import FileVersion, unchanged
from beam_pipeline.storage.parquet import open_parquet

_SET = "set:"
_LINES = re.compile(r"\.jsonl(\.|$)")


class CleanFile(NamedTuple):
    """A training file, where its clean one goes, and its rows of DOCUMENTS_SCHEMA."""

    number: int
    file: FileVersion
    target: str
    num_rows: int
    first_document: int
    num_documents: int


class CleanedFile(NamedTuple):
    """What was counted in a file: records and characters, of contaminated records also by set."""

    number: int
    path: str
    counts: Counter[str]


class Documents(NamedTuple):
    """The contaminated documents of a file."""

    rows: np.ndarray  # int64 [d], ascending
    spans: list[list[dict[str, int]]]
    datasets: list[list[str]]


def read_documents(path: str, first: int, count: int) -> Documents:
    """Returns some consecutive rows of a table of DOCUMENTS_SCHEMA."""
    tables: list[pa.Table] = []
    at, stop = 0, first + count
    with open_parquet(path) as parquet:
        for number in range(parquet.num_row_groups if count else 0):
            size = parquet.metadata.row_group(number).num_rows
            if at < stop and at + size > first:
                table = parquet.read_row_group(number, ["train_row", "spans", "eval_datasets"])
                tables.append(table.slice(max(0, first - at), stop - max(first, at)))
            at += size
    if not tables:
        return Documents(np.empty(0, np.int64), [], [])
    joined = pa.concat_tables(tables)
    rows, spans, datasets = (joined.column(n) for n in ("train_row", "spans", "eval_datasets"))
    return Documents(rows.to_numpy(), spans.to_pylist(), datasets.to_pylist())


class Changes:
    """Decides what becomes of each contaminated record, and counts it."""

    def __init__(self, documents: Documents, cut: Cut | None):
        self._documents, self._cut = documents, cut
        self.counts: Counter[str] = Counter()

    def __call__(self, place: int, text: str) -> list[str]:
        """Returns the texts that remain of a record; [] drops it."""
        pieces: list[str] = []
        if self._cut is not None:
            spans = [(span["start"], span["end"]) for span in self._documents.spans[place]]
            pieces = cut_text(text, spans, self._cut)
        mask = self._cut.mask if self._cut else None
        added = len(mask) * len(self._documents.spans[place]) if mask and pieces else 0
        kept = sum(map(len, pieces)) - added
        found = {
            "contaminated": 1,
            "dropped": int(not pieces),
            "changed": int(bool(pieces)),
            "records_out": len(pieces),
            "chars_in": len(text),
            "chars_kept": kept,
            "chars_removed": len(text) - kept,
            "mask_chars": added,
        }
        self.counts.update(found)
        for name in self._documents.datasets[place]:
            self.counts.update({f"{_SET}{name}:{key}": count for key, count in found.items()})
        return pieces


def clean_file(
    plan: CleanFile,
    documents_path: str,
    temp_folder: str,
    fields: Fields,
    cut: Cut | None,
    guard: Callable[[], None] | None,
) -> CleanedFile:
    """Writes a training file anew.

    Args:
      cut: None drops contaminated records.
      guard: raises if another run has taken the output.

    Raises:
      ProbelineError: the file is not the one that was scanned, or cannot be written.
    """
    documents = read_documents(documents_path, plan.first_document, plan.num_documents)
    changes = Changes(documents, cut)
    temporary = unique_path(temp_folder, "clean")
    with unchanged(plan.file):
        num_rows = _write(plan, temporary, documents.rows, changes, fields, cut)
    counts = changes.counts
    if num_rows != plan.num_rows or counts["contaminated"] != plan.num_documents:
        raise ProbelineError(
            f"{plan.file.path} has {num_rows} records, {counts['contaminated']} of them "
            f"contaminated, and the result says {plan.num_rows} and {plan.num_documents}: run the "
            "overlap job again"
        )
    counts.update(records_in=num_rows, untouched=num_rows - plan.num_documents)
    if guard is not None:
        guard()
    move_files([Move(temporary, plan.target, *size_and_checksum(temporary))])
    return CleanedFile(plan.number, plan.file.path, counts)


def _write(
    plan: CleanFile,
    temporary: str,
    rows: np.ndarray,
    changes: Changes,
    fields: Fields,
    cut: Cut | None,
) -> int:
    path, version = plan.file.path, plan.file.version
    is_split = cut is not None and cut.mask is None
    with create_file(temporary) as target:
        if not len(rows):
            with open_file(path, version=version) as source:
                shutil.copyfileobj(source, target, COPY_BYTES)
            return plan.num_rows
        if path.endswith(".parquet"):
            return rewrite_parquet(plan.file, target, rows, changes, fields, is_split)
        with open_file(path, version=version) as source, _compressed(path, target) as write:
            blocks = _read_blocks(path, decompressed(source), write)
            return rewrite_lines(blocks, write, rows, changes, fields, is_split)


def _read_blocks(path: str, stream: BinaryIO, write: Callable[[bytes], Any]) -> Iterator[bytes]:
    """Yields the bytes of a file of lines; its byte order mark is copied."""
    read = getattr(stream, "read1", stream.read)
    head = stream.read(3)
    if head == b"\xef\xbb\xbf":
        write(head)
        head = b""
    is_first = True
    while block := head + read(BLOCK_BYTES):
        if is_first and not _LINES.search(path):
            check_lines(path, block)
        yield block
        head, is_first = b"", False


@contextlib.contextmanager
def _compressed(path: str, target: BinaryIO) -> Iterator[Callable[[bytes], Any]]:
    """Yields what writes to a stream as the name of a file says."""
    if path.endswith(".gz"):
        with GzipMember(target) as member:
            yield member.write
    elif path.endswith(".zst"):
        wrapped = pa.PythonFile(_Unclosed(target), mode="w")
        with pa.CompressedOutputStream(wrapped, "zstd") as stream:
            yield stream.write
    else:
        yield target.write


class _Unclosed:
    """A stream that Arrow may close without closing the file."""

    closed = False

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def write(self, data: Any) -> int:
        return cast(int, self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True
