"""The evaluation side: its files, and all its rows in one memory-mapped Arrow file.

Only records with a text are rows; a row's place in the file is its number, by which the index,
the parts and the counts know it. The order is that of the sources as given, then of paths, then of
rows, so that the numbers, and all that is made of them, do not depend on who reads.
"""

import hashlib
import inspect
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline import __version__
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.batch import DocumentBatch
from beam_pipeline.overlap.documents.reading import (
    DocumentFile,
    field_names,
    match_documents,
    read_unit,
    units_of,
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


class Fields(NamedTuple):
    """What is read of a record, and of how many of each set; 0: all."""

    text: str
    id: str
    limit: int = 0


class EvaluationCounts(NamedTuple):
    """What was read: every record has a text, has none, or is a dead letter."""

    num_records: int
    num_texts: int
    num_without_text: int
    letters: list[DeadLetter]


def match_evaluation(sources: Sequence[str]) -> list[EvaluationFile]:
    """Returns the files of all evaluation sets, in the order that their rows will have.

    Raises:
      UsageError: a source has no name, or matches no file.
    """
    found: dict[EvaluationFile, None] = {}
    for source in sources:
        name, path = parse_evaluation_source(source)
        for file in match_documents([path], "--decontaminate_source"):
            found[EvaluationFile(name, file)] = None
    return list(found)


def write_rows(files: Sequence[EvaluationFile], path: str, fields: Fields) -> EvaluationCounts:
    """Reads all evaluation sets and writes their rows to a local file.

    Raises:
      ProbelineError: a set has no row with a text, or a file cannot be read.
    """
    datasets = list(dict.fromkeys(file.dataset for file in files))
    schema = _SCHEMA.with_metadata({_DATASETS: orjson.dumps(datasets)})
    rows, totals = Counter(dict.fromkeys(datasets, 0)), Counter()
    letters: list[DeadLetter] = []
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for dataset, file in files:
            for batch in _batches(file, fields):
                totals["records"] += batch.num_rows
                totals["without_text"] += batch.num_without_text
                letters += batch.letters
                taken = len(batch.rows)
                if fields.limit:
                    taken = min(taken, fields.limit - rows[dataset])
                rows[dataset] += taken
                writer.write_batch(_record_batch(dataset, file.path, batch, taken, schema))
                if fields.limit and rows[dataset] >= fields.limit:
                    break
    for dataset in datasets:
        if not rows[dataset]:
            raise _no_rows(dataset, [file for name, file in files if name == dataset], fields)
    return EvaluationCounts(totals["records"], rows.total(), totals["without_text"], letters)


def _batches(file: DocumentFile, fields: Fields) -> Iterator[DocumentBatch]:
    for unit in units_of(file, fields.text, max(1, file.num_bytes)):
        yield from read_unit(unit, fields.text, fields.id, hash_ids=True)


def _record_batch(
    dataset: str, path: str, batch: DocumentBatch, taken: int, schema: pa.Schema
) -> pa.RecordBatch:
    ends = batch.bounds[taken]
    text = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        taken,
        [None, pa.py_buffer(batch.bounds[: taken + 1].copy()), pa.py_buffer(batch.utf8[:ends])],
    )
    ids = [_bytes(str(identifier)) for identifier in batch.ids[:taken]]
    return pa.record_batch(
        [
            pa.array([_bytes(dataset)] * taken, pa.large_binary()),
            pa.array([_bytes(path)] * taken, pa.large_binary()),
            pa.array(batch.rows[:taken], pa.int64()),
            pa.array(ids, pa.large_binary()),
            text,
        ],
        schema=schema,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _no_rows(dataset: str, files: list[DocumentFile], fields: Fields) -> ProbelineError:
    names = [
        name
        for file in files[:1]
        for unit in units_of(file, fields.text, max(1, file.num_bytes))[:1]
        for name in field_names(unit)
    ]
    return ProbelineError(
        f"evaluation set {dataset} ({files[0].path}) has no record with a text in the field "
        f"{fields.text!r}: its records have {', '.join(names) or 'no fields'}; name the field with "
        "--text_field"
    )


def fingerprint_of(
    path: str, lengths: Sequence[int], tokenizer: Tokenizer, options: dict[str, object]
) -> str:
    """Returns 16 hex digits that say what an index and all that is found with it was made of.

    Args:
      path: the local file of `write_rows`.
      options: whatever else shapes matches.
    """
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    made_of = {
        "rows": digest,
        "lengths": sorted(set(lengths)),
        "tokenizer": tokenizer.name,
        "source": _source(tokenizer),
        "unicode": unicodedata.unidata_version,
        "version": __version__,
        **options,
    }
    packed = orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def _source(tokenizer: Tokenizer) -> str:
    """Returns the source of a tokeniser of one's own, as far as there is one."""
    if tokenizer.function is None:
        return ""
    try:
        return inspect.getsource(tokenizer.function)
    except (OSError, TypeError):  # compiled, or typed in: then its name has to do
        return ""


class EvaluationRows:
    """The rows in a file of `write_rows`, mapped into memory; `rows[number]` is a row's text."""

    def __init__(self, table: pa.Table, datasets: list[str]):
        self.datasets = datasets
        self._batches = table.to_batches()
        sizes = [len(batch) for batch in self._batches]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @classmethod
    def open(cls, path: str) -> "EvaluationRows":
        """Maps a local file of `write_rows`."""
        table = pa.ipc.open_file(pa.memory_map(path)).read_all()
        metadata = table.schema.metadata or {}
        return cls(table, orjson.loads(metadata[_DATASETS]))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> str:
        return self._string("text", number)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def dataset(self, number: int) -> str:
        """Returns the name of the evaluation set of a row."""
        return self._string("eval_dataset", number)

    def path(self, number: int) -> str:
        """Returns the file of a row."""
        return self._string("eval_path", number)

    def row(self, number: int) -> int:
        """Returns the place of a row among the records of its file."""
        return self._value("eval_row", number)

    def id(self, number: int) -> str:
        """Returns the id of the instance that a row is."""
        return self._string("instance_id", number)

    def texts(self) -> list[Texts]:
        """Returns the texts of all rows in batches, as the index takes them, without a copy."""
        return [_texts(batch.column("text")) for batch in self._batches]

    def _value(self, column: str, number: int):
        if not 0 <= number < len(self):
            raise IndexError(number)
        batch = int(np.searchsorted(self._starts, number, "right")) - 1
        return self._batches[batch].column(column)[number - int(self._starts[batch])].as_py()

    def _string(self, column: str, number: int) -> str:
        return self._value(column, number).decode("utf-8", "surrogatepass")


def _texts(column: pa.LargeBinaryArray) -> Texts:
    _, places, data = column.buffers()
    if len(column) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(places, np.int64)[column.offset : column.offset + len(column) + 1].copy()
    utf8 = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return utf8, bounds
