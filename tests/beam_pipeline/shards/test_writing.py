"""The records of a shard: their order, the batches in which they are read, and the memory."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.tfrecord import TFRecordWriter, read_tfrecord
from beam_pipeline.errors import ProbelineError
from beam_pipeline.shards import staging
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import (
    Record,
    ShardRecords,
    StagedPayloads,
    StagedRecords,
    StagedShards,
    StageRecords,
)
from beam_pipeline.shards.writing import (
    AssignToShards,
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WriteShard,
    WrittenShard,
)
from beam_pipeline.storage.files import crc32c
from tests.support.helpers import NOW, quick_and_slow, run_do_fn

SCHEMA = pa.schema([("start", pa.binary())])
ORDERED = StagedShards(ordered=True)
EMPTY = StagedRecords("", b"")  # what every shard has
Pair = tuple[bytes, bytes]  # key and payload


def stage(folder: Path, bundles: list[list[Pair]], inline_bytes: int = 20) -> list[StagedRecords]:
    """Stages keys and payloads."""
    staged = []
    for pairs in bundles:
        do_fn = StageRecords(str(folder / "staged"), inline_bytes)
        staged += run_do_fn(do_fn, [Record(*pair) for pair in pairs], **NOW)
    return staged


@pytest.mark.parametrize("inline_bytes", quick_and_slow([0, 100], [0]))
def test_a_record_of_a_shard_takes_200_bytes_of_memory(tmp_path, inline_bytes):
    """Beside its payload, if that is inline, and beside its key. The docs promise it."""
    num_records, size = 60_000, 40
    pairs = [(b"%016d" % (number * 7 % num_records), b"x" * size) for number in range(num_records)]
    staged = stage(
        tmp_path, [pairs[at : at + 5000] for at in range(0, num_records, 5000)], inline_bytes
    )
    del pairs
    own = sum(len(part.columns) for part in staged)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    reader = ClaimReader()
    records = ShardRecords(staged, reader)
    for batch, _ in records.batches():
        peak = tracemalloc.get_traced_memory()[1]
        arrow = pa.total_allocated_bytes() - before
        payloads = len(batch) * (size + 33)
        inline = num_records * size if inline_bytes else 0
        assert peak + arrow + own - payloads - inline < 200 * num_records
    tracemalloc.stop()
    reader.close()


# --- staging ------------------------------------------------------------------------------------


def staged_values(staged: list[StagedRecords]) -> list[tuple]:
    """Returns key and payload of staged records."""
    reader = ClaimReader()
    values = []
    for part in staged:
        batch = StagedRecords.decode(part.encode()).batch()
        payloads = StagedPayloads(part.path, batch, reader).prefetch(np.arange(batch.num_rows))()
        for payload, line in zip(payloads, batch.to_pylist(), strict=True):
            assert (line["length"], line["crc32c"]) == (len(payload), crc32c(payload))
            values.append((line["key"], payload))
    reader.close()
    return values


PAYLOADS = [bytes([number % 7]) * (number * 37 % 200) for number in range(60)]
RECORDS = [Record(b"%05d" % number, payload) for number, payload in enumerate(PAYLOADS)]


def inline_sizes(staged: StagedRecords) -> int:
    return sum(len(payload or b"") for payload in staged.batch()["inline"].to_pylist())


def test_a_batch_of_staged_records_is_no_larger_than_the_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_INLINE_BYTES", 500)
    monkeypatch.setattr(staging, "_MAX_STAGED_IN_MEMORY", 9)
    staged = run_do_fn(StageRecords(str(tmp_path), 100), RECORDS, **NOW)
    assert [key for key, _ in staged_values(staged)] == [record.key for record in RECORDS]
    assert all(inline_sizes(part) < 500 + 100 for part in staged)
    assert max(part.batch().num_rows for part in staged) == 9
    assert {Path(part.path) for part in staged} >= set(tmp_path.iterdir())


# --- attempts -----------------------------------------------------------------------------------

WORDS = [(b"%d" % number, b"%03d" % number * (1 + number)) for number in range(60)]
NAMES = ["w-00-02.ar", "w-01-02.ar"]


class WithLines(ShardRecords):
    """Records with a line of the index each: how their payloads start."""

    def batches(self) -> Iterator[tuple[list[bytes], pa.RecordBatch]]:
        for payloads, _ in super().batches():
            starts = pa.array([payload[:3] for payload in payloads], pa.binary())
            yield payloads, pa.RecordBatch.from_arrays([starts], schema=SCHEMA)


class WithIndex(StagedShards):
    def content(self, staged, shard, num_shards, reader):
        return WithLines(staged, reader)


def target_in(folder: Path) -> ShardTarget:
    return ShardTarget(
        prefix=f"{folder}/out/w",
        suffix=".ar",
        shard_name_template="-SS-NN",
        open_writer=TFRecordWriter,
        temp_folder=f"{folder}/temp",
        index=RecordIndex(f"{folder}/out/index.parquet", SCHEMA),
    )


def attempt(folder: Path, staged: list[StagedRecords]) -> list[WrittenShard]:
    """Writes each of two shards once."""
    target = target_in(folder)
    assigned = run_do_fn(AssignToShards(ORDERED), staged, [2])
    parts = [(n, [EMPTY, *(part for shard, part in assigned if shard == n)]) for n in range(2)]
    return run_do_fn(WriteShard([target], WithIndex(ordered=True)), parts, [2])


def finalise(folder: Path, written: list[WrittenShard]) -> list[ShardInfo]:
    return run_do_fn(Finalise([target_in(folder)]), [None], written)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_two_attempts_write_different_files_of_the_same_bytes(tmp_path):
    staged = stage(tmp_path, [WORDS[:20], WORDS[20:], WORDS[:7]])
    one, other = attempt(tmp_path, staged), attempt(tmp_path, staged[::-1])
    assert not (tmp_path / "out").exists()
    for first, second in zip(one, other, strict=True):
        assert first.temporary_path != second.temporary_path
        assert first.info == second.info
        assert Path(first.temporary_path).read_bytes() == Path(second.temporary_path).read_bytes()
    finalise(tmp_path, one)
    before = bytes_in(tmp_path / "out")
    finalise(tmp_path, other)
    assert bytes_in(tmp_path / "out") == before


def test_finalising_again(tmp_path):
    """After an attempt that died half-way, and after a whole one."""
    written = attempt(tmp_path, stage(tmp_path, [WORDS]))
    finalise(tmp_path, written[:1])
    infos = finalise(tmp_path, written[::-1])
    before = bytes_in(tmp_path / "out")
    assert list(before) == ["index.parquet", *NAMES]
    assert finalise(tmp_path, written) == infos == [shard.info for shard in written]
    assert bytes_in(tmp_path / "out") == before
    lines = pq.read_table(tmp_path / "out" / "index.parquet").to_pylist()
    records: list[Any] = [list(read_tfrecord(str(tmp_path / "out" / name))) for name in NAMES]
    assert sorted(records[0] + records[1]) == sorted(payload for _, payload in WORDS)
    assert lines == [
        {"shard": shard, "position": at, "num_bytes": len(record), "start": record[:3]}
        for shard, own in enumerate(records)
        for at, record in enumerate(own)
    ]


@pytest.mark.parametrize("damage", ["gone", "longer", "other bytes"])
def test_damaged_shard_of_an_earlier_attempt(tmp_path, damage):
    written = attempt(tmp_path, stage(tmp_path, [WORDS]))
    finalise(tmp_path, written)
    path = Path(written[1].info.path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data + b"\0" if damage == "longer" else data[:-1] + b"\1")
    with pytest.raises(ProbelineError, match=r"is gone and .*w-01-02\.ar has other content"):
        finalise(tmp_path, written)
