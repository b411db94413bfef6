"""Lanes, epochs and the number of batches."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.batches import (
    Epochs,
    global_batches,
    host_batches,
    is_same,
    segments,
    sources,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    write_dataset,
)
from tests.support.properties import num_examples
from tests.support.row_table import table_of
from training.batches.planning import count_batches, deal
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource

# --- K --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "expected"),
    [(19, 1), (30, 1), (31, 2), (60, 2), (61, 3), (480, 16), (481, 16), (10**6, 16)],
)
def test_contexts_of_a_row(n: int, expected: int) -> None:
    config = DataConfig("rows", 1, crop_size=CROP)
    assert int(deal(table_of([n]), config).visits[-1]) == expected


def test_contexts_of_a_row_follow_the_configuration(mixed: dict[Encoding, Path]) -> None:
    config = {"avg_tokens_per_measurement": 100, "max_contexts_per_row": 3}
    batches = host_batches(
        mixed["arrow"], batch_size=1, crop_size=CROP, num_epochs=1, shuffle=False, **config
    )
    counts = Counter(source for source in sources(batches, 0) if source == ipv4_probe(1007))
    assert counts == {ipv4_probe(1007): 2}  # 150 measurements


# --- lanes ----------------------------------------------------------------------------------------


@settings(max_examples=num_examples(100))
@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=60),
    share=st.integers(1, 5),
    num_hosts=st.sampled_from([1, 2, 4, 8]),
    sampler=st.sampled_from(["rows", "windows"]),
    num_epochs=st.integers(1, 4),
)
def test_hosts_plan_the_same_lanes_and_the_same_number_of_batches(
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


# --- epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_epochs", [1, 2])
@pytest.mark.parametrize("sampler", ["rows", "windows"])
def test_several_hosts_end_together_with_padding(
    mixed: dict[Encoding, Path], sampler: str, num_epochs: int
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": num_epochs, "sampler": sampler}
    alone = host_batches(mixed["arrow"], **config)
    assert alone[-1]["inputs_segmentation"].any()
    for host_count in (2, 4, 8):
        together = global_batches(mixed["arrow"], host_count, **config)  # as many on each host
        assert len(together) >= len(alone)
        assert is_same(together[: len(alone)], alone)
        for batch in together[len(alone) :]:
            assert not any(values.any() for values in batch.values())


def test_an_ended_iterator_stays_ended(mixed: dict[Encoding, Path]) -> None:
    for threads in (0, 2):
        for hosts in (1, 2):
            config = DataConfig(
                str(mixed["arrow"]), 8, CROP, num_epochs=1, host_count=hosts, num_threads=threads
            )
            iterator = iter(build_dataset(config))
            assert len(list(iterator)) > 5
            for _ in range(3):
                assert next(iterator, None) is None
            iterator.close()


def test_epochs_draw_anew_and_endless_mode_goes_on(mixed: dict[Encoding, Path]) -> None:
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


def test_other_seeds_draw_other_contexts(mixed: dict[Encoding, Path]) -> None:
    config = {"batch_size": 8, "crop_size": CROP}
    first = [host_batches(mixed["arrow"], 3, seed=seed, **config) for seed in (0, 1, 2**64 - 1)]
    for one, other in itertools.combinations(first, 2):
        assert not (one[0]["inputs"] == other[0]["inputs"]).all(axis=1).any()


def test_only_the_chosen_shards_are_used(mixed: dict[Encoding, Path]) -> None:
    path = mixed["arrow"] / "train" / "train_shard_00001-of-00003.arrayrecord"
    chosen = {row["src_addr"] for row in ProbeRowDataSource(str(path))}
    assert 0 < len(chosen) < len({row.src_addr for row in mixed_rows()})
    batches = host_batches(path, batch_size=4, crop_size=CROP, num_epochs=1)
    found = {source for lane in range(4) for source in sources(batches, lane) if source}
    assert found == chosen


# --- too little data ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 100])
def test_a_batch_larger_than_the_data_is_refused_unless_epochs_end(tmp_path: Path, n: int) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i)) for i in range(2)]
    dataset = write_dataset(tmp_path / "rows", rows)
    config = {"batch_size": 64, "crop_size": CROP}
    with pytest.raises(UsageError, match=r"batch_size is 64, .* use a smaller batch_size"):
        host_batches(dataset, 1, **config)
    for hosts in (1, 4):
        batches = global_batches(dataset, hosts, num_epochs=2, **config)
        Epochs(dataset, rows, 2).check(batches)


def test_empty_shards_are_no_matter(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(3, i)) for i in range(3)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=12)
    assert len(ProbeRowDataSource(str(dataset))) == 3
    config = {"batch_size": 2, "crop_size": CROP}
    Epochs(dataset, rows, 4).check(host_batches(dataset, num_epochs=4, **config))


@pytest.mark.parametrize("per_lane", [1, 5])
def test_equal_small_rows_are_dealt_equally(tmp_path: Path, per_lane: int) -> None:
    run = make_measurements(4, 0)
    rows = [RowSpec(ipv4_probe(i), run) for i in range(8 * per_lane)]
    dataset = write_dataset(tmp_path / "rows", rows)
    batches = host_batches(dataset, batch_size=8, crop_size=CROP, num_epochs=1)
    counts = [len(set(sources(batches, lane))) for lane in range(8)]
    assert counts == [per_lane] * 8
    endless = host_batches(dataset, 5, batch_size=8, crop_size=CROP)
    assert all(batch["inputs_segmentation"].all() for batch in endless)


@pytest.mark.parametrize("sampler", ["rows", "windows"])
@pytest.mark.parametrize("num_epochs", [None, 1])
def test_a_split_without_rows_ends_or_is_refused(
    tmp_path: Path, sampler: str, num_epochs: int | None
) -> None:
    dataset = write_dataset(tmp_path / "rows", [RowSpec("1.1.1.1", make_measurements(5, 0))])
    config = {"batch_size": 2, "crop_size": CROP, "sampler": sampler, "num_epochs": num_epochs}
    for hosts in (1, 2):
        try:
            batches = global_batches(dataset / "test", hosts, 3, **config)
        except ProbelineError as error:
            assert "\n" not in str(error)
        else:
            assert num_epochs and not any(b["inputs_segmentation"].any() for b in batches)
