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

from beam_pipeline.dataset.manifest import INDEX_NAME, Dataset, Manifest
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.storage.files import check_regular, checksum_text, crc32c, read_file
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
_MAX_ROW_BYTES = 1024 << 20  # the limit of --max_row_size_mb
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
            **{name: _numbers(table, name) for name in _INTEGERS},
            first_us=_numbers(table, "first_timestamp"),
            last_us=_numbers(table, "last_timestamp"),
            src_addr=table.column("src_addr").combine_chunks(),
        )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """Returns a column without nulls, not copied; times as int64.

    Arrow's own conversion imports pandas where it is installed.
    """
    column = table.column(name).combine_chunks()
    dtype, (_, data) = np.dtype(f"i{column.type.bit_width // 8}"), column.buffers()
    return np.frombuffer(data or b"", dtype)[column.offset : column.offset + len(column)]


def read_index(dataset: Dataset, split: str) -> pa.Table:
    """Reads the row index of a split; ProbelineError if it is not the one of the manifest."""
    path = dataset.file(f"{split}/{INDEX_NAME}")
    check_regular([path])
    data, said = read_file(path), dataset.manifest.splits[split].index_crc32c
    found = "missing" if data is None else checksum_text(crc32c(data))
    if data is None or found != said:
        raise ProbelineError(
            f"{path} has checksum {found}, the manifest says {said}: it was changed or belongs to "
            "another dataset; copy the dataset again as a whole"
        )
    try:
        table = parse_index(data)
        _check_lines(table, dataset.manifest, split)
    except ValueError as error:
        raise ProbelineError(
            f"{path} is not the row index of the dataset: {error}; copy the dataset again as a "
            "whole"
        ) from error
    return table


def _check_lines(table: pa.Table, manifest: Manifest, split: str) -> None:
    """Raises ValueError unless the lines are those of the manifest's records, one by one.

    What a reader computes with stays in range then. Whether it is true, `verify` tells.
    """
    described = manifest.splits[split]
    columns = {
        name: _numbers(table, name)
        for name in INDEX_SCHEMA.names
        if name != "src_addr" and not table.column(name).null_count
    }
    if nulls := [name for name in INDEX_SCHEMA.names if table.column(name).null_count]:
        raise ValueError(f"it has nulls in {', '.join(nulls)}")
    counts = [shard.num_records for shard in described.shards]
    if sum(counts) != table.num_rows:
        raise ValueError(f"it has {table.num_rows} lines for {sum(counts)} records")
    num_records = np.array(counts, np.int64)
    begins = np.cumsum(num_records) - num_records
    n, first = columns["n_measurements"], columns["first_timestamp"]
    is_right = {
        "shard": columns["shard"] == np.repeat(np.arange(len(counts)), num_records),
        "position": columns["position"]
        == np.arange(table.num_rows) - np.repeat(begins, num_records),
        "num_bytes": (columns["num_bytes"] > 0) & (columns["num_bytes"] <= _MAX_ROW_BYTES),
        "row_index": columns["row_index"] >= 0,
        "n_measurements": (n > 0) & (n < columns["num_bytes"]),
        "num_ipv6": (columns["num_ipv6"] >= 0) & (columns["num_ipv6"] <= n),
        "num_failed": (columns["num_failed"] >= 0) & (columns["num_failed"] <= n),
        "first_timestamp": first >= 0,
        "last_timestamp": columns["last_timestamp"] >= first,
    }
    for name, right in is_right.items():
        if not right.all():
            line = int(np.argmin(right))
            raise ValueError(f"its line {line} has {name} {columns[name][line]}")


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
