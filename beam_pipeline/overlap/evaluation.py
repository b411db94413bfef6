"""The evaluation side: its files, and all its rows in one memory-mapped Arrow file.

Only records with a text are rows. The index, the match files and the counts identify a row by its
number, its place in that file. Rows are ordered by source as given, then path, then row, so their
numbers are the same in every run.
"""

import contextlib
import hashlib
import inspect
import operator
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline import __version__
from beam_pipeline.dataset.dead_letters import DeadLetter, count_by_reason, explain_letters
from beam_pipeline.documents.batch import DocumentBatch, array_buffers, decode, encode, text_buffers
from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.files import InputFile, cut_into_work_units
from beam_pipeline.documents.reading import fields_of, read_texts
from beam_pipeline.errors import ProbelineError, shortened
from beam_pipeline.overlap.evaluation_sources import match_sources, name_with_field
from beam_pipeline.overlap.ngrams.arrays import map_file
from beam_pipeline.overlap.ngrams.token_batches import Texts
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.storage.files import create_file

# Strings are UTF-8 with three bytes per lone surrogate, which Arrow strings cannot hold.
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
_TEXTS_AT_A_TIME = 1 << 12


class EvaluationFile(NamedTuple):
    """A file of an evaluation set."""

    dataset: str
    file: InputFile
    text_fields: tuple[str, ...] = ()  # joined by line feeds; empty: as training documents


class EvaluationRow(NamedTuple):
    """The identification of an evaluation row in the output."""

    eval_dataset: str
    instance_id: str
    eval_path: str
    eval_row: int  # index among the records of its file


def match_evaluation(
    sources: Sequence[str],
    text_fields: tuple[str, ...] = (),
    each: bool = False,
    is_lm_eval: bool = False,
    unread: list[str] | None = None,
) -> list[EvaluationFile]:
    """Returns the files of all evaluation sets, in the order of their rows.

    With `each`, every text field of a set becomes a set of its own, with the same files. For
    `is_lm_eval` and `unread` see `match_sources`.
    """
    matched = match_sources(sources, is_lm_eval, unread)
    found = list(dict.fromkeys(EvaluationFile(name, file, text_fields) for name, file in matched))
    if not each:
        return found
    return [
        EvaluationFile(name_with_field(name, field), file, (field,))
        for name in dict.fromkeys(name for name, *_ in found)
        for field in text_fields
        for of_set, file, _ in found
        if of_set == name
    ]


def write_rows(
    files: Sequence[EvaluationFile], path: str, fields: Fields, limit: int = 0
) -> tuple[dict[str, int], list[DeadLetter]]:
    """Writes the rows of all evaluation sets to a local file; returns counts and dead letters.

    Takes `limit` rows of each set, or all if 0. Raises ProbelineError for a set without texts.
    """
    datasets = list(dict.fromkeys(name for name, *_ in files))
    schema = _SCHEMA.with_metadata({_DATASETS: orjson.dumps(datasets)})
    rows, totals = Counter(dict.fromkeys(datasets, 0)), Counter()
    letters: list[DeadLetter] = []
    found, of_file = Counter[str](), Counter[InputFile]()  # rows with a text
    with create_file(path) as sink, pa.ipc.new_file(sink, schema) as writer:
        for dataset, file, text_fields in files:
            is_first = file not in of_file
            for batch in _read_batches(file, fields, text_fields, found):
                of_file[file] += len(batch.rows)
                totals["records"] += batch.num_rows if is_first else 0
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
        of_set = [each for each in files if each.dataset == dataset]
        # A set of one field may be empty if another field of the same files is not.
        if not rows[dataset] and not any(of_file[each.file] for each in of_set):
            raise ProbelineError(_without_text(of_set[0], fields, letters))
    for field in {field for each in files for field in each.text_fields}:
        if not found[field] and not limit:
            raise ProbelineError(
                f"no evaluation row has a text in the field {field!r}: correct --eval_text_field"
            )
    counts = {
        "eval_records": totals["records"],
        "eval_rows": rows.total(),
        "eval_without_text": totals["without_text"],
    }
    return counts, list(dict.fromkeys(letters))


def _without_text(given: EvaluationFile, fields: Fields, letters: Sequence[DeadLetter]) -> str:
    """Returns the error message for an evaluation set without a text, by its first file."""
    fields_read = " or ".join(map(repr, given.text_fields or [fields.text]))
    problem = (
        f"evaluation set {given.dataset} ({given.file.path}) has no record with a text in the "
        f"field {fields_read}"
    )
    if of_file := [letter for letter in letters if letter.file == given.file.path]:
        return f"{problem}: {explain_letters(count_by_reason(of_file), of_file)}"
    names = fields_of(given.file)
    cure = "name the field with --eval_text_field"
    if {"doc", "arguments"} <= {name.partition(".")[0] for name in names}:
        cure += ", or say --eval_format=lm_eval for samples of lm-evaluation-harness"
    return f"{problem}: its records have {shortened(names)}; {cure}"


def _read_batches(
    file: InputFile, fields: Fields, text_fields: Sequence[str], found: Counter[str]
) -> Iterator[DocumentBatch]:
    """Yields the rows of a file, with fields joined, and counts the rows with each field."""
    fields = fields._replace(hash_ids=True)
    if not text_fields:
        yield from _read_field(file, fields)
        return
    readings = [_read_field(file, fields._replace(text=name, nested=True)) for name in text_fields]
    for batches in zip(*readings, strict=True):
        found.update(
            {name: len(batch.rows) for name, batch in zip(text_fields, batches, strict=True)}
        )
        yield batches[0] if len(batches) == 1 else _join(batches)


def _read_field(file: InputFile, fields: Fields) -> Iterator[DocumentBatch]:
    for unit in cut_into_work_units(file, max(1, file.num_bytes)):
        yield from read_texts(unit, fields)


def _join(batches: Sequence[DocumentBatch]) -> DocumentBatch:
    """Returns a batch that joins the texts of each row in all batches by line feeds."""
    texts: dict[int, list[str]] = defaultdict(list)
    ids: dict[int, str | None] = {}
    for batch in batches:
        for at, row in enumerate(batch.rows.tolist()):
            texts[row].append(decode(batch.text_bytes(at)))
            ids[row] = batch.ids[at]
    rows = sorted(texts)
    letters = list(dict.fromkeys(letter for batch in batches for letter in batch.letters))
    no_text = batches[0].num_rows - len({*rows, *(letter.row for letter in letters)})
    buffers = text_buffers(["\n".join(texts[row]) for row in rows])
    in_order = [ids[row] for row in rows]
    of_rows = np.array(rows, np.int64)
    return DocumentBatch(batches[0].num_rows, of_rows, *buffers, in_order, no_text, letters)


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
    path: str, lengths: Sequence[int], tokenizer: Tokenizer, options: Mapping[str, object]
) -> str:
    """Returns 16 hex digits that change with the rows and anything else that affects matches."""
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
    """Returns the source code of a tokenizer function, or "" if not available."""
    with contextlib.suppress(OSError, TypeError):  # compiled, interactive, or not a function
        return inspect.getsource(cast(Callable, tokenizer.function))
    return ""


class EvaluationRows:
    """The rows in a file of `write_rows`, mapped into memory."""

    def __init__(self, table: pa.Table, datasets: list[str]):
        self.datasets = datasets
        self._table = table
        self._columns = {name: table.column(name) for name in table.column_names}

    @classmethod
    def open(cls, path: str) -> "EvaluationRows":
        """Maps a local file of `write_rows`."""
        table = pa.ipc.open_file(map_file(path)).read_all()
        metadata = table.schema.metadata or {}
        return cls(table, orjson.loads(metadata[_DATASETS]))

    def __len__(self) -> int:
        return len(self._table)

    def batches(self) -> list[pa.RecordBatch]:
        """Returns the columns of all rows in batches, without copying."""
        return self._table.to_batches()

    def take(self, numbers: np.ndarray, with_texts: bool = True) -> pa.Table:
        """Returns the columns of the rows with these ascending numbers."""
        table = self._table if with_texts else self._table.drop_columns(["text"])
        batches = table.to_batches()
        firsts = np.cumsum([0, *map(len, batches)])
        ends = np.searchsorted(numbers, firsts)
        of_batches = zip(batches, firsts.tolist(), ends.tolist(), ends.tolist()[1:], strict=False)
        taken = [
            batch.take(pa.array(numbers[start:stop] - first))
            for batch, first, start, stop in of_batches
            if start < stop
        ]
        return pa.Table.from_batches(taken, table.schema).combine_chunks()

    def instance_keys(self) -> list[bytes]:
        """Returns for each row its evaluation set's number in 4 bytes, followed by its id."""
        number_of = {encode(name): at.to_bytes(4) for at, name in enumerate(self.datasets)}
        datasets, ids = (self._columns[name] for name in ("eval_dataset", "instance_id"))
        numbers = map(number_of.__getitem__, datasets.to_pylist())
        return list(map(operator.add, numbers, ids.to_pylist()))

    def set_numbers(self) -> np.ndarray:
        """Returns the number of each row's evaluation set, int64 [rows]."""
        names = pa.array(list(map(encode, self.datasets)), pa.large_binary())
        return pc.index_in(self._columns["eval_dataset"], names).to_numpy().astype(np.int64)

    def count_repeated_ids(self) -> int:
        """Returns the number of ids that rows of one set with different texts share."""
        keys = pa.array(self.instance_keys(), pa.large_binary()).dictionary_encode().indices
        ids = keys.to_numpy()
        repeated = np.flatnonzero(np.bincount(ids)[ids] > 1)
        found: set[tuple[int, int]] = set()
        for start in range(0, len(repeated), _TEXTS_AT_A_TIME):
            some = repeated[start : start + _TEXTS_AT_A_TIME]
            texts = self.take(some)["text"].to_pylist()
            found.update(zip(ids[some].tolist(), map(hash, texts), strict=True))
        texts_of = Counter(identifier for identifier, _ in found)
        return sum(count > 1 for count in texts_of.values())

    def texts(self) -> list[Texts]:
        """Returns the texts of all rows in batches for the index, without copying."""
        return [array_buffers(chunk) for chunk in self._columns["text"].chunks]
