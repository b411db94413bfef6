"""The names, arguments and calls that code written for this data may use, all from `training`."""

import glob
import inspect
from datetime import datetime, timedelta

import grain
import numpy as np
import pytest

import training
from beam_pipeline.errors import UsageError
from tests.support.batches import is_same
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import CROP, Mixed
from training import (
    ProbeDataSource,
    ProbeRowDataSource,
    ProbeRowSampler,
    ProbeWindowSampler,
    build_probe_chunk_dataset,
    create_probe_training_pipeline,
    decode,
    encode_measurement,
    sample_federated_batch,
)
from training.dataset import DataConfig
from training.sampler import Example

EPOCH = datetime(1970, 1, 1)
EXAMPLE = {
    *("inputs", "inputs_segmentation", "inputs_position"),
    *("targets", "targets_segmentation", "targets_position"),
}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ProbeRowDataSource", "arrayrecord_path"),
        ("ProbeDataSource", "arrayrecord_files"),
        (
            "ProbeRowSampler",
            "crop_size=1024 avg_tokens_per_measurement=30 max_contexts_per_row=16 "
            "mode_weights=(0.4,0.3,0.3) seed=None",
        ),
        ("ProbeRowSampler.random_map", "self element rng"),
        ("ProbeWindowSampler", "crop_size=1024 avg_tokens_per_meas"),
        ("ProbeWindowSampler.random_map", "self element rng"),
        (
            "create_probe_training_pipeline",
            "arrayrecord_pattern batch_size=256 crop_size=1024 shuffle=True num_workers=16",
        ),
        ("sample_federated_batch", "dataset_iter probes_per_round"),
        (
            "encode_measurement",
            "meas prev_timestamp randomize_field_order=True include_timestamp=True",
        ),
        ("build_probe_chunk_dataset", "files batch_size"),
    ],
)
def test_arguments_come_in_this_order(name: str, arguments: str) -> None:
    found = training
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters.values())  # type: ignore[arg-type]
    for parameter, expected in zip(parameters, arguments.split(), strict=False):
        wanted, _, default = expected.partition("=")
        assert parameter.name == wanted
        assert not default or parameter.default == eval(default)
    assert len(parameters) >= len(arguments.split())


def assert_example(example: Example, *batch: int) -> None:
    assert set(example) == EXAMPLE
    shape = (*batch, CROP)
    assert all((a.dtype, a.shape) == (np.int32, shape) for a in example.values())


def test_rows_and_their_contexts(mixed: Mixed) -> None:
    source = ProbeRowDataSource(arrayrecord_path=f"{mixed['arrow']}/train/*.arrayrecord")
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    row = max((source[index] for index in range(len(source))), key=lambda r: r["n_measurements"])
    assert {"src_id", "measurements", "n_measurements", "metadata"} <= set(row)
    assert set(row["metadata"]) == {"time_span_seconds", "first_timestamp", "last_timestamp"}
    assert [set(meas) for meas in row["measurements"][:2]] == [
        {"event_time", "dst_addr", "ip_version", "rtt"}
    ] * 2
    sampler = ProbeRowSampler(CROP, 30, 16, mode_weights=(0.40, 0.30, 0.30), seed=7)
    assert (sampler.avg_tokens_per_meas, sampler.max_K, sampler.seed) == (30, 16, 7)
    assert (sampler.crop_size, sampler.mode_weights) == (CROP, (0.40, 0.30, 0.30))
    assert_example(sampler.random_map(row, np.random.default_rng(1)))
    windows = ProbeWindowSampler(crop_size=CROP, avg_tokens_per_meas=20)
    assert_example(windows.random_map(row, np.random.default_rng(1)))


def test_windows_of_a_number_of_measurements(mixed: Mixed) -> None:
    """A context of 20 tokens a measurement: no more than fit, at strides that leave so many."""
    source = ProbeDataSource(glob.glob(f"{mixed['compact']}/train/*.arrayrecord"))
    for row in source:
        n, most = row["n_measurements"], CROP // 50
        sampler = ProbeWindowSampler(CROP, avg_tokens_per_meas=50, seed=1)
        contexts = [sampler.context(row, k=k) for k in range(40)]
        assert {context.num_measurements for context in contexts} == {min(n, most)}
        strides = {context.window for context in contexts}
        assert max(strides) <= max(1, n // most) and (len(strides) > 1 or n < 2 * most)
    for wrong in (0, CROP + 1):
        refusal_of(
            lambda: ProbeWindowSampler(CROP, avg_tokens_per_meas=wrong),  # noqa: B023
            f"avg_tokens_per_meas is {wrong}",
            f"from 1 to crop_size={CROP}",
            kind=UsageError,
        )


def test_a_pipeline_of_rounds(mixed: Mixed) -> None:
    pattern = f"{mixed['compact']}/train/*.arrayrecord"
    dataset = create_probe_training_pipeline(pattern, 8, CROP, num_workers=2, seed=42)
    dataset_iter = iter(dataset)
    batch = sample_federated_batch(dataset_iter=dataset_iter, probes_per_round=8)
    dataset_iter.close()
    assert_example(batch, 8)
    same = build_probe_chunk_dataset(pattern, 8, crop_size=CROP, sampler="windows", seed=42)
    assert is_same([batch], [next(iter(same))])
    other = create_probe_training_pipeline(pattern, 8, CROP, shuffle=False, num_workers=0)
    assert other.config == DataConfig(pattern, 8, CROP, shuffle=False, sampler="windows")


def test_measurements_one_by_one_are_a_context(mixed: Mixed) -> None:
    row = ProbeRowDataSource(str(mixed["arrow"]))[0]
    tokens: list[int] = []
    prev_timestamp = None
    expected = []
    for number, item in enumerate(row["measurements"]):
        meas = {"src_addr": row["src_addr"], **item}
        include_timestamp = number % 3 != 1
        tokens.extend(
            encode_measurement(
                meas,
                prev_timestamp=prev_timestamp,
                randomize_field_order=True,
                include_timestamp=include_timestamp,
            )
        )
        seconds = (item["event_time"] - EPOCH) // timedelta(seconds=1)
        expected.append((meas["dst_addr"], seconds if include_timestamp else None))
        prev_timestamp = item["event_time"] if include_timestamp else prev_timestamp
    told = decode(tokens)
    assert [(one.dst_addr, one.event_time) for one in told] == expected
    assert {one.src_addr for one in told} == {row["src_addr"]}
    orders = {tuple(encode_measurement(meas, randomize_field_order=False)) for _ in range(9)}
    assert len(orders) == 1


def test_a_measurement_without_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lacks src_addr, event_time: set src_addr, event_time"):
        encode_measurement({"dst_addr": "1.1.1.1", "ip_version": 4, "rtt": 1.0})
