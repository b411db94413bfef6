"""Finished datasets of chosen rows, written in milliseconds: the pipeline's functions, no runner.

A test says `rows = [RowSpec("192.0.2.1", make_measurements(50, seed=1)), ...]` and
`write_dataset(folder, rows, "compact")`; what lies there then is what the pipeline would have
written (a test holds that). `restamp` makes a dataset finished again after its files were changed.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.layout import ENCODINGS, DatasetOptions, Encoding, RowFormat
from beam_pipeline.dataset.manifest import (
    FORMAT_VERSION,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    Counts,
    Manifest,
    write_success,
)
from beam_pipeline.dataset.row_codec import RowKey, fit
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.probe_rows.commit import describe_split, library_versions
from beam_pipeline.probe_rows.external_sort import as_array
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.packets import LINE_SCHEMA, ROW, Packet, PacketShards, PacketWriter
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.writing import ShardInfo, shard_path
from beam_pipeline.storage.files import checksum_text, file_digests
from tests.support.helpers import MAPPED_IPV4, YEAR_2024_US, records_as_tuples

OPTIONS = "group_size:1,zstd:1"


class RowSpec(NamedTuple):
    """One row to write: its probe, its measurements in order, and which of the probe's it is."""

    src_addr: str
    run: np.ndarray
    row_index: int = 0


def make_measurements(
    n: int, seed: int, ipv6_share: float = 0.0, mean_gap_s: int = 300, start_s: int = 0
) -> np.ndarray:
    """Returns a sorted run of n measurements, a tenth failed, each to another destination."""
    rng = np.random.default_rng([n, seed])
    run = np.zeros(n, WIDE if ipv6_share else NARROW)
    gaps_us = rng.integers(0, 2 * mean_gap_s * 1_000_000, n)
    run["event_time"] = YEAR_2024_US + start_s * 1_000_000 + np.cumsum(gaps_us)
    ipv4 = int(rng.integers(0, 2**31)) + rng.permutation(n).astype(np.uint64)
    run["dst_lo"] = ipv4
    if ipv6_share:
        run["dst_lo"] |= np.uint64(MAPPED_IPV4)
        is_ipv6 = rng.random(n) < ipv6_share
        run["dst_hi"][is_ipv6] = 0x2001_0DB8_0000_0000
        run["dst_lo"][is_ipv6] = ipv4[is_ipv6] << np.uint64(17)
    run["rtt"] = np.where(rng.random(n) < 0.1, -1, rng.lognormal(3.5, 1, n))
    sort_groups(run, np.array([0, n]))
    return run


def ipv4_probe(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def ipv6_probe(number: int) -> str:
    return f"2001:db8::{number + 1:x}"


def write_dataset(
    folder: Path,
    rows: Iterable[RowSpec],
    encoding: Encoding = "arrow",
    num_shards: int = 2,
    test_rows: Iterable[RowSpec] = (),
    array_record_options: str = OPTIONS,
) -> Path:
    """Writes a finished dataset of these rows, `rows` being its train split; returns its folder."""
    options = dataclasses.replace(
        options_of(RowFormat(encoding, 8 << 20)),
        num_shards=num_shards,
        array_record_options=array_record_options,
    )
    splits = {}
    for split, chosen in zip(SPLITS, (rows, test_rows), strict=True):
        (folder / split).mkdir(parents=True)
        shards = _write_split(folder, split, chosen, options)
        splits[split] = describe_split(str(folder), split, shards)
    total = sum(split.num_measurements for split in splits.values())
    counts = Counts(1, total, total, {})
    manifest = Manifest(FORMAT_VERSION, vars(options), library_versions(), counts, splits)
    write_success(str(folder), manifest.to_json())
    return folder


def _write_split(
    folder: Path, split: str, rows: Iterable[RowSpec], options: DatasetOptions
) -> list[ShardInfo]:
    packets = inline_packets(options)
    for row in rows:
        packets.add_row(row.src_addr, row.row_index, row.run)
    tables, shards, written = [], [], packets.close()
    for shard in range(options.num_shards):
        own, count = PacketShards(options.row_format, ""), options.num_shards
        content = own.content(written, shard, count, ClaimReader())
        name = shard_path(f"{split}_shard", "_SSSSS-of-NNNNN", ".arrayrecord", shard, count)
        path, records, lines = folder / split / name, [], []
        for batch in content.batches():
            records += batch.records
            lines.append(batch.lines)
        write_records(path, records, options.array_record_options)
        numbers = {
            "shard": pa.array([shard] * len(records), pa.int32()),
            "position": pa.array(range(len(records)), pa.int64()),
            "num_bytes": pa.array(map(len, records), pa.int64()),
        }
        table = pa.Table.from_batches(lines, LINE_SCHEMA)
        tables.append(pa.table({**numbers, **{c: table[c] for c in table.column_names}}))
        shards.append(ShardInfo(str(path), shard, count, len(records), *file_digests(str(path))))
    pq.write_table(pa.concat_tables(tables), folder / split / INDEX_NAME)
    return shards


def options_of(row_format: RowFormat, drop: bool = False) -> DatasetOptions:
    """Returns the options of a dataset with such rows."""
    return DatasetOptions(
        measurement_encoding=row_format.encoding,
        max_row_size_mb=row_format.max_row_bytes / (1 << 20),
        train_ratio=0.9,
        split_seed=0,
        probes_per_shard=0,
        num_shards=0,
        array_record_options=OPTIONS,
        duplicates="drop" if drop else "keep",
        record_encoding=row_format.record_encoding,
    )


def inline_packets(options: DatasetOptions) -> PacketWriter:
    """Returns a writer of packets that need no files."""
    return PacketWriter(Workspace("", 1 << 40), options)


def rows_in(packets: Iterable[Packet], root: str = "") -> list[tuple[RowKey, np.ndarray]]:
    """Returns the rows of packets, one by one, with their measurements."""
    rows, reader = [], ClaimReader(root)
    for packet in packets:
        table, run = np.frombuffer(reader.read(packet.rows), ROW), reader.read(packet.run)
        runs = np.split(as_array(packet.is_wide, run), np.cumsum(table["count"]))
        assert len(table) == packet.num_rows and not len(runs[-1])
        texts = format_any(table["src_hi"].copy(), table["src_lo"].copy()).to_pylist()
        keys = map(RowKey, texts, table["row_index"].tolist())
        rows += zip(keys, runs[:-1], strict=True)
    reader.close()
    return rows


def write_records(path: Path, records: Iterable[bytes], options: str = OPTIONS) -> Path:
    """Writes an ArrayRecord file without Beam; returns its path."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def read_records(path: Path | str) -> list[bytes]:
    """Returns the records of an ArrayRecord file."""
    reader = ArrayRecordReader(str(path))
    records = [bytes(record) for record in reader.read_all()] if reader.num_records() else []
    reader.close()
    return records


def shard_paths(dataset: Path, split: str = "train") -> list[Path]:
    """Returns the shards of a split, by number."""
    return sorted((dataset / split).glob("*.arrayrecord"))


def restamp(dataset: Path) -> None:
    """Rewrites sizes and checksums in the manifest, and `_SUCCESS`, after files were changed."""
    manifest = Manifest.from_json((dataset / MANIFEST_NAME).read_bytes())
    splits = {}
    for name, split in manifest.splits.items():
        shards = []
        for shard in split.shards:
            shards.append(dataclasses.replace(shard, **_fields_of(dataset / shard.path)))
        index = _fields_of(dataset / name / INDEX_NAME)
        changes = {f"index_{name}": index[name] for name in ("crc32c", "sha256")}
        changes["num_bytes"] = sum(shard.num_bytes for shard in shards)
        splits[name] = dataclasses.replace(split, shards=shards, **changes)
    write_success(str(dataset), dataclasses.replace(manifest, splits=splits).to_json())


def _fields_of(path: Path) -> dict[str, Any]:
    """Returns what a manifest says of the bytes of a file."""
    digests = file_digests(str(path))
    return {**digests._asdict(), "crc32c": checksum_text(digests.crc32c)}


def damage_record(dataset: Path, shard: int, position: int, at: int, new: bytes) -> None:
    """Rewrites a shard with some bytes of one record changed; the dataset stays finished."""
    path = shard_paths(dataset)[shard]
    records = read_records(path)
    record = records[position]
    records[position] = record[:at] + new + record[at + len(new) :]
    write_records(path, records)
    restamp(dataset)


# --- the rows that most tests use -----------------------------------------------------------------

CROP = 256


def mixed_rows() -> list[RowSpec]:
    """Rows for crops of CROP tokens: small and large, both families, some probes of many rows.

    30 small IPv4 and 10 small IPv6 rows of 1 to 15 measurements, 12 large ones of 25 to 700 and
    a probe of three rows, the last of which is small.
    """
    rng = np.random.default_rng(0)
    rows = [
        RowSpec(ipv4_probe(i), make_measurements(int(n), i))
        for i, n in enumerate(rng.integers(1, 16, 30))
    ]
    rows += [
        RowSpec(ipv6_probe(i), make_measurements(int(n), 100 + i, ipv6_share=0.5))
        for i, n in enumerate(rng.integers(1, 6, 10))
    ]
    for i, n in enumerate([25, 31, 40, 60, 61, 90, 150, 200, 333, 480, 481, 700]):
        probe = ipv6_probe(1000 + i) if i % 3 == 0 else ipv4_probe(1000 + i)
        rows.append(RowSpec(probe, make_measurements(n, 200 + i, ipv6_share=0.4 * (i % 2))))
    rows += [
        RowSpec("192.0.2.77", make_measurements(n, 300 + i, start_s=i * 10**6), i)
        for i, n in enumerate([100, 100, 7])
    ]
    return rows


type Mixed = dict[Encoding, Path]  # the folder of each encoding's dataset


def write_mixed(folder: Path) -> Mixed:
    """Writes `mixed_rows` in three shards, in both encodings, with one row in the test split."""
    test_rows = [RowSpec("9.9.9.9", make_measurements(40, 9))]
    return {
        encoding: write_dataset(folder / encoding, mixed_rows(), encoding, 3, test_rows)
        for encoding in ENCODINGS
    }


# --- what a row must give -------------------------------------------------------------------------


def untimed_tokens(row: RowSpec) -> int:
    """Counts the tokens of a row without timestamps."""
    wide_src = ":" in row.src_addr
    is_ipv6 = np.array(
        [destination >> 32 != 0xFFFF for _, destination, _ in records_as_tuples(row.run)]
    )
    failed = row.run["rtt"] < 0
    each = 1 + (17 if wide_src else 5) + np.where(is_ipv6, 17, 5) + np.where(failed, 1, 3)
    return int(each.sum())


def num_contexts(row: RowSpec) -> int:
    """Returns how many contexts a row gives an epoch."""
    return max(1, min(-(-len(row.run) // 30), 16))


def spoil_records(dataset: Path, bad: set[tuple[int, int]]) -> None:
    """Makes records unreadable, keeping their sizes; the dataset stays finished."""
    for shard, path in enumerate(shard_paths(dataset)):
        records = read_records(path)
        for position, record in enumerate(records):
            if (shard, position) in bad:
                records[position] = b"\xff" * len(record)
        write_records(path, records)
    restamp(dataset)


def plain_cut(
    run: np.ndarray, encoding, max_row_bytes: int, src_addr: str = "192.0.2.1"
) -> list[tuple[RowKey, np.ndarray]]:
    """The answer: the whole history in memory, each row as long as can be."""
    rows: list[tuple[RowKey, np.ndarray]] = []
    while len(run):
        key = RowKey(src_addr, len(rows))
        count = fit(run, key, RowFormat(encoding, max_row_bytes)).count
        rows.append((key, run[:count]))
        run = run[count:]
    return rows
