"""A loader goes on exactly where its state was taken, also on other hosts; and every refusal."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from tests.support.batches import Batch, host_batches, is_same, join_hosts
from tests.support.loader_helpers import (
    FEEDS,
    RESUMED,
    State,
    expected_batches,
    feed_of,
    open_iterator,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    ipv4_probe,
    make_measurements,
    shard_paths,
    write_dataset,
)
from tests.support.properties import num_examples
from training.batches.states import reshard_states

LAST = 50


@functools.cache
def trace(dataset: Path, kind: str) -> tuple[list[Batch], list[State]]:
    """Returns batches and, one more, the states before the first and after each of them."""
    iterator = open_iterator(dataset, **RESUMED[kind])
    batches, states = [], [round_trip(iterator.get_state())]
    while len(batches) < LAST and (batch := next(iterator, None)) is not None:
        batches.append(batch)
        states.append(round_trip(iterator.get_state()))
    return batches, states


# --- on any workers, threads and encodings --------------------------------------------------------


@settings(max_examples=num_examples(60))
@given(
    kind=st.sampled_from(sorted(RESUMED)),
    step=st.integers(0, LAST),
    used=st.none() | st.integers(0, LAST + 5),
    feed=st.sampled_from(sorted(FEEDS)),
    encoding=st.sampled_from(ENCODINGS),
)
def test_a_resumed_iterator_goes_on_where_it_was(
    mixed: Mixed, kind: str, step: int, used: int | None, feed: str, encoding: Encoding
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
    if len(batches) < LAST and step + 12 >= len(batches):
        assert next(iterator, None) is next(iterator, None) is None
        assert round_trip(iterator.get_state()) == states[-1]
    iterator.close()


def test_traces_reach_what_they_are_for(mixed: Mixed) -> None:
    """Windows, packed rows and epochs that are only half done, and iterators that have ended."""
    ended = [kind for kind in RESUMED if len(trace(mixed["arrow"], kind)[0]) < LAST]
    assert sorted(ended) == ["a host of two", "padded", "two epochs", "windows"]
    _, states = trace(mixed["arrow"], "endless")
    cursors = np.array([state["datasets"][0]["cursors"] for state in states])  # [step, lane, 6]
    large_epoch, window, large_index, small_epoch, _, item = cursors.max(axis=(0, 1))
    assert min(large_epoch, window, large_index, small_epoch, item) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("warm_workers")
def test_resume_with_another_number_of_workers(mixed: Mixed, num_workers: int) -> None:
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


def test_a_state_is_of_its_moment(mixed: Mixed) -> None:
    """It does not change when its iterator goes on, and changing it changes no iterator."""
    iterator = open_iterator(mixed["arrow"])
    next(iterator)
    state = iterator.get_state()
    before = round_trip(state)
    next(iterator)
    assert state == before
    other = open_iterator(mixed["arrow"])
    other.set_state(state)
    state["datasets"][0]["cursors"][0][0] = 77
    state["step"] = 99
    expected = expected_batches(mixed["arrow"], "packed", 25)
    assert is_same([next(other)], expected[1:2])


@pytest.mark.parametrize("sampler", ["rows", "windows"])
@pytest.mark.parametrize("host_count", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_more_epochs_after_a_finished_run(
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


@settings(max_examples=num_examples(25))
@given(
    before=st.sampled_from([1, 2, 4, 8]),
    after=st.sampled_from([1, 2, 4, 8]),
    steps=st.integers(0, 20),
    order=st.randoms(use_true_random=False),
)
def test_states_on_another_number_of_hosts(
    mixed: Mixed, before: int, after: int, steps: int, order: Any
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


def test_states_that_do_not_fit_together_are_refused(mixed: Mixed) -> None:
    states = states_of_hosts(mixed["arrow"], 4, 3)
    later = states_of_hosts(mixed["arrow"], 4, 4)
    other = states_of_hosts(mixed["arrow"], 4, 3, seed=9)
    for given_states in (states[1:], states[:2] + states[3:], states[:3], [*states, states[0]]):
        refusal_of(lambda: reshard_states(given_states, 2), "pass those of all hosts")  # noqa: B023
    refusal_of(lambda: reshard_states([*states[:3], later[3]], 2), "lane 6, step 3", "pass those")
    refusal_of(lambda: reshard_states([*states[:3], other[3]], 2), "fingerprint", "use the same")
    refusal_of(lambda: reshard_states(states, 3), "host_count is 3", "divides the batch")
    refusal_of(lambda: reshard_states([], 2), "all hosts")


# --- states that belong elsewhere -----------------------------------------------------------------


def test_a_state_of_other_options_is_refused(mixed: Mixed) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    for other in (
        {"seed": 1},
        {"shuffle": False},
        {"batch_size": 16},
        {"crop_size": 128},
        {"sampler": "windows"},
        {"mode_weights": (1, 0, 0)},
    ):
        iterator = open_iterator(mixed["arrow"], **{"mixed_rows": 3, **other})
        refusal_of(lambda: iterator.set_state(state), state["fingerprint"], "use the same seed")  # noqa: B023
    next(iterator)  # which goes on as if nothing had been


def test_a_state_of_other_data_is_refused(mixed: Mixed) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    for files in (mixed["compact"], shards[2]):
        iterator = open_iterator(files, mixed_rows=3, num_epochs=1)
        refusal_of(lambda: iterator.set_state(state), "fingerprint", "start a new run")  # noqa: B023
    moved = open_iterator(mixed["arrow"] / "train" / "*.arrayrecord", mixed_rows=3)
    moved.set_state(state)


def test_a_state_of_other_lanes_is_refused(mixed: Mixed) -> None:
    states = states_of_hosts(mixed["arrow"], 4, 2)
    for host_index, host_count in ((0, 4), (1, 2)):
        iterator = open_iterator(mixed["arrow"], host_index=host_index, host_count=host_count)
        first = host_index * 8 // host_count
        refusal_of(
            lambda: iterator.set_state(states[1]),  # noqa: B023
            "lanes 2 to 3",
            f"this host has {first} to {first + 8 // host_count - 1}",
            "reshard_states",
        )


def test_a_state_of_another_format_is_refused(mixed: Mixed) -> None:
    state = trace(mixed["arrow"], "endless")[1][5]
    iterator = open_iterator(mixed["arrow"], mixed_rows=3)
    for wrong in ({**state, "format": 2}, {**state, "format": 4}):
        refusal_of(lambda: iterator.set_state(wrong), "format", "use the version")  # noqa: B023
        refusal_of(lambda: reshard_states([wrong, wrong], 1), "format", "use the version")  # noqa: B023


# --- through Grain's checkpoints ------------------------------------------------------------------


def test_orbax_saves_and_restores(mixed: Mixed, tmp_path: Path) -> None:
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
