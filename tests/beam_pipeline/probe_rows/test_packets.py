"""Packets: whatever rows they hold, a shard has its own, in order, as each is row by row."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import (
    ENCODINGS,
    RECORD_ENCODINGS,
    DatasetOptions,
    RowFormat,
    count_shards,
    halves,
    place_of,
    shard_of_row,
    split_of,
    src_id,
)
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.sorted_run import join
from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows import packets
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.packets import ROW, Packet, PacketShards, PacketWriter
from beam_pipeline.probe_rows.pipeline import _add_up, _size
from beam_pipeline.shards.claim_checks import ClaimReader
from tests.support.helpers import make_run, records_as_tuples, runs_strategy
from tests.support.probe_rows_on_disk import options_of, rows_in
from tests.support.properties import num_examples

Row = tuple[RowKey, np.ndarray]


@st.composite
def histories_strategy(draw) -> list[list[Row]]:
    """Some probes with one to three rows each, all narrow or all wide."""
    addresses = ["192.0.2.1", "8.8.8.8", "10.0.0.1", "1.1.1.1", "::", "2001:db8::1", "::1"]
    addresses += ["::5:9e37:79b9:7f4a:7c15", "0:0:0:6::"]  # of one hash
    probes = draw(st.lists(st.sampled_from(addresses), min_size=1, unique=True))
    runs = runs_strategy(min_size=1, max_size=8, wide=draw(st.booleans()))
    return [
        [(RowKey(probe, number), draw(runs)) for number in range(draw(st.integers(1, 3)))]
        for probe in sorted(probes, key=lambda probe: place_of(probe, 0))
    ]


def write(writer: PacketWriter, histories: Iterable[list[Row]]) -> None:
    rows = [row for of_probe in histories for row in of_probe]
    table = np.array([(*halves(key.src_addr), key.row_index, len(run)) for key, run in rows], ROW)
    writer.add(table, join([run for _, run in rows]))


def plain_line(key: RowKey, run: np.ndarray) -> dict:
    """What is known of a row, one measurement after another."""
    records = records_as_tuples(run)
    return {
        "src_id": src_id(key.src_addr),
        "src_addr": key.src_addr,
        "row_index": key.row_index,
        "n_measurements": len(records),
        "num_ipv6": sum(destination >> 32 != 0xFFFF for _, destination, _ in records),
        "num_failed": sum(rtt < 0 for _, _, rtt in records),
        "first_timestamp": records[0][0],
        "last_timestamp": records[-1][0],
    }


def lines_of(lines: pa.RecordBatch) -> list[dict]:
    """Returns lines with their timestamps as numbers: not every one is a date of Python."""
    numbers = [
        pa.field(field.name, pa.int64()) if pa.types.is_timestamp(field.type) else field
        for field in lines.schema
    ]
    return pa.Table.from_batches([lines]).cast(pa.schema(numbers)).to_pylist()


def shard_key(row: Row) -> tuple[int, int, int]:
    key = row[0]
    return place_of(*key), src_id(key.src_addr), key.row_index


@settings(
    max_examples=num_examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(histories_strategy(), min_size=1, max_size=4),
    num_shards=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    form=st.tuples(st.sampled_from(ENCODINGS), st.sampled_from(RECORD_ENCODINGS)),
    limits=st.tuples(st.sampled_from([1, 3, 1000]), st.sampled_from([1, 200, 1 << 20])),
    batch_bytes=st.sampled_from([1, 3000, 1 << 20]),
    inline_bytes=st.sampled_from([0, 150, 1 << 20]),
    random=st.randoms(use_true_random=False),
)
def test_each_shard_has_its_rows_in_order_as_each_is_row_by_row(
    tmp_path_factory,
    monkeypatch,
    parts,
    num_shards,
    form,
    limits,
    batch_bytes,
    inline_bytes,
    random,
):
    monkeypatch.setattr(packets, "_MAX_ROWS", limits[0])
    monkeypatch.setattr(packets, "_MAX_BYTES", limits[1])
    monkeypatch.setattr(packets, "_BATCH_BYTES", batch_bytes)
    # A probe is in one part only, as it is in one bucket.
    seen: set[str] = set()
    for part in parts:
        part[:] = [rows for rows in part if rows[0][0].src_addr not in seen]
        seen |= {rows[0][0].src_addr for rows in part}
    parts = [part for part in parts if part]
    options = options_of(RowFormat(form[0], 1 << 20, form[1]))
    workspace = Workspace(str(tmp_path_factory.mktemp("packets")), inline_bytes)
    written: list[Packet] = []
    for part in parts:
        writer = PacketWriter(workspace, options)
        write(writer, part)
        written += [Packet.decode(packet.encode()) for packet in writer.close()]
    rows = [row for part in parts for of_probe in part for row in of_probe]
    assert sorted(values_of(rows_in(written, workspace.folder))) == sorted(values_of(rows))
    shard_input = PacketShards(options.row_format, workspace.folder)
    assigned = [each for packet in written for each in shard_input.assign(packet, num_shards)]
    random.shuffle(assigned)
    reader = ClaimReader(workspace.folder)
    for split, count in enumerate(num_shards):
        for shard in range(count):
            own = [p for *where, p in assigned if where == [split, shard]]
            content = shard_input.content([shard_input.nothing, *own], shard, count, reader)
            batches = list(content.batches())
            wanted = sorted(
                (row for row in rows if is_in(row, split, shard, count, options)), key=shard_key
            )
            assert len(content) == len(wanted)
            assert [record for batch in batches for record in batch.records] == [
                encode_row(run, key, *form) for key, run in wanted
            ]
            assert [line for batch in batches for line in lines_of(batch.lines)] == [
                plain_line(key, run) for key, run in wanted
            ]
    reader.close()


def is_in(row: Row, split: int, shard: int, count: int, options: DatasetOptions) -> bool:
    (src_addr, row_index), _ = row
    is_of_split = split_of(src_addr, options.train_ratio, options.split_seed) == split
    return is_of_split and shard_of_row(src_addr, row_index, count) == shard


def values_of(rows: Iterable[Row]) -> list[tuple]:
    return [(key, records_as_tuples(run)) for key, run in rows]


@settings(max_examples=num_examples(50))
@given(histories_strategy())
def test_sizes_of_splits_do_not_depend_on_how_rows_travel(histories):
    """They decide on the number of shards."""
    options = options_of(RowFormat("arrow", 1 << 20))
    writer = PacketWriter(Workspace("", 1 << 40), options)
    write(writer, histories)
    totals = _add_up([_add_up([]), *map(_size, writer.close())])
    rows = [row for of_probe in histories for row in of_probe]
    for split in (0, 1):
        own = [row for row in rows if split_of(row[0].src_addr, 0.9, 0) == split]
        lines = [plain_line(*row) for row in own]
        sizes = [1024 + 16 * line["n_measurements"] + 12 * line["num_ipv6"] for line in lines]
        assert totals[split].tolist() == [sum(not line["row_index"] for line in lines), sum(sizes)]


def test_shards_are_a_thousand_but_of_bounded_size():
    options = options_of(RowFormat("compact", 1 << 23))
    counts = partial(count_shards, 10**9, options=options)
    mib = 1 << 20
    sizes = [0, 16 * mib - 1, 32 * mib, 16_000 * mib, 256_000 * mib, 256_001 * mib]
    assert [counts(size) for size in sizes] == [1, 1, 2, 1000, 1000, 1001]


@pytest.mark.parametrize("which", ["rows", "run"])
def test_a_packet_that_changed_ends_the_run(tmp_path, which):
    options = options_of(RowFormat("compact", 1 << 20))
    writer = PacketWriter(Workspace(str(tmp_path), 0), options)
    write(writer, [[(RowKey(f"10.0.0.{n}", 0), make_run(5, seed=n))] for n in SIX])
    (packet, *_) = writer.close()
    claim = getattr(packet, which)
    path = f"{tmp_path}{claim.path}"
    data = bytearray(open(path, "rb").read())
    data[claim.offset + claim.length - 1] ^= 1
    open(path, "wb").write(data)
    reader = ClaimReader(str(tmp_path))
    with pytest.raises(ProbelineError, match="changed after it was written"):
        list(
            PacketShards(options.row_format, str(tmp_path))
            .content([packet], 0, 1, reader)
            .batches()
        )
    reader.close()


SIX = sorted(range(6), key=lambda n: place_of(f"10.0.0.{n}", 0))
