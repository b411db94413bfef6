"""Inputs of all formats for the conversion, and readers of what it writes."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.documents import files
from beam_pipeline.shards import staging
from tests.support.probe_rows_on_disk import read_records


def write_sources(folder: Path) -> list[bytes]:
    """Writes files of each format and returns the records that a conversion to bytes makes."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"id": n, "text": "word " * (n % 40)}).encode() for n in range(900)]
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:600]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"\n\n".join(lines[600:]) + b"\n"))
    payloads = [b"row %d" % n for n in range(300)]
    table = pa.table({"payload": pa.array(payloads, pa.binary())})
    pq.write_table(table, folder / "c.parquet", row_group_size=70)
    records = [b"record %d" % n * (n % 9) for n in range(200)]
    write_tfrecord(folder / "d.tfrecord", records)
    plain = (folder / "d.tfrecord").read_bytes()
    (folder / "e.tfrecord.gz").write_bytes(gzip.compress(plain))
    return [*lines, *payloads, *records, *records]


def write_tfrecord(path: Path, records: list[bytes]) -> None:
    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()


def flags_of(source: Path | str, output: Path | str, *more: str) -> list[str]:
    """Returns the flags for `write_sources`."""
    return [f"--input={source}", f"--output={output}", "--record=bytes", "--num_shards=3", *more]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few KB become several work units and blocks."""
    monkeypatch.setattr(files, "WORK_UNIT_BYTES", 5000)
    monkeypatch.setattr(staging, "BLOCK_BYTES", 2000)


def records_of(output: Path) -> list[bytes]:
    """Returns all records by ArrayRecord's own reader, shard after shard."""
    return [
        record for path in sorted(output.glob("*.array_record")) for record in read_records(path)
    ]
