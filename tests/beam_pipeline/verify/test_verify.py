"""Every promise of a dataset is broken once, alone: its check must say so, at the right record.

A damage changes a copy of a good dataset and stamps its checksums and counts anew, as a faulty
writer would have; it returns where the fault is, and only the check aimed at may fail.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.row_codec import COMPACT_HEADER, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.dataset.sorted_run import widen
from beam_pipeline.verify import __main__ as verify
from beam_pipeline.verify.across import (
    ENDS,
    FACTS,
    AllRows,
    collisions,
    one_split,
    row_indices,
    row_order,
    underfull,
)
from beam_pipeline.verify.dataset import PROMISES
from beam_pipeline.verify.dataset import verify as verify_dataset
from tests.support.damaged_dataset import (
    NUM_DEAD_LETTERS,
    NUM_MEASUREMENTS,
    NUM_SHARDS,
    TIED,
    DamagedDataset,
    Where,
    checksum_of,
    edit,
    found_by,
    one_batch,
    order,
)
from tests.support.helpers import ipc_stream, make_run

# --- good datasets ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["arrow", "compact"])
def test_good_dataset(encoding: str, request, capsys) -> None:
    dataset: Path = request.getfixturevalue(f"{encoding}_dataset")
    capsys.readouterr()
    assert verify.main([str(dataset)]) == 0
    out, err = capsys.readouterr()
    assert f"keeps every promise: {NUM_MEASUREMENTS:,} measurements" in out
    assert out.count(" ok") == len(PROMISES) and err == ""
    report = verify_dataset(open_dataset(str(dataset)))
    assert report.checks["dead_letters"].num_checked == NUM_DEAD_LETTERS
    assert report.checks["rtt"].num_checked == NUM_MEASUREMENTS
    assert report.checks["files"].num_checked == 2 * NUM_SHARDS + 2
    num_rows = report.checks["probe_rows"].num_checked
    assert num_rows == report.checks["index"].num_checked > 15  # some probes are split


# --- between records ----------------------------------------------------------------------------


def in_the_wrong_split(copy: DamagedDataset) -> Where:
    record = copy.single()
    copy.replace(record)
    return copy.place(record, "test")


def in_both_splits(copy: DamagedDataset) -> Where:
    record = copy.hot()[2]
    split = copy.find(record)[0].split("/")[0]
    copy.replace(record)
    return copy.place(record, "test" if split == "train" else "train")


def in_the_wrong_shard(copy: DamagedDataset) -> Where:
    record = copy.single()
    other = next(shard for shard in copy.shards[:3] if shard != copy.find(record)[0])
    copy.replace(record)
    copy.write(other, sorted([*copy.read(other), record], key=order))
    copy.stamp()
    return copy.find(record)


def out_of_order(copy: DamagedDataset) -> Where:
    first, second, *rest = copy.read(copy.shards[0])
    copy.write(copy.shards[0], [second, first, *rest])
    copy.stamp()
    return copy.shards[0], 1


def row_twice(copy: DamagedDataset) -> Where:
    record = copy.single()
    shard, at = copy.replace(record, record, record)
    return shard, at + 1 if at is not None else None


def row_missing(copy: DamagedDataset) -> Where:
    _, second, third, *_ = copy.hot()
    copy.replace(second)
    return copy.find(third)


def encoding_not_that_of_the_options(copy: DamagedDataset) -> Where:
    copy.manifest(lambda values: values["options"].update(measurement_encoding="compact"))
    return copy.shards[0], 3


def rows_exchanged(copy: DamagedDataset) -> Where:
    _, second, third, *_ = copy.hot()
    split = copy.find(second)[0].split("/")[0]
    copy.replace(second)
    copy.replace(third)
    later = edit(second, row_index=2)
    copy.place(later, split)
    copy.place(edit(third, row_index=1), split)
    return copy.find(later)


def ends_of_rows_exchanged(copy: DamagedDataset) -> Where:
    first, second, *_ = copy.rows(TIED)
    head = one_batch(one_batch(first).to_pydict()["measurements"][0]).to_pylist()[-1]
    tail = one_batch(one_batch(second).to_pydict()["measurements"][0]).to_pylist()[0]

    def put(at: int, measurement: dict[str, Any]) -> Callable[[dict[str, list]], None]:
        def change(lists: dict[str, list]) -> None:
            for name, value in measurement.items():
                lists[name][at] = value

        return change

    copy.replace(first, edit(first, put(-1, tail)))
    return copy.replace(second, edit(second, put(0, head)))


OPTIONS = DatasetOptions("compact", 8, 0.9, 0, 1000, 0, "")


def rows_of_one_probe(*facts: dict[str, int], ends: list | None = None) -> AllRows:
    table = np.zeros(len(facts), FACTS)
    for at, fact in enumerate(facts):
        for name, value in {"position": at, "num_bytes": 8 << 20, "ends": -1, **fact}.items():
            table[at][name] = value
    return AllRows(table, np.array(ends or [], ENDS), {(0, 0): "shard", (1, 0): "other"}, OPTIONS)


def test_two_probes_of_one_src_id() -> None:
    rows = rows_of_one_probe({"src_addr_crc32": 1}, {"src_addr_crc32": 2, "row_index": 1})
    assert [fault[:2] for fault in collisions(rows)] == [("shard", 1)]


def test_compact_rows_limited_by_span() -> None:
    later = {"row_index": 1, "first_timestamp": 2**32 * 1_000_000, "last_timestamp": 2**62}
    early = {"num_bytes": 5000}
    assert list(underfull(rows_of_one_probe(early, later))) == []
    later["first_timestamp"] -= 1
    assert [f.record for f in underfull(rows_of_one_probe(early, later))] == [0]


def test_a_probe_in_two_splits() -> None:
    rows = rows_of_one_probe({"split": 0}, {"split": 1, "row_index": 1})
    assert [fault.record for fault in one_split(rows)] == [1]


def test_ties_between_rows_are_ordered_by_all_columns() -> None:
    ends = [((0, 0, 0.0), (1, 5, 2.0)), ((1, 5, 1.0), (9, 9, 9.0))]
    facts = {"ends": 0}, {"ends": 1, "row_index": 1}
    assert [f.record for f in row_order(rows_of_one_probe(*facts, ends=ends))] == [1]
    ends[1] = ((1, 5, 2.0), (9, 9, 9.0))
    assert list(row_order(rows_of_one_probe(*facts, ends=ends))) == []


def test_gaps_at_unreadable_records() -> None:
    rows = rows_of_one_probe({"row_index": 1}, {"row_index": 3})
    assert [fault.record for fault in row_indices(rows)] == [0, 1]
    assert list(row_indices(replace(rows, is_complete=False))) == []


# --- the command --------------------------------------------------------------------------------


def test_options_without_split_seed(copy: DamagedDataset, capsys) -> None:
    copy.manifest(lambda values: values["options"].pop("split_seed"))
    capsys.readouterr()
    assert verify.main([str(copy.folder)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_max_faults(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    encoding_not_that_of_the_options(copy)
    num_records = sum(len(copy.read(shard)) for shard in copy.shards)
    found = found_by(capsys, copy.folder, "--max-faults=2")
    assert len(found["encoding"]) == 2
    assert verify.main([str(copy.folder), "--max_faults", "2"]) == 1
    assert f"encoding: and {num_records - 2} more; --max_faults=" in capsys.readouterr().out
    found = found_by(capsys, copy.folder, f"--max_faults={num_records}")
    assert len(set(found["encoding"])) == num_records


# --- faults of one record -------------------------------------------------------------------------


def other_spelling(address: str) -> str:
    return f"::ffff:{address}" if "." in address else address.upper()


COLUMN_EDITS = {
    "src_id": ("identity", lambda row: {"src_id": row.src_id + 1}),
    "src_addr_spelling": ("identity", lambda row: {"src_addr": other_spelling(row.src_addr)}),
    "src_addr_none": ("identity", lambda row: {"src_addr": "nowhere"}),
    "n_measurements": ("row_columns", lambda row: {"n_measurements": row.n_measurements + 1}),
    "first": ("row_columns", lambda row: {"first_timestamp": row.first_timestamp_us - 1}),
    "last": ("row_columns", lambda row: {"last_timestamp": row.last_timestamp_us + 1}),
    "span": ("row_columns", lambda row: {"time_span_seconds": row.time_span_seconds + 1e-6}),
}


@pytest.mark.parametrize("name", COLUMN_EDITS)
def test_wrong_row_column(name: str, copy: DamagedDataset, capsys) -> None:
    check_edited_row(copy, capsys, *COLUMN_EDITS[name])


def check_edited_row(
    copy: DamagedDataset, capsys, checks: str, change: Callable[[Any], dict[str, Any]]
) -> None:
    record = copy.single()
    edited = edit(record, **change(decode_record(record)))
    where = copy.replace(record, edited, index=checks != "records")
    found = found_by(capsys, copy.folder)
    assert set(found) == set(checks.split())
    assert all(set(places) == {where} for places in found.values())


def exchange(lists: dict[str, list], at: int) -> None:
    for values in lists.values():
        values[at], values[at + 1] = values[at + 1], values[at]


def assign(column: str, value: Any) -> Callable[[dict[str, list], int], None]:
    def change(lists: dict[str, list], at: int) -> None:
        lists[column][at] = value(lists[column][at]) if callable(value) else value

    return change


MEASUREMENT_EDITS = {
    "order": ("order", exchange),
    "rtt_negative": ("rtt", assign("rtt", -2.0)),
    "rtt_negative_zero": ("rtt", assign("rtt", -0.0)),
    "rtt_nan": ("rtt", assign("rtt", float("nan"))),
    "ip_version": ("destinations", assign("ip_version", 6)),
    "dst_addr_spelling": ("destinations", assign("dst_addr", other_spelling)),
    "dst_addr_none": ("destinations", assign("dst_addr", lambda text: text[:-1] + "x")),
    "null": ("records", assign("rtt", None)),
}


@pytest.mark.parametrize("name", MEASUREMENT_EDITS)
def test_wrong_measurement(name: str, copy: DamagedDataset, capsys) -> None:
    check, change = MEASUREMENT_EDITS[name]
    record = copy.single()
    lists = one_batch(one_batch(record).to_pydict()["measurements"][0]).to_pydict()
    times, versions = lists["event_time"], lists["ip_version"]
    # To IPv4, and without ties beside it, so that nothing else can be out of order.
    at = next(
        i for i in range(1, len(times) - 2)
        if times[i - 1] < times[i] < times[i + 1] and versions[i] == 4
    )  # fmt: skip
    can_be_read = name not in ("dst_addr_none", "null")
    edited = edit(record, lambda lists: change(lists, at))
    where = copy.replace(record, edited, index=can_be_read)
    found = found_by(capsys, copy.folder)
    assert found == {check: [where]}


def test_ties_out_of_order(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.rows(TIED)[-1]
    where = copy.replace(record, edit(record, lambda lists: exchange(lists, 3)))
    assert found_by(capsys, copy.folder) == {"order": [where]}


def test_not_a_record(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.single()
    two_rows = pa.RecordBatch.from_pylist(
        one_batch(record).to_pylist() * 2, row_codec.RECORD_SCHEMA
    )
    for other in (b"nonsense", ipc_stream(two_rows), edit(record, measurements=b"")):
        where = copy.replace(record, other, index=False)
        assert found_by(capsys, copy.folder) == {"records": [where]}
        record = other
    assert verify.main([str(copy.folder)]) == 1
    assert "partly" in capsys.readouterr().out  # other checks did not see all


def test_row_too_large(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.single()
    key = RowKey(decode_record(record).src_addr, 0)
    where = copy.replace(record, encode_row(make_run(900, seed=1), key, "arrow"))
    assert found_by(capsys, copy.folder) == {"size": [where]}


# --- compact rows -------------------------------------------------------------------------------


def swap_seconds(row: Any) -> dict[str, Any]:
    data = np.frombuffer(row.measurements, np.uint8).copy()
    seconds = data[COMPACT_HEADER.size :][: 4 * row.n_measurements].view("<u4")
    at = int(np.flatnonzero(np.diff(seconds[1:-1]))[0]) + 1
    seconds[[at, at + 1]] = seconds[[at + 1, at]]
    return {"measurements": data.tobytes()}


def ipv4_as_ipv6(row: Any) -> dict[str, Any]:
    run = widen(row.run)
    n = len(run)
    head = COMPACT_HEADER.pack(
        row_codec.COMPACT_MAGIC, n, n, int(run["event_time"][0]) // 1_000_000
    )
    columns = bytes(row.measurements[COMPACT_HEADER.size :][: 6 * n])
    halves = np.stack([run["dst_hi"], run["dst_lo"]], axis=1).astype(">u8")
    return {"measurements": head + columns + halves.tobytes()}


def another_code_for_an_rtt(row: Any) -> dict[str, Any]:
    data = np.frombuffer(row.measurements, np.uint8).copy()
    n = row.n_measurements
    codes = data[COMPACT_HEADER.size + 4 * n :][: 2 * n].view("<u2")
    at = int(np.flatnonzero((codes >= 2048) & (codes < 0xFFFF) & (codes % 2 == 0))[0])
    codes[at] += 2048 - (codes[at] % 2048) // 2  # half the mantissa, one more exponent
    return {"measurements": data.tobytes()}


def seconds_that_do_not_begin_with_zero(row: Any) -> dict[str, Any]:
    data = bytearray(row.measurements)
    magic, n, num_ipv6, first = COMPACT_HEADER.unpack_from(data)
    seconds = np.frombuffer(data, "<u4", n, COMPACT_HEADER.size) + np.uint32(1)
    COMPACT_HEADER.pack_into(data, 0, magic, n, num_ipv6, first - 1)
    data[COMPACT_HEADER.size : COMPACT_HEADER.size + 4 * n] = seconds.tobytes()
    return {"measurements": bytes(data)}


COMPACT_EDITS = {
    "order": ("order", swap_seconds),
    "destinations": ("destinations encoding", ipv4_as_ipv6),
    "rtt": ("encoding", another_code_for_an_rtt),
    "seconds": ("encoding", seconds_that_do_not_begin_with_zero),
    "first": ("row_columns", lambda row: {"first_timestamp": row.first_timestamp_us - 1_000_000}),
    "cut": ("records", lambda row: {"measurements": bytes(row.measurements[:-1])}),
}


@pytest.mark.parametrize("name", COMPACT_EDITS)
def test_wrong_compact_row(name: str, compact_copy: DamagedDataset, capsys) -> None:
    check_edited_row(compact_copy, capsys, *COMPACT_EDITS[name])


# --- files and manifest ---------------------------------------------------------------------------


def flip(copy: DamagedDataset, path: str, at: int) -> None:
    data = bytearray((copy.folder / path).read_bytes())
    data[at] ^= 1
    (copy.folder / path).write_bytes(data)


def test_flipped_byte(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    shard = copy.shards[0]
    flip(copy, shard, 20_000)
    found = found_by(capsys, copy.folder)
    assert set(found) == {"files", "records"} and found["files"] == [(shard, None)]
    ((name, record),) = found["records"]
    assert name == shard and record is not None
    with pytest.raises(RuntimeError, match="hash mismatch"):
        ArrayRecordReader(str(copy.folder / shard)).read(record, record + 1)
    copy.stamp(index=False)
    assert found_by(capsys, copy.folder) == {"records": [(shard, record)]}


def truncated(copy: DamagedDataset) -> Where:
    os.truncate(copy.folder / copy.shards[1], 50_000)
    return copy.shards[1], None


def missing(copy: DamagedDataset) -> Where:
    (copy.folder / copy.shards[4]).unlink()
    return copy.shards[4], None


def extra(copy: DamagedDataset) -> Where:
    name = "train/train_shard_00003-of-00004.arrayrecord"
    shutil.copy(copy.folder / copy.shards[0], copy.folder / name)
    return name, None


def other_sha256(copy: DamagedDataset) -> Where:
    wrong = {"sha256": "0" * 64}
    copy.manifest(lambda values: values["splits"]["train"]["shards"][0].update(wrong))
    return copy.shards[0], None


def misnamed(copy: DamagedDataset) -> Where:
    name = "train/train_shard_0-of-3.arrayrecord"
    (copy.folder / copy.shards[0]).rename(copy.folder / name)
    copy.manifest(lambda values: values["splits"]["train"]["shards"][0].update(path=name))
    return name, None


def index_missing(copy: DamagedDataset) -> Where:
    (copy.folder / "test/rows.parquet").unlink()
    return "test/rows.parquet", None


def change_index(copy: DamagedDataset, change: Callable[[pa.Table], pa.Table]) -> None:
    path = copy.folder / "train/rows.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    checksums = {
        "index_crc32c": checksum_of(path.read_bytes()),
        "index_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    copy.manifest(lambda values: values["splits"]["train"].update(checksums))


def index_line_wrong(copy: DamagedDataset) -> Where:
    def change(table: pa.Table) -> pa.Table:
        lines = table.to_pylist()
        at = next(i for i, line in enumerate(lines) if line["position"] == 2)
        lines[at]["num_failed"] += 1
        return pa.Table.from_pylist(lines, table.schema)

    change_index(copy, change)
    return copy.shards[0], 2


def index_line_missing(copy: DamagedDataset) -> Where:
    change_index(copy, lambda table: table.slice(0, table.num_rows - 1))
    return copy.shards[2], len(copy.read(copy.shards[2])) - 1


def index_of_other_columns(copy: DamagedDataset) -> Where:
    change_index(copy, lambda table: table.drop_columns(["num_ipv6"]))
    return "train/rows.parquet", None


def letters_lost(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    pq.write_table(pq.read_table(path).slice(1), path)
    return "dead_letter", None


def letters_with_one_bit_flipped(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    flip(copy, f"dead_letter/{path.name}", 40)  # of a value
    return f"dead_letter/{path.name}", None


def letters_missing(copy: DamagedDataset) -> Where:
    for path in (copy.folder / "dead_letter").iterdir():
        path.unlink()
    return "dead_letter", None


def one_of_two_files_of_letters(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    path.rename(path.with_name("dead_letter_00000-of-00002.parquet"))
    return "dead_letter/dead_letter_00001-of-00002.parquet", None


def measurements_in_another_shard(copy: DamagedDataset) -> Where:
    def change(values: dict) -> None:
        shards = values["splits"]["train"]["shards"]
        shards[1]["num_measurements"] += 1
        shards[2]["num_measurements"] -= 1

    copy.manifest(change)
    return copy.shards[2], None


DAMAGES: dict[Any, set[str]] = {
    in_the_wrong_split: {"placement"},
    in_both_splits: {"placement"},
    in_the_wrong_shard: {"placement"},
    out_of_order: {"placement"},
    row_twice: {"probe_rows"},
    row_missing: {"probe_rows"},
    rows_exchanged: {"probe_rows"},
    ends_of_rows_exchanged: {"probe_rows"},
    truncated: {"files", "records"},
    missing: {"files"},
    extra: {"files"},
    other_sha256: {"files"},
    misnamed: {"files"},
    index_missing: {"files"},
    index_line_wrong: {"index"},
    index_line_missing: {"index"},
    index_of_other_columns: {"index"},
    letters_lost: {"dead_letters"},
    letters_missing: {"dead_letters"},
    one_of_two_files_of_letters: {"dead_letters"},
    letters_with_one_bit_flipped: {"dead_letters"},
    measurements_in_another_shard: {"totals"},
    encoding_not_that_of_the_options: {"encoding"},
}


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda values: values["counts"].update(rows_read=1), {"counts"}),
        (lambda values: values["splits"]["test"].update(num_bytes=1), {"counts"}),
        (lambda values: values["splits"]["test"].update(num_probes=1), {"totals", "counts"}),
        (lambda values: values["options"].update(num_shards=4), {"totals"}),
    ],
)
def test_wrong_number_in_the_manifest(
    change: Callable[[dict], None], checks: set[str], copy: DamagedDataset, capsys
) -> None:
    copy.manifest(change)
    found = found_by(capsys, copy.folder)
    assert set(found) == checks
    assert all(("manifest.json", None) in places for places in found.values())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_one_damage_fails_only_its_checks(
    damage: Callable[[DamagedDataset], Where], copy: DamagedDataset, capsys
) -> None:
    where = damage(copy)
    found = found_by(capsys, copy.folder)
    assert set(found) == DAMAGES[damage]
    assert all(where in places for places in found.values())
