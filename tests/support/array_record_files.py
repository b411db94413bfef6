"""ArrayRecord files for tests: what is written, with Beam or without, and what files hold."""

from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline.array_record_io import (
    ReadFromArrayRecord,
    WriteToArrayRecord,
)
from beam_pipeline.errors import user_message
from beam_pipeline.shards.writing import (
    ShardInfo,
)
from tests.support.helpers import eager

WORDS = [f"word {number}".encode() * (1 + 13 * number % 400) for number in range(120)]
EMPTY = [b"", b"", b"\0"]


def shuffled(elements: list, seed: int) -> list:
    return [elements[i] for i in np.random.default_rng(seed).permutation(len(elements))]


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def records_of(path: Path | str) -> list[bytes]:
    reader = ArrayRecordReader(str(path))
    assert reader.ok()
    records = reader.read_all() if reader.num_records() else []
    reader.close()
    return records


def write_file(path: Path, records: list[bytes], options: str = "group_size:1,zstd:1") -> Path:
    """Writes a file without Beam, for tests that read."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write(elements: list, prefix: Path | str, **options) -> list[ShardInfo]:
    infos = eager(elements, WriteToArrayRecord(str(prefix), **options))
    return sorted(infos, key=lambda info: info.shard)


def line_of_failed_read(path: Path | str) -> str:
    """Returns the line that a user sees of a read that must fail."""
    with pytest.raises(Exception) as failure:  # runners wrap what workers raise
        eager(None, ReadFromArrayRecord(str(path)))
    line = user_message(failure.value)
    assert line is not None, failure.value
    return line
