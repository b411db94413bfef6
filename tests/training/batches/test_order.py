"""The order of rows and contexts: shuffled anew in each epoch, mixed within windows of rows."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from tests.support.batches import Epochs, host_batches, segments, sources
from tests.support.helpers import quick_and_slow
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    write_dataset,
)
from tests.support.row_table import table_of
from training.batches.lanes import CURSOR, LANE_ITEM, LARGE, Plan, peek, window_of
from training.batches.planning import deal
from training.dataset import DataConfig
from training.rows.row_source import ProbeRowDataSource


def squeezed(values: Sequence[str]) -> list[str]:
    """Returns the values without repetitions of the one before."""
    return [value for value, _ in itertools.groupby(values)]


def order_of(dataset: Path, kind: str, num_epochs: int, **config: Any) -> list[list[str]]:
    """Returns, of each epoch, the sources of one lane's rows in the order in which they came."""
    batches = host_batches(
        dataset, batch_size=1, crop_size=CROP, num_epochs=num_epochs, mixed_rows=1, **config
    )
    order = squeezed(sources(batches, 0))
    if kind == "small":  # a row that was cut is there twice in a row, at most
        assert len(order) == len(set(order)) * num_epochs
    size = len(order) // num_epochs
    return [order[at : at + size] for at in range(0, len(order), size)]


@pytest.fixture(scope="module", params=["small", "large"])
def one_kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[str]]:
    """A dataset of rows of one kind, one a probe, and their order in the shards."""
    n = 5 if request.param == "small" else 60
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i)) for i in range(40)]
    dataset = write_dataset(tmp_path_factory.mktemp("kind") / "rows", rows)
    return request.param, dataset, [row["src_addr"] for row in ProbeRowDataSource(str(dataset))]


def test_without_shuffle_rows_come_in_the_order_of_the_shards(
    one_kind: tuple[str, Path, list[str]],
) -> None:
    kind, dataset, in_shards = one_kind
    assert order_of(dataset, kind, 3, shuffle=False) == [in_shards] * 3
    # Lanes have stretches of that order.
    batches = host_batches(dataset, batch_size=4, crop_size=CROP, num_epochs=1, shuffle=False)
    stretches = [squeezed(sources(batches, lane)) for lane in range(4)]
    assert squeezed(list(itertools.chain(*stretches))) == in_shards
    assert all(len(stretch) >= 9 for stretch in stretches)


def test_shuffle_permutes_the_rows_anew_in_each_epoch_and_by_seed(
    one_kind: tuple[str, Path, list[str]],
) -> None:
    kind, dataset, in_shards = one_kind
    orders = [*order_of(dataset, kind, 3), *order_of(dataset, kind, 2, seed=1), in_shards]
    assert all(sorted(order) == sorted(in_shards) for order in orders)
    for one, other in itertools.combinations(orders, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_lanes_have_orders_of_their_own(one_kind: tuple[str, Path, list[str]]) -> None:
    _, dataset, in_shards = one_kind
    batches = host_batches(dataset, batch_size=2, crop_size=CROP, num_epochs=1, mixed_rows=1)
    lanes = [squeezed(sources(batches, lane)) for lane in range(2)]
    halves = [[in_shards.index(source) % 20 for source in lane][:19] for lane in lanes]
    assert halves[0] != halves[1]
    assert set(lanes[0]) | set(lanes[1]) == set(in_shards)


def test_contexts_are_mixed_within_windows_of_rows(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(480, i)) for i in range(22)]
    dataset = write_dataset(tmp_path / "rows", rows)
    batches = host_batches(dataset, batch_size=1, crop_size=CROP, num_epochs=1, mixed_rows=7)
    order = sources(batches, 0)
    assert Counter(order) == Counter({row.src_addr: 16 for row in rows})
    bounds = [0, 7 * 16, 14 * 16, 21 * 16, 22 * 16]
    windows = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert [len(set(window)) for window in windows] == [7, 7, 7, 1]
    for window in windows[:-1]:
        assert set(Counter(window).values()) == {16}
        assert len(squeezed(window)) > 0.7 * len(window)  # 6 of 7 in the mean
        for source in set(window):
            places = [place for place, other in enumerate(window) if other == source]
            assert places[-1] - places[0] > 50 and np.mean(places) > 25


@pytest.mark.parametrize("width", [1, 7, 16])
def test_lanes_begin_with_a_whole_window_and_drift_apart(width: int) -> None:
    num_rows = 400
    config = DataConfig("rows", 32, CROP, mixed_rows=width)
    plan = deal(table_of([480] * 32 * num_rows), config)
    for lane in range(32):
        windows = [window_of(plan, lane, number) for number in range(num_rows)]
        ends = [0, *(end for _, end in windows)]
        assert [begin for begin, _ in windows] == ends[:-1] and ends[-1] == num_rows
        widths = [size for size in np.diff(ends) if size]
        assert widths[0] == width and set(widths[:-1]) <= {width, width - 1}
    starts = Counter(int(window_of(plan, lane, width)[0]) for lane in range(32))
    assert len(starts) == width and max(starts.values()) <= -(-32 // width)


@pytest.mark.parametrize("sizes", quick_and_slow([(1, 48), (8, 12), (32, 6), (256, 2)], [(8, 12)]))
@pytest.mark.parametrize("mixed_rows", [16, 256])
def test_the_first_steps_are_as_mixed_as_any(sizes: tuple[int, int], mixed_rows: int) -> None:
    """The first 16 steps hold as many probes as 16 later ones, but for chance."""
    batch_size, num_seeds = sizes
    lengths = np.random.default_rng(0).integers(100, 700, 60 * batch_size).tolist()
    rows, spans = table_of(lengths), []
    for seed in range(num_seeds):
        config = DataConfig("rows", batch_size, CROP, seed=seed, mixed_rows=mixed_rows)
        order = large_rows_of(deal(rows, config), 16 * 30)
        spans.append([len(np.unique(span)) for span in order.reshape(30, -1)])
    counts = np.array(spans)  # one probe a row
    chance = 3 * counts[:, 1:].std() / num_seeds**0.5
    assert counts[:, 0].mean() >= counts[:, 1:].mean() - chance


def large_rows_of(plan: Plan, num_steps: int) -> np.ndarray:
    """Returns the row of every lane's context in each step: int64 [steps, lanes]."""
    num_lanes = len(plan.lane)
    cursors, items = np.zeros(num_lanes, CURSOR), np.zeros(num_lanes, LANE_ITEM)
    rows = np.empty((num_steps, num_lanes), np.int64)
    for step in range(num_steps):
        peek(plan, cursors, items, np.ones(len(items), bool))
        assert (items["kind"] == LARGE).all()
        rows[step] = items["row"]
        cursors["large_index"] += 1
    return rows


def test_wider_windows_spread_more(mixed: dict[Encoding, Path]) -> None:
    def spread(mixed_rows: int) -> float:
        batches = host_batches(
            mixed["arrow"], batch_size=1, crop_size=CROP, num_epochs=1, mixed_rows=mixed_rows
        )
        places = defaultdict(list)
        for place, source in enumerate(sources(batches, 0)):
            places[source].append(place)
        return float(np.mean([max(p) - min(p) for p in places.values()]))

    assert spread(1) < spread(3) < spread(16)


def test_small_and_large_rows_come_side_by_side(mixed: dict[Encoding, Path]) -> None:
    """Not first the ones, then the others: the stretch that has come less far goes on."""
    epochs = Epochs(mixed["arrow"], mixed_rows(), 1)
    batches = host_batches(mixed["arrow"], batch_size=1, crop_size=CROP, num_epochs=1, mixed_rows=1)
    is_large = [segments(batch, 0)[0].tobytes() in epochs.contexts for batch in batches]
    small = np.flatnonzero(~np.array(is_large)) / len(is_large)
    assert small.min() < 0.2 and small.max() > 0.8 and len(small) > 4
