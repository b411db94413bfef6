"""The evaluation side: its files, and all its rows in one memory-mapped Arrow file.

Only records with a text are rows. The index, the match files and the counts identify a row by its
number, which is its place in the file. The order is that of the sources as given, then of paths,
then of rows, so that the numbers are the same in every run.
"""

import contextlib
import functools
import hashlib
import inspect
import operator
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline import __version__
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.batch import DocumentBatch, array_buffers, decode, encode
from beam_pipeline.overlap.documents.json import Fields
from beam_pipeline.overlap.documents.reading import (
    DocumentFile,
    cut_into_work_units,
    field_names,
    match_documents,
    read_work_unit,
)
from beam_pipeline.overlap.documents.record_ids import parse_evaluation_source
from beam_pipeline.overlap.ngrams.index import Texts
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

# Strings are UTF-8 with the three bytes of lone surrogates, which Arrow's own strings cannot hold.
_SCHEMA = pa.schema(
    [
        ("eval_dataset", pa.large_binary()),
        ("eval_path", pa.large_binary()),
        ("eval_row", pa.int64()),
        ("instance_id", pa.large_binary()),
        ("text", pa.large_binary()),
    ]
)
_DATASETS = b"datasets"


class EvaluationFile(NamedTuple):
    """A file of an evaluation set."""

    dataset: str
    file: DocumentFile


class EvaluationRow(NamedTuple):
    """How records of the output identify an evaluation row."""

    eval_dataset: str
    instance_id: str
    eval_path: str
    eval_row: int  # its place among the records of its file


def match_evaluation(sources: Sequence[str]) -> list[EvaluationFile]:
    """Returns the files of all evaluation sets, in the order that their rows will have.

    Raises:
      UsageError: a source has no name, or matches no file.
    """
    found = [
        EvaluationFile(name, file)
        for name, path in map(parse_evaluation_source, sources)
        for file in match_documents([path], "--decontaminate_source")
    ]
    return list(dict.fromkeys(found))


def write_rows(
    files: Sequence[EvaluationFile], path: str, fields: Fields, limit: int = 0
) -> tuple[dict[str, int], list[DeadLetter]]:
    """Reads all evaluation sets and writes their rows to a local file; returns counts and letters.

    Args:
      limit: the number of rows of each set that are taken; 0 takes all.

    Raises:
      ProbelineError: a set has no row with a text, or a file cannot be read.
    """
    datasets = list(dict.fromkeys(name for name, _ in files))
    schema = _SCHEMA.with_metadata({_DATASETS: orjson.dumps(datasets)})
    rows, totals = Counter(dict.fromkeys(datasets, 0)), Counter()
    letters: list[DeadLetter] = []
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for dataset, file in files:
            for batch in _read_batches(file, fields):
                totals["records"] += batch.num_rows
                totals["without_text"] += batch.num_without_text
                letters += batch.letters
                taken = len(batch.rows)
                if limit:
                    taken = min(taken, limit - rows[dataset])
                rows[dataset] += taken
                writer.write_batch(_record_batch(dataset, file.path, batch, taken, schema))
                if limit and rows[dataset] >= limit:
                    break
    for dataset in datasets:
        if not rows[dataset]:
            file = next(file for name, file in files if name == dataset)
            names = field_names(cut_into_work_units(file, fields.text, max(1, file.num_bytes))[0])
            raise ProbelineError(
                f"evaluation set {dataset} ({file.path}) has no record with a text in the field "
                f"{fields.text!r}: its records have {', '.join(names) or 'no fields'}; name the "
                "field with --text_field"
            )
    counts = {
        "eval_records": totals["records"],
        "eval_rows": rows.total(),
        "eval_without_text": totals["without_text"],
    }
    return counts, letters


def _read_batches(file: DocumentFile, fields: Fields) -> Iterator[DocumentBatch]:
    for unit in cut_into_work_units(file, fields.text, max(1, file.num_bytes)):
        yield from read_work_unit(unit, fields._replace(hash_ids=True))


def _record_batch(
    dataset: str, path: str, batch: DocumentBatch, taken: int, schema: pa.Schema
) -> pa.RecordBatch:
    bounds = pa.py_buffer(batch.bounds[: taken + 1].copy())
    utf8 = pa.py_buffer(batch.utf8[: batch.bounds[taken]])
    columns = [
        [encode(dataset)] * taken,
        [encode(path)] * taken,
        batch.rows[:taken],
        [encode(str(identifier)) for identifier in batch.ids[:taken]],
        pa.LargeBinaryArray.from_buffers(pa.large_binary(), taken, [None, bounds, utf8]),
    ]
    return pa.record_batch(columns, schema=schema)


def fingerprint_rows(
    path: str, lengths: Sequence[int], tokenizer: Tokenizer, options: dict[str, object]
) -> str:
    """Returns 16 hex digits that change with anything that affects matches.

    Args:
      path: the local file of `write_rows`.
      options: everything else that affects matches.
    """
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    content = {
        "rows": digest,
        "lengths": sorted(set(lengths)),
        "tokenizer": tokenizer.name,
        "source": source_of(tokenizer),
        "unicode": unicodedata.unidata_version,
        "version": __version__,
        **options,
    }
    packed = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def source_of(tokenizer: Tokenizer) -> str:
    """Returns the source code of a tokenizer that is a function, "" if there is none to see."""
    with contextlib.suppress(OSError, TypeError):  # compiled, typed in, or no function
        return inspect.getsource(cast(Callable, tokenizer.function))
    return ""


_decode_name = functools.lru_cache(decode)  # of which many rows have the same


class EvaluationRows:
    """The rows in a file of `write_rows`, mapped into memory.

    `rows[number]` identifies a row, `rows.text(number)` is its text.
    """

    def __init__(self, table: pa.Table, datasets: list[str]):
        self.datasets = datasets
        self._table = table
        self._columns = {name: table.column(name) for name in table.column_names}

    @classmethod
    def open(cls, path: str) -> "EvaluationRows":
        """Maps a local file of `write_rows`."""
        table = pa.ipc.open_file(pa.memory_map(path)).read_all()
        metadata = table.schema.metadata or {}
        return cls(table, orjson.loads(metadata[_DATASETS]))

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, number: int) -> EvaluationRow:
        dataset, instance_id, path, row = (
            self._columns[name][number].as_py() for name in EvaluationRow._fields
        )
        return EvaluationRow(_decode_name(dataset), decode(instance_id), _decode_name(path), row)

    def some(self, numbers: np.ndarray) -> Iterator[EvaluationRow]:
        """Yields rows by their numbers, in ascending order, from their columns."""
        first, stop = (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
        table = self._table.select(EvaluationRow._fields).slice(first, stop - first)
        datasets, ids, paths, rows = (column.to_pylist() for column in table.columns)
        for at in (number - first for number in numbers.tolist()):
            names = _decode_name(datasets[at]), decode(ids[at]), _decode_name(paths[at])
            yield EvaluationRow(*names, rows[at])

    def instance_keys(self) -> list[bytes]:
        """Returns for each row the number of its evaluation set in 4 bytes, and its id."""
        number_of = {encode(name): at.to_bytes(4) for at, name in enumerate(self.datasets)}
        datasets, ids = (self._columns[name] for name in ("eval_dataset", "instance_id"))
        numbers = map(number_of.__getitem__, datasets.to_pylist())
        return list(map(operator.add, numbers, ids.to_pylist()))

    def text(self, number: int) -> str:
        """Returns the text of a row."""
        return decode(self._columns["text"][number].as_py())

    def texts(self) -> list[Texts]:
        """Returns the texts of all rows in batches, as the index takes them, without a copy."""
        return [array_buffers(chunk) for chunk in self._columns["text"].chunks]
