"""Mixtures: exact proportions, on any hosts; each dataset goes on where it was, at any weights."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.batches import Batch, is_same, join_hosts
from tests.support.loader_helpers import FEEDS, State, feed_of, refusal_of, round_trip
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    shard_paths,
    spoil_records,
    write_dataset,
)
from tests.support.properties import num_examples
from training import build_dataset
from training.batches.mixture import Assignment, checked_weights, parse_files
from training.batches.states import reshard_states
from training.dataset import BatchIterator, DataConfig

LANES = 8
type Mixture = dict[str, float]


@pytest.fixture(scope="module")
def datasets(mixed: Mixed, folder: Path) -> list[str]:
    """Small and large rows; 16 small ones, IPv6 and compressed; 20 large ones."""
    small = [
        RowSpec(ipv6_probe(5000 + i), make_measurements(4, 500 + i, ipv6_share=0.5))
        for i in range(16)
    ]
    large = [RowSpec(ipv4_probe(6000 + i), make_measurements(90, 600 + i)) for i in range(20)]
    return [
        str(mixed["compact"]),
        str(write_dataset(folder / "small", small, "arrow", 1)),
        str(write_dataset(folder / "large", large, "compact", 2)),
    ]


@pytest.fixture(scope="module")
def mixture(datasets: list[str]) -> Mixture:
    return dict(zip(datasets, (0.5, 0.2, 0.3), strict=True))


def open_mixture(files: Any, **config: Any) -> BatchIterator:
    options = {"batch_size": LANES, "crop_size": CROP, "seed": 2, **config}
    return iter(build_dataset(DataConfig(files, **options)))


def take(files: Any, num_batches: int, **config: Any) -> list[Batch]:
    iterator = open_mixture(files, **config)
    batches = [next(iterator) for _ in range(num_batches)]
    iterator.close()
    return batches


def crops_of(batches: Sequence[Batch], lane: int) -> list[bytes]:
    """Returns all that each crop of a lane says."""
    return [b"".join(values[lane].tobytes() for values in batch.values()) for batch in batches]


@pytest.fixture(scope="module")
def streams(datasets: list[str]) -> list[list[list[bytes]]]:
    """What each dataset gives to each lane, in order, if it is alone."""
    alone = [take(files, 60) for files in datasets]
    return [[crops_of(batches, lane) for lane in range(LANES)] for batches in alone]


def datasets_of(batches: Sequence[Batch], streams: list[list[list[bytes]]]) -> np.ndarray:
    """Returns which dataset gave each example: int64 [steps, lanes].

    Each must have given to a lane what it gives if it is alone: nothing twice, nothing left out.
    """
    numbers = np.full((len(batches), LANES), -1)
    for lane in range(LANES):
        given: Counter[int] = Counter()
        for step, crop in enumerate(crops_of(batches, lane)):
            fits = [n for n, lanes in enumerate(streams) if lanes[lane][given[n]] == crop]
            assert len(fits) == 1, (step, lane, given)
            numbers[step, lane] = fits[0]
            given[fits[0]] += 1
    return numbers


# --- proportions ----------------------------------------------------------------------------------

weights = st.one_of(
    st.integers(1, 1000), st.floats(0.001, 1000), st.sampled_from([0.1, 0.3, 0.7, 1 / 3])
)


@settings(max_examples=num_examples(300, 20))
@given(
    weights=st.lists(weights, min_size=1, max_size=6),
    batch_size=st.integers(1, 100),
    seed=st.integers(0, 2**64 - 1),
    begin=st.integers(0, 2**40),
    num_steps=st.integers(1, 60),
)
def test_proportions_of_any_part(
    weights: list[float], batch_size: int, seed: int, begin: int, num_steps: int
) -> None:
    assign = Assignment(weights, batch_size, seed)
    numbers = np.array([assign(step) for step in range(begin, begin + num_steps)])
    assert numbers.shape == (num_steps, batch_size)
    counts = np.bincount(numbers.reshape(-1), minlength=len(weights))
    expected = np.array(weights) / sum(weights) * num_steps * batch_size
    assert (np.abs(counts - expected) < max(1, len(weights) - 1) + 1e-6).all()


@pytest.mark.parametrize("batch_size", [1, 13, 256])
def test_every_lane_has_the_proportions(batch_size: int) -> None:
    weights = (1, 10, 3, 0.5)
    assign = Assignment(weights, batch_size, seed=1)
    numbers = np.array([assign(step) for step in range(1000)])
    for number, weight in enumerate(weights):
        counts = (numbers == number).sum(axis=0)
        assert np.abs(counts - 1000 * weight / sum(weights)).max() < 20


# --- hosts, workers, threads ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("warm_workers")
def test_workers_give_same_batches(mixture: Mixture) -> None:
    assert is_same(take(mixture, 12, num_workers=3, num_threads=2), take(mixture, 12))


# --- resume, with other weights, hosts and datasets -----------------------------------------------


part = st.tuples(
    st.integers(0, 9),  # steps
    st.tuples(*[st.integers(1, 9)] * 3),  # weights
    st.sampled_from([1, 2, 4]),  # hosts
    st.permutations(range(3)),  # the order in which the datasets are named
    st.sampled_from(sorted(FEEDS)),
)


@settings(max_examples=num_examples(40, 5))
@given(parts=st.lists(part, min_size=2, max_size=4))
def test_every_dataset_goes_on_where_it_was(
    datasets: list[str],
    streams: list[list[list[bytes]]],
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, tuple[int, ...], int, list[int], str]],
) -> None:
    """After any steps, with any weights and hosts: no crop is repeated, none is left out."""
    folder = tmp_path_factory.getbasetemp() / "rows"
    states: list[State] = []
    batches: list[Batch] = []
    expected: list[list[int]] = []
    for steps, weights, host_count, order, feed in parts:
        files = {datasets[number]: weights[number] for number in order}
        shared = reshard_states(states, host_count) if states else [None] * host_count
        hosts, states = [], []
        for host, state in enumerate(shared):
            options = feed_of(folder, feed)
            iterator = open_mixture(files, host_index=host, host_count=host_count, **options)
            if state is not None:
                iterator.set_state(round_trip(state))
            hosts.append([next(iterator) for _ in range(steps)])
            states.append(round_trip(iterator.get_state()))
            iterator.close()
        assign = Assignment(list(files.values()), LANES, 2)
        first = len(batches)
        expected += [
            [order[number] for number in assign(step)] for step in range(first, first + steps)
        ]
        batches += [join_hosts(group) for group in zip(*hosts, strict=True)]
    assert datasets_of(batches, streams).tolist() == expected


def test_dataset_added_at_a_checkpoint(
    datasets: list[str], streams: list[list[list[bytes]]]
) -> None:
    alone = open_mixture(datasets[0])
    batches = [next(alone) for _ in range(5)]
    joined = open_mixture({datasets[2]: 1, datasets[0]: 3})
    joined.set_state(round_trip(alone.get_state()))
    batches += [next(joined) for _ in range(8)]
    numbers = datasets_of(batches, streams)
    assert (numbers[:5] == 0).all()
    assert np.bincount(numbers[5:].reshape(-1)).tolist() == [48, 0, 16]


def test_a_dataset_that_is_missing_at_a_checkpoint_is_refused(datasets: list[str]) -> None:
    state = open_mixture(dict.fromkeys(datasets, 1)).get_state()
    fingerprint = state["datasets"][1]["fingerprint"]
    for files in ({datasets[0]: 1, datasets[2]: 1}, datasets[2]):
        iterator = open_mixture(files)
        refusal_of(
            lambda: iterator.set_state(state),  # noqa: B023
            fingerprint,
            "use the same files",
            "new weights",
        )
    other = open_mixture(dict.fromkeys(datasets, 1), mixed_rows=3)
    refusal_of(lambda: other.set_state(state), "saved with options", "use the same seed")


def test_skipped_rows_of_each_dataset(datasets: list[str], tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(5, i)) for i in range(200)]
    spoiled = write_dataset(tmp_path / "rows", rows, "compact", 1)
    spoil_records(spoiled, {(0, 3), (0, 150)})
    files = {datasets[1]: 1, str(spoiled): 1}
    with pytest.raises(ProbelineError, match="train_shard_00000"):
        take(files, 40)
    iterator = open_mixture(files, on_bad_row="skip")
    for _ in range(40):
        next(iterator)
    state = iterator.get_state()
    assert [each["skipped_rows"] for each in state["datasets"]] == [[], [[0, 3], [0, 150]]]
    reversed_ = open_mixture(dict(reversed(files.items())), on_bad_row="skip")
    reversed_.set_state(round_trip(state))
    skipped = [each["skipped_rows"] for each in reversed_.get_state()["datasets"]]
    assert skipped == [[[0, 3], [0, 150]], []]
    assert is_same([next(iterator) for _ in range(4)], [next(reversed_) for _ in range(4)]) is False


# --- refusals -------------------------------------------------------------------------------------


def test_datasets_that_cannot_be_mixed(datasets: list[str], tmp_path: Path) -> None:
    first, second = datasets[0], datasets[1]
    missing = str(tmp_path / "nowhere")
    refusal_of(lambda: open_mixture({first: 1, missing: 1}), missing, "is not a finished dataset")
    for twice in (f"{first}/", f"{first}/train", str(shard_paths(Path(first))[1])):
        refusal_of(lambda: open_mixture({first: 1, twice: 2}), twice, "the same rows", "name each")  # noqa: B023
    refusal_of(
        lambda: open_mixture({first: 1, f"{second}/test": 1}), "train split", "test split", "same"
    )
    refusal_of(
        lambda: open_mixture({first: 1, second: 1}, batch_size=64), second, "16 small rows", "use"
    )
    shards = {str(path): 1 for path in shard_paths(Path(first))}
    assert len(take(shards, 3, batch_size=2)) == 3  # parts of one dataset may have weights


def test_what_no_mixture_can_have() -> None:
    refusal_of(lambda: checked_weights({}), "empty mixture", kind=UsageError)
    refusal_of(lambda: checked_weights({3: 1}), "has 3", "a path or a glob", kind=UsageError)
    files = {"rows/a": 1, "rows/b": 2}
    refusal_of(lambda: DataConfig(files, 8, num_epochs=1), "num_epochs is 1", "use None")
    refusal_of(
        lambda: DataConfig(files, 8, sampler="windows", weights=[1.0]), "weights are numbers"
    )


def test_a_mixture_is_read_as_maxtext_writes_it_and_as_json() -> None:
    expected = {"gs://a/rows,1": 0.7, "rows/b/*": 0.3}
    for text in (
        "gs://a/rows,1,0.7;rows/b/*,0.3",
        " gs://a/rows,1 , 0.7; rows/b/*,0.3;",
        json.dumps(expected),
    ):
        assert parse_files(text) == expected
    for text in ("rows/a", "rows/a,0.3", "gs://a/{b,c}/*", ""):
        assert parse_files(text) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rows/a;rows/b", ["not a mixture", "rows/a,0.7;rows/b,0.3"]),
        ('{"rows/a": 0.7', ["not a mixture", '{"rows/a": 0.7, "rows/b": 0.3}']),
        ("rows/a,1;rows/a,2", ["rows/a is in the mixture twice", "the sum"]),
    ],
)
def test_a_text_that_is_no_mixture(text: str, parts: list[str]) -> None:
    refusal_of(lambda: parse_files(text), *parts, kind=UsageError)


def test_programs_that_take_one_dataset_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    from training import analyze_padding

    assert analyze_padding.main(["rows/a,1;rows/b,1"]) == 2
    assert "training.analyze_padding takes one dataset" in capsys.readouterr().err
