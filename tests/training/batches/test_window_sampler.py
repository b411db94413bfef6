"""sampler="windows": whose turn it is by the weights, each example of another probe."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.batches import Batch, global_batches, host_batches, is_same, segments
from tests.support.helpers import quick_and_slow
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    mixed_rows,
    write_dataset,
)
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource
from training.rows.row_table import find_shards, load_rows
from training.sampler import ProbeWindowSampler, sample_federated_batch
from training.tokens.tokenizer import decode


def visits_of(
    dataset: Path, batches: Sequence[Batch], num_epochs: int, crop_size: int, most_k: int, seed: int
) -> Counter[tuple[tuple[str, int], int]]:
    """Counts the visits of each row in each epoch; every example must be one of them."""
    sampler = ProbeWindowSampler(crop_size=crop_size, seed=seed)
    known = {}
    for row in ProbeRowDataSource(str(dataset)):
        for epoch, k in itertools.product(range(num_epochs), range(most_k)):
            example = sampler.context(row, epoch, k).example
            known[example["inputs"].tobytes()] = ((row["src_addr"], row["row_index"]), epoch)
    found: Counter[tuple[tuple[str, int], int]] = Counter()
    for batch in batches:
        for example, segmentation in zip(batch["inputs"], batch["inputs_segmentation"]):
            if segmentation.any():
                found[known[example.tobytes()]] += 1
    return found


@pytest.mark.parametrize("host_count", [1, 4])
def test_every_row_is_visited_once_an_epoch(mixed: dict[Encoding, Path], host_count: int) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 3, "seed": 7}
    batches = global_batches(mixed["compact"], host_count, sampler="windows", **config)
    visits = visits_of(mixed["compact"], batches, 3, CROP, 1, 7)
    rows = [(row.src_addr, row.row_index) for row in mixed_rows()]
    assert visits == Counter(itertools.product(rows, range(3)))


def test_each_example_is_of_another_probe(mixed: dict[Encoding, Path]) -> None:
    num_probes = len({row.src_addr for row in mixed_rows()})
    for batch_size in (8, num_probes):
        for batch in host_batches(
            mixed["arrow"], 40, batch_size=batch_size, crop_size=CROP, sampler="windows"
        ):
            assert batch["inputs_segmentation"].max() == 1
            probes = [decode(segments(batch, lane)[0])[0].src_addr for lane in range(batch_size)]
            assert len(set(probes)) == batch_size


def test_more_examples_than_probes_are_refused(mixed: dict[Encoding, Path]) -> None:
    num_probes = len({row.src_addr for row in mixed_rows()})
    with pytest.raises(UsageError, match=rf"{num_probes + 1}.*{num_probes} probes.*smaller"):
        host_batches(
            mixed["arrow"], 1, batch_size=num_probes + 1, crop_size=CROP, sampler="windows"
        )


@pytest.fixture(scope="module")
def probes_of_many_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RowSpec]]:
    """Eight probes, probe i of i + 1 rows, of 100 to 240 measurements."""
    rows = [
        RowSpec(ipv6_probe(i), make_measurements(100 + 20 * i, 10 * i + j, start_s=j * 10**6), j)
        for i in range(8)
        for j in range(i + 1)
    ]
    return write_dataset(tmp_path_factory.mktemp("many") / "rows", rows), rows


@pytest.mark.parametrize(
    "weights", quick_and_slow(["rows", "probes", "measurements", "numbers"], ["probes"])
)
@pytest.mark.parametrize("batch_size", quick_and_slow([1, 4], [4]))
def test_visits_follow_the_weights(
    probes_of_many_rows: tuple[Path, list[RowSpec]], weights: str, batch_size: int
) -> None:
    dataset, rows = probes_of_many_rows
    table = load_rows(find_shards(str(dataset)))
    given: Any = weights
    if weights == "numbers":
        given = np.random.default_rng(0).gamma(1, 1, len(rows)).tolist()
        given[3] = 0
    of_probe = Counter(table.src_id.tolist())
    share = {
        "rows": np.ones(len(rows)),
        "probes": np.array([1 / of_probe[src_id] for src_id in table.src_id.tolist()]),
        "measurements": table.n_measurements.astype(float),
        "numbers": np.array(given if weights == "numbers" else [0.0] * len(rows)),
    }[weights]
    share = share / share.sum() * len(rows)
    num_epochs = 60
    config = {"batch_size": batch_size, "crop_size": CROP, "num_epochs": num_epochs, "seed": 1}
    batches = host_batches(dataset, sampler="windows", weights=given, **config)
    most = int(np.ceil(share.max())) + 1
    visits = visits_of(dataset, batches, num_epochs, CROP, most, 1)
    names = [(row["src_addr"], row["row_index"]) for row in ProbeRowDataSource(str(dataset))]
    assert sum(visits.values()) == len(rows) * num_epochs
    for name, expected in zip(names, share.tolist(), strict=True):
        each = [visits[name, epoch] for epoch in range(num_epochs)]
        assert set(each) <= {int(np.floor(expected)), int(np.ceil(expected))}
        deviation = (expected % 1) * (1 - expected % 1) * num_epochs
        assert abs(sum(each) - expected * num_epochs) <= 5 * deviation**0.5 + 1e-6


@pytest.mark.parametrize("weights", [[1.0], [-1.0] * 36, [0.0] * 36, [float("nan")] * 36])
def test_weights_that_are_none_are_refused(
    probes_of_many_rows: tuple[Path, list[RowSpec]], weights: list[float]
) -> None:
    with pytest.raises(UsageError, match=r"weights are \d+ numbers: give one for each of the 36"):
        host_batches(probes_of_many_rows[0], 1, batch_size=2, sampler="windows", weights=weights)


def test_a_row_of_little_weight_comes_seldom_but_comes(tmp_path: Path) -> None:
    """A lane whose only probe has little weight: endless mode must go on all the same."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(50, i)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows)
    config = {"batch_size": 4, "crop_size": 64, "sampler": "windows"}
    batches = host_batches(dataset, 50, weights=[1, 1e-3, 1, 1], **config)
    assert len(batches) == 50 and all(batch["inputs_segmentation"].all() for batch in batches)


def test_federated_batches_are_the_first_examples(mixed: dict[Encoding, Path]) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "sampler": "windows"}
    iterator = iter(build_dataset(DataConfig(str(mixed["arrow"]), **config)))
    first, second = host_batches(mixed["arrow"], 2, **config)
    whole = sample_federated_batch(iterator, 8)
    part = sample_federated_batch(iterator, 3)
    assert is_same([whole], [first])
    assert is_same([part], [{name: values[:3] for name, values in second.items()}])
    for number in (0, 9):
        with pytest.raises(ProbelineError, match=f"probes_per_round is {number}.*8 probes.*larger"):
            sample_federated_batch(iterator, number)
