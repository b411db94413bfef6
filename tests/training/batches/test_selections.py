"""Weights by family, probe and period: how often each row comes, and all that still holds."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.errors import UsageError
from tests.support.batches import Batch, host_batches, segments
from tests.support.helpers import YEAR_2024_US
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    num_contexts,
    write_dataset,
)
from training import assert_resumes_exactly, build_dataset
from training.batches.selections import checked_selections, row_weights
from training.dataset import DataConfig
from training.rows.row_table import find_shards, load_rows
from training.tokens.tokenizer import decode

DAY_S = 24 * 3600
EPOCHS = 4
SMALL, LARGE = 2, 90  # measurements
FAMILY = {"family": {"ipv4": 0.5, "ipv6": 3}}


def make_rows() -> list[RowSpec]:
    """Small and large rows of both families; those of odd probes begin in the last days of 2024."""
    rows = []
    for i in range(48):
        n = LARGE if i % 4 == 0 else SMALL
        probe = ipv6_probe(i) if i % 3 == 0 else ipv4_probe(i)
        start_s = 360 * DAY_S if i % 2 else 0
        rows.append(RowSpec(probe, make_measurements(n, i, mean_gap_s=60, start_s=start_s)))
    return rows


@pytest.fixture(scope="module")
def rows() -> list[RowSpec]:
    return make_rows()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, rows: list[RowSpec]) -> Path:
    return write_dataset(tmp_path_factory.mktemp("weighted") / "rows", rows, "compact", 3)


def begins_late(row: RowSpec) -> bool:
    return int(row.run["event_time"][0]) >= YEAR_2024_US + 300 * DAY_S * 1_000_000


LATE = [["2024-10-01", "2025-06-01", 2]]
WEIGHTS: dict[str, tuple[dict[str, Any], Any]] = {
    "left out": ({"family": {"ipv6": 0}}, lambda row: 0 if ":" in row.src_addr else 1),
    "all": (
        {**FAMILY, "period": LATE, "probe": {ipv4_probe(2): 1.5, "203.0.113.9": 4}},
        lambda row: (
            (3 if ":" in row.src_addr else 0.5)
            * (2 if begins_late(row) else 1)
            * (1.5 if row.src_addr == ipv4_probe(2) else 1)
        ),
    ),
}


def visits_of(batches: Sequence[Batch]) -> Counter[str]:
    """Counts the crops of each probe; without packing one is a visit or a context."""
    found: Counter[str] = Counter()
    for batch in batches:
        for lane in range(len(batch["inputs"])):
            for tokens in segments(batch, lane):
                if source := decode(tokens)[0].src_addr:  # packed rows may be cut before it
                    found[source] += 1
    return found


@pytest.mark.parametrize("name", WEIGHTS)
def test_visits_of_weighted_rows(dataset: Path, rows: list[RowSpec], name: str) -> None:
    weights, weight_of = WEIGHTS[name]
    options = {"batch_size": 2, "crop_size": CROP, "pack": False, "row_weights": weights}
    found = visits_of(host_batches(dataset, num_epochs=EPOCHS, **options))
    for row in rows:
        is_large = len(row.run) == LARGE
        each = num_contexts(row) if is_large else 1
        expected = each * weight_of(row) * EPOCHS
        if is_large:  # rounded by chance in every epoch
            assert abs(found[row.src_addr] - expected) < EPOCHS, (name, row.src_addr)
        else:
            assert found[row.src_addr] == expected, (name, row.src_addr)


def test_a_row_that_comes_twice_is_drawn_twice(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(8, i)) for i in range(6)]
    dataset = write_dataset(tmp_path / "rows", rows)
    options = {"batch_size": 1, "crop_size": CROP, "pack": False}
    weights = {"family": {"ipv4": 4}}
    batches = host_batches(dataset, num_epochs=2, row_weights=weights, **options)
    assert len({batch["inputs"].tobytes() for batch in batches}) == len(batches) == 48
    once = host_batches(dataset, num_epochs=2, **options)
    assert {batch["inputs"].tobytes() for batch in once} < {
        batch["inputs"].tobytes() for batch in batches
    }


def test_it_resumes_exactly(dataset: Path) -> None:
    config = DataConfig(str(dataset), 4, CROP, row_weights=FAMILY, mixed_rows=3)
    assert_resumes_exactly(build_dataset(config), 12)
    state = iter(build_dataset(config)).get_state()
    other = DataConfig(str(dataset), 4, CROP, row_weights={"family": {"ipv6": 3}}, mixed_rows=3)
    refusal_of(lambda: iter(build_dataset(other)).set_state(state), "saved with options")


def test_the_windows_sampler_and_mixtures_take_them(dataset: Path) -> None:
    options = {"batch_size": 4, "crop_size": CROP, "row_weights": {"family": {"ipv6": 0}}}
    for config in (
        DataConfig(str(dataset), sampler="windows", **options),
        DataConfig({str(dataset): 1.0}, **options),
    ):
        iterator = iter(build_dataset(config))
        found = visits_of([next(iterator) for _ in range(30)])
        iterator.close()
        assert found and not any(":" in source for source in found)


def test_the_first_period_counts(dataset: Path, rows: list[RowSpec]) -> None:
    table = load_rows(find_shards(str(dataset)))
    periods = [["2024-01-01", "2024-02-01", 3], ["2023-01-01T00:00:00Z", "2030-01-01", 0.5]]
    found = row_weights(table, checked_selections({"period": periods}))
    assert Counter(found.tolist()) == {3.0: 24, 0.5: 24}


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ({"country": {"nl": 2}}, ["'country'", "use family, probe or period"]),
        (3, ["row_weights are 3", "selections"]),
        ({"family": 3}, ["3 for family", "a mapping"]),
        ({"family": {"ipv5": 2}}, ["'ipv5'", "ipv4 or ipv6"]),
        ({"family": {"ipv6": -1}}, ["family ipv6 has weight -1", "0 or more"]),
        ({"probe": {"10.0.0.0/8": 2}}, ["'10.0.0.0/8'", "an IP address"]),
        ({"period": [["2024-01-02", "2024-01-01", 2]]}, ["the earlier one first"]),
        ({"period": 3}, ["period 3", "a list"]),
        ({"period": [["May", "June", 2]]}, ["'May'", "2024-01-31"]),
    ],
    ids=str,
)
def test_selections_that_cannot_be_read(weights: Any, parts: list[str]) -> None:
    refusal_of(lambda: DataConfig("rows", 8, row_weights=weights), *parts, kind=UsageError)


def test_weights_out_of_range(dataset: Path) -> None:
    period = [["2000-01-01", "2030-01-01", 0.1]]
    for weights, parts in (
        ({"family": {"ipv4": 0, "ipv6": 0}}, ["leave no row"]),
        ({"family": {"ipv4": 101}}, ["weight 101", "0.01 to 100"]),
        ({"family": {"ipv4": 0.05}, "period": period}, ["0.005"]),
    ):
        config = DataConfig(str(dataset), 4, CROP, row_weights=weights)
        refusal_of(lambda: build_dataset(config), *parts, kind=UsageError)  # noqa: B023


def test_lanes_have_about_as_many_tokens(dataset: Path) -> None:
    """Whatever the weights: no lane ends long before the others."""
    options = {"batch_size": 4, "crop_size": CROP, "num_epochs": 6}
    for weights in (FAMILY, {"period": LATE}):
        batches = host_batches(dataset, row_weights=weights, **options)
        filled = np.mean([batch["inputs_segmentation"][:, 0] > 0 for batch in batches], axis=0)
        assert filled.min() > 0.75
