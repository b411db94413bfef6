"""A key, addresses replaced with it, and a folder with input to anonymise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources.anonymize import Anonymizer
from beam_pipeline.sources.anonymize_key import KEY_VARIABLE
from tests.support.helpers import as_number, canonical

KEY = bytes(range(7, 39))
HALF = 0xFFFF_FFFF_FFFF_FFFF


def replaced(numbers: Sequence[int], anonymizer: Anonymizer) -> list[int]:
    """Returns what becomes of 128-bit addresses, IPv4 as ::ffff:a.b.c.d."""
    hi = np.array([number >> 64 for number in numbers], np.uint64)
    lo = np.array([number & HALF for number in numbers], np.uint64)
    new = anonymizer.addresses(hi, lo)
    return [high << 64 | low for high, low in zip(*(half.tolist() for half in new), strict=True)]


def replaced_text(address: str, key: bytes) -> str:
    (number,) = replaced([as_number(address)], Anonymizer(key))
    return canonical(number)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of input and a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    pq.write_table(one_row(), tmp_path / "in.parquet")
    (tmp_path / "key").write_bytes(KEY)
    return tmp_path


def one_row() -> pa.Table:
    return pa.table(
        {
            "event_time": pa.array([1_700_000_000], pa.timestamp("s")),
            "src_addr": ["192.0.2.9"],
            "dst_addr": ["198.51.100.7"],
            "ip_version": pa.array([4], pa.int8()),
            "rtt": [3.5],
        }
    )
