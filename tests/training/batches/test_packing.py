"""What is in a batch: shapes, masks, targets, and each measurement of a small row exactly once."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from tests.support.batches import (
    _TIMESTAMPS,
    Batch,
    Epochs,
    global_batches,
    host_batches,
    segments,
    split_by_size,
)
from tests.support.helpers import canonical, records_as_tuples
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    ipv4_probe,
    ipv6_probe,
    make_measurements,
    mixed_rows,
    untimed_tokens,
    write_dataset,
)
from tests.support.properties import num_examples
from training.rows.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.tokens.tokenizer import TIMESTAMP_ABS, VOCABULARY_SIZE, decode

NAMES = {
    *("inputs", "inputs_segmentation", "inputs_position"),
    *("targets", "targets_segmentation", "targets_position"),
}

# --- reading batches ------------------------------------------------------------------------------


def padding(batches: Sequence[Batch]) -> float:
    """Returns which share of all positions is padding."""
    return float(np.mean([(batch["inputs_segmentation"] == 0).mean() for batch in batches]))


def assert_well_formed(batch: Batch, batch_size: int, crop_size: int) -> None:
    """Checks names, shapes, types, masks, shifted targets, and that a segment has one source."""
    assert batch.keys() == NAMES
    for values in batch.values():
        assert values.dtype == np.int32 and values.shape == (batch_size, crop_size)
    assert np.array_equal(batch["inputs_segmentation"], batch["targets_segmentation"])
    assert np.array_equal(batch["inputs_position"], batch["targets_position"])
    segmentation, positions = batch["inputs_segmentation"], batch["inputs_position"]
    is_padding = segmentation == 0
    for name in ("inputs", "targets", "inputs_position"):
        assert not batch[name][is_padding].any()
    assert batch["inputs"].min() >= 0 and batch["inputs"].max() < VOCABULARY_SIZE
    assert batch["targets"].min() >= 0 and batch["targets"].max() < VOCABULARY_SIZE
    # 1, 1, …, 2, 2, …, then padding to the end; positions count from 0 in each of them.
    assert np.isin(segmentation[:, 0], (0, 1)).all()
    before, after = segmentation[:, :-1], segmentation[:, 1:]
    ends = (after == 0) | (after == before) | ((after == before + 1) & (before > 0))
    assert ends.all() and not ((before == 0) & (after != 0)).any()
    starts_anew = after != before
    expected = np.where(starts_anew, 0, positions[:, :-1] + 1)
    assert (positions[:, 0] == 0).all()
    assert (positions[:, 1:] == expected)[after > 0].all()
    inside = (after == before) & (after > 0)
    assert (batch["inputs"][:, 1:] == batch["targets"][:, :-1])[inside].all()
    for example in range(batch_size):
        for tokens in segments(batch, example):
            measurements = decode(tokens)
            assert all(m.is_whole for m in measurements[:-1])
            assert len({m.src_addr for m in measurements if m.src_addr}) <= 1
            assert measurements[0].src_addr or len(measurements) == 1
            timed = [role for m in measurements for role in m.roles if role in _TIMESTAMPS]
            assert TIMESTAMP_ABS not in timed[1:]


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{"crop_size": 1024}, {"sampler": "windows"}], ids=str)
def test_batches_are_well_formed(mixed: Mixed, config: dict[str, Any]) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **config}
    for batch in host_batches(mixed["arrow"], 12, **config):
        assert_well_formed(batch, config["batch_size"], config["crop_size"])


def test_small_rows_are_packed_in_one_crop_until_it_is_full(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(2, i)) for i in range(300)]
    dataset = write_dataset(tmp_path / "rows", rows)
    packed = host_batches(dataset, batch_size=1, crop_size=CROP, num_epochs=1)
    assert padding(packed[:-1]) == 0
    alone = host_batches(dataset, batch_size=1, crop_size=CROP, num_epochs=1, pack=False)
    assert len(alone) == 300 and len(packed) < 300 * 60 / CROP
    assert all(batch["inputs_segmentation"].max() == 1 for batch in alone)


# --- every measurement, once ----------------------------------------------------------------------


def test_what_small_rows_must_give_is_what_was_measured(mixed: Mixed) -> None:
    """The oracle of the tests below against the measurements themselves."""
    small, _ = split_by_size(mixed_rows(), CROP)
    for encoding, dataset in mixed.items():
        epochs = Epochs(dataset, mixed_rows(), 2)
        for row in small:
            measured = {
                canonical(destination): (time // 1_000_000, _coarse(rtt))
                for time, destination, rtt in records_as_tuples(row.run)
            }
            for epoch in (0, 1):
                told = epochs.measurements(row.src_addr, epoch)
                assert sorted(m.dst_addr or "" for m in told) == sorted(measured), encoding
                for m in told:
                    second, rtt = measured[m.dst_addr or ""]
                    assert m.is_whole and m.rtt_ms == rtt and m.event_time in (None, second)


def _coarse(rtt: float) -> float:
    return float(decode_rtt(encode_rtt(np.array([rtt], np.float32)))[0])


@st.composite
def _rows(draw: st.DrawFn) -> list[RowSpec]:
    sizes = draw(st.lists(st.integers(1, 14), min_size=1, max_size=30))
    sizes += draw(st.lists(st.integers(1, 160), max_size=6))
    gap = draw(st.sampled_from([1, 200, 10_000]))
    share = draw(st.sampled_from([0.0, 0.4, 1.0]))
    is_ipv6 = draw(st.sampled_from([0, 3, 1]))  # no source, every third, all
    return [
        RowSpec(
            ipv6_probe(i) if is_ipv6 and i % is_ipv6 == 0 else ipv4_probe(i),
            make_measurements(n, i, share, gap),
        )
        for i, n in enumerate(sizes)
    ]


@settings(max_examples=num_examples(60))
@given(
    rows=_rows(),
    encoding=st.sampled_from(ENCODINGS),
    crop_size=st.sampled_from([64, 65, 100, 256]),
    batch_size=st.sampled_from([1, 2, 8]),
    is_several_hosts=st.booleans(),
    num_epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    pack=st.booleans(),
    seed=st.integers(0, 2**32),
    mode_weights=st.sampled_from([(0.4, 0.3, 0.3), (1, 0, 0), (0, 0, 1), (0, 5, 0)]),
)
def test_any_rows_come_exactly_once_an_epoch(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[RowSpec],
    encoding: Encoding,
    crop_size: int,
    batch_size: int,
    is_several_hosts: bool,
    num_epochs: int,
    shuffle: bool,
    pack: bool,
    seed: int,
    mode_weights: tuple[float, float, float],
) -> None:
    dataset = write_dataset(tmp_path_factory.mktemp("any") / "rows", rows, encoding)
    batches = global_batches(
        dataset,
        batch_size if is_several_hosts else 1,
        batch_size=batch_size,
        crop_size=crop_size,
        num_epochs=num_epochs,
        shuffle=shuffle,
        pack=pack,
        seed=seed,
        mode_weights=mode_weights,
    )
    for batch in batches:
        assert_well_formed(batch, batch_size, crop_size)
    sampling = {"seed": seed, "mode_weights": mode_weights}
    Epochs(dataset, rows, num_epochs, crop_size, **sampling).check(batches)


def test_rows_of_just_a_crop_and_one_more(tmp_path: Path) -> None:
    """16 measurements of 14 and two of 12 tokens and so on up to 256, without timestamps."""
    run = make_measurements(19, 1)
    run["rtt"] = np.where(np.arange(19) < 5, -1, 20)
    whole, one_more = RowSpec(ipv4_probe(0), run), RowSpec(ipv4_probe(1), run.copy())
    one_more.run["rtt"][0] = 20
    assert untimed_tokens(whole) == 256
    rows = [whole, one_more]
    dataset = write_dataset(tmp_path / "rows", rows)
    for pack in (True, False):
        config = {"batch_size": 2, "crop_size": 256, "num_epochs": 1, "seed": 3, "pack": pack}
        Epochs(dataset, rows, 1, 256, seed=3).check(host_batches(dataset, **config))


def test_gaps_of_centuries_lose_nothing(tmp_path: Path) -> None:
    """Times further apart than four bytes of seconds need absolute timestamps, 9 tokens each."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(9, i)) for i in range(100)]
    for row in rows:
        row.run["event_time"] = np.arange(9) * 2**33 * 1_000_000
    dataset = write_dataset(tmp_path / "rows", rows, "arrow")
    options = {"batch_size": 1, "crop_size": CROP, "num_epochs": 1, "mode_weights": (1, 0, 0)}
    batches = host_batches(dataset, **options)
    Epochs(dataset, rows, 1, mode_weights=(1, 0, 0)).check(batches)


def test_small_rows_alone_are_the_sampler_s_examples(mixed: Mixed) -> None:
    source = ProbeRowDataSource(str(mixed["compact"]))
    for crop_size in (64, CROP):
        sampler = ProbeRowSampler(crop_size=crop_size, seed=2)
        expected = Counter(
            example["inputs"].tobytes() + example["targets"].tobytes()
            for row in source
            for epoch in (0, 1)
            for example in sampler.examples(row, epoch)
        )
        config = {"batch_size": 4, "crop_size": crop_size, "num_epochs": 2, "seed": 2}
        found = Counter(
            batch["inputs"][example].tobytes() + batch["targets"][example].tobytes()
            for batch in host_batches(mixed["compact"], pack=False, **config)
            for example in range(4)
            if batch["inputs_segmentation"][example].any()
        )
        assert found == expected
