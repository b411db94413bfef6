"""`DataConfig`: every option of the training data, with checks of the values.

An option is one line of the class: its type, default and range, its key in MaxText if there is
one, whether it determines the examples, and whether stages of a curriculum may set it separately.
`training.maxtext` derives its keys from these lines.
"""

import dataclasses
import hashlib
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Literal

import numpy as np
import orjson

from beam_pipeline.errors import UsageError
from training.batches.mixture import checked_weights
from training.batches.selections import checked_selections
from training.tokens.contexts import MIN_CROP
from training.tokens.draws import Drawing, new_drawing

_MAX_INTEGER = 2**63 - 1


def _option(convert: Callable[[Any], Any], allowed: str, default: Any, **more: Any) -> Any:
    """Returns a field of `DataConfig`.

    Args:
      convert: returns the value as a plain one, for JSON; raises TypeError or ValueError.
      allowed: completes "it must be".
      more: `maxtext`, the equivalent key of MaxText; `is_sampling=False` if the option does not
        determine the examples of a dataset; `by_stage=True` if it may differ between stages.
    """
    return dataclasses.field(
        default=default, metadata={"convert": convert, "allowed": allowed, **more}
    )


def _integer(
    default: Any,
    minimum: int,
    maximum: int = _MAX_INTEGER,
    *,
    or_none: bool = False,
    **more: Any,
) -> Any:
    def convert(value: Any) -> int | None:
        if value is None and or_none:
            return None
        if value is None or isinstance(value, bool):
            raise ValueError
        if not minimum <= (number := operator.index(value)) <= maximum:
            raise ValueError
        return number

    limits = f"of {minimum} or more" if maximum == _MAX_INTEGER else f"from {minimum} to {maximum}"
    none = ", or None" if or_none else ""
    return _option(convert, f"an integer {limits}{none}", default, **more)


def _share(**more: Any) -> Any:
    def convert(value: Any) -> float:
        if not 0 <= (share := float(value)) <= 1:
            raise ValueError
        return share

    return _option(convert, "a number from 0 to 1", 0.0, **more)


def _truth(default: bool, **more: Any) -> Any:
    def convert(value: Any) -> bool:
        if type(value) not in (bool, np.bool_):
            raise TypeError
        return bool(value)

    return _option(convert, "True or False", default, **more)


def _choice(*names: str, **more: Any) -> Any:
    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return _option(convert, " or ".join(names), names[0], **more)


def _positive(value: Any) -> float:
    if not 0 < (number := float(value)) < math.inf:
        raise ValueError
    return number


def _mode_weights(value: Any) -> tuple[float, ...]:
    full, partial, none = weights = tuple(map(float, value))
    if not min(weights) >= 0 or not 0 < full + partial + none < math.inf:
        raise ValueError
    return weights


def _window_shares(value: Any) -> tuple[float, ...]:
    low, high = shares = tuple(map(float, value))
    if not 0 <= low <= high <= 1:
        raise ValueError
    return shares


def _weights(value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("rows", "probes", "measurements"):
            raise ValueError
    else:
        len(np.asarray(value, float))
    return value


def _folder(value: Any) -> str | None:
    if value is None:
        return None
    if not (folder := os.path.join("", value)):  # raises TypeError for bytes
        raise ValueError
    return folder


@dataclass(frozen=True)
class DataConfig:
    """The options of `build_dataset`; fields after `host_count` change speed and memory only.

    Attributes:
      files: a dataset's folder, a split's folder, shards or a glob of them; local or gs://. Or a
        mixture, {"rows/a": 0.7, "rows/b": 0.3}: such names, each with its share of the examples.
      batch_size: examples of the global batch; each host yields its share.
      crop_size: tokens of an example.
      seed: seed of all random choices.
      shuffle: False takes rows in the order of the shards; contexts are still drawn at random.
      num_epochs: each epoch draws new contexts; None never ends.
      sampler: "rows" (log-uniform windows, small rows packed) or "windows" (strides, one window
        per visit, a different probe in each example).
      pack: pack small rows; False pads each of them.
      mixed_rows: number of rows whose contexts a lane mixes, at 33 KiB of memory per example and
        row. None mixes all rows of a lane, a full shuffle of contexts, and requires cache_dir.
      avg_tokens_per_measurement: a large row of n measurements has
        min(ceil(n / avg_tokens_per_measurement), max_contexts_per_row) contexts per epoch.
      max_contexts_per_row: see above.
      mode_weights: weights of full, partial and no timestamps.
      stride_ratio: weight of stride 2s relative to stride s, for sampler="windows".
      window_shares: smallest and largest window of a large row, as shares of its measurements, for
        sampler="rows"; sizes are log-uniform. (0, 0) takes only runs of consecutive measurements,
        (1, 1) draws from whole rows.
      repeat_share: share of the contexts, for sampler="rows", that teach a model to look up what it
        has seen: those of large rows have few destinations, most of them repeated; three in ten
        have relabelled addresses, and most of these one RTT for each destination.
      fixed_order_share: share of the contexts with one order of fields: source, time, destination,
        RTT. In other contexts every measurement has its own order.
      random_source_share: share of the contexts whose source address has a random end, of one byte
        to all, so the model cannot memorise probes and has to use prefixes and the context.
      log_rtt: encode RTTs on a logarithmic scale with a finer first byte, see
        `training.tokens.log_rtt`.
      weights: weights of the rows, for sampler="windows": "rows" (each once per epoch), "probes",
        "measurements", or a number for each line of rows.parquet.
      row_weights: how often a row occurs in an epoch, by address family, probe and time, see
        `batches.selections`: {"family": {"ipv6": 3}}.
      on_bad_row: "fail", or "skip", which logs and counts the row.
      host_index: this host, which yields examples [index, index + 1) * batch_size / host_count.
      host_count: number of hosts, a divisor of batch_size.
      num_workers: processes that prepare batches; 0 prepares them in the calling process.
      worker_buffer_size: batches that each worker prepares in advance.
      num_threads: threads that read rows; if not 0, the next batch is prepared in advance.
      cache_dir: folder on a local disk for the columns of the rows, see `column_cache`.

    Raises:
      UsageError: a value is not allowed.

    Example:

        DataConfig(files="rows/train", batch_size=256, crop_size=512, num_epochs=1)
    """

    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, float]
    batch_size: int = _integer(MISSING, 1, 1 << 24, maxtext="per_device_batch_size")
    # Longer crops would take seconds to draw.
    crop_size: int = _integer(1024, MIN_CROP, 1 << 17, maxtext="max_target_length")
    seed: int = _integer(0, 1 - 2**64, 2**64 - 1, maxtext="data_shuffle_seed")
    shuffle: bool = _truth(True, maxtext="enable_data_shuffling")
    num_epochs: int | None = _integer(None, 1, or_none=True, maxtext="num_epoch", is_sampling=False)
    sampler: Literal["rows", "windows"] = _choice("rows", "windows")
    pack: bool = _truth(True, maxtext="packing")
    mixed_rows: int | None = _integer(16, 1, or_none=True)
    avg_tokens_per_measurement: int = _integer(30, 1)
    max_contexts_per_row: int = _integer(16, 1)
    mode_weights: tuple[float, float, float] = _option(
        _mode_weights, "three numbers, none negative, not all 0", (0.4, 0.3, 0.3)
    )
    stride_ratio: float = _option(_positive, "a number above 0", 1.0)
    window_shares: tuple[float, float] = _option(
        _window_shares, "two numbers from 0 to 1, the lower first", (0.0, 1.0)
    )
    repeat_share: float = _share(by_stage=True)
    fixed_order_share: float = _share(by_stage=True)
    random_source_share: float = _share(by_stage=True)
    log_rtt: bool = _truth(False)
    weights: str | Sequence[float] = _option(
        _weights, "rows, probes, measurements or numbers", "rows"
    )
    row_weights: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    on_bad_row: Literal["fail", "skip"] = _choice("fail", "skip", is_sampling=False)
    host_index: int = _integer(0, 0, is_sampling=False)
    host_count: int = _integer(1, 1, is_sampling=False)
    num_workers: int = _integer(0, 0, maxtext="grain_worker_count", is_sampling=False)
    worker_buffer_size: int = _integer(
        2, 1, 1 << 16, maxtext="grain_per_worker_buffer_size", is_sampling=False
    )
    num_threads: int = _integer(0, 0, maxtext="grain_num_threads", is_sampling=False)
    cache_dir: str | os.PathLike[str] | None = _option(  # noqa: RUF009
        _folder, "a folder on a local disk, or None", None, is_sampling=False
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if convert := field.metadata.get("convert"):
                try:
                    object.__setattr__(self, field.name, convert(value))
                except (TypeError, ValueError):
                    allowed = field.metadata["allowed"]
                    raise UsageError(f"{field.name} is {value!r}: it must be {allowed}") from None
        if isinstance(self.files, Mapping):
            object.__setattr__(self, "files", checked_weights(self.files))
        object.__setattr__(self, "row_weights", checked_selections(self.row_weights))
        for is_wrong, message in self._conflicts():
            if is_wrong:
                raise UsageError(message)

    def _conflicts(self) -> Sequence[tuple[bool, str]]:
        """Returns (whether options conflict, message) for each possible conflict."""
        is_rows = self.sampler == "rows"
        return (
            (
                self.mixed_rows is None and self.cache_dir is None,
                "mixed_rows is None, which reads a row again for each of its contexts: set "
                "cache_dir, or a number of rows",
            ),
            (
                self.host_index >= self.host_count,
                f"host_index is {self.host_index}, but host_count is {self.host_count}",
            ),
            (
                self.batch_size % self.host_count > 0,
                f"batch_size {self.batch_size} is not a multiple of host_count {self.host_count}",
            ),
            (
                is_rows and self.stride_ratio != 1,
                "stride_ratio requires sampler=windows; sampler=rows has no strides",
            ),
            (
                is_rows and (not isinstance(self.weights, str) or self.weights != "rows"),
                "weights require sampler=windows; sampler=rows takes every row",
            ),
            (not is_rows and self.repeat_share > 0, "repeat_share requires sampler=rows"),
            (not is_rows and self.window_shares != (0, 1), "window_shares require sampler=rows"),
            (
                self.is_mixture and self.num_epochs is not None,
                f"num_epochs is {self.num_epochs}, but every dataset of a mixture has its own "
                "epochs: use None, and stop after a number of steps",
            ),
            (
                self.is_mixture and not isinstance(self.weights, str),
                "weights are numbers for the rows of one dataset: use rows, probes or "
                "measurements for a mixture",
            ),
        )

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields that determine the batches, for a fingerprint."""
        names = {
            field.name
            for field in dataclasses.fields(self)
            if field.name != "files" and field.metadata.get("is_sampling", True)
        }
        fields = dataclasses.asdict(self)
        if not isinstance(self.weights, str):
            weights = np.asarray(self.weights, float).tobytes()
            fields["weights"] = hashlib.blake2b(weights, digest_size=8).hexdigest()
        return {name: value for name, value in fields.items() if name in names}

    @property
    def is_mixture(self) -> bool:
        """Whether `files` is a mixture."""
        return isinstance(self.files, Mapping)

    @property
    def mixture(self) -> tuple[float, ...]:
        """The weights of the datasets; (1.0,) for a single one."""
        return tuple(self.files.values()) if isinstance(self.files, Mapping) else (1.0,)

    @property
    def fingerprint(self) -> str:
        """A digest of `sampling`."""
        data = orjson.dumps(self.sampling, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def drawing(self) -> Drawing:
        """How contexts are drawn."""
        same = {name: getattr(self, name) for name in Drawing._fields if hasattr(self, name)}
        return new_drawing(
            self.crop_size,
            self.mode_weights,
            self.sampler == "windows",
            min_window=self.window_shares[0],
            max_window=self.window_shares[1],
            **same,
        )

    @property
    def lanes(self) -> range:
        """The lanes of this host."""
        share = self.batch_size // self.host_count
        return range(self.host_index * share, (self.host_index + 1) * share)
