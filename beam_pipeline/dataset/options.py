"""The options that shape the bytes of a dataset, and their values.

They are the flags of the job that writes it and lines of its manifest. Nothing heavy is imported
here, so that a command line is parsed before NumPy and Arrow are loaded.
"""

from dataclasses import dataclass
from typing import Literal

Encoding = Literal["arrow", "compact"]
ENCODINGS: tuple[Encoding, ...] = ("arrow", "compact")
RecordEncoding = Literal["arrow_ipc", "tf_example"]
RECORD_ENCODINGS: tuple[RecordEncoding, ...] = ("arrow_ipc", "tf_example")
OutputFormat = Literal["arrayrecord", "tfrecord"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = ("arrayrecord", "tfrecord")
Duplicates = Literal["keep", "drop"]
DUPLICATES: tuple[Duplicates, ...] = ("keep", "drop")


@dataclass(frozen=True)
class RowFormat:
    """How rows are encoded, and the largest size of a record."""

    encoding: Encoding
    max_row_bytes: int
    record_encoding: RecordEncoding = "arrow_ipc"


@dataclass(frozen=True)
class DatasetOptions:
    """The options that shape the bytes of a dataset, named as their flags.

    Those with a default are missing from manifests that are older than the flag.
    """

    measurement_encoding: Encoding
    max_row_size_mb: float
    train_ratio: float
    split_seed: int
    probes_per_shard: int
    num_shards: int
    array_record_options: str
    output_format: OutputFormat = "arrayrecord"
    record_encoding: RecordEncoding = "arrow_ipc"
    duplicates: Duplicates = "keep"

    @property
    def row_format(self) -> RowFormat:
        """The encodings and the largest size of a row."""
        max_row_bytes = int(self.max_row_size_mb * (1 << 20))
        return RowFormat(self.measurement_encoding, max_row_bytes, self.record_encoding)

    @property
    def shard_suffix(self) -> str:
        """What the name of every shard ends with."""
        return f".{self.output_format}"
