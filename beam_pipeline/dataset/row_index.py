"""The row index: `rows.parquet` of a split, one line per row in the order of shard and position.

Exact counts follow from it without reading a row, an epoch is planned from it, and every record
that is read is compared with its line. As arrays it takes about 90 bytes of memory a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.manifest import INDEX_NAME, Dataset
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.storage.files import checksum_text, crc32c, read_file
from beam_pipeline.storage.parquet import open_parquet

INDEX_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("position", pa.int64()),
        ("num_bytes", pa.int64()),
        ("src_id", pa.int64()),
        ("src_addr", pa.string()),
        ("row_index", pa.int32()),
        ("n_measurements", pa.int32()),
        ("num_ipv6", pa.int32()),
        ("num_failed", pa.int32()),
        ("first_timestamp", pa.timestamp("us")),
        ("last_timestamp", pa.timestamp("us")),
    ]
)
_INTEGERS = [field.name for field in INDEX_SCHEMA if pa.types.is_integer(field.type)]


@dataclass(frozen=True)
class IndexedRows:
    """The integer columns of INDEX_SCHEMA, arrays [rows]; subclasses have more columns."""

    shard: np.ndarray
    position: np.ndarray
    num_bytes: np.ndarray
    src_id: np.ndarray
    row_index: np.ndarray
    n_measurements: np.ndarray
    num_ipv6: np.ndarray
    num_failed: np.ndarray

    def __len__(self) -> int:
        return len(self.shard)


@dataclass(frozen=True)
class RowIndex(IndexedRows):
    """All columns of INDEX_SCHEMA; timestamps are int64 µs since 1970 UTC."""

    first_us: np.ndarray
    last_us: np.ndarray
    src_addr: pa.StringArray

    @classmethod
    def read(cls, dataset: Dataset, split: str) -> Self:
        """Reads the row index of a split; raises as `read_index`."""
        table = read_index(dataset, split)
        return cls(
            **{name: table.column(name).to_numpy() for name in _INTEGERS},
            first_us=table.column("first_timestamp").cast(pa.int64()).to_numpy(),
            last_us=table.column("last_timestamp").cast(pa.int64()).to_numpy(),
            src_addr=table.column("src_addr").combine_chunks(),
        )


def read_index(dataset: Dataset, split: str) -> pa.Table:
    """Reads the row index of a split; ProbelineError if it is not the one of the manifest."""
    path = dataset.file(f"{split}/{INDEX_NAME}")
    data, said = read_file(path), dataset.manifest.splits[split].index_crc32c
    found = "missing" if data is None else checksum_text(crc32c(data))
    if data is None or found != said:
        raise ProbelineError(
            f"{path} has checksum {found}, the manifest says {said}: it was changed or belongs to "
            "another dataset; copy the dataset again as a whole"
        )
    try:
        return parse_index(data)
    except ValueError as error:
        raise ProbelineError(f"{path} is not a row index: {error}") from error


def index_batches(folder: str, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields some columns of the row index of a split, without a look at its checksum."""
    with open_parquet(f"{folder}/{split}/{INDEX_NAME}") as file:
        yield from file.iter_batches(columns=list(columns))


def parse_index(data: bytes) -> pa.Table:
    """Reads the bytes of a rows.parquet; ValueError if they are no Parquet of INDEX_SCHEMA."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"it cannot be read: {one_line(error)}") from error
    if not table.schema.equals(INDEX_SCHEMA):
        columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        wanted = ", ".join(f"{field.name} {field.type}" for field in INDEX_SCHEMA)
        raise ValueError(f"its columns are {columns}, not {wanted}")
    return table
