"""`DataConfig`: every option of the training data, and the checks of their values."""

import dataclasses
import hashlib
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import orjson

from beam_pipeline.errors import UsageError
from training.batches.mixture import checked_weights
from training.batches.selections import checked_selections
from training.tokens.contexts import MIN_CROP
from training.tokens.draws import Drawing, new_drawing

# Options that change no dataset's contexts: where the data are, their weights in a mixture, when a
# run ends, speed and memory.
_NOT_SAMPLING = (
    *("files", "num_epochs", "on_bad_row", "host_index", "host_count"),
    *("num_workers", "worker_buffer_size", "num_threads", "cache_dir"),
)


_MAX_INTEGER = 2**63 - 1
# A longer crop takes seconds to draw.
_MAX = {"batch_size": 1 << 24, "crop_size": 1 << 17, "worker_buffer_size": 1 << 16}


def _integer(value: Any, maximum: int = _MAX_INTEGER) -> int:
    if isinstance(value, bool) or abs(number := operator.index(value)) > maximum:
        raise TypeError
    return number


def _truth(value: Any) -> bool:
    if type(value) not in (bool, np.bool_):
        raise TypeError
    return bool(value)


def _folder(value: Any) -> str:
    if not (folder := os.path.join("", value)):  # of bytes it makes none
        raise TypeError
    return folder


def _numbers(value: Any) -> tuple[Any, ...]:
    for number in value:
        float(number)
    return tuple(value)


def _weights(value: Any) -> Any:
    if not isinstance(value, str):
        len(np.asarray(value, float))
    return value


# By its name or type, what makes a plain value, for JSON, of an option's, and what is allowed.
_KINDS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_integer, "a whole number of 64 bits"),
    int | None: (_integer, "a whole number of 64 bits, or None"),
    float: (float, "a number"),
    bool: (_truth, "True or False"),
    "seed": (partial(_integer, maximum=2**64 - 1), "a whole number of 64 bits"),
    "mode_weights": (_numbers, "three numbers"),
    "window_shares": (_numbers, "two numbers"),
    "weights": (_weights, "rows, probes, measurements or numbers"),
    "cache_dir": (_folder, "a folder on a local disk, or None"),
}


def _plain(field: dataclasses.Field[Any], value: Any) -> Any:
    """Returns an option's value as a plain one; UsageError for one of a wrong type."""
    convert, allowed = _KINDS.get(field.name) or _KINDS.get(field.type) or (None, "")
    if convert is None or (value is None and type(None) in get_args(field.type)):
        return value
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise UsageError(f"{field.name} is {value!r}: it must be {allowed}") from None


@dataclass(frozen=True)
class DataConfig:
    """The options of `build_dataset`; fields after `host_count` change speed and memory only.

    Attributes:
      files: a dataset's folder, a split's folder, shards or a glob of them; local or gs://. Or a
        mixture, {"rows/a": 0.7, "rows/b": 0.3}: such names, and the share of the examples of each.
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
      stride_ratio: how often sampler="windows" takes a stride, relative to half of it; 1 takes all
        strides equally often.
      window_shares: the sizes of the windows of large rows, log-uniform between these shares of
        the row's measurements, for sampler="rows": (0, 0) takes stretches of successive
        measurements alone, (1, 1) draws from whole rows.
      repeat_share: share of the contexts of large rows that have few destinations, most of them
        several times, for sampler="rows". A model learns from them to look up what it has seen.
      fixed_order_share: share of the contexts whose fields come in one order, source, time,
        destination, RTT; in the others each measurement has an order of its own.
      random_source_share: share of the contexts that tell a random address as their source, so
        that a model cannot know a probe by heart and has to read what the context says of it.
      log_rtt: tell RTTs on a logarithmic scale, whose first byte is some six times as fine;
        see `training.tokens.log_rtt`.
      weights: of the rows, for sampler="windows": "rows" (each once an epoch), "probes",
        "measurements", or a number for each line of rows.parquet.
      row_weights: how often a row comes in an epoch, by the family and the address of its probe
        and by its time, as `batches.selections` reads it: {"family": {"ipv6": 3}}.
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

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, float]
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
    stride_ratio: float = 1.0
    window_shares: tuple[float, float] = (0.0, 1.0)
    repeat_share: float = 0.0
    fixed_order_share: float = 0.0
    random_source_share: float = 0.0
    log_rtt: bool = False
    weights: str | Sequence[float] = "rows"
    row_weights: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    on_bad_row: Literal["fail", "skip"] = "fail"
    host_index: int = 0
    host_count: int = 1
    num_workers: int = 0
    worker_buffer_size: int = 2
    num_threads: int = 0
    cache_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(field, getattr(self, field.name)))
        if isinstance(self.files, Mapping):
            object.__setattr__(self, "files", checked_weights(self.files))
        object.__setattr__(self, "row_weights", checked_selections(self.row_weights))
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
            if value is not None and value > (maximum := _MAX.get(name, _MAX_INTEGER)):
                raise UsageError(f"{name} is {value}: it must be {maximum} or less")
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
        object.__setattr__(self, "mode_weights", tuple(map(float, weights)))
        shares = tuple(map(float, self.window_shares))
        if len(shares) != 2 or not 0 <= shares[0] <= shares[1] <= 1:
            raise UsageError(f"window_shares are {shares}: give two from 0 to 1, the lower first")
        object.__setattr__(self, "window_shares", shares)
        for name in ("repeat_share", "fixed_order_share", "random_source_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")
        if not 0 < self.stride_ratio < math.inf:
            raise UsageError(f"stride_ratio is {self.stride_ratio}: it must be above 0")
        if self.sampler == "rows" and self.stride_ratio != 1:
            raise UsageError("stride_ratio is for sampler=windows; rows draws without strides")
        if self.sampler == "windows":
            for name, unused in (("repeat_share", 0), ("window_shares", (0, 1))):
                if getattr(self, name) != unused:
                    raise UsageError(f"{name} is for sampler=rows: windows draws by strides")
        if self.sampler == "rows" and self.weights != "rows":
            raise UsageError("weights are for sampler=windows; rows gives every row its contexts")
        if isinstance(self.weights, str) and self.weights not in ("rows", "probes", "measurements"):
            raise UsageError(
                f"weights is {self.weights!r}: use rows, probes, measurements or numbers"
            )
        if self.is_mixture:
            self._check_mixture()

    def _check_mixture(self) -> None:
        if self.num_epochs is not None:
            raise UsageError(
                f"num_epochs is {self.num_epochs}: each dataset of a mixture has its own epochs, "
                "and begins the next when one ends; use None, and stop after a number of steps"
            )
        if not isinstance(self.weights, str):
            raise UsageError(
                f"weights are {len(self.weights)} numbers, of the rows of one dataset: use rows, "
                "probes or measurements for a mixture"
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
    def is_mixture(self) -> bool:
        """Whether `files` has several datasets, with weights."""
        return isinstance(self.files, Mapping)

    @property
    def mixture(self) -> tuple[float, ...]:
        """The weights of the datasets; of one alone (1.0,)."""
        return tuple(self.files.values()) if isinstance(self.files, Mapping) else (1.0,)

    @property
    def fingerprint(self) -> str:
        """A digest of `sampling`."""
        data = orjson.dumps(self.sampling, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def drawing(self) -> Drawing:
        """How contexts are drawn."""
        return new_drawing(
            self.crop_size,
            self.mode_weights,
            self.sampler == "windows",
            stride_ratio=float(self.stride_ratio),
            min_window=self.window_shares[0],
            max_window=self.window_shares[1],
            repeat_share=float(self.repeat_share),
            fixed_order_share=float(self.fixed_order_share),
            random_source_share=float(self.random_source_share),
            log_rtt=self.log_rtt,
        )

    @property
    def lanes(self) -> range:
        """The lanes of this host."""
        share = self.batch_size // self.host_count
        return range(self.host_index * share, (self.host_index + 1) * share)
