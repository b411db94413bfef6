"""A dataset that was changed or damaged after it was written; rows that cannot be read."""

import dataclasses
import errno
import itertools
import logging
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.manifest import MANIFEST_NAME, Manifest, write_success
from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.dataset.rows import BadRowError, RowReader
from beam_pipeline.errors import ProbelineError
from tests.conftest import Gcs
from tests.support.batches import Epochs, global_batches, host_batches, is_same
from tests.support.helpers import quick_and_slow
from tests.support.loader_helpers import (
    FEEDS,
    VARIANTS,
    config_of,
    feed_of,
    open_iterator,
    read_all,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    read_records,
    restamp,
    shard_paths,
    spoil_records,
    write_dataset,
    write_mixed,
    write_records,
)
from training import assert_resumes_exactly
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource


@pytest.fixture
def copy(mixed: Mixed, tmp_path: Path) -> Path:
    """A dataset to change."""
    return Path(shutil.copytree(mixed["arrow"], tmp_path / "copy"))


def first_batches(dataset: Path | str, num_batches: int = 20, **config: Any) -> None:
    """Reads from a dataset all that a loader would, some epochs of it."""
    options = {"batch_size": 4, "crop_size": 256, **config}
    iterator = iter(build_dataset(DataConfig(str(dataset), **options)))
    for _ in range(num_batches):
        if next(iterator, None) is None:
            break


def users(dataset: Path | str) -> list[Callable[[], object]]:
    """All ways to begin to read; each must refuse."""
    return [lambda: read_all(dataset), lambda: first_batches(dataset)]


@pytest.mark.parametrize("change", ["missing", "truncated"])
def test_a_changed_shard_is_named(copy: Path, change: str) -> None:
    path = shard_paths(copy)[1]
    data = path.read_bytes()
    path.unlink()
    if change == "truncated":
        path.write_bytes(data[:-1])
    found = f"has {len(data) - 1} bytes, not {len(data)}" if change == "truncated" else "is missing"
    for use in users(copy):
        line = refusal_of(use, f"{path} {found}", "copy the dataset again")
        assert str(shard_paths(copy)[0]) not in line
    # Whoever does not need that shard is not disturbed.
    assert len(read_all(shard_paths(copy)[0])) > 0


def test_a_changed_index_is_refused(copy: Path) -> None:
    path = copy / "train" / "rows.parquet"
    table = pq.read_table(path)
    numbers = pa.array(np.asarray(table["n_measurements"]) + 1, pa.int32())
    pq.write_table(table.set_column(6, "n_measurements", numbers), path)
    for use in users(copy):
        refusal_of(use, f"{path} has checksum", "the manifest says", "copy the dataset again")
    path.unlink()
    for use in users(copy):
        refusal_of(use, f"{path}", "missing", "copy the dataset again")


def test_a_shard_in_place_of_another_of_the_same_size_is_found_out(tmp_path: Path) -> None:
    """What storage says of it is right: only its records tell."""
    rows = [RowSpec(f"10.0.0.{i}", make_measurements(60, 1)) for i in range(10, 40)]
    dataset = write_dataset(
        tmp_path / "rows", rows, "compact", array_record_options="group_size:1,uncompressed"
    )
    one, other = shard_paths(dataset)
    num = min(len(read_records(one)), len(read_records(other)))
    for path in (one, other):
        write_records(path, read_records(path)[:num], "group_size:1,uncompressed")
    index = pq.read_table(dataset / "train" / "rows.parquet")
    kept = index.filter(pa.array(np.asarray(index["position"]) < num))
    pq.write_table(kept, dataset / "train" / "rows.parquet")
    _set_records(dataset, [num, num])
    read_all(dataset)
    assert one.stat().st_size == other.stat().st_size
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    for use in users(dataset):
        line = refusal_of(use, "(src_id, row_index, n_measurements)", "differ from rows.parquet")
        assert re.search(rf"({one}|{other}) record \d+: ", line)


def _set_records(dataset: Path, num_records: list[int]) -> None:
    restamp(dataset)
    manifest = Manifest.from_json((dataset / MANIFEST_NAME).read_bytes())
    split = manifest.splits["train"]
    shards = [
        dataclasses.replace(shard, num_records=num)
        for shard, num in zip(split.shards, num_records, strict=True)
    ]
    split = dataclasses.replace(split, num_records=sum(num_records), shards=shards)
    splits = {**manifest.splits, "train": split}
    write_success(str(dataset), dataclasses.replace(manifest, splits=splits).to_json())


def test_a_shard_with_too_few_records_is_named(copy: Path) -> None:
    path = shard_paths(copy)[2]
    num = len(read_records(path))
    write_records(path, read_records(path)[:-1])
    restamp(copy)
    for use in users(copy):
        refusal_of(use, f"{path} record", f"{num - 1} records, the manifest says {num}")


@pytest.mark.parametrize("options", ["uncompressed", "zstd:1"])
def test_a_shard_cut_under_its_reader_is_named(tmp_path: Path, options: str) -> None:
    """A touch of a mapped page beyond the end of its file would kill the process."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(600, i)) for i in range(20)]
    options = f"group_size:1,{options}"
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1, array_record_options=options)
    (path,) = shard_paths(dataset)
    iterator = open_iterator(dataset, on_bad_row="skip", batch_size=2)
    next(iterator)
    os.truncate(path, 1 << 15)
    found = f"{path} has {1 << 15} bytes, the manifest says"
    refusal_of(lambda: [next(iterator) for _ in range(200)], found, "copy the dataset again")


@pytest.mark.parametrize(
    ("feed", "name"), [*zip(FEEDS, ("EMFILE", "EIO", "ESTALE", "EACCES")), ("plain", "ENOMEM")]
)
def test_rows_that_could_not_be_read_are_never_skipped(
    copy: Path, feed: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(errno, name)
    reason = os.strerror(number)
    for error in (OSError(number, reason), RuntimeError(f"pread() failed: {reason}; reading it")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(RowReader, "_open", fail)
        config = {"batch_size": 8, "crop_size": CROP, "on_bad_row": "skip", **feed_of(copy, feed)}
        with pytest.raises(ProbelineError, match=f"cannot read .*arrayrecord: {reason}; ") as found:
            host_batches(copy, 1, **config)
        assert not isinstance(found.value, BadRowError)


def offset_in_record(record: bytes, what: str) -> int:
    """Returns where, in the record of a row of mixed families, a kind of damage belongs."""
    row = decode_record(record)
    measurements = bytes(row.measurements)
    start = record.index(measurements)
    n = row.n_measurements
    return {
        "src_id": record.index(row.src_id.to_bytes(8, "little")),
        "head": 20,
        "measurements": start,
        "n": start + 4,
        "families": start + 20 + 6 * n,
    }[what]


@pytest.mark.parametrize(
    ("n", "encoding", "what"),
    [
        *((10, "arrow", what) for what in ("src_id", "measurements", "text")),
        *((300, "arrow", what) for what in ("head", "text")),
        *((10, "compact", what) for what in ("head", "measurements", "n")),
        *((300, "compact", what) for what in ("src_id", "families")),
    ],
)
def test_record_with_damaged_content(tmp_path: Path, n: int, encoding: Encoding, what: str) -> None:
    """ArrayRecord's own checksum holds: the record was damaged before it was written."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i, ipv6_share=0.5)) for i in range(6)]
    dataset = write_dataset(tmp_path / "rows", rows, encoding, 1)
    (path,) = shard_paths(dataset)
    record = read_records(path)[3]
    if what == "text":
        first = decode_record(record).to_arrow().column("dst_addr")[0].as_py()
        at, new = record.index(first.encode()), b"?" * 2 * n  # many, so that a context meets one
    elif what == "families":
        at = offset_in_record(record, what)
        new = bytes([record[at] ^ 1 << 3])  # one family more or less than the header counts
    else:
        at, new = offset_in_record(record, what), b"\xa5\x5a\xa5"
    damage_record(dataset, 0, 3, at, new)
    source = ProbeRowDataSource(str(dataset))
    refusal = (f"{path} record 3: ", "copy the dataset again", "on_bad_row=skip")
    refusal_of(lambda: first_batches(dataset, 60), *refusal)
    if what == "text":  # is decoded when it is asked for
        with pytest.raises(ValueError, match="destination of measurement 0 is damaged"):
            list(source[3]["measurements"])
    else:
        refusal_of(lambda: source[3], *refusal)
    assert all(len(source[index]["measurements"]) == n for index in range(6) if index != 3)


def test_changed_objects_are_refused(mixed: Mixed, gcs: Gcs, tmp_path: Path) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed["arrow"], f"{bucket}/rows")
    path = shard_paths(mixed["arrow"])[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "changed").write_bytes(data)
    name = f"{bucket}/rows/train/{path.name}"
    gcs.upload(tmp_path / "changed", name)
    for use in users(f"{bucket}/rows"):
        refusal_of(use, f"{name} has checksum", "copy the dataset again")
    (tmp_path / "changed").write_bytes(data[:-5])
    gcs.upload(tmp_path / "changed", name)
    for use in users(f"{bucket}/rows/train/*.arrayrecord"):
        refusal_of(use, f"{name} has {len(data) - 5} bytes, not {len(data)}")
    for use in users(f"{bucket}/nothing"):
        refusal_of(use, f"{bucket}/nothing is not a finished dataset")


def names_of(dataset: Path) -> list[tuple[int, int, str, int]]:
    """Returns (shard, position, src_addr, n_measurements) of every row."""
    return [
        (shard, position, row.src_addr, row.n_measurements)
        for shard, path in enumerate(shard_paths(dataset))
        for position, row in enumerate(map(decode_record, read_records(path)))
    ]


class Spoilt(NamedTuple):
    dataset: Path
    bad: set[tuple[int, int]]  # shards and positions of rows that cannot be read
    left: list[RowSpec]  # the others


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    """`mixed_rows` of which every sixth cannot be read."""
    dataset = write_mixed(tmp_path_factory.mktemp("spoilt"))["compact"]
    names = [name for name in names_of(dataset) if name[2] != "192.0.2.77"][4::6]
    bad = {(shard, position) for shard, position, *_ in names}
    spoil_records(dataset, bad)
    bad_sources = {name[2] for name in names}
    left = [row for row in mixed_rows() if row.src_addr not in bad_sources]
    assert len(mixed_rows()) - len(left) == len(bad)
    return Spoilt(dataset, bad, left)


@pytest.mark.parametrize("host_count", [1, 8])
def test_skipped_rows_and_all_others(spoilt: Spoilt, host_count: int) -> None:
    dataset, _, left = spoilt
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 2, "on_bad_row": "skip"}
    batches = global_batches(dataset, host_count, **config)
    Epochs(write_good(dataset, left), left, 2).check(batches)


def write_good(dataset: Path, rows: Sequence[RowSpec]) -> Path:
    """Returns a dataset of the rows that can be read, for what they must give."""
    folder = dataset.parent / "good"
    return folder if folder.exists() else write_dataset(folder, rows, "compact")


@pytest.mark.parametrize(("variant", "feed"), [*zip(VARIANTS, itertools.cycle(FEEDS))])
@pytest.mark.parametrize("host_count", quick_and_slow([2, 8], [8]))
def test_skipped_rows_on_hosts(spoilt: Spoilt, host_count: int, variant: str, feed: str) -> None:
    dataset, _, _ = spoilt
    config = {"batch_size": 8, "crop_size": CROP, "on_bad_row": "skip", **VARIANTS[variant]}
    alone = host_batches(dataset, 25, **config)
    found = global_batches(dataset, host_count, 25, **config, **feed_of(dataset, feed))
    assert is_same(found, alone)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workers")
def test_bad_rows_are_logged_and_counted(spoilt: Spoilt, caplog: pytest.LogCaptureFixture) -> None:
    dataset, bad, _ = spoilt
    for feed in ({}, {"num_threads": 4}, {"num_workers": 1}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="training"):
            iterator = open_iterator(dataset, batch_size=1, num_epochs=2, on_bad_row="skip", **feed)
            assert len(list(iterator)) > 20
        messages = [record.getMessage() for record in caplog.records if record.name == "training"]
        assert len(messages) == len(bad)
        assert {tuple(row) for row in iterator.get_state()["datasets"][0]["skipped_rows"]} == bad
        paths = shard_paths(dataset)
        for shard, position in bad:
            assert any(f"{paths[shard]} record {position}: " in message for message in messages)
        iterator.close()


def test_a_resumed_run_leaves_out_and_counts_the_same_rows(spoilt: Spoilt) -> None:
    dataset, bad, _ = spoilt
    config = config_of(dataset, on_bad_row="skip")
    assert_resumes_exactly(build_dataset(config), 20)
    straight, resumed = iter(build_dataset(config)), iter(build_dataset(config))
    for number in range(40):
        next(straight)
        if number == 5:
            resumed.set_state(round_trip(straight.get_state()))
            assert 0 < len(resumed.get_state()["datasets"][0]["skipped_rows"]) < len(bad)
        if number > 5:
            next(resumed)
    assert resumed.get_state() == straight.get_state()


def test_many_bad_small_rows_one_after_the_other(tmp_path: Path) -> None:
    """More of them than a crop has room for; none of the others may be lost or made up."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(1, i)) for i in range(300)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1)
    bad = {source for _, position, source, _ in names_of(dataset) if 20 <= position < 220}
    spoil_records(dataset, {(0, position) for position in range(20, 220)})
    left = [row for row in rows if row.src_addr not in bad]
    good = write_good(dataset, left)
    config = {"batch_size": 2, "crop_size": CROP, "num_epochs": 1, "on_bad_row": "skip"}
    for hosts, shuffle in itertools.product((1, 2), (False, True)):
        Epochs(good, left, 1).check(global_batches(dataset, hosts, shuffle=shuffle, **config))


@pytest.fixture(scope="module")
def slightly_damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large rows, one destination of each third one damaged: most contexts never meet it."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(600, i)) for i in range(12)]
    dataset = write_dataset(tmp_path_factory.mktemp("slightly") / "rows", rows, "arrow", 1)
    (path,) = shard_paths(dataset)
    for position in range(0, 12, 3):
        record = read_records(path)[position]
        text = decode_record(record).to_arrow().column("dst_addr")[300].as_py().encode()
        damage_record(dataset, 0, position, record.index(text), b"?")
    return dataset


def test_a_row_damaged_in_one_place_is_bad_for_all_hosts_or_none(slightly_damaged: Path) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 2, "on_bad_row": "skip"}
    alone = host_batches(slightly_damaged, **config)
    for host_count in (2, 4, 8):
        found = global_batches(slightly_damaged, host_count, **config)
        assert is_same(found[: len(alone)], alone), host_count


def test_a_row_damaged_in_one_place_is_bad_after_a_resume_too(slightly_damaged: Path) -> None:
    config: dict[str, Any] = {"batch_size": 4, "on_bad_row": "skip"}
    whole = host_batches(slightly_damaged, 120, crop_size=CROP, **config)
    for step in (30, 45, 60, 75, 90):
        iterator = open_iterator(slightly_damaged, **config)
        for _ in range(step):
            next(iterator)
        resumed = open_iterator(slightly_damaged, **config)
        resumed.set_state(round_trip(iterator.get_state()))
        assert is_same([next(resumed) for _ in range(30)], whole[step : step + 30]), step


@pytest.mark.parametrize(("n", "sampler"), [(3, "rows"), (100, "rows"), (3, "windows")])
@pytest.mark.parametrize("num_epochs", [None, 2])
def test_bad_rows_only(tmp_path: Path, n: int, num_epochs: int | None, sampler: str) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i)) for i in range(9)]
    dataset = write_dataset(tmp_path / "rows", rows, "arrow", 1)
    spoil_records(dataset, {(0, position) for position in range(9)})
    config = {"batch_size": 2, "crop_size": CROP, "num_epochs": num_epochs, "sampler": sampler}
    for hosts in (1, 2):
        try:
            batches = global_batches(dataset, hosts, 100, on_bad_row="skip", **config)
        except ProbelineError as error:
            assert "no readable row" in str(error) and str(shard_paths(dataset)[0]) in str(error)
        else:
            assert num_epochs and not any(b["inputs_segmentation"].any() for b in batches)
