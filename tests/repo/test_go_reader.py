"""examples/go_reader, written from docs/format.md only, against Python on the same shards."""

import struct
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline import generate, main
from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.dataset.sorted_run import NARROW
from beam_pipeline.dataset.tfrecord import read_tfrecord
from beam_pipeline.storage.files import crc32c
from tests.support.engines import build
from tests.support.helpers import MAPPED_IPV4
from tests.support.probe_rows_on_disk import (
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    read_records,
    write_dataset,
    write_records,
)
from tests.support.repository import ROOT

SOURCE = ROOT / "examples" / "go_reader"
BLOCK_BYTES, BLOCK_HEADER_BYTES, CHUNK_HEADER_BYTES = 1 << 16, 24, 40
SUMMED = np.dtype([("time_us", "<i8"), ("hi", ">u8"), ("lo", ">u8"), ("rtt", "<f4")])


@pytest.fixture(scope="session")
def go_reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the program; Go keeps what it has compiled before."""
    binary = str(tmp_path_factory.mktemp("go") / "go_reader")
    flags = ("-buildvcs=false", "-mod=readonly", "-o", binary)
    build("The reader in Go", ["go"], "go", "build", "-C", str(SOURCE), *flags, ".")
    return binary


def run(go_reader: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([go_reader, *map(str, paths)], capture_output=True, text=True)


def lines_of(go_reader: str, *paths: Path) -> list[list[str]]:
    result = run(go_reader, *paths)
    assert result.returncode == 0, result.stderr
    return [line.split("\t") for line in result.stdout.splitlines()[1:]]


def records_of(path: Path) -> list[bytes]:
    if path.suffix == ".tfrecord":
        return [bytes(record) for record in read_tfrecord(str(path))]  # type: ignore[arg-type]
    return read_records(path)


def expected_line(path: Path, position: int, record: bytes) -> list[str]:
    row = decode_record(record)
    summed = np.zeros(len(row.run), SUMMED)
    summed["time_us"], summed["rtt"] = row.run["event_time"], row.run["rtt"]
    summed["lo"] = row.run["dst_lo"]
    if row.run.dtype == NARROW:
        summed["lo"] |= np.uint64(MAPPED_IPV4)
    else:
        summed["hi"] = row.run["dst_hi"]

    def text(time_us: int) -> str:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
        return f"{time:%Y-%m-%dT%H:%M:%S.%f}"

    return [
        *(path.name, str(position), row.src_addr, str(row.row_index), str(row.n_measurements)),
        *(text(row.first_timestamp_us), text(row.last_timestamp_us)),
        *(str(int((row.run["rtt"] < 0).sum())), f"{crc32c(summed.tobytes()):08x}"),
    ]


def expected_lines(paths: Sequence[Path]) -> list[list[str]]:
    return [
        expected_line(path, position, record)
        for path in paths
        for position, record in enumerate(records_of(path))
    ]


def offsets_of_blocks(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns how far before a block the chunk begins that it interrupts, and where it ends.

    The first block is omitted.
    """
    data = path.read_bytes()
    headers = [struct.unpack_from("<8xQQ", data, at) for at in range(0, len(data), BLOCK_BYTES)]
    before, behind = np.array(headers[1:]).T
    return before, behind


def rows_of_all_kinds() -> list[RowSpec]:
    """Rows of megabytes, of one family and of both, IPv6 probes, and thousands of small ones."""
    rows = [
        RowSpec("192.0.2.1", make_measurements(250_000, seed=1)),
        RowSpec("192.0.2.1", make_measurements(70_000, seed=2, ipv6_share=0.4), row_index=1),
        RowSpec("2001:db8:1::9", make_measurements(50_000, seed=3, ipv6_share=1.0)),
    ]
    rows += [
        RowSpec(
            (ipv6_probe if i % 5 == 0 else ipv4_probe)(i),
            make_measurements(1 + i % 97, seed=i, ipv6_share=(i % 3) / 2),
        )
        for i in range(1500)
    ]
    return rows


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoding, Path]:
    rows, folder = rows_of_all_kinds(), tmp_path_factory.mktemp("rows")
    return {
        encoding: write_dataset(
            folder / encoding, rows, encoding, 3, array_record_options="group_size:1,uncompressed"
        )
        for encoding in ENCODINGS
    }


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_readers_agree(
    encoding: Encoding, go_reader: str, datasets: dict[Encoding, Path]
) -> None:
    shards = sorted((datasets[encoding] / "train").glob("*.arrayrecord"))
    lines = lines_of(go_reader, *shards)
    assert lines == expected_lines(shards)
    assert len(shards) == 3 and len(lines) == 1503
    before, behind = offsets_of_blocks(max(shards, key=lambda path: path.stat().st_size))
    assert (before + behind).max() > 20 * BLOCK_BYTES, "no chunk goes over many blocks"


@pytest.mark.parametrize(
    "options",
    ["group_size:1,zstd:1", "group_size:7,zstd:3", "group_size:3,brotli:2", "group_size:2,snappy"],
)
def test_compression_and_groups(
    options: str, go_reader: str, tmp_path: Path, datasets: dict[Encoding, Path]
) -> None:
    source = min((datasets["compact"] / "train").glob("*.arrayrecord"))
    records = [*records_of(source)[:200], max(records_of(source), key=len)]
    path = write_records(tmp_path / "shard.arrayrecord", records, options)
    assert lines_of(go_reader, path) == expected_lines([path])
    padded = write_records(
        tmp_path / "padded.arrayrecord", records[:9], f"{options},pad_to_block_boundary:true"
    )
    assert lines_of(go_reader, padded) == expected_lines([padded])
    assert padded.stat().st_size >= 3 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("output_format", "record_encoding"),
    [("arrayrecord", "tf_example"), ("tfrecord", "arrow_ipc")],
)
def test_shards_of_the_job(
    output_format: str, record_encoding: str, go_reader: str, tmp_path: Path
) -> None:
    measurements = ["--num_measurements=20000", "--num_probes=9", "--ipv6_share=0.4"]
    assert generate.main([f"--output={tmp_path}/in", *measurements]) == 0
    flags = [f"--output_format={output_format}", f"--record_encoding={record_encoding}"]
    more = ["--num_shards=40", "--max_row_size_mb=0.05"]
    data = [f"--input={tmp_path}/in/*.parquet", f"--output={tmp_path}/rows"]
    assert main.main([*data, *flags, *more]) == 0
    shards = sorted((tmp_path / "rows").glob(f"*/*.{output_format}"))
    lines = lines_of(go_reader, *shards)
    assert lines == expected_lines(shards)
    assert sum(int(line[4]) for line in lines) == 20_000 and len(shards) == 80
    assert len({line[0] for line in lines}) < 80, "no shard is empty"
    assert max(int(line[3]) for line in lines) > 0


# --- errors ---------------------------------------------------------------------------------------


def test_damaged_shard(go_reader: str, tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(500, seed=i)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=1)
    records = records_of(min((dataset / "train").glob("*.arrayrecord")))
    whole = write_records(tmp_path / "whole", records, "group_size:1,uncompressed").read_bytes()
    first_chunk = BLOCK_HEADER_BYTES + CHUNK_HEADER_BYTES
    damaged = tmp_path / "damaged.arrayrecord"
    for at, words in (
        (first_chunk + 9, "header is damaged"),
        (first_chunk + CHUNK_HEADER_BYTES + 900, "data are damaged"),
        (len(whole) - BLOCK_BYTES + BLOCK_HEADER_BYTES + 1, "the last block"),
    ):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        result = run(go_reader, damaged)
        assert result.returncode == 1 and words in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1 and str(damaged) in result.stderr
