"""Opening loaders in tests: in every way that must make no difference, and with every variant."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.errors import ProbelineError
from tests.support.batches import Batch, host_batches
from tests.support.probe_rows_on_disk import CROP
from training.dataset import BatchIterator, DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource

State = dict[str, Any]

# What batches depend on, …
VARIANTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"pack": False},
    "in order": {"shuffle": False},
    "narrow windows": {"mixed_rows": 2, "seed": 3},
    "windows": {"sampler": "windows"},
    "weighted windows": {"sampler": "windows", "weights": "measurements"},
    "weighted rows": {"row_weights": {"family": {"ipv4": 0.5, "ipv6": 3}}},
}
# … and, beside the hosts and the encoding, what they must not depend on.
FEEDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "threads": {"num_threads": 4},
    "cache": {"cache_dir": "cache"},
    "cache and threads": {"cache_dir": "cache", "num_threads": 4},
}
FEEDS_OF_WORKERS: dict[str, dict[str, Any]] = {
    "a worker": {"num_workers": 1},
    "two workers": {"num_workers": 2},
    "two workers with threads": {"num_workers": 2, "num_threads": 4},
    "two workers and a cache": {"num_workers": 2, "cache_dir": "cache"},
}


def feed_of(dataset: Path, feed: str) -> dict[str, Any]:
    """Returns the options of a feed; its cache lies beside the dataset."""
    options = (FEEDS | FEEDS_OF_WORKERS)[feed]
    if "cache_dir" in options:
        options = options | {"cache_dir": str(dataset.parent / options["cache_dir"])}
    return options


def read_all(dataset: Path | str) -> list[dict[str, Any]]:
    return list(ProbeRowDataSource(str(dataset)))


def batches_of(files: Path | str, num_batches: int = 25, **config: Any) -> list[Batch]:
    return host_batches(files, num_batches, **{"batch_size": 8, "crop_size": CROP, **config})


@functools.cache
def expected_batches(dataset: Path, variant: str, num_batches: int) -> list[Batch]:
    """The first batches of one host without workers and threads."""
    return batches_of(dataset, num_batches, **VARIANTS[variant])


def config_of(dataset: Path | str, **config: Any) -> DataConfig:
    return DataConfig(**{"files": str(dataset), "batch_size": 8, "crop_size": CROP, **config})


def open_iterator(dataset: Path | str, **config: Any) -> BatchIterator:
    return iter(build_dataset(config_of(dataset, **config)))


def round_trip(state: State) -> State:
    return json.loads(json.dumps(state))


def refusal_of(call: Callable[[], object], *parts: str, kind: type = ProbelineError) -> str:
    """Returns the one line of the error that `call` must raise; it must hold all `parts`."""
    with pytest.raises(kind) as refusal:
        call()
    line = str(refusal.value).partition("\n-----")[0]  # Grain adds a note to its iterators' errors
    assert "\n" not in line
    for part in parts:
        assert part in line, line
    return line


RESUMED: dict[str, dict[str, Any]] = {
    "endless": {"mixed_rows": 3},
    "two epochs": {"num_epochs": 2},
    "a host of two": {"num_epochs": 2, "host_index": 1, "host_count": 2},
    "padded": {"num_epochs": 2, "pack": False, "shuffle": False},
    "windows": {"sampler": "windows", "num_epochs": 3, "weights": "measurements"},
    "tiny lanes": {"batch_size": 40},
}
