"""`DataConfig`: every option of the training data, and the checks of their values."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from beam_pipeline.errors import UsageError
from training.tokens.contexts import MIN_CROP
from training.tokens.draws import Drawing, new_drawing

# Options that change no batch: where the data are, when a run ends, speed and memory.
_NOT_SAMPLING = (
    *("files", "num_epochs", "on_bad_row", "host_index", "host_count"),
    *("num_workers", "worker_buffer_size", "num_threads", "cache_dir"),
)


@dataclass(frozen=True)
class DataConfig:
    """The options of `build_dataset`; fields after `host_count` change speed and memory only.

    Attributes:
      files: a dataset's folder, a split's folder, shards or a glob of them; local or gs://.
      batch_size: examples of the global batch; each host yields its share.
      crop_size: tokens of an example.
      seed: of all random choices.
      shuffle: False takes rows in the order of the shards; contexts are still drawn at random.
      num_epochs: None never ends; each epoch draws new contexts.
      sampler: "rows" (log-uniform windows, small rows packed) or "windows" (strides, one window
        a visit, another probe in each example).
      pack: pack small rows; False pads each of them.
      mixed_rows: number of rows whose contexts a lane mixes, at 33 KiB of memory per example and
        row. None mixes all rows of a lane, a full shuffle of contexts, and needs cache_dir.
      avg_tokens_per_measurement: a large row of n measurements has
        min(ceil(n / avg_tokens_per_measurement), max_contexts_per_row) contexts an epoch.
      max_contexts_per_row: see above.
      mode_weights: of full, partial and no timestamps.
      weights: of the rows, for sampler="windows": "rows" (each once an epoch), "probes",
        "measurements", or a number for each line of rows.parquet.
      on_bad_row: "fail", or "skip", which logs and counts the row.
      host_index: this host, which gives examples [index, index + 1) * batch_size / host_count.
      host_count: the number of hosts, which divides batch_size.
      num_workers: processes that prepare batches; 0 prepares them in the calling process.
      worker_buffer_size: batches that each worker prepares ahead.
      num_threads: threads that read rows; with any, the next batch is prepared ahead.
      cache_dir: a folder on a local disk for the columns of the rows, see `column_cache`.

    Raises:
      UsageError: a value is not allowed.

    Example:

        DataConfig(files="rows/train", batch_size=256, crop_size=512, num_epochs=1)
    """

    files: str | Sequence[str]
    batch_size: int
    crop_size: int = 1024
    seed: int = 0
    shuffle: bool = True
    num_epochs: int | None = None
    sampler: Literal["rows", "windows"] = "rows"
    pack: bool = True
    mixed_rows: int | None = 16
    avg_tokens_per_measurement: int = 30
    max_contexts_per_row: int = 16
    mode_weights: tuple[float, float, float] = (0.4, 0.3, 0.3)
    weights: str | Sequence[float] = "rows"
    on_bad_row: Literal["fail", "skip"] = "fail"
    host_index: int = 0
    host_count: int = 1
    num_workers: int = 0
    worker_buffer_size: int = 2
    num_threads: int = 0
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # plain numbers, for JSON, also if NumPy's are given
            if isinstance(getattr(self, field.name), np.integer):
                object.__setattr__(self, field.name, int(getattr(self, field.name)))
        for name, minimum in (
            ("batch_size", 1),
            ("crop_size", MIN_CROP),
            ("mixed_rows", 1),
            ("avg_tokens_per_measurement", 1),
            ("max_contexts_per_row", 1),
            ("host_count", 1),
            ("num_workers", 0),
            ("worker_buffer_size", 1),
            ("num_threads", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(f"{name} is {value}: it must be {minimum} or more")
        if self.mixed_rows is None and self.cache_dir is None:
            raise UsageError(
                "mixed_rows is None, all rows, which reads a row again for each of its contexts: "
                "give a cache_dir, or a number"
            )
        if self.num_epochs is not None and self.num_epochs < 1:
            raise UsageError(f"num_epochs is {self.num_epochs}: it must be 1 or more, or None")
        for name, allowed in (("sampler", ("rows", "windows")), ("on_bad_row", ("fail", "skip"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {getattr(self, name)!r}: use {' or '.join(allowed)}")
        if not 0 <= self.host_index < self.host_count:
            raise UsageError(f"host_index is {self.host_index}, of {self.host_count} hosts")
        if self.batch_size % self.host_count:
            raise UsageError(
                f"batch_size {self.batch_size} cannot be shared by {self.host_count} hosts: use a "
                "multiple of their number"
            )
        weights = self.mode_weights
        if len(weights) != 3 or not min(weights) >= 0 or not 0 < sum(weights) < math.inf:
            raise UsageError(f"mode_weights are {weights}: give three, none negative, not all 0")
        object.__setattr__(self, "mode_weights", tuple(map(float, self.mode_weights)))
        if self.sampler == "rows" and self.weights != "rows":
            raise UsageError("weights are for sampler=windows; rows gives every row its contexts")
        if isinstance(self.weights, str) and self.weights not in ("rows", "probes", "measurements"):
            raise UsageError(
                f"weights is {self.weights!r}: use rows, probes, measurements or numbers"
            )

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields that determine the batches, for a fingerprint."""
        fields = dataclasses.asdict(self)
        if not isinstance(self.weights, str):
            weights = np.asarray(self.weights, float).tobytes()
            fields["weights"] = hashlib.blake2b(weights, digest_size=8).hexdigest()
        return {name: value for name, value in fields.items() if name not in _NOT_SAMPLING}

    @property
    def drawing(self) -> Drawing:
        """How contexts are drawn."""
        return new_drawing(self.crop_size, self.mode_weights, self.sampler == "windows")

    @property
    def lanes(self) -> range:
        """The lanes of this host."""
        share = self.batch_size // self.host_count
        return range(self.host_index * share, (self.host_index + 1) * share)
