"""Reading with --anonymize: measurements and dead letters show no address of the input."""

import bz2
import gzip
import io
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources.anonymize import WITHHELD
from beam_pipeline.sources.anonymize_key import find_key
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import CheckedBatch, UnreadableInputError, read_piece
from tests.support.anonymizing import KEY, one_row, replaced_text
from tests.support.anonymizing import folder as folder
from tests.support.helpers import canonical


def batches_of(path: Path, options: ReadOptions) -> list[CheckedBatch]:
    units = plan_units([inspect(match_files([str(path)])[0], options)])
    return [b for unit in units for piece in unit.pieces for b in read_piece(piece, options)]


def letters_of(path: Path, folder: Path) -> list[tuple[str, str]]:
    """Returns reason and value of each dead letter of an anonymised file."""
    options = ReadOptions(anonymize=find_key(str(folder / "key")))
    return [
        (letter.reason, letter.value)
        for batch in batches_of(path, options)
        for letter in batch.letters
    ]


def test_dead_letters_of_parquet_have_no_values(folder: Path) -> None:
    rows = one_row().to_pylist()
    changes: list[dict] = [
        {"src_addr": "192.0.2.300"},
        {"src_addr": "fe80::1%eth0"},
        {"dst_addr": "host-198-51-100-7.example"},
        {"rtt": float("nan")},
        {"ip_version": 6},
    ]
    table = pa.Table.from_pylist([*rows, *({**rows[0], **c} for c in changes)], one_row().schema)
    pq.write_table(table, folder / "bad.parquet")
    assert letters_of(folder / "bad.parquet", folder) == [
        ("src_addr_invalid", WITHHELD),
        ("src_addr_zone_id", WITHHELD),
        ("dst_addr_invalid", WITHHELD),
        ("rtt_not_finite", WITHHELD),
        ("ip_version_not_of_dst_addr", WITHHELD),
    ]


def test_dead_letters_of_json_have_no_values(folder: Path) -> None:
    good = {"from": "192.0.2.9", "dst_addr": "198.51.100.7", "af": 4, "timestamp": 1_700_000_000}
    lines = [
        json.dumps({**good, "result": [{"rtt": 1.5}, {}]}),
        '{"from": "192.0.2.9", ',
        json.dumps({**good, "result": []}),
        json.dumps({**good, "type": "dns", "result": [{"rtt": 1}]}),
    ]
    (folder / "results").write_text("\n".join(lines))
    expected = ["rtt_null", "json_invalid", "no_results", "not_a_ping"]
    letters = letters_of(folder / "results", folder)
    assert sorted(letters) == sorted((reason, WITHHELD) for reason in expected)


def cut_off(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda _: b"9.9.9.9\n8.8.8.8\n",
    "gzip": lambda data: cut_off(gzip.compress(data)),
    "bzip2": lambda data: cut_off(bz2.compress(data)),
    "parquet": lambda data: cut_off(_as_parquet()),
    "parquet pages": lambda data: _as_parquet().replace(b"9.9.9.9", b"\xff" * 7),
}


def _as_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(one_row().set_column(1, "src_addr", [["9.9.9.9"]]), sink, compression="none")
    return sink.getvalue()


@pytest.mark.parametrize("damage", DAMAGED)
def test_errors_of_unreadable_files_reveal_no_address(folder: Path, damage: str) -> None:
    line = b'{"from": "9.9.9.9", "dst_addr": "9.9.9.9", "timestamp": 1, "result": [{"rtt": 1}]}\n'
    path = folder / "damaged"
    path.write_bytes(DAMAGED[damage](line * 20_000))
    options = ReadOptions(anonymize=find_key("key"))
    said: list[str] = []
    try:
        for batch in batches_of(path, options):
            said += [f"{letter}" for letter in batch.letters]
    except UnreadableInputError as error:
        said += ["".join(traceback.format_exception(error)), str(error.as_letter())]
        said.append(str(error.as_error()))
        assert "damaged" in str(error)
    assert said
    for address in ("9.9.9", "8.8.8"):
        assert not [each for each in said if address in each], said


def test_arrow_messages_are_withheld(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Iterator[CheckedBatch]:
        raise pa.ArrowInvalid("cannot make a number of '192.0.2.9'")
        yield

    options = ReadOptions(anonymize=find_key("key"))
    monkeypatch.setattr("beam_pipeline.sources.reading._read_parquet", failing)
    with pytest.raises(UnreadableInputError) as refusal:
        batches_of(folder / "in.parquet", options)
    told = "".join(traceback.format_exception(refusal.value))
    assert "192.0.2.9" not in told and f"ArrowInvalid, its message is {WITHHELD}" in told
    with pytest.raises(UnreadableInputError, match=r"192\.0\.2\.9"):
        batches_of(folder / "in.parquet", ReadOptions())


def test_only_addresses_are_changed(folder: Path) -> None:
    (plain,) = batches_of(folder / "in.parquet", ReadOptions())
    (batch,) = batches_of(folder / "in.parquet", ReadOptions(anonymize=find_key("key")))
    assert plain.block and batch.block and len(batch.block) == 1
    assert batch.block.event_time.tolist() == plain.block.event_time.tolist()
    assert batch.block.rtt.tolist() == [3.5]
    assert canonical(int(batch.block.src.lo[0])) == replaced_text("192.0.2.9", KEY)
    assert canonical(int(batch.block.dst.lo[0])) == replaced_text("198.51.100.7", KEY)
