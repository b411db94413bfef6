"""Datasets to damage, whose checksums and counts hide the damage."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.croissant import croissant
from beam_pipeline.dataset.data_card import Totals, data_card
from beam_pipeline.dataset.layout import place_of, shard_of_row
from beam_pipeline.dataset.manifest import SPLITS, Manifest, Split, write_success
from beam_pipeline.dataset.row_codec import decode_record, is_ipv6
from beam_pipeline.main import main
from beam_pipeline.probe_rows.commit import describe_split
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage.files import file_digests
from beam_pipeline.verify import __main__ as verify
from tests.support.helpers import ipc_stream, measurements_table
from tests.support.probe_rows_on_disk import read_records, restamp, write_records

NUM_SHARDS = 3
NUM_MEASUREMENTS, NUM_DEAD_LETTERS = 6000 + 1500, 12
TIED = "192.0.2.77"  # all of this probe's measurements have one time
Where = tuple[str, int | None]


def make_dataset_with_tied_probe(folder: Path, encoding: str) -> Path:
    tied = pa.table(
        {
            "event_time": pa.array([1_700_000_000_000_000] * 1500, pa.timestamp("us")),
            "src_addr": [TIED] * 1500,
            "dst_addr": [f"198.51.{i // 250}.{i % 250}" for i in range(1500)],
            "ip_version": pa.array([4] * 1500, pa.int8()),
            "rtt": pa.array(np.arange(1500) / 7 + 1, pa.float32()),
        }
    )
    bad = measurements_table(NUM_DEAD_LETTERS, seed=2)
    bad = bad.set_column(4, "rtt", pa.array([None] * 7 + [np.inf] * 5, pa.float32()))
    table = pa.concat_tables([measurements_table(6000, seed=1, num_probes=14), tied, bad])
    pq.write_table(table, folder / "in.parquet")
    flags = ["--max_row_size_mb=0.02", f"--num_shards={NUM_SHARDS}", "--train_ratio=0.6"]
    output = folder / encoding
    flags += [f"--input={folder}/in.parquet", f"--output={output}"]
    assert main([*flags, f"--measurement_encoding={encoding}"]) == 0
    return output


@pytest.fixture(scope="session")
def arrow_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset_with_tied_probe(tmp_path_factory.mktemp("verify"), "arrow")


@pytest.fixture(scope="session")
def compact_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset_with_tied_probe(tmp_path_factory.mktemp("verify"), "compact")


def checksum_of(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def commit(folder: Path, manifest: bytes) -> None:
    write_success(str(folder), manifest)
    describe_anew(folder)


def describe_anew(folder: Path) -> None:
    """Makes README.md and croissant.json say what the manifest says."""
    data = (folder / "manifest.json").read_bytes()
    try:
        manifest = Manifest.from_json(data)
    except ValueError:
        return
    totals: dict[str, Totals] = dict.fromkeys(SPLITS, Totals())
    (folder / "README.md").write_text(data_card(manifest, totals, "python"))
    (folder / "croissant.json").write_bytes(croissant(manifest, totals, data))


def one_batch(stream: bytes) -> pa.RecordBatch:
    return next(iter(pa.ipc.open_stream(stream)))


def edit(
    record: bytes, change: Callable[[dict[str, list]], Any] | None = None, **columns: Any
) -> bytes:
    """Returns a record with other columns; `change` edits the measurements of an arrow row."""
    values = one_batch(record).to_pylist()[0] | columns
    if change:
        lists = one_batch(values["measurements"]).to_pydict()
        change(lists)
        batch = pa.RecordBatch.from_pydict(lists, schema=row_codec.MEASUREMENT_SCHEMA)
        values["measurements"] = ipc_stream(batch)
    return ipc_stream(pa.RecordBatch.from_pylist([values], schema=row_codec.RECORD_SCHEMA))


class DamagedDataset:
    """A dataset to be damaged."""

    suffix = ".arrayrecord"

    def __init__(self, folder: Path):
        self.folder = folder
        self.shards = [
            f"{s}/{s}_shard_{n:05d}-of-00003{self.suffix}" for s in SPLITS for n in range(3)
        ]

    def read(self, shard: str) -> list[bytes]:
        return read_records(self.folder / shard)

    def write(self, shard: str, records: list[bytes]) -> None:
        write_records(self.folder / shard, records)

    def find(self, record: bytes) -> Where:
        """Returns where a record is now."""
        for shard in self.shards:
            if record in (records := self.read(shard)):
                return shard, records.index(record)
        raise AssertionError("no such record")

    def replace(self, old: bytes, *new: bytes, index: bool = True) -> Where:
        """Puts others in the place of a record, as if they had been written there."""
        shard, at = self.find(old)
        assert at is not None
        records = self.read(shard)
        self.write(shard, [*records[:at], *new, *records[at + 1 :]])
        self.stamp(index)
        return shard, at

    def place(self, record: bytes, split: str) -> Where:
        """Adds a record to a split, in the shard and at the place that its key says."""
        row = decode_record(record)
        number = shard_of_row(row.src_addr, row.row_index, NUM_SHARDS)
        shard = self.shards[SPLITS.index(split) * 3 + number]
        self.write(shard, sorted([*self.read(shard), record], key=order))
        self.stamp()
        return self.find(record)

    def rows(self, src_addr: str) -> list[bytes]:
        found = [
            r for s in self.shards for r in self.read(s) if decode_record(r).src_addr == src_addr
        ]
        return sorted(found, key=lambda record: decode_record(record).row_index)

    def single(self) -> bytes:
        """Returns the only row of a probe in train, of 20 measurements and more."""
        for record in (record for shard in self.shards[:3] for record in self.read(shard)):
            row = decode_record(record)
            if row.n_measurements >= 20 and len(self.rows(row.src_addr)) == 1:
                return record
        raise AssertionError("no such record")

    def hot(self) -> list[bytes]:
        """Returns the rows of the probe with most rows, most of which differ in time."""
        names = {decode_record(r).src_addr for s in self.shards for r in self.read(s)} - {TIED}
        return max((self.rows(name) for name in names), key=len)

    def manifest(self, change: Callable[[dict], Any]) -> Where:
        """Changes the manifest and commits it."""
        values = json.loads((self.folder / "manifest.json").read_bytes())
        change(values)
        commit(self.folder, json.dumps(values).encode())
        return "manifest.json", None

    def stamp(self, index: bool = True) -> None:
        """Makes manifest and rows.parquet describe the files as they are.

        Without `index` the counts and rows.parquet stay: for records that cannot be read.
        """
        if index:
            manifest = Manifest.from_json((self.folder / "manifest.json").read_bytes())
            splits = {name: self._described(name) for name in SPLITS}
            total = {
                column: sum(getattr(split, column) for split in splits.values())
                for column in ("num_probes", "num_records", "num_measurements")
            }
            measurements = total.pop("num_measurements")
            num_rows = measurements + sum(manifest.counts.dead_letters.values())
            counts = replace(manifest.counts, measurements=measurements, rows_read=num_rows)
            (generation,) = manifest.generations
            generations = [replace(generation, counts=counts, **total)]
            changed = replace(manifest, splits=splits, counts=counts, generations=generations)
            write_success(str(self.folder), changed.to_json())
        else:
            restamp(self.folder)
        describe_anew(self.folder)

    def _described(self, split: str) -> Split:
        """Writes a split's rows.parquet and returns its part of the manifest."""
        lines, infos = [], []
        for shard in (shard for shard in self.shards if shard.startswith(f"{split}/")):
            records, path = self.read(shard), str(self.folder / shard)
            lines += [line(len(infos), *item) for item in enumerate(records)]
            number, count = len(infos), len(records)
            infos.append(ShardInfo(path, number, NUM_SHARDS, count, *file_digests(path)))
        path = self.folder / split / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(lines, schema=pq.read_schema(path)), path)
        return describe_split(str(self.folder), split, infos)


def order(record: bytes) -> tuple[int, int, int]:
    row = decode_record(record)
    return place_of(row.src_addr, row.row_index), row.src_id, row.row_index


def line(shard: int, position: int, record: bytes) -> dict[str, Any]:
    row = decode_record(record)
    return {
        "shard": shard,
        "position": position,
        "num_bytes": len(record),
        "src_id": row.src_id,
        "src_addr": row.src_addr,
        "row_index": row.row_index,
        "n_measurements": len(row.run),
        "num_ipv6": int(np.count_nonzero(is_ipv6(row.run))),
        "num_failed": int(np.count_nonzero(row.run["rtt"] < 0)),
        "first_timestamp": row.first_timestamp_us,
        "last_timestamp": row.last_timestamp_us,
    }


@pytest.fixture
def copy(arrow_dataset: Path, tmp_path: Path) -> DamagedDataset:
    return DamagedDataset(Path(shutil.copytree(arrow_dataset, tmp_path / "dataset")))


@pytest.fixture
def compact_copy(compact_dataset: Path, tmp_path: Path) -> DamagedDataset:
    return DamagedDataset(Path(shutil.copytree(compact_dataset, tmp_path / "dataset")))


def found_by(
    capsys: pytest.CaptureFixture[str], folder: Path, *flags: str
) -> dict[str, list[Where]]:
    """Returns where each failed check found faults, as the command printed it."""
    capsys.readouterr()
    assert verify.main([str(folder), *flags]) == 1
    found: dict[str, list[Where]] = {}
    for text in capsys.readouterr().out.splitlines():
        fault = re.match(r"(\w+): ([\w./-]+)(?: record (\d+))?: ", text)
        if fault:
            place = fault[2], None if fault[3] is None else int(fault[3])
            found.setdefault(fault[1], []).append(place)
    return found
