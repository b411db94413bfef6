"""The rows of a finished dataset by number: `open_dataset("rows").rows("train")[0]`."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex, overload

from beam_pipeline.dataset.manifest import Dataset
from beam_pipeline.dataset.row_codec import ProbeRow
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.row_reader import RowReader, verify_cure


class Rows(Sequence[ProbeRow]):
    """The rows of a split, in the order of its row index; row i is line i of `rows.parquet`.

    A row is read and decoded when it is accessed, local or on `gs://`. Threads may share an
    instance, and it can be pickled.

    Args:
      dataset: the dataset, see `open_dataset`.
      split: "train" or "test".

    Attributes:
      lines: the columns of the row index, NumPy arrays [rows]; times are int64 µs since 1970 UTC.

    Raises:
      ProbelineError: the row index is missing or is not that of the manifest. Accessing a row
        raises it for a row that is damaged.

    Example:

        rows = open_dataset("rows").rows("train")
        longest = rows[int(rows.lines.n_measurements.argmax())]
        longest.src_addr, longest.n_measurements, longest.to_arrow()
    """

    def __init__(self, dataset: Dataset, split: str):
        self.lines = RowIndex.read(dataset, split)
        self._reader = RowReader(dataset, split, self.lines, verify_cure(dataset))

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: SupportsIndex) -> ProbeRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[ProbeRow]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> ProbeRow | list[ProbeRow]:
        if isinstance(index, slice):
            return [self._reader.decode(row) for row in range(*index.indices(len(self)))]
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._reader.decode(row % len(self))
