"""Single records of a dataset by their line in rows.parquet, from ArrayRecord or TFRecord shards.

ArrayRecord has an index of its own. In a TFRecord shard a record is found by the sizes of those
before it, which rows.parquet tells. What was read is held against rows.parquet.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset.manifest import Dataset
from beam_pipeline.dataset.row_codec import ProbeRow, decode_record
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.inspect.index import Index
from beam_pipeline.storage import gcs
from beam_pipeline.storage.small_files import prepare_native_reader

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READ_ERRORS = (RuntimeError, ValueError, IndexError, OSError, struct.error)
_TFRECORD_LENGTH = struct.Struct("<Q")
_TFRECORD_HEAD_BYTES, _TFRECORD_FRAMING_BYTES = 12, 16
_RANGE_BYTES = 64 << 10


class Records:
    """The records of a split; threads may share it."""

    def __init__(self, dataset: Dataset, split: str, index: Index):
        self._dataset = dataset
        self._shards = dataset.manifest.splits[split].shards
        self._index = index
        output_format = dataset.manifest.options.get("output_format", "arrayrecord")
        self._read = _read_tfrecord if output_format == "tfrecord" else _read_array_record

    def row(self, line: int) -> ProbeRow:
        """Returns the row of a line; ProbelineError as `of_one_shard`."""
        return next(self.of_one_shard([line]))

    def of_one_shard(self, lines: Sequence[int]) -> Iterator[ProbeRow]:
        """Yields the rows of some lines that are in the same shard.

        Raises:
          ProbelineError: one cannot be read, or is another than rows.parquet says.
        """
        shard = int(self._index.shard[lines[0]])
        path = self._dataset.file(self._shards[shard].path)
        prepare_native_reader(path)
        records = self._read(path, self._index, lines)
        for line in lines:
            try:
                row = decode_record(next(records))
                _ = row.run  # decoded here, so that damage is told of here
            except _READ_ERRORS as error:
                raise self._bad(path, line, one_line(error)) from error
            found = (row.src_id, row.row_index, row.n_measurements)
            index = self._index
            said = (index.src_id[line], index.row_index[line], index.n_measurements[line])
            if found != tuple(map(int, said)):
                reason = f"it holds (src_id, row_index, n_measurements) {found}, rows.parquet says"
                raise self._bad(path, line, f"{reason} {tuple(map(int, said))}")
            yield row

    def _bad(self, path: str, line: int, reason: str) -> ProbelineError:
        return ProbelineError(
            f"{path} record {self._index.position[line]} cannot be used: {reason}; "
            f"python -m beam_pipeline.verify {self._dataset.path} tells what else is damaged"
        )


def _read_array_record(path: str, index: Index, lines: Sequence[int]) -> Iterator[bytes]:
    reader = ArrayRecordReader(path, _READER_OPTIONS)
    try:
        for line in lines:
            reader.seek(int(index.position[line]))
            yield reader.read()
    finally:
        reader.close()


def _read_tfrecord(path: str, index: Index, lines: Sequence[int]) -> Iterator[bytes]:
    in_shard = np.flatnonzero(index.shard == index.shard[lines[0]])
    sizes = index.num_bytes[in_shard] + _TFRECORD_FRAMING_BYTES
    begins = dict(zip(in_shard.tolist(), (np.cumsum(sizes) - sizes).tolist(), strict=True))
    with _open(path) as file:
        for line in lines:
            file.seek(begins[line])
            (length,) = _TFRECORD_LENGTH.unpack(file.read(_TFRECORD_HEAD_BYTES)[:8])
            if length != index.num_bytes[line]:
                raise ValueError(
                    f"it has {length} bytes, rows.parquet says {index.num_bytes[line]}"
                )
            yield file.read(length)


def _open(path: str) -> BinaryIO:
    if "://" in path:
        return cast(BinaryIO, gcs.open_object(path, _RANGE_BYTES))
    return open(path, "rb")
