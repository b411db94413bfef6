"""The datasets, the loaders, and the resulting cases of the loading bench."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The parameters of a dataset, all explicit; for `source` see `loading_data`."""

    source: str
    measurement_encoding: str = "arrow"
    max_row_size_mb: float = 8
    array_record_options: str = "group_size:1,zstd:1"


_ROW_SIZES_MB = {"64k": 1 / 16, "256k": 1 / 4, "1m": 1, "8m": 8}
_COMPRESSIONS = {"zstd": "group_size:1,zstd:1", "none": "group_size:1,uncompressed"}
SHAPES = {
    f"{encoding}-{size}-{compression}": Shape("long", encoding, max_row_size_mb, options)
    for encoding in ("arrow", "compact")
    for size, max_row_size_mb in _ROW_SIZES_MB.items()
    for compression, options in _COMPRESSIONS.items()
}
for _source in ("small", "mixed"):
    SHAPES[_source] = Shape(_source)
    SHAPES[f"compact-{_source}-none"] = Shape(_source, "compact", 8, _COMPRESSIONS["none"])
DEFAULT_DATASETS = (
    # The first is the one that workers, threads, a step and gs:// are tried on, with the second:
    # what the pipeline writes by default.
    *("compact-256k-none", "compact-8m-none", "compact-64k-none", "compact-1m-none"),
    *("compact-256k-zstd", "arrow-256k-none", "arrow-256k-zstd", "arrow-8m-zstd"),
    *("compact-small-none", "compact-mixed-none", "small", "mixed"),
)

LOADERS = {
    "seed": "sampler in plain Python",
    "shards": "Probeline, shards",
    "cache": "Probeline, cache",
    "gcs": "Probeline, gs:// emulator",
}
OF_TRAINING = ("shards", "cache", "gcs")


@dataclass(frozen=True)
class Case:
    """One measurement per round; without a step, the consumer takes batches as fast as possible.

    With `request_ms` the dataset is on gs://, each request takes that much longer, and the cache is
    refilled.
    """

    dataset: str
    loader: str
    num_workers: int = 0
    num_threads: int = 0
    step_ms: float = 0
    request_ms: float = 0

    @property
    def is_plain(self) -> bool:
        """Whether there are no workers, threads, simulated training steps or slow requests."""
        return self == Case(self.dataset, self.loader)

    @property
    def is_on_gcs(self) -> bool:
        """Whether the dataset is read from gs://."""
        return self.loader == "gcs" or self.request_ms > 0


def cases(
    datasets: Sequence[str],
    loaders: Sequence[str],
    num_workers: Sequence[int],
    num_threads: Sequence[int],
    step_ms: float,
    request_ms: float = 0,
) -> list[Case]:
    """Returns all cases, including those that cannot run here.

    Workers, threads and the step vary only on the first dataset, gs:// only on the first two.
    """
    limited = {"gcs": datasets[:2]}
    chosen = [
        Case(dataset, loader)
        for dataset in datasets
        for loader in loaders
        if dataset in limited.get(loader, datasets)
    ]
    first = datasets[0]
    for loader in ("shards", "cache"):
        if loader in loaders:
            chosen += [Case(first, loader, num_workers=count) for count in num_workers if count]
            chosen += [Case(first, loader, num_threads=count) for count in num_threads if count]
    if step_ms and "shards" in loaders:
        chosen += [Case(first, "shards", count, step_ms=step_ms) for count in num_workers if count]
    if request_ms and "gcs" in loaders:
        chosen += [
            Case(dataset, loader, request_ms=request_ms)
            for dataset in datasets[:2]
            for loader in ("gcs", "cache")
            if loader in loaders
        ]
    return chosen


def obstacle(case: Case) -> str | None:
    """Returns the reason why a case cannot run here, or None."""
    if case.loader == "seed" and SHAPES[case.dataset].measurement_encoding == "compact":
        return "it reads arrow rows only"
    if case.is_on_gcs:
        if not os.environ.get("STORAGE_EMULATOR_HOST"):
            return "no GCS emulator: set STORAGE_EMULATOR_HOST"
        if importlib.util.find_spec("google.cloud.storage") is None:
            return "google-cloud-storage is not installed"
    return None


def folder_name(kind: str, dataset: str, num_measurements: int, seed: int) -> str:
    """Returns the name, below --data_dir, of a dataset's rows or cache."""
    return f"{kind}-{dataset}-{num_measurements}-{seed}"
