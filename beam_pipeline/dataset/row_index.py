"""The row index: `rows.parquet` of a split, one line per row in the order of shard and position.

It gives exact counts without reading rows, epochs are planned from it, and every record read is
compared with its line. As arrays it takes about 90 bytes of memory per row; `read_lines` yields
some columns in parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.manifest import INDEX_NAME, Split
from beam_pipeline.errors import ProbelineError, explained_os_errors, one_line
from beam_pipeline.storage.files import (
    check_regular,
    checksum_text,
    crc32c,
    file_infos,
    local_copy,
    read_file,
    size_and_checksum,
)
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
_MAX_LINES = 1 << 16
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

    def place(self, row: int) -> tuple[int, int]:
        """Returns the shard of a row and its position there."""
        return int(self.shard[row]), int(self.position[row])

    def of_shard(self, shard: int) -> slice:
        return slice(*np.searchsorted(self.shard, [shard, shard + 1]).tolist())


@dataclass(frozen=True)
class RowIndex(IndexedRows):
    """All columns of INDEX_SCHEMA; timestamps are int64 µs since 1970 UTC."""

    first_us: np.ndarray
    last_us: np.ndarray
    src_addr: pa.StringArray

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """Converts a table from `read_index` to arrays."""
        return cls(
            **{name: numbers(table, name) for name in _INTEGERS},
            first_us=numbers(table, "first_timestamp"),
            last_us=numbers(table, "last_timestamp"),
            src_addr=table.column("src_addr").combine_chunks(),
        )


def numbers(table: pa.Table, name: str) -> np.ndarray:
    """Returns a column without nulls, uncopied (Arrow's own conversion may import pandas)."""
    column = table.column(name).combine_chunks()
    dtype, (_, data) = np.dtype(f"i{column.type.bit_width // 8}"), column.buffers()
    return np.frombuffer(data or b"", dtype)[column.offset : column.offset + len(column)]


def read_index(path: str, split: Split) -> pa.Table:
    """Reads the row index of a split; ProbelineError if it does not match the manifest."""
    data = read_file(path)
    _check_checksum(path, split, "missing" if data is None else checksum_text(crc32c(data)))
    try:
        table = parse_index(data or b"")
        _check_number(table.num_rows, split)
        _check_lines(table, 0, split)
    except ValueError as error:
        raise _not_the_index(path, error) from error
    return table


def read_lines(path: str, split: Split, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields some columns of a row index, up to _MAX_LINES lines at a time; as `read_index`."""
    check_regular([path])
    if file_infos([path])[path] is None:
        _check_checksum(path, split, "missing")
    # One download in few requests.
    with explained_os_errors("read", path), local_copy(path) as copy:
        _check_checksum(path, split, checksum_text(size_and_checksum(copy)[1]))
        begin = 0
        try:
            with pq.ParquetFile(copy) as file:
                _check_schema(file.schema_arrow)
                _check_number(file.metadata.num_rows, split)
                # Arrow's threads would hold several row groups and save no CPU time.
                for batch in file.iter_batches(_MAX_LINES, columns=columns, use_threads=False):
                    lines = pa.Table.from_batches([batch])
                    _check_lines(lines, begin, split)
                    yield lines
                    begin += len(lines)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise _not_the_index(path, error) from error


def _check_checksum(path: str, split: Split, found: str) -> None:
    if found != split.index_crc32c:
        raise ProbelineError(
            f"{path} has checksum {found}, the manifest says {split.index_crc32c}: it was changed "
            "or belongs to another dataset; copy the dataset again as a whole"
        )


def _not_the_index(path: str, error: Exception) -> ProbelineError:
    return ProbelineError(
        f"{path} is not the row index of the dataset: {one_line(error)}; copy the dataset again as "
        "a whole"
    )


def _check_number(num_lines: int, split: Split) -> None:
    num_records = sum(shard.num_records for shard in split.shards)
    if num_records != num_lines:
        raise ValueError(f"it has {num_lines} lines for {num_records} records")


def _check_lines(table: pa.Table, begin: int, split: Split) -> None:
    """Raises ValueError if lines from `begin` have values impossible in any record of the split."""
    if nulls := [name for name in table.column_names if table.column(name).null_count]:
        raise ValueError(f"it has nulls in {', '.join(nulls)}")
    columns = {name: numbers(table, name) for name in table.column_names if name != "src_addr"}
    line = np.arange(begin, begin + len(table))
    ends = np.cumsum([shard.num_records for shard in split.shards])
    shard = np.searchsorted(ends, line, "right")
    n, size = columns.get("n_measurements"), columns.get("num_bytes")
    limits = {
        "shard": (shard, shard),
        "position": (position := line - np.append(0, ends)[shard], position),
        "num_bytes": (1, _MAX_ROW_BYTES),
        "row_index": (0, None),
        "n_measurements": (1, None if size is None else size - 1),
        "num_ipv6": (0, n),
        "num_failed": (0, n),
        "first_timestamp": (0, None),
        "last_timestamp": (columns.get("first_timestamp"), None),
    }
    for name, values in columns.items():
        least, most = limits.get(name, (None, None))
        is_right = np.ones(len(table), bool)
        if least is not None:
            is_right &= values >= least
        if most is not None:
            is_right &= values <= most
        if not is_right.all():
            wrong = int(np.argmin(is_right))
            raise ValueError(f"its line {begin + wrong} has {name} {values[wrong]}")


def index_batches(folder: str, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields some columns of a split's row index without checking its checksum."""
    with open_parquet(f"{folder}/{split}/{INDEX_NAME}") as file:
        yield from file.iter_batches(columns=list(columns))


def parse_index(data: bytes) -> pa.Table:
    """Parses a rows.parquet; ValueError unless it is Parquet of INDEX_SCHEMA."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"it cannot be read: {one_line(error)}") from error
    _check_schema(table.schema)
    return table


def _check_schema(schema: pa.Schema) -> None:
    if not schema.equals(INDEX_SCHEMA):
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        wanted = ", ".join(f"{field.name} {field.type}" for field in INDEX_SCHEMA)
        raise ValueError(f"its columns are {columns}, not {wanted}")
