"""Loss weights by kind of token: the share of targets that count, the same on any hosts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from beam_pipeline.errors import UsageError
from tests.support.loader_helpers import config_of, refusal_of
from tests.support.probe_rows_on_disk import Mixed
from training import build_dataset
from training.maxtext.loss_weights import keep_targets, weights_of_kinds
from training.tokens.kinds import KIND_NAMES, NOTHING, parse

if TYPE_CHECKING:
    from training.maxtext import feed as feeding
    from training.maxtext import iterators, run_config

WEIGHTS = {"destination": 0.25, "timestamp": 0.0, "RTT, first byte": 0.9}


@pytest.fixture(scope="module")
def _maxtext() -> None:
    global feeding, iterators, run_config
    pytest.importorskip("maxtext", reason="needs MaxText: pip install '.[maxtext]'")
    from training.maxtext import feed as feeding
    from training.maxtext import iterators, run_config


def weigh(batch: dict[str, np.ndarray], seed: int = 3) -> dict[str, np.ndarray]:
    return keep_targets(batch, weights_of_kinds(WEIGHTS), seed)


def make_feed(dataset: Path, **config: Any) -> "feeding.Feed":
    return feeding.Feed(build_dataset(config_of(dataset, **config)), 0, None, weigh=weigh)


def take(feed: "feeding.Feed", num_batches: int = 5) -> list[np.ndarray]:
    iterator = iter(feed)
    found = [next(iterator)["targets_segmentation"] for _ in range(num_batches)]
    iterator.close()
    return found


@pytest.mark.slow
def test_a_weight_is_the_share_of_the_targets_that_count(mixed: Mixed):
    iterator = iter(build_dataset(config_of(mixed["compact"])))
    counted, kept = np.zeros((2, len(KIND_NAMES)))
    for _ in range(60):
        batch = next(iterator)
        before = {name: values.copy() for name, values in batch.items()}
        found = weigh(batch)
        for name, values in before.items():
            np.testing.assert_array_equal(batch[name], values)
            if name != "targets_segmentation":
                assert found[name] is batch[name]
        kinds = parse(batch["targets"], batch["targets_segmentation"]).kinds
        counts = found["targets_segmentation"] != 0
        np.testing.assert_array_equal(
            found["targets_segmentation"][counts], batch["targets_segmentation"][counts]
        )
        for number in range(len(KIND_NAMES)):
            counted[number] += (kinds == number).sum()
            kept[number] += counts[kinds == number].sum()
        assert not counts[kinds == NOTHING].any()
    iterator.close()
    assert (counted > 1000).all()
    for number, kind in enumerate(KIND_NAMES):
        weight = WEIGHTS.get(kind, 1.0)
        tolerance = 5 * np.sqrt(weight * (1 - weight) / counted[number])
        assert abs(kept[number] / counted[number] - weight) <= tolerance, kind


@pytest.mark.slow
@pytest.mark.usefixtures("_maxtext")
def test_hosts_and_resumes_keep_the_same_targets(mixed: Mixed):
    whole = take(make_feed(mixed["compact"]))
    parts = [take(make_feed(mixed["compact"], host_count=2, host_index=host)) for host in (0, 1)]
    for number, of_hosts in enumerate(zip(*parts, strict=True)):
        np.testing.assert_array_equal(np.concatenate(of_hosts), whole[number])
    iterator = iter(make_feed(mixed["compact"]))
    for _ in range(3):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    resumed = iter(make_feed(mixed["compact"]))
    resumed.set_state(state)
    for number in (3, 4):
        np.testing.assert_array_equal(next(resumed)["targets_segmentation"], whole[number])
    resumed.close()


@pytest.mark.slow
def test_other_seeds_and_places_keep_other_targets(mixed: Mixed):
    iterator = iter(build_dataset(config_of(mixed["compact"])))
    batch = next(iterator)
    iterator.close()
    twice = {name: np.concatenate([values, values]) for name, values in batch.items()}
    found, other = (weigh(twice, seed)["targets_segmentation"] for seed in (3, 4))
    size = len(batch["targets"])
    np.testing.assert_array_equal(found[:size], found[size:])  # of the example alone
    is_destination = parse(twice["targets"], twice["targets_segmentation"]).kinds == 4
    assert KIND_NAMES[4] == "destination"
    agree = (found == other)[is_destination].mean()
    assert agree == pytest.approx(0.25**2 + 0.75**2, abs=0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("_maxtext")
def test_tokens_are_counted_before(mixed: Mixed):
    weighed, plain = make_feed(mixed["compact"]), make_feed(mixed["compact"])
    plain.weigh = None
    assert sum(map(np.count_nonzero, take(weighed))) < sum(map(np.count_nonzero, take(plain)))
    assert weighed.total.num_tokens == plain.total.num_tokens > 0


@pytest.mark.slow
@pytest.mark.usefixtures("_maxtext")
def test_training_alone_is_weighed(mixed: Mixed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iterators, "MultiHostDataLoadIterator", lambda feed, *_, **__: feed)
    files = [f"network_{of}_files={mixed['compact']}" for of in ("train", "eval")]
    place = ["base_output_directory=runs", "run_name=test"]
    weights = 'network_loss_weights={"RTT, first byte": 0.5, "role": 0}'
    config = run_config.build(run_config.read(["tiny", *files, *place, weights]))
    iterators.check_config(config)
    mesh: Any = None
    train: Any = iterators.make_network_iterator(config, mesh, [0], is_eval=False)
    assert train.weigh.keywords["of_kinds"].tolist() == [1, 0, 1, 1, 1, 0.5, 1, 1]
    held_out: Any = iterators.make_network_iterator(config, mesh, [0], is_eval=True)
    config = run_config.build(run_config.read(["tiny", *files, *place]))
    plain: Any = iterators.make_network_iterator(config, mesh, [0], is_eval=False)
    assert held_out.weigh is None and plain.weigh is None


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ({"dst": 0.5}, ["'dst'", "RTT, second byte; timestamp"]),
        ({"role": 1.5}, ["1.5 for role", "from 0 to 1"]),
        ({"role": -0.1}, ["-0.1 for role", "from 0 to 1"]),
        ({"role": float("nan")}, ["nan for role", "from 0 to 1"]),
        (dict.fromkeys(KIND_NAMES, 0.0), ["are all 0", "above 0"]),
    ],
)
def test_weights_that_cannot_be(weights: dict[str, float], parts: list[str]):
    refusal_of(lambda: weights_of_kinds(weights), *parts, kind=UsageError)
