"""The records of a shard: their order, the batches in which they are read, and the memory."""

import tracemalloc
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.dataset.tfrecord import TFRecordWriter
from beam_pipeline.shards import staging
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import (
    Records,
    ShardRecords,
    StagedRecords,
    StageRecords,
    serialised,
)
from beam_pipeline.shards.writing import (
    AssignToShards,
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WriteShard,
)
from beam_pipeline.storage.files import crc32c
from tests.support.helpers import NOW, run_do_fn
from tests.support.properties import num_examples

SCHEMA = pa.schema([("start", pa.binary())])
SPLIT = pa.schema([("split", pa.int8())])
EMPTY = StagedRecords("", b"")  # what every shard has
Pair = tuple[bytes, bytes]  # key and payload


def stage(folder: Path, bundles: list[list[Pair]], inline_bytes: int = 20) -> list[StagedRecords]:
    """Stages keys and payloads; what is known of a record is how its payload starts."""
    staged = []
    for pairs in bundles:
        keys, payloads = [key for key, _ in pairs], [payload for _, payload in pairs]
        starts = pa.array([payload[:3] for payload in payloads], pa.binary())
        lines = serialised(pa.RecordBatch.from_arrays([starts], schema=SCHEMA))
        do_fn = StageRecords(str(folder / "staged"), inline_bytes, SCHEMA)
        staged += run_do_fn(do_fn, [Records(keys, payloads, lines)] if pairs else [], **NOW)
    return staged


def in_order(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: (pair[0], len(pair[1]), crc32c(pair[1])))


PAIRS = st.tuples(
    st.sampled_from([b"", b"a", b"a\0", b"a\0b", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]),
    st.one_of(st.sampled_from([b"", b"x", b"y", b"x" * 50]), st.binary(max_size=60)),
)


@settings(
    max_examples=num_examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bundles=st.lists(st.lists(PAIRS, max_size=12), max_size=5),
    inline_bytes=st.sampled_from([0, 20, 1000]),
    batch_bytes=st.integers(0, 200),
    random=st.randoms(use_true_random=False),
)
def test_records_come_by_key_then_length_then_checksum_in_batches_of_bounded_size(
    tmp_path, monkeypatch, bundles, inline_bytes, batch_bytes, random
):
    monkeypatch.setattr(staging, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(staging, "_FRAMING_BYTES", 3)
    staged = [EMPTY, *stage(tmp_path, bundles, inline_bytes)]
    random.shuffle(staged)
    reader = ClaimReader()
    records = ShardRecords(staged, SCHEMA, reader)
    wanted = in_order([pair for pairs in bundles for pair in pairs])
    assert len(records) == len(wanted)
    assert records.lengths == [len(payload) for _, payload in wanted]
    assert records.attributes["start"].to_pylist() == [payload[:3] for _, payload in wanted]
    read, at = [], 0
    for start, end in records.batches():
        assert start == at < end
        sizes = [length + 3 for length in records.lengths]
        assert end - start == 1 or sum(sizes[start:end]) <= batch_bytes
        assert end == len(wanted) or sum(sizes[start : end + 1]) > batch_bytes
        read += records.payloads(start, end)
        at = end
    reader.close()
    assert at == len(wanted)
    assert read == [payload for _, payload in wanted]


def test_each_shard_gets_the_records_of_its_keys_in_as_few_parts_as_can_be(tmp_path):
    pairs = [(b"%d" % (number // 2), b"%d" % number * 9) for number in range(200)]
    staged = stage(tmp_path, [pairs[:150], pairs[150:]])
    parts = run_do_fn(AssignToShards(SCHEMA), staged, [4])
    assert len(parts) == len({(shard, part.path) for shard, part in parts}) == 8
    reader = ClaimReader()
    for shard in range(4):
        own = [part for number, part in parts if number == shard]
        wanted = in_order([pair for pair in pairs if shard_of(pair[0], 4) == shard])
        records = ShardRecords(own, SCHEMA, reader)
        assert records.payloads(0, len(records)) == [payload for _, payload in wanted]
    reader.close()


def test_the_largest_part_of_a_batch_comes_first(tmp_path):
    """The runner in memory deals shards to workers as they appear."""
    (staged,) = stage(tmp_path, [[(b"%d" % number, b"." * number) for number in range(200)]])
    parts = run_do_fn(AssignToShards(SCHEMA), [staged], [7])
    sizes = [sum(part.batch(SCHEMA)["length"].to_pylist()) for _, part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert len({shard for shard, _ in parts}) == len(parts) == 7


class KeptRecords:
    """A file of records that a test reads."""

    written: list[bytes]

    def __init__(self, path: str):
        type(self).written = []
        Path(path).touch()

    def write(self, record: bytes) -> None:
        self.written.append(record)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("batch_bytes", [0, 100, 1 << 20])
def test_records_are_encoded_many_at_a_time_each_with_its_own_attributes(
    tmp_path, monkeypatch, batch_bytes
):
    monkeypatch.setattr(staging, "_BATCH_BYTES", batch_bytes)
    sizes = []

    def encode(payloads: list[bytes], attributes: pa.Table) -> list[bytes]:
        sizes.append(sum(map(len, payloads)))
        starts = attributes["start"].to_pylist()
        return [start + b"|" + payload for start, payload in zip(starts, payloads, strict=True)]

    pairs = [(b"%03d" % (number * 7 % 100), b"%d!" % number * 4) for number in range(100)]
    target = ShardTarget(
        prefix=f"{tmp_path}/w",
        suffix="",
        shard_name_template="-SS-NN",
        open_writer=KeptRecords,
        temp_folder=f"{tmp_path}/temp",
        attributes=SCHEMA,
        encode=encode,
    )
    staged = stage(tmp_path, [pairs[:30], pairs[30:]], inline_bytes=10)
    (written,) = run_do_fn(WriteShard([target]), [(0, [EMPTY, *staged])], [1])
    payloads = [payload for _, payload in in_order(pairs)]
    assert KeptRecords.written == [payload[:3] + b"|" + payload for payload in payloads]
    assert written.info.num_records == 100
    assert max(sizes) <= max(batch_bytes, 12)
    assert len(sizes) == {0: 100, 1 << 20: 1}.get(batch_bytes, len(sizes))


def target_in(folder: Path, name: str) -> ShardTarget:
    return ShardTarget(
        prefix=f"{folder}/{name}",
        suffix="",
        shard_name_template="-SS-NN",
        open_writer=TFRecordWriter,
        temp_folder=f"{folder}/temp-{name}",
        attributes=SPLIT,
        index=RecordIndex(f"{folder}/{name}.parquet", SPLIT, lambda attributes: attributes),
    )


def write(
    targets: list[ShardTarget], num_shards: list[int], staged: list[StagedRecords]
) -> list[ShardInfo]:
    """Does every step once, shards in any order."""
    assigned = run_do_fn(AssignToShards(SPLIT, "split"), staged, num_shards)
    parts = {shard: [EMPTY] for shard in reversed(range(sum(num_shards)))}
    for shard, part in assigned:
        parts[shard].append(part)
    written = run_do_fn(WriteShard(targets), list(parts.items()), num_shards)
    return run_do_fn(Finalise(targets), [None], written)


def told(info: ShardInfo) -> tuple:
    """Returns what a shard is, without its folder, and its bytes."""
    path = Path(info.path)
    return path.name, *msgspec.structs.astuple(info)[1:], path.read_bytes()


@pytest.mark.parametrize("num_shards", [[3, 2], [1, 4], [1, 1]])
def test_two_targets_are_written_as_each_would_be_alone(tmp_path, num_shards):
    own = [[(b"%d" % n, b"%d %d" % (split, n)) for n in range(split, 40, 2)] for split in (0, 1)]

    def stage_pairs(splits: tuple[int, ...], as_split: dict[int, int]) -> list[StagedRecords]:
        pairs = [(as_split[split], pair) for split in splits for pair in own[split]]
        lines = serialised(pa.record_batch([[split for split, _ in pairs]], schema=SPLIT))
        keys, payloads = zip(*(pair for _, pair in pairs), strict=True)
        do_fn = StageRecords(str(tmp_path / "staged"), 2, SPLIT)
        return run_do_fn(do_fn, [Records(list(keys), list(payloads), lines)], **NOW)

    together, alone = tmp_path / "together", tmp_path / "alone"
    names = ["a", "b"]
    infos = write(
        [target_in(together, name) for name in names],
        num_shards,
        stage_pairs((0, 1), {0: 0, 1: 1}),
    )
    expected = [
        info
        for split, name in enumerate(names)
        for info in write(
            [target_in(alone, name)], [num_shards[split]], stage_pairs((split,), {split: 0})
        )
    ]
    assert [told(info) for info in infos] == [told(info) for info in expected]
    for name in names:
        lines, wanted = (pq.read_table(folder / f"{name}.parquet") for folder in (together, alone))
        assert lines.drop_columns("split") == wanted.drop_columns("split")


@pytest.mark.parametrize("inline_bytes", [0, 100])
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
    records = ShardRecords(staged, SCHEMA, reader)
    for start, end in records.batches():
        records.payloads(start, end)
        peak = tracemalloc.get_traced_memory()[1]
        arrow = pa.total_allocated_bytes() - before
        payloads = (end - start) * (size + 33)
        inline = num_records * size if inline_bytes else 0
        assert peak + arrow + own - payloads - inline < 200 * num_records
    tracemalloc.stop()
    reader.close()


def test_a_batch_of_small_records_is_bounded_by_what_they_become(tmp_path):
    """A row of one measurement is 16 bytes as a run, and 1.2 KB as a record."""
    pairs = [(b"%05d" % number, b"x" * 16) for number in range(30_000)]
    reader = ClaimReader()
    records = ShardRecords(stage(tmp_path, [pairs]), SCHEMA, reader)
    largest = max(end - start for start, end in records.batches())
    reader.close()
    assert largest * 1216 <= 4 * staging._BATCH_BYTES
