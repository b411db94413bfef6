"""Rows that cannot be read end a run with their names, or are left out on all hosts alike."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.errors import ProbelineError
from tests.support.batches import Epochs, global_batches, host_batches, is_same, segments
from tests.support.helpers import quick_and_slow
from tests.support.loader_helpers import (
    FEEDS,
    VARIANTS,
    all_variants,
    config_of,
    feed_of,
    open_iterator,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    read_records,
    shard_paths,
    spoil_records,
    write_dataset,
    write_mixed,
)
from training import assert_resumes_exactly, build_dataset
from training.tokens.tokenizer import decode


def names_of(dataset: Path) -> list[tuple[int, int, str, int]]:
    """Returns (shard, position, src_addr, n_measurements) of every row."""
    return [
        (shard, position, row.src_addr, row.n_measurements)
        for shard, path in enumerate(shard_paths(dataset))
        for position, row in enumerate(map(decode_record, read_records(path)))
    ]


@pytest.fixture(scope="module")
def spoilt(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, set[tuple[int, int]], list[RowSpec]]:
    """`mixed_rows` of which every sixth cannot be read; which; and the rows that can."""
    dataset = write_mixed(tmp_path_factory.mktemp("spoilt"))["compact"]
    rows = [row for row in mixed_rows() if row.src_addr != "192.0.2.77"]
    names = names_of(dataset)
    bad = [name for name in names if name[2] != "192.0.2.77"][::6]
    spoil_records(dataset, {(shard, position) for shard, position, *_ in bad})
    bad_sources = {name[2] for name in bad}
    left = [row for row in mixed_rows() if row.src_addr not in bad_sources]
    assert len({row.src_addr for row in rows}) - len(left) + 3 == len(bad)
    return dataset, {(shard, position) for shard, position, *_ in bad}, left


def test_a_bad_row_ends_the_run_with_its_name(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]],
) -> None:
    dataset, bad, _ = spoilt
    for feed in FEEDS:
        config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 1, **feed_of(dataset, feed)}
        line = refusal_of(lambda: host_batches(dataset, **config), "on_bad_row=skip")  # noqa: B023
        found = re.match(r"(.*) record (\d+): ", line)
        assert found
        shard = [str(path) for path in shard_paths(dataset)].index(found[1])
        assert (shard, int(found[2])) in bad


@pytest.mark.parametrize("host_count", [1, 2, 8])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_bad_rows_are_left_out_and_all_else_is_there(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]], host_count: int, num_epochs: int
) -> None:
    dataset, _, left = spoilt
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": num_epochs, "on_bad_row": "skip"}
    batches = global_batches(dataset, host_count, **config)
    Epochs(write_good(dataset, left), left, num_epochs).check(batches)


def write_good(dataset: Path, rows: Sequence[RowSpec]) -> Path:
    """Returns a dataset of the rows that can be read, for what they must give."""
    folder = dataset.parent / "good"
    return folder if folder.exists() else write_dataset(folder, rows, "compact")


@all_variants
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("host_count", quick_and_slow([2, 8], [8]))
def test_batches_without_bad_rows_do_not_depend_on_hosts(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]],
    host_count: int,
    variant: str,
    feed: str,
) -> None:
    dataset, _, _ = spoilt
    config = {"batch_size": 8, "crop_size": CROP, "on_bad_row": "skip", **VARIANTS[variant]}
    alone = host_batches(dataset, 25, **config)
    found = global_batches(dataset, host_count, 25, **config, **feed_of(dataset, feed))
    assert is_same(found, alone)


@pytest.mark.slow
def test_bad_rows_are_logged_and_counted(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]], caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_resumed_run_leaves_out_and_counts_the_same_rows(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]],
) -> None:
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
    names = names_of(dataset)
    spoil_records(dataset, {(0, position) for position in range(20, 220)})
    good = {source for _, position, source, _ in names if not 20 <= position < 220}
    for hosts in (1, 2):
        for shuffle in (False, True):
            batches = global_batches(
                dataset,
                hosts,
                batch_size=2,
                crop_size=CROP,
                num_epochs=1,
                shuffle=shuffle,
                on_bad_row="skip",
            )
            told = [
                m
                for batch in batches
                for lane in range(2)
                for tokens in segments(batch, lane)
                for m in decode(tokens)
            ]
            destinations = {row.src_addr: f"{_destination(row)}" for row in rows}
            assert {m.src_addr for m in told if m.src_addr} == good
            for m in told:
                assert not m.is_whole or m.dst_addr == destinations[m.src_addr or ""]


def _destination(row: RowSpec) -> str:
    value = int(row.run["dst_lo"][0])
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


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


@pytest.mark.parametrize("n", [3, 100], ids=["small", "large"])
@pytest.mark.parametrize("num_epochs", [None, 1, 3])
@pytest.mark.parametrize("sampler", ["rows", "windows"])
def test_nothing_but_bad_rows_ends_with_an_error(
    tmp_path: Path, n: int, num_epochs: int | None, sampler: str
) -> None:
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


@pytest.mark.slow
def test_errors_of_workers_are_as_those_of_one_process(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]],
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 1, "num_workers": 1}
    refusal_of(lambda: host_batches(spoilt[0], **config), "record", "on_bad_row=skip")
