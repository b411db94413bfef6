"""Records of uncompressed shards, found and checked in place, against ArrayRecord's own reader."""

from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from tests.conftest import Gcs
from tests.support.batches import host_batches, is_same
from tests.support.codec_rows import both_encodings
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    read_records,
    restamp,
    shard_paths,
    write_dataset,
    write_records,
)
from training.raw_shards.blocks import BLOCK_BYTES, is_intact, record_offsets
from training.rows.row_table import find_shards, load_rows
from training.rows.shard_reader import ShardReader

PLAIN = "group_size:1,uncompressed"


def file_of(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), np.uint8)[np.newaxis]


def without_headers(file: np.ndarray) -> np.ndarray:
    return file.reshape(-1, BLOCK_BYTES)[:, 24:].reshape(-1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A file of records that end around the ends of blocks and of packets of the hash."""
    path = tmp_path_factory.mktemp("blocks") / "x.arrayrecord"
    rng = np.random.default_rng(0)
    sizes = [*range(1, 140), *range(65_380, 65_480), 127, 128, 16_383, 16_384, 3_000_000, 1]
    records = [rng.bytes(size) for size in sizes]
    write_records(path, records, PLAIN)
    return path, records


def test_records_lie_where_their_sizes_say(written: tuple[Path, list[bytes]]) -> None:
    path, records = written
    sizes = np.array([len(record) for record in records])
    offsets = record_offsets(sizes)
    content = without_headers(file_of(path))
    for offset, record in zip(offsets, records, strict=True):
        assert content[offset : offset + len(record)].tobytes() == record


def test_what_was_written_is_intact_and_nothing_else(written: tuple[Path, list[bytes]]) -> None:
    path, records = written
    sizes = np.array([len(record) for record in records])
    offsets = record_offsets(sizes)
    file = file_of(path)
    assert all(map(is_intact, [file] * len(sizes), offsets.tolist(), sizes.tolist()))
    places = np.flatnonzero(np.arange(file.size) % BLOCK_BYTES >= 24)
    rng = np.random.default_rng(1)
    for number in rng.permutation(len(sizes))[:60].tolist():
        offset, size = int(offsets[number]), int(sizes[number])
        for wrong in ((offset + 1, size), (offset, size + 1), (offset, size - 1), (offset, 2**40)):
            assert not is_intact(file, *wrong)
        changed = file.copy()
        changed[0, places[offset + rng.integers(size)]] ^= 1 << rng.integers(8)
        changed.flags.writeable = False
        assert not is_intact(changed, offset, size)


@pytest.mark.parametrize("options", ["group_size:1,zstd:1", "group_size:2,uncompressed"])
def test_records_in_another_form_are_left_to_array_record(tmp_path: Path, options: str) -> None:
    records = [bytes(1000)] * 4
    write_records(tmp_path / "x", records, options)
    offsets = record_offsets(np.full(4, 1000))
    file = file_of(tmp_path / "x")
    assert not any(is_intact(file, int(offset), 1000) for offset in offsets)


def rows_of_all_sizes() -> list[RowSpec]:
    """Small rows, rows that are read whole, and rows that are used in place."""
    return [
        RowSpec(
            ipv6_probe(i) if i % 3 == 0 else ipv4_probe(i),
            make_measurements(n, i, ipv6_share=share),
        )
        for i, (n, share) in enumerate(
            (n, share) for n in (9, 300, 9_000, 60_000) for share in (0.0, 0.3, 1.0)
        )
    ]


type Sizes = dict[tuple[str, str], Path]  # by encoding and compression


@pytest.fixture(scope="module")
def sizes(folder: Path) -> Sizes:
    """`rows_of_all_sizes` in both encodings, as they are and compressed."""
    return {
        (encoding, name): write_dataset(
            folder / f"{encoding}-{name}", rows_of_all_sizes(), encoding, 2, (), options
        )
        for encoding in ("arrow", "compact")
        for name, options in (("plain", PLAIN), ("zstd", "group_size:1,zstd:1"))
    }


@pytest.mark.slow
@both_encodings
def test_compressed_shards(sizes: Sizes, encoding: Encoding) -> None:
    config = {"batch_size": 4, "crop_size": 512, "on_bad_row": "skip"}
    compressed = host_batches(sizes[encoding, "zstd"], 90, **config)
    assert is_same(host_batches(sizes[encoding, "plain"], 90, **config), compressed)


@both_encodings
def test_large_rows_are_used_in_place(sizes: Sizes, encoding: Encoding) -> None:
    shards = find_shards(str(sizes[encoding, "plain"]))
    rows = load_rows(shards)
    reader = ShardReader(shards, rows)
    gathered = reader.gather(np.arange(len(rows)))
    assert (rows.num_bytes[gathered.held] <= 1 << 16).all() and len(gathered.held) == 6
    for row in range(len(rows)):
        in_place, read = reader.locate_in_place(row), reader.locate(row)
        assert (in_place.src_id, in_place.row_index) == (read.src_id, read.row_index)
        assert in_place.columns.raw.ndim == (2 if rows.n_measurements[row] == 60_000 else 1)


def test_large_rows_on_gs(sizes: Sizes, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(sizes["compact", "plain"], f"{bucket}/rows")
    config = {"batch_size": 4, "crop_size": 512}
    local = host_batches(sizes["compact", "plain"], 40, **config)
    assert is_same(host_batches(f"{bucket}/rows", 40, **config), local)
    shards = find_shards(f"{bucket}/rows")
    reader = ShardReader(shards, load_rows(shards))
    for row in np.flatnonzero(reader.rows.n_measurements == 60_000).tolist():
        raw = reader.locate_in_place(row).columns.raw
        assert raw.ndim == 2 and raw.size - reader.rows.num_bytes[row] < 2 * BLOCK_BYTES


@pytest.mark.parametrize(("n", "encoding"), [(9, "arrow"), (300, "compact"), (60_000, "compact")])
def test_flipped_bit_in_a_row(tmp_path: Path, n: int, encoding: Encoding) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows, encoding, 1, (), PLAIN)
    table = load_rows(find_shards(str(dataset)))
    (path,) = shard_paths(dataset)
    data = bytearray(path.read_bytes())
    places = np.flatnonzero(np.arange(len(data)) % BLOCK_BYTES >= 24)
    data[places[int(record_offsets(table.num_bytes)[2] + table.num_bytes[2] * 3 // 4)]] ^= 4
    path.write_bytes(data)
    config = {"batch_size": 2, "crop_size": 256}
    for feed in ({}, {"num_threads": 2}):
        line = refusal_of(lambda: host_batches(dataset, 200, **config, **feed), "on_bad_row=skip")  # noqa: B023
        assert line.startswith(f"{path} record 2: ")


def test_a_shard_that_was_compressed_again_is_read(tmp_path: Path) -> None:
    """The manifest still says that it is not compressed; the offsets lie beyond its end."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(60_000, i)) for i in range(6)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1, (), PLAIN)
    expected = host_batches(dataset, 20, batch_size=2)
    (path,) = shard_paths(dataset)
    write_records(path, read_records(path))
    restamp(dataset)
    assert is_same(host_batches(dataset, 20, batch_size=2), expected)
