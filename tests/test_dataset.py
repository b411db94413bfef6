"""The same batches for any hosts, workers and threads, and after any resume; and every refusal."""

import functools
import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.row_codec import ENCODINGS, Encoding, decode_record
from tests.conftest import Gcs
from tests.probe_rows_on_disk import (
    CROP,
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    read_records,
    restamp,
    shard_paths,
    write_dataset,
    write_mixed,
    write_records,
)
from tests.test_packing import (
    Batch,
    Epochs,
    global_batches,
    host_batches,
    is_same,
    join_hosts,
    segments,
)
from training.dataset import BatchIterator, DataConfig, build_dataset, reshard_states
from training.tokenizer import decode

State = dict[str, Any]

# What batches depend on, …
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"pack": False},
    "in order": {"shuffle": False},
    "narrow windows": {"mixed_rows": 2, "seed": 3},
    "windows": {"sampler": "windows"},
    "weighted windows": {"sampler": "windows", "weights": "measurements"},
}
both_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
all_variants = pytest.mark.parametrize("variant", VARIANTS)
# … and, beside the hosts and the encoding, what they must not depend on.
FEEDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "threads": {"num_threads": 4},
    "cache": {"cache_dir": "cache"},
    "cache and threads": {"cache_dir": "cache", "num_threads": 4},
}
FEEDS_OF_WORKERS: dict[str, dict[str, Any]] = {
    "a worker": {"num_workers": 1},
    "two workers": {"num_workers": 2},
    "two workers with threads": {"num_workers": 2, "num_threads": 4},
    "two workers and a cache": {"num_workers": 2, "cache_dir": "cache"},
}


def feed_of(dataset: Path, feed: str) -> dict[str, Any]:
    """Returns the options of a feed; its cache lies beside the dataset."""
    options = (FEEDS | FEEDS_OF_WORKERS)[feed]
    if "cache_dir" in options:
        options = options | {"cache_dir": str(dataset.parent / options["cache_dir"])}
    return options


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoding, Path]:
    return write_mixed(tmp_path_factory.mktemp("mixed"))


@functools.cache
def expected_batches(dataset: Path, variant: str, num_batches: int) -> list[Batch]:
    """The first batches of one host without workers and threads."""
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    return host_batches(dataset, num_batches, **config)


def config_of(dataset: Path | str, **config: Any) -> DataConfig:
    return DataConfig(**{"files": str(dataset), "batch_size": 8, "crop_size": CROP, **config})


def open_iterator(dataset: Path | str, **config: Any) -> BatchIterator:
    return iter(build_dataset(config_of(dataset, **config)))


def round_trip(state: State) -> State:
    return json.loads(json.dumps(state))


def refusal_of(call: Callable[[], object], *parts: str, kind: type = ProbelineError) -> str:
    """Returns the one line of the error that `call` must raise; it must hold all `parts`."""
    with pytest.raises(kind) as refusal:
        call()
    line = str(refusal.value).partition("\n-----")[0]  # Grain adds a note to its iterators' errors
    assert "\n" not in line
    for part in parts:
        assert part in line, line
    return line


# --- hosts, workers, threads, encodings -----------------------------------------------------------


@all_variants
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("host_count", [1, 2, 4, 8])
@both_encodings
def test_the_global_batches_are_the_same(
    mixed: dict[Encoding, Path], variant: str, feed: str, host_count: int, encoding: Encoding
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed[encoding], feed)
    found = global_batches(mixed[encoding], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


@pytest.mark.parametrize(
    ("variant", "feed", "host_count"),
    [
        ("packed", "two workers", 1),
        ("narrow windows", "two workers with threads", 1),
        ("windows", "a worker", 2),
        ("packed", "two workers and a cache", 1),
    ],
)
def test_workers_give_the_same_batches(
    mixed: dict[Encoding, Path], variant: str, feed: str, host_count: int
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed["compact"], feed)
    found = global_batches(mixed["compact"], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


@pytest.mark.parametrize("num_workers", [2, 100])
def test_workers_end_as_one_process_does(mixed: dict[Encoding, Path], num_workers: int) -> None:
    config = {"batch_size": 3, "crop_size": CROP, "num_epochs": 1}
    alone = host_batches(mixed["compact"], **config)
    assert is_same(host_batches(mixed["compact"], num_workers=num_workers, **config), alone)
    Epochs(mixed["compact"], mixed_rows(), 1).check(alone)


def test_iterators_of_a_dataset_are_apart_from_each_other(mixed: dict[Encoding, Path]) -> None:
    dataset = build_dataset(config_of(mixed["arrow"]))
    expected = expected_batches(mixed["arrow"], "packed", 25)
    one, other = iter(dataset), iter(dataset)
    first = [next(one) for _ in range(10)]
    assert is_same([next(other) for _ in range(5)], expected[:5])
    assert is_same([*first, next(one)], expected[:11])


def test_a_batch_that_was_given_is_not_written_to_again(mixed: dict[Encoding, Path]) -> None:
    for feed in FEEDS:
        iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
        batches = [next(iterator) for _ in range(25)]
        assert is_same(batches, expected_batches(mixed["arrow"], "packed", 25))
        iterator.close()


@pytest.mark.parametrize("feed", FEEDS)
def test_a_closed_iterator_gives_nothing(mixed: dict[Encoding, Path], feed: str) -> None:
    iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed)).close()


def test_the_dataset_is_one_of_grain(mixed: dict[Encoding, Path]) -> None:
    dataset = build_dataset(config_of(mixed["arrow"]))
    assert isinstance(dataset, grain.IterDataset)
    widths = dataset.map(lambda batch: batch["inputs"].shape)
    assert next(iter(widths)) == (8, CROP)
    assert repr(dataset) == repr(build_dataset(config_of(mixed["arrow"], num_threads=2)))


# --- resume ---------------------------------------------------------------------------------------

RESUMED: dict[str, dict[str, Any]] = {
    "endless": {"mixed_rows": 3},
    "two epochs": {"num_epochs": 2},
    "a host of two": {"num_epochs": 2, "host_index": 1, "host_count": 2},
    "padded": {"num_epochs": 2, "pack": False, "shuffle": False},
    "windows": {"sampler": "windows", "num_epochs": 3, "weights": "measurements"},
    "tiny lanes": {"batch_size": 40},
}
_LAST = 50


@functools.cache
def trace(dataset: Path, kind: str) -> tuple[list[Batch], list[State]]:
    """Returns batches and, one more, the states before the first and after each of them."""
    iterator = open_iterator(dataset, **RESUMED[kind])
    batches, states = [], [round_trip(iterator.get_state())]
    while len(batches) < _LAST and (batch := next(iterator, None)) is not None:
        batches.append(batch)
        states.append(round_trip(iterator.get_state()))
    return batches, states


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(RESUMED)),
    step=st.integers(0, _LAST),
    used=st.none() | st.integers(0, _LAST + 5),
    feed=st.sampled_from(sorted(FEEDS)),
    encoding=st.sampled_from(ENCODINGS),
)
def test_a_resumed_iterator_goes_on_where_it_was(
    mixed: dict[Encoding, Path],
    kind: str,
    step: int,
    used: int | None,
    feed: str,
    encoding: Encoding,
) -> None:
    """On a fresh iterator, or in place on one that has given `used` batches, ended or not."""
    batches, states = trace(mixed["arrow"], kind)
    step = min(step, len(batches))
    if encoding == "compact":  # the state is of the data; take that dataset's own
        _, states = trace(mixed["compact"], kind)
    iterator = open_iterator(mixed[encoding], **RESUMED[kind], **feed_of(mixed[encoding], feed))
    for _ in range(used or 0):
        next(iterator, None)
    iterator.set_state(states[step])
    assert round_trip(iterator.get_state()) == states[step]
    for number in range(step, min(step + 12, len(batches))):
        assert is_same([next(iterator)], [batches[number]])
        assert round_trip(iterator.get_state()) == states[number + 1]
    if len(batches) < _LAST and step + 12 >= len(batches):
        assert next(iterator, None) is None
        assert round_trip(iterator.get_state()) == states[-1]
    iterator.close()


def test_traces_reach_what_they_are_for(mixed: dict[Encoding, Path]) -> None:
    """Windows, packed rows and epochs that are only half done, and iterators that have ended."""
    ended = [kind for kind in RESUMED if len(trace(mixed["arrow"], kind)[0]) < _LAST]
    assert sorted(ended) == ["a host of two", "padded", "two epochs", "windows"]
    _, states = trace(mixed["arrow"], "endless")
    cursors = np.array([state["cursors"] for state in states])  # [step, lane, 6]
    large_epoch, window, large_index, small_epoch, _, item = cursors.max(axis=(0, 1))
    assert min(large_epoch, window, large_index, small_epoch, item) >= 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_with_another_number_of_workers(
    mixed: dict[Encoding, Path], num_workers: int
) -> None:
    iterator = open_iterator(mixed["arrow"], num_workers=2 - num_workers, num_threads=2)
    expected = expected_batches(mixed["arrow"], "packed", 25)
    assert is_same([next(iterator) for _ in range(7)], expected[:7])
    state = round_trip(iterator.get_state())
    next(iterator)
    iterator.set_state(state)  # in place: what workers have prepared is thrown away
    assert is_same([next(iterator)], expected[7:8])
    iterator.close()
    resumed = open_iterator(mixed["arrow"], num_workers=num_workers)
    resumed.set_state(state)
    assert is_same([next(resumed) for _ in range(10)], expected[7:17])
    resumed.close()


def test_a_state_is_small_and_of_plain_values(mixed: dict[Encoding, Path]) -> None:
    iterator = open_iterator(mixed["arrow"], batch_size=64, num_epochs=3)
    sizes = []
    for _ in range(5):
        next(iterator)
        text = json.dumps(iterator.get_state(), allow_nan=False)
        sizes.append(len(text))
    assert max(sizes) < 64 * 60 + 300


def test_a_state_is_of_its_moment(mixed: dict[Encoding, Path]) -> None:
    """It does not change when its iterator goes on, and changing it changes no iterator."""
    iterator = open_iterator(mixed["arrow"])
    next(iterator)
    state = iterator.get_state()
    before = round_trip(state)
    next(iterator)
    assert state == before
    other = open_iterator(mixed["arrow"])
    other.set_state(state)
    state["cursors"][0][0] = 77
    state["step"] = 99
    expected = expected_batches(mixed["arrow"], "packed", 25)
    assert is_same([next(other)], expected[1:2])


@pytest.mark.parametrize("sampler", ["rows", "windows"])
@pytest.mark.parametrize("host_count", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_more_epochs_go_on_where_fewer_ended(
    tmp_path: Path, sampler: Any, host_count: int, seed: int
) -> None:
    """The state of an ended run begins one of more epochs, which then gives what is missing."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(100, i)) for i in range(6)]
    dataset = write_dataset(tmp_path / "rows", rows)
    config: dict[str, Any] = {"batch_size": 4, "sampler": sampler, "seed": seed}
    if sampler == "windows":
        config["weights"] = [1, 2, 3, 4, 5, 6]
    found, whole = [], []
    for host in range(host_count):
        config.update(host_index=host, host_count=host_count)
        whole += host_batches(dataset, crop_size=CROP, num_epochs=2, **config)
        first = open_iterator(dataset, num_epochs=1, **config)
        found += list(first)
        second = open_iterator(dataset, num_epochs=2, **config)
        second.set_state(round_trip(first.get_state()))
        found += list(second)
    assert contents(found) == contents(whole)


def contents(batches: Sequence[Batch]) -> list[bytes]:
    """Returns the examples that are not padding alone, in no order."""
    return sorted(
        inputs.tobytes()
        for batch in batches
        for inputs, segmentation in zip(batch["inputs"], batch["inputs_segmentation"])
        if segmentation.any()
    )


# --- another number of hosts ----------------------------------------------------------------------


def states_of_hosts(dataset: Path, host_count: int, steps: int, **config: Any) -> list[State]:
    states = []
    for host in range(host_count):
        iterator = open_iterator(dataset, host_index=host, host_count=host_count, **config)
        for _ in range(steps):
            next(iterator)
        states.append(round_trip(iterator.get_state()))
    return states


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.sampled_from([1, 2, 4, 8]),
    after=st.sampled_from([1, 2, 4, 8]),
    steps=st.integers(0, 20),
    order=st.randoms(use_true_random=False),
)
def test_hosts_share_the_states_of_other_hosts(
    mixed: dict[Encoding, Path], before: int, after: int, steps: int, order: Any
) -> None:
    states = states_of_hosts(mixed["arrow"], before, steps)
    order.shuffle(states)
    shared = reshard_states(states, after)
    parts = []
    for host, state in enumerate(shared):
        iterator = open_iterator(mixed["arrow"], host_index=host, host_count=after)
        iterator.set_state(round_trip(state))
        parts.append([next(iterator) for _ in range(4)])
    found = [join_hosts(batches) for batches in zip(*parts, strict=True)]
    assert is_same(found, expected_batches(mixed["arrow"], "packed", 25)[steps : steps + 4])
    assert sorted(map(str, reshard_states(shared, before))) == sorted(map(str, states))


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 8), (1, 4), (8, 1)])
def test_no_epoch_loses_anything_when_hosts_change(
    mixed: dict[Encoding, Path], before: int, after: int
) -> None:
    states = states_of_hosts(mixed["compact"], before, 9, num_epochs=2)
    rest = []
    for host, state in enumerate(reshard_states(states, after)):
        iterator = open_iterator(mixed["compact"], host_index=host, host_count=after, num_epochs=2)
        iterator.set_state(state)
        rest.append(list(iterator))
    first = global_batches(mixed["compact"], 1, 9, batch_size=8, crop_size=CROP, num_epochs=2)
    second = [join_hosts(batches) for batches in zip(*rest, strict=True)]
    Epochs(mixed["compact"], mixed_rows(), 2).check(first + second)


def test_states_that_do_not_fit_together_are_refused(mixed: dict[Encoding, Path]) -> None:
    states = states_of_hosts(mixed["arrow"], 4, 3)
    later = states_of_hosts(mixed["arrow"], 4, 4)
    other = states_of_hosts(mixed["arrow"], 4, 3, seed=9)
    for given_states in (states[1:], states[:2] + states[3:], states[:3]):
        refusal_of(lambda: reshard_states(given_states, 2), "give those of all hosts")  # noqa: B023
    refusal_of(lambda: reshard_states([*states[:3], later[3]], 2), "lane 6, step 3", "give those")
    refusal_of(lambda: reshard_states([*states, states[0]], 2), "give those of all hosts")
    refusal_of(lambda: reshard_states([*states[:3], other[3]], 2), "fingerprint", "give the same")
    refusal_of(lambda: reshard_states(states, 3), "3 hosts", "divides the batch")
    refusal_of(lambda: reshard_states([], 2), "all hosts")


# --- states that belong elsewhere -----------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"shuffle": False},
        {"batch_size": 16},
        {"crop_size": 128},
        {"pack": False},
        {"sampler": "windows"},
        {"mixed_rows": 15},
        {"mode_weights": (1, 0, 0)},
        {"max_contexts_per_row": 4},
        {"avg_tokens_per_measurement": 31},
    ],
    ids=str,
)
def test_a_state_of_other_options_is_refused(
    mixed: dict[Encoding, Path], other: dict[str, Any]
) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    iterator = open_iterator(mixed["arrow"], **{"mixed_rows": 3, **other})
    refusal_of(lambda: iterator.set_state(state), state["fingerprint"], "give the same files, seed")
    next(iterator)  # which goes on as if nothing had been


def test_a_state_of_other_data_is_refused(mixed: dict[Encoding, Path]) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    for files in (mixed["compact"], mixed["arrow"] / "train" / "*_0000[01]-of-*", shards[2]):
        iterator = open_iterator(files, mixed_rows=3, num_epochs=1)
        refusal_of(lambda: iterator.set_state(state), "fingerprint", "begin a new run")  # noqa: B023
    moved = open_iterator(mixed["arrow"] / "train" / "*.arrayrecord", mixed_rows=3)
    moved.set_state(state)


def test_a_state_of_other_lanes_is_refused(mixed: dict[Encoding, Path]) -> None:
    states = states_of_hosts(mixed["arrow"], 4, 2)
    for host_index, host_count in ((0, 4), (0, 2), (1, 2), (0, 1)):
        iterator = open_iterator(mixed["arrow"], host_index=host_index, host_count=host_count)
        first = host_index * 8 // host_count
        refusal_of(
            lambda: iterator.set_state(states[1]),  # noqa: B023
            "lanes 2 to 3",
            f"this host has {first} to {first + 8 // host_count - 1}",
            "reshard_states",
        )


def test_a_state_of_another_format_is_refused(mixed: dict[Encoding, Path]) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    iterator = open_iterator(mixed["arrow"], mixed_rows=3)
    for wrong in ({**state, "format": 2}, {}, {"format": None}):
        refusal_of(lambda: iterator.set_state(wrong), "format", "go on with")  # noqa: B023
        refusal_of(lambda: reshard_states([wrong, wrong], 1), "format", "go on with")  # noqa: B023


# --- through Grain's checkpoints ------------------------------------------------------------------


@pytest.mark.parametrize("feed", FEEDS)
def test_grain_s_handler_saves_and_restores(
    mixed: dict[Encoding, Path], tmp_path: Path, feed: str
) -> None:
    handler = grain.checkpoint.CheckpointHandler()
    iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
    expected = expected_batches(mixed["arrow"], "packed", 25)
    for _ in range(6):
        next(iterator)
    handler.save(epath.Path(tmp_path), iterator)
    assert [path.name for path in tmp_path.iterdir()] == ["process_0-of-1.json"]
    assert is_same([next(iterator)], expected[6:7])
    for target in (open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed)), iterator):
        restored = handler.restore(epath.Path(tmp_path), target)
        assert is_same([next(restored) for _ in range(5)], expected[6:11])
        restored.close()


def test_orbax_saves_and_restores(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    iterator = open_iterator(mixed["arrow"])
    expected = expected_batches(mixed["arrow"], "packed", 25)
    for _ in range(6):
        next(iterator)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        save = grain.checkpoint.CheckpointSave(iterator)  # type: ignore[attr-defined]
        manager.save(1, args=ocp.args.Composite(iter=save))
        manager.wait_until_finished()
        fresh = open_iterator(mixed["arrow"])
        restore = grain.checkpoint.CheckpointRestore(fresh)  # type: ignore[attr-defined]
        restored = manager.restore(1, args=ocp.args.Composite(iter=restore))["iter"]
    assert is_same([next(restored) for _ in range(5)], expected[6:11])


# --- rows that cannot be read ---------------------------------------------------------------------


def names_of(dataset: Path) -> list[tuple[int, int, str, int]]:
    """Returns (shard, position, src_addr, n_measurements) of every row."""
    return [
        (shard, position, row.src_addr, row.n_measurements)
        for shard, path in enumerate(shard_paths(dataset))
        for position, row in enumerate(map(decode_record, read_records(path)))
    ]


def spoil(dataset: Path, bad: set[tuple[int, int]]) -> None:
    """Makes records unreadable, keeping their sizes; the dataset stays finished."""
    for shard, path in enumerate(shard_paths(dataset)):
        records = read_records(path)
        for position, record in enumerate(records):
            if (shard, position) in bad:
                records[position] = b"\xff" * len(record)
        write_records(path, records)
    restamp(dataset)


@pytest.fixture(scope="module")
def spoilt(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, set[tuple[int, int]], list[RowSpec]]:
    """`mixed_rows` of which every sixth cannot be read; which; and the rows that can."""
    dataset = write_mixed(tmp_path_factory.mktemp("spoilt"))["compact"]
    rows = [row for row in mixed_rows() if row.src_addr != "192.0.2.77"]
    names = names_of(dataset)
    bad = [name for name in names if name[2] != "192.0.2.77"][::6]
    spoil(dataset, {(shard, position) for shard, position, *_ in bad})
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
def test_batches_without_bad_rows_do_not_depend_on_hosts(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]], variant: str, feed: str
) -> None:
    dataset, _, _ = spoilt
    config = {"batch_size": 8, "crop_size": CROP, "on_bad_row": "skip", **VARIANTS[variant]}
    alone = host_batches(dataset, 25, **config)
    for host_count in (2, 8):
        found = global_batches(dataset, host_count, 25, **config, **feed_of(dataset, feed))
        assert is_same(found, alone)


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
        assert {tuple(row) for row in iterator.get_state()["skipped_rows"]} == bad
        paths = shard_paths(dataset)
        for shard, position in bad:
            assert any(f"{paths[shard]} record {position}: " in message for message in messages)
        iterator.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(step=st.integers(0, 20), in_place=st.booleans())
def test_a_resumed_run_leaves_out_and_counts_the_same_rows(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]], step: int, in_place: bool
) -> None:
    dataset, _, _ = spoilt
    batches, states = _skipping_trace(dataset)
    iterator = open_iterator(dataset, on_bad_row="skip")
    for _ in range(10 if in_place else 0):
        next(iterator)
    iterator.set_state(states[step])
    for number in range(step, len(batches)):
        assert is_same([next(iterator)], [batches[number]])
    assert iterator.get_state()["cursors"] == states[-1]["cursors"]
    assert iterator.get_state()["skipped_rows"] == states[-1]["skipped_rows"]


@functools.cache
def _skipping_trace(dataset: Path) -> tuple[list[Batch], list[State]]:
    iterator = open_iterator(dataset, on_bad_row="skip")
    states, batches = [round_trip(iterator.get_state())], []
    for _ in range(40):
        batches.append(next(iterator))
        states.append(round_trip(iterator.get_state()))
    return batches, states


def test_many_bad_small_rows_one_after_the_other(tmp_path: Path) -> None:
    """More of them than a crop has room for; none of the others may be lost or made up."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(1, i)) for i in range(300)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1)
    names = names_of(dataset)
    spoil(dataset, {(0, position) for position in range(20, 220)})
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
    spoil(dataset, {(0, position) for position in range(9)})
    config = {"batch_size": 2, "crop_size": CROP, "num_epochs": num_epochs, "sampler": sampler}
    for hosts in (1, 2):
        try:
            batches = global_batches(dataset, hosts, 100, on_bad_row="skip", **config)
        except ProbelineError as error:
            assert "no readable row" in str(error) and str(shard_paths(dataset)[0]) in str(error)
        else:
            assert num_epochs and not any(b["inputs_segmentation"].any() for b in batches)


def test_errors_of_workers_are_as_those_of_one_process(
    spoilt: tuple[Path, set[tuple[int, int]], list[RowSpec]],
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 1, "num_workers": 1}
    refusal_of(lambda: host_batches(spoilt[0], **config), "record", "on_bad_row=skip")


def test_usage_errors_of_workers_are_as_those_of_one_process(mixed: dict[Encoding, Path]) -> None:
    config = {"batch_size": 4096, "crop_size": CROP, "num_workers": 1}
    refusal_of(
        lambda: host_batches(mixed["arrow"], 1, **config),
        "batch_size is 4096",
        "use a smaller",
        kind=UsageError,
    )


def test_what_does_not_suit_the_data_is_said_when_the_dataset_is_built(
    mixed: dict[Encoding, Path],
) -> None:
    for wrong in (
        {"batch_size": 4096},
        {"batch_size": 64, "sampler": "windows"},
        {"sampler": "windows", "weights": [1.0, 2.0]},
    ):
        with pytest.raises(UsageError):
            build_dataset(config_of(mixed["arrow"], **wrong))


# --- the configuration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"batch_size": 0}, ("batch_size is 0", "1 or more")),
        ({"batch_size": -8}, ("batch_size is -8", "1 or more")),
        ({"crop_size": 63}, ("crop_size is 63", "64 or more")),
        ({"mixed_rows": 0}, ("mixed_rows is 0", "1 or more")),
        ({"avg_tokens_per_measurement": 0}, ("avg_tokens_per_measurement is 0", "1 or more")),
        ({"max_contexts_per_row": 0}, ("max_contexts_per_row is 0", "1 or more")),
        ({"host_count": 0}, ("host_count is 0", "1 or more")),
        ({"num_workers": -1}, ("num_workers is -1", "0 or more")),
        ({"num_threads": -2}, ("num_threads is -2", "0 or more")),
        ({"num_epochs": 0}, ("num_epochs is 0", "1 or more, or None")),
        ({"sampler": "row"}, ("sampler is 'row'", "use rows or windows")),
        ({"on_bad_row": "drop"}, ("on_bad_row is 'drop'", "use fail or skip")),
        ({"host_index": 2, "host_count": 2}, ("host_index is 2", "2 hosts")),
        ({"host_index": -1}, ("host_index is -1", "1 hosts")),
        ({"batch_size": 9, "host_count": 2}, ("batch_size 9", "2 hosts", "use a multiple")),
        ({"mode_weights": (1, 2)}, ("(1, 2)", "give three")),
        ({"mode_weights": (1, -1, 1)}, ("(1, -1, 1)", "none negative")),
        ({"mode_weights": (0, 0, 0)}, ("(0, 0, 0)", "not all 0")),
        ({"mode_weights": (float("nan"), 1, 1)}, ("nan", "give three")),
        ({"weights": "probes"}, ("weights", "sampler=windows")),
        ({"weights": [1, 2]}, ("weights", "sampler=windows")),
        ({"weights": "probe", "sampler": "windows"}, ("'probe'", "use rows, probes")),
    ],
    ids=str,
)
def test_a_wrong_configuration_is_refused_in_one_line(
    wrong: dict[str, Any], parts: tuple[str, ...]
) -> None:
    refusal_of(lambda: config_of("rows", **wrong), *parts, kind=UsageError)


def test_numbers_may_come_from_numpy(mixed: dict[Encoding, Path]) -> None:
    plain = {"seed": 5, "batch_size": 4, "sampler": "windows", "weights": [1.0] * 55}
    numbers = {
        "seed": np.int64(5),
        "batch_size": np.int32(4),
        "sampler": "windows",
        "weights": np.ones(55),
        "mode_weights": np.array([0.4, 0.3, 0.3]),
    }
    one, other = (open_iterator(mixed["arrow"], **config) for config in (plain, numbers))
    assert is_same([next(one)], [next(other)])
    other.set_state(round_trip(one.get_state()))


def test_files_are_asked_for_when_the_dataset_is_built(
    mixed: dict[Encoding, Path], tmp_path: Path
) -> None:
    for wrong in (tmp_path, mixed["arrow"] / "train" / "x*.arrayrecord", f"{tmp_path}/no/such"):
        refusal_of(lambda: build_dataset(config_of(wrong)), str(wrong))  # noqa: B023
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    for files in (f"{mixed['arrow']}/", f"{mixed['arrow']}/train", shards):
        dataset = build_dataset(DataConfig(files, batch_size=8, crop_size=CROP))
        assert is_same([next(iter(dataset))], expected_batches(mixed["arrow"], "packed", 25)[:1])


# --- gs:// ----------------------------------------------------------------------------------------


def test_batches_from_gs_are_those_from_disk(
    mixed: dict[Encoding, Path], gcs: Gcs, tmp_path: Path
) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed["compact"], f"{bucket}/rows")
    expected = expected_batches(mixed["arrow"], "packed", 25)
    for files in (f"{bucket}/rows", f"{bucket}/rows/train/*.arrayrecord"):
        for feed in FEEDS:
            iterator = open_iterator(files, **feed_of(tmp_path / "rows", feed))
            assert is_same([next(iterator) for _ in range(25)], expected)
            iterator.close()
    state = trace(mixed["compact"], "endless")[1][8]
    iterator = open_iterator(f"{bucket}/rows", mixed_rows=3)
    iterator.set_state(state)  # saved with the local copy
    assert is_same([next(iterator)], trace(mixed["compact"], "endless")[0][8:9])


def test_a_worker_reads_gs(mixed: dict[Encoding, Path], gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed["compact"], f"{bucket}/rows")
    found = host_batches(f"{bucket}/rows", 10, batch_size=8, crop_size=CROP, num_workers=1)
    assert is_same(found, expected_batches(mixed["arrow"], "packed", 25)[:10])


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_of_8_mib_need_little_memory(tmp_path: Path) -> None:
    run = make_measurements(838_000, 1)
    rows = [RowSpec(ipv4_probe(i), run) for i in range(40)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    assert sum(path.stat().st_size for path in shard_paths(dataset)) > 100 << 20
    code = f"""
        from pathlib import Path
        from training.dataset import DataConfig, build_dataset
        config = DataConfig({str(dataset)!r}, batch_size=64, num_threads=4)
        iterator = iter(build_dataset(config))
        for _ in range(25):
            batch = next(iterator)
        assert batch["inputs_segmentation"].all()
        iterator.close()
        # ru_maxrss would count what the tests' process held when this one began.
        print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1 << 20, f"{int(result.stdout) >> 10} MiB"
