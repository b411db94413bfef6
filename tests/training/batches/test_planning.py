"""Which lanes and hosts give what, in which order, how often and for how long."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import UsageError
from tests.support.batches import (
    Batch,
    Epochs,
    global_batches,
    host_batches,
    is_same,
    segments,
    sources,
)
from tests.support.helpers import MAPPED_IPV4, quick_and_slow
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    mixed_rows,
    write_dataset,
)
from tests.support.properties import num_examples
from training.batches.lanes import window_of
from training.batches.planning import count_batches, deal
from training.dataset import DataConfig
from training.rows.row_source import ProbeRowDataSource
from training.rows.row_table import RowTable, find_shards, load_rows
from training.sampler import ProbeWindowSampler
from training.tokens.tokenizer import decode


def table_of(sizes: Sequence[int]) -> RowTable:
    """Returns what rows.parquet would say of IPv4 rows of so many measurements."""
    num, n = len(sizes), np.array(sizes, np.int32)
    zeros = np.zeros(num, np.int64)
    return RowTable(
        shard_begins=np.array([0, num]),
        num_bytes=n + 1000,
        n_measurements=n,
        num_ipv6=zeros.astype(np.int32),
        untimed_tokens=14 * n,
        identity=np.arange(num).astype(np.uint64),
        src_hi=np.zeros(0, np.uint64),
        src_lo=np.arange(num).astype(np.uint64) | np.uint64(MAPPED_IPV4),
        src_id=np.arange(num),
        row_index=zeros.astype(np.int32),
        first_second=zeros,
        last_second=zeros + 10**5,
    )


def test_contexts_of_a_row_follow_the_configuration(mixed: Mixed) -> None:
    config = {"avg_tokens_per_measurement": 100, "max_contexts_per_row": 3}
    batches = host_batches(
        mixed["arrow"], batch_size=1, crop_size=CROP, num_epochs=1, shuffle=False, **config
    )
    counts = Counter(source for source in sources(batches, 0) if source == ipv4_probe(1007))
    assert counts == {ipv4_probe(1007): 2}  # 150 measurements


@settings(max_examples=num_examples(100))
@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=60),
    share=st.integers(1, 5),
    num_hosts=st.sampled_from([1, 2, 4, 8]),
    sampler=st.sampled_from(["rows", "windows"]),
    num_epochs=st.integers(1, 4),
)
def test_lanes_of_hosts(
    sizes: list[int], share: int, num_hosts: int, sampler: Any, num_epochs: int
) -> None:
    batch_size = share * num_hosts
    if sampler == "windows" and len(sizes) < batch_size:
        sizes = sizes * batch_size
    rows = table_of(sizes)
    config = DataConfig("rows", batch_size, CROP, sampler=sampler, num_epochs=num_epochs)
    whole = deal(rows, config)
    parts = [whole.of_lanes(slice(h * share, (h + 1) * share)) for h in range(num_hosts)]
    num_batches = count_batches(rows, whole, config, 0)
    assert num_batches is not None and num_batches * batch_size >= whole.visits[-1]
    for name in ("lane", "visits_begin", "visits_end"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(joined, getattr(whole, name))
    bounds = [*whole.visits_begin, whole.visits_end[-1]]
    assert bounds == sorted(bounds) and bounds[0] == 0
    small = [
        part.identity[part.small_rows[begin:end]].tolist()
        for part in parts
        for begin, end in zip(part.small_begin, part.small_end, strict=True)
    ]
    is_small = np.array(sizes) * 14 <= CROP if sampler == "rows" else np.zeros(len(sizes), bool)
    assert list(itertools.chain(*small)) == np.flatnonzero(is_small).tolist()
    if sampler == "rows":
        contexts = np.diff(bounds)
        assert contexts.max() - contexts.min() <= 1
        large = [n for n in sizes if n * 14 > CROP]
        assert contexts.sum() == sum(max(1, min(-(-n // 30), 16)) for n in large)


@pytest.mark.parametrize(("sampler", "num_epochs"), [("rows", 2), ("windows", 1)])
def test_hosts_end_together_with_padding(mixed: Mixed, sampler: str, num_epochs: int) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": num_epochs, "sampler": sampler}
    alone = host_batches(mixed["arrow"], **config)
    assert alone[-1]["inputs_segmentation"].any()
    for host_count in (2, 8):
        together = global_batches(mixed["arrow"], host_count, **config)  # as many on each host
        assert len(together) >= len(alone)
        assert is_same(together[: len(alone)], alone)
        for batch in together[len(alone) :]:
            assert not any(values.any() for values in batch.values())


def test_epochs_draw_anew_and_endless_mode_goes_on(mixed: Mixed) -> None:
    num_epochs = 6
    epochs = Epochs(mixed["arrow"], mixed_rows(), num_epochs)  # all of its contexts differ
    batches = host_batches(mixed["arrow"], 100, batch_size=8, crop_size=CROP)
    of_epoch = Counter(
        epochs.contexts[tokens.tobytes()][0]
        for batch in batches
        for lane in range(8)
        for tokens in segments(batch, lane)
        if tokens.tobytes() in epochs.contexts
    )
    per_epoch = len(epochs.contexts) // num_epochs
    assert [of_epoch[epoch] for epoch in range(4)] == [per_epoch] * 4
    assert all(batch["inputs_segmentation"][:, 0].all() for batch in batches)


def test_only_the_chosen_shards_are_used(mixed: Mixed) -> None:
    path = mixed["arrow"] / "train" / "train_shard_00001-of-00003.arrayrecord"
    chosen = {row["src_addr"] for row in ProbeRowDataSource(str(path))}
    assert 0 < len(chosen) < len({row.src_addr for row in mixed_rows()})
    batches = host_batches(path, batch_size=4, crop_size=CROP, num_epochs=1)
    found = {source for lane in range(4) for source in sources(batches, lane) if source}
    assert found == chosen


@pytest.mark.parametrize("n", [3, 100])
def test_a_batch_larger_than_the_data_is_refused_unless_epochs_end(tmp_path: Path, n: int) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i)) for i in range(2)]
    dataset = write_dataset(tmp_path / "rows", rows)
    config = {"batch_size": 64, "crop_size": CROP}
    for sampler in ("rows", "windows"):
        with pytest.raises(UsageError, match=r"batch_size is 64, .* use a smaller batch_size"):
            host_batches(dataset, 1, sampler=sampler, **config)
    for hosts in (1, 4):
        batches = global_batches(dataset, hosts, num_epochs=2, **config)
        Epochs(dataset, rows, 2).check(batches)


def test_empty_shards_are_no_matter(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(3, i)) for i in range(3)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=12)
    assert len(ProbeRowDataSource(str(dataset))) == 3
    config = {"batch_size": 2, "crop_size": CROP}
    Epochs(dataset, rows, 4).check(host_batches(dataset, num_epochs=4, **config))


def test_equal_small_rows_are_dealt_equally(tmp_path: Path) -> None:
    run = make_measurements(4, 0)
    dataset = write_dataset(tmp_path / "rows", [RowSpec(ipv4_probe(i), run) for i in range(40)])
    batches = host_batches(dataset, batch_size=8, crop_size=CROP, num_epochs=1)
    assert [len(set(sources(batches, lane))) for lane in range(8)] == [5] * 8
    endless = host_batches(dataset, 5, batch_size=8, crop_size=CROP)
    assert all(batch["inputs_segmentation"].all() for batch in endless)


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


def test_order_without_shuffle(one_kind: tuple[str, Path, list[str]]) -> None:
    kind, dataset, in_shards = one_kind
    assert order_of(dataset, kind, 3, shuffle=False) == [in_shards] * 3
    # Lanes have stretches of that order.
    batches = host_batches(dataset, batch_size=4, crop_size=CROP, num_epochs=1, shuffle=False)
    stretches = [squeezed(sources(batches, lane)) for lane in range(4)]
    assert squeezed(list(itertools.chain(*stretches))) == in_shards
    assert all(len(stretch) >= 9 for stretch in stretches)


def test_shuffle_by_epoch_and_seed(one_kind: tuple[str, Path, list[str]]) -> None:
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


def test_lanes_begin_with_a_whole_window_and_drift_apart() -> None:
    num_rows, width = 150, 7
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


def test_small_and_large_rows_come_side_by_side(mixed: Mixed) -> None:
    """Not first the ones, then the others: the stretch that has come less far goes on."""
    epochs = Epochs(mixed["arrow"], mixed_rows(), 1)
    batches = host_batches(mixed["arrow"], batch_size=1, crop_size=CROP, num_epochs=1, mixed_rows=1)
    is_large = [segments(batch, 0)[0].tobytes() in epochs.contexts for batch in batches]
    small = np.flatnonzero(~np.array(is_large)) / len(is_large)
    assert small.min() < 0.2 and small.max() > 0.8 and len(small) > 4


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


def test_every_row_is_visited_once_an_epoch(mixed: Mixed) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 3, "seed": 7}
    batches = global_batches(mixed["compact"], 4, sampler="windows", **config)
    visits = visits_of(mixed["compact"], batches, 3, CROP, 1, 7)
    rows = [(row.src_addr, row.row_index) for row in mixed_rows()]
    assert visits == Counter(itertools.product(rows, range(3)))


def test_each_example_is_of_another_probe(mixed: Mixed) -> None:
    num_probes = len({row.src_addr for row in mixed_rows()})
    for batch_size in (8, num_probes):
        for batch in host_batches(
            mixed["arrow"], 40, batch_size=batch_size, crop_size=CROP, sampler="windows"
        ):
            assert batch["inputs_segmentation"].max() == 1
            probes = [decode(segments(batch, lane)[0])[0].src_addr for lane in range(batch_size)]
            assert len(set(probes)) == batch_size


type ManyRows = tuple[Path, list[RowSpec]]


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> ManyRows:
    """Eight probes, probe i of i + 1 rows, of 100 to 240 measurements."""
    rows = [
        RowSpec(ipv6_probe(i), make_measurements(100 + 20 * i, 10 * i + j, start_s=j * 10**6), j)
        for i in range(8)
        for j in range(i + 1)
    ]
    return write_dataset(tmp_path_factory.mktemp("many") / "rows", rows), rows


@pytest.mark.parametrize(
    "case",
    quick_and_slow(
        [("probes", 4), ("rows", 1), ("measurements", 4), ("numbers", 1)], [("probes", 4)]
    ),
    ids=lambda case: case[0],
)
def test_visits_follow_the_weights(many_rows: ManyRows, case: tuple[str, int]) -> None:
    (dataset, rows), (weights, batch_size) = many_rows, case
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


@pytest.mark.parametrize("weights", [[1.0], [-1.0] * 36, [0.0] * 36])
def test_invalid_weights(many_rows: ManyRows, weights: list[float]) -> None:
    with pytest.raises(UsageError, match=r"weights are \d+ numbers: give one for each of the 36"):
        host_batches(many_rows[0], 1, batch_size=2, sampler="windows", weights=weights)


def test_a_row_of_little_weight_comes_seldom_but_comes(tmp_path: Path) -> None:
    """A lane whose only probe has little weight: endless mode must go on all the same."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(50, i)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows)
    config = {"batch_size": 4, "crop_size": 64, "sampler": "windows"}
    batches = host_batches(dataset, 1000, weights=[1, 1e-3, 1, 1], **config)
    assert len(batches) == 1000 and all(batch["inputs_segmentation"].all() for batch in batches)
