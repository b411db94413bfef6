"""The attributes of all documents of a training file, in a separate file in the same order.

  Parquet: a row of ATTRIBUTES_SCHEMA for each document
  JSON lines for Dolma's mixer: {"id": …, "attributes": {"NAME__spans": [[0, 9, 1.0]], …}}

Memory holds a batch of documents, whatever the file's size. Of a Parquet file without contaminated
documents, only ids are read. Dolma's format: github.com/allenai/dolma, docs/data-format.md.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.fields import Fields, Path, parts_of
from beam_pipeline.documents.files import InputFile, cut_into_work_units
from beam_pipeline.documents.json import BadRecordError, id_of, parse_object
from beam_pipeline.documents.json_records import Records, begins_array
from beam_pipeline.documents.parquet import columns_in, id_values, parts_of_rows, rows_at
from beam_pipeline.documents.reading import read_unit
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.overlap.removal.rewriting import compressed
from beam_pipeline.overlap.removal.training_files import (
    Counts,
    DocumentReader,
    Documents,
    TrainingFile,
)
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA
from beam_pipeline.overlap.results.output_files import (
    PLACES,
    escape_surrogates,
    json_line,
    json_value,
    parquet_writer,
)
from beam_pipeline.storage.files import create_file, open_file
from beam_pipeline.storage.lines import Compression, compression_of, decompressed, read_blocks

ATTRIBUTES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("contaminated", pa.bool_()),
        ("coverage", pa.float64()),  # share of the text's characters in spans
        ("spans", DOCUMENTS_SCHEMA.field("spans").type),
        ("eval_datasets", DOCUMENTS_SCHEMA.field("eval_datasets").type),
    ]
)
_FIELD_SPANS = pa.field(
    "field_spans", pa.list_(pa.struct([("field", pa.string()), *PLACES.value_type]))
)
_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 16 << 20


class Described(NamedTuple):
    """Consecutive documents of a file, and which are contaminated."""

    first_row: int
    ids: list[Any]  # value of each document in the file; None without one
    documents: Documents
    parts: list[list[tuple[Path, str]]]  # `parts_of` each contaminated document
    num_chars: np.ndarray  # int64, text length of each contaminated document

    @property
    def coverage(self) -> np.ndarray:
        """The share of characters in spans, for each contaminated document."""
        return self.documents.covered_chars / self.num_chars

    def field_spans(self, index: int) -> Iterator[tuple[str, int, int]]:
        """Yields the spans of a contaminated document by the paths of its texts."""
        at = 0
        for path, text in self.parts[index]:
            for start, end in self.documents.spans_at(index):
                first, last = max(start - at, 0), min(end - at, len(text))
                if first < last:
                    yield ".".join(map(str, path)), first, last
            at += len(text) + 1


# --- documents ------------------------------------------------------------------------------------


def describe(file: TrainingFile, documents: DocumentReader, fields: Fields) -> Iterator[Described]:
    """Yields all documents of a file, including dead letters and those without a text."""
    row = 0
    wanted = fields if file.num_documents else fields._replace(text=fields.id, nested=True)

    def columns(_: str, schema: pa.Schema) -> list[str]:
        return columns_in(schema, wanted)

    whole = InputFile(file.file, file.format, is_compressed=True)
    for unit in cut_into_work_units(whole, max(1, file.file.num_bytes)):
        for piece in read_unit(unit, columns=columns, sized_by=fields.text):
            if isinstance(piece, pa.RecordBatch):
                found = documents.within(row, row + len(piece))
                ids, parts = _of_rows(piece, found.rows - row, fields)
            else:
                records = cast(Records, piece)
                found = documents.within(row, row + records.count)
                ids, parts = _of_records(records, found.rows - row, fields)
            sizes = [sum(len(text) + 1 for _, text in each) - 1 for each in parts]
            yield Described(row, ids, found, parts, np.array(sizes, np.int64))
            row += len(ids)


def _of_records(records: Records, places: np.ndarray, fields: Fields) -> tuple[list, list]:
    """Returns the id of each record, and the parts of the texts at some places."""
    parsed = list(map(_parse, records.each()))
    ids = [id_of(values, records, number, fields.id) for number, values in enumerate(parsed)]
    return ids, [parts_of(parsed[at], fields) for at in places.tolist()]


def _parse(record: bytes) -> dict[str, Any]:
    try:
        return parse_object(record)
    except BadRecordError:
        return {}


def _of_rows(batch: pa.RecordBatch, places: np.ndarray, fields: Fields) -> tuple[list, list]:
    taken = rows_at(pa.Table.from_batches([batch]), places, fields)
    return id_values(batch, fields), parts_of_rows(taken, fields) if len(places) else []


# --- forms ----------------------------------------------------------------------------------------


def write_parquet(
    file: TrainingFile, documents: DocumentReader, target: str, fields: Fields, attribute_name: str
) -> Counts:
    """Writes the rows of ATTRIBUTES_SCHEMA of a training file, with `field_spans` if nested."""
    counts = _no_counts()
    schema = ATTRIBUTES_SCHEMA.append(_FIELD_SPANS) if fields.nested else ATTRIBUTES_SCHEMA
    with create_file(target) as stream, parquet_writer(stream, schema) as writer:
        held: list[pa.Table] = []

        def write() -> None:
            writer.write_table(pa.concat_tables(held).combine_chunks())
            held.clear()

        for described in _counted(describe(file, documents, fields), counts):
            held.append(_table(file.file.path, described, schema))
            is_full = sum(map(len, held)) >= _GROUP_ROWS
            if is_full or sum(table.nbytes for table in held) >= _GROUP_BYTES:
                write()
        if held:
            write()
    return counts


def _table(path: str, described: Described, schema: pa.Schema) -> pa.Table:
    count, found = len(described.ids), described.documents
    places = found.rows - described.first_row
    is_contaminated, coverage = np.zeros(count, bool), np.zeros(count)
    is_contaminated[places], coverage[places] = True, described.coverage
    ids = [None if value is None else escape_surrogates(str(value)) for value in described.ids]
    columns = [
        pa.array([path] * count, pa.string()),
        np.arange(described.first_row, described.first_row + count),
        pa.array(ids, pa.string()),
        is_contaminated,
        coverage,
        _spread(found.spans, places, count, ATTRIBUTES_SCHEMA.field("spans").type),
        _spread(found.eval_datasets, places, count, ATTRIBUTES_SCHEMA.field("eval_datasets").type),
    ]
    if _FIELD_SPANS in schema:
        by_field = [list(described.field_spans(index)) for index in range(len(places))]
        dtype = _FIELD_SPANS.type
        columns.append(_spread(pa.array(by_field, dtype), places, count, dtype))
    return pa.table(columns, schema=schema)


def _spread(lists: pa.Array, places: np.ndarray, count: int, dtype: pa.DataType) -> pa.Array:
    """Returns an array with lists at some places and empty lists elsewhere."""
    sizes = np.zeros(count, np.int64)
    if not len(places):
        return pa.array([[]] * count, dtype)
    sizes[places] = lists.value_lengths().to_numpy()
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, lists.flatten(), type=dtype)


def write_dolma(
    file: TrainingFile, documents: DocumentReader, target: str, fields: Fields, attribute_name: str
) -> Counts:
    """Writes a line of Dolma's attributes per document; ProbelineError for a JSON array."""
    compression = _compression_of_lines(file)
    counts = _no_counts()
    spans = f"{attribute_name}__spans"
    clean = b',"attributes":{%b:[]}}\n' % json_value(spans)
    with create_file(target) as stream, compressed(stream, compression) as write:
        for described in _counted(describe(file, documents, fields), counts):
            lines = [b'{"id":%b%b' % (json_value(value), clean) for value in described.ids]
            found, coverage = described.documents, described.coverage.tolist()
            for index, row in enumerate(found.rows.tolist()):
                size = int(described.num_chars[index])
                values = {spans: [[*span, 1.0] for span in found.spans_at(index)]}
                values[f"{attribute_name}__coverage"] = [[0, size, coverage[index]]]
                for name in found.datasets_at(index):
                    values[f"{attribute_name}__set__{name}"] = [[0, size, 1.0]]
                at = row - described.first_row
                lines[at] = json_line({"id": described.ids[at], "attributes": values})
            write(b"".join(lines))
    return counts


def _compression_of_lines(file: TrainingFile) -> Compression | None:
    with open_file(file.file.path, version=file.file.version) as stream:
        compression = compression_of(stream)
        may_be_array = file.format == "json"
        if may_be_array and begins_array(next(read_blocks(decompressed(stream)), b"")):
            raise ProbelineError(
                f"{file.file.path} is a JSON array, which Dolma does not read: pass "
                "--format=parquet, or convert the file to JSON lines and run the overlap job again"
            )
    return compression


def _no_counts() -> Counts:
    return Counts(Counter(records_in=0, contaminated=0, spans=0, covered_chars=0), {})


def _counted(described: Iterator[Described], counts: Counts) -> Iterator[Described]:
    """Yields documents, and adds them to `counts`."""
    for each in described:
        found = each.documents
        counts.total.update(records_in=len(each.ids), contaminated=len(found.rows))
        if len(found.rows):
            num_spans, num_chars = len(found.spans.flatten()), int(found.covered_chars.sum())
            counts.total.update(spans=num_spans, covered_chars=num_chars)
            for pair in found.eval_datasets.flatten().value_counts().to_pylist():
                counter = counts.by_set.setdefault(pair["values"], Counter())
                counter["contaminated"] += pair["counts"]
        yield each


def parquet_name(name: str) -> str:
    """Returns the name of a training file's attributes in Parquet."""
    return name if name.lower().endswith(".parquet") else f"{name}.parquet"


def dolma_name(name: str) -> str:
    """Returns the name of a training file's attributes for Dolma; UsageError for Parquet."""
    if name.lower().endswith(".parquet"):
        raise UsageError(f"{name}: Dolma reads JSON lines, not Parquet: pass --format=parquet")
    return name
