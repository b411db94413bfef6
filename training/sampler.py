"""Samplers for one row at a time: `ProbeRowSampler` and `ProbeWindowSampler`.

They turn elements of a `ProbeRowDataSource` into examples with the same kernels as
`dataset.build_dataset`, which also shuffles, packs and batches. A context is a function of
(seed, epoch, src_id, row_index, k) alone.

  row = ProbeRowDataSource("rows/train")[0]
  for context in ProbeRowSampler(seed=1).contexts(row, epoch=0):
      context.example["inputs"]
"""
# pyarrow has no types, Grain comes without stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses
from beam_pipeline.errors import ProbelineError, UsageError, program
from training.batches.config import DataConfig
from training.batches.lanes import context_keys
from training.batches.packing import new_crops, pad_small, put_contexts, to_batch
from training.rows.keyed_random import key_of
from training.tokens.contexts import CONTEXT_FACTS, DAMAGED, MIN_CROP, draw_contexts
from training.tokens.draws import MODE_NAMES, Drawing, new_drawing, new_scratch, untimed_tokens_of
from training.tokens.tokenizer import ABS_TOKENS, MAX_MEASUREMENT_TOKENS

Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class Context:
    """One context, and how it was drawn.

    Attributes:
      example: int32 [crop_size] each: inputs, targets, their segmentation and position.
      num_tokens: at most crop_size + 1; the last one is a target only.
      mode: full, partial or none.
      num_measurements: in the context; the last one may be cut.
      num_timed: number of measurements with a timestamp.
      first: the first measurement of the window.
      window: the size of the window; the stride with ProbeWindowSampler.
      has_repeats: whether it has few destinations, see `repeat_share`.

    Example:

        row = ProbeRowDataSource("rows/train")[0]
        context = ProbeWindowSampler(crop_size=256, seed=1).context(row)
        context.mode, context.num_measurements, context.example["inputs"][: context.num_tokens]
    """

    example: Example
    num_tokens: int
    mode: str
    num_measurements: int
    num_timed: int
    first: int
    window: int
    has_repeats: bool


class _Sampler(grain.transforms.RandomMap):
    """Draws contexts; subclasses differ in `drawing`."""

    def __init__(self, drawing: Drawing, seed: int | None):
        self.crop_size = drawing.num_tokens - 1
        if self.crop_size < MIN_CROP:
            raise UsageError(f"crop_size is {self.crop_size}: it must be {MIN_CROP} or more")
        self.seed = seed or 0
        self._drawing = drawing

    def _draw(self, row: Mapping[str, Any], epoch: int, first_k: int, count: int) -> list[Context]:
        identity = key_of(row["src_id"], row["row_index"])
        contexts = np.empty((count, self._drawing.num_tokens), np.uint16)
        facts = np.zeros(count, CONTEXT_FACTS)
        is_whole = draw_contexts(
            *row["measurements"].columns,
            _source(row),
            context_keys(key_of(self.seed), np.int64(epoch), identity, first_k, count),
            self._drawing,
            new_scratch(self._drawing.num_tokens),
            contexts,
            facts,
        )
        if not is_whole:
            raise _damaged(row)
        crops = new_crops(count, self.crop_size)
        put_contexts(contexts, facts, np.arange(count), crops)
        batch = to_batch(crops)
        return [  # fields in the order of CONTEXT_FACTS
            Context(
                {name: values[k] for name, values in batch.items()},
                num_tokens,
                MODE_NAMES[mode],
                *counts,
                has_repeats=bool(has_repeats),
            )
            for k, (num_tokens, mode, *counts, has_repeats) in enumerate(facts.tolist())
        ]

    def random_map(  # pyright: ignore[reportIncompatibleMethodOverride] Grain's takes any element
        self, element: Mapping[str, Any], rng: np.random.Generator
    ) -> Example:
        """Draws one context with Grain's generator instead of seed, epoch and k."""
        return self._draw(element, int(rng.integers(2**62)), 0, 1)[0].example


def _damaged(row: Mapping[str, Any]) -> ProbelineError:
    return ProbelineError(
        f"row {row['row_index']} of {row['src_addr']} has a destination that is not an IP address: "
        f"{program('verify', 'beam_pipeline.verify')} shows what else is damaged"
    )


def _source(row: Mapping[str, Any]) -> tuple[np.uint64, np.uint64, bool]:
    hi, lo, family = addresses.parse(pa.array([row["src_addr"]]))
    return hi[0], lo[0], bool(family[0] == addresses.FAMILY_IPV6)


class ProbeRowSampler(_Sampler):
    """Draws contexts from windows of many sizes.

    In an epoch, a large row gives K = min(ceil(n / avg_tokens_per_measurement),
    max_contexts_per_row) contexts. A small row, whose measurements without timestamps cannot fill a
    crop, gives each measurement exactly once, in as many padded examples as needed;
    `build_dataset` packs such rows together.

    Args:
      crop_size: tokens of an example.
      avg_tokens_per_measurement: see K.
      max_contexts_per_row: see K.
      mode_weights: weights of full, partial and no timestamps.
      seed: seed of all draws; None is 0.
      repeat_share: share of contexts that teach to look up what was seen, see `DataConfig`.
      fixed_order_share: share of contexts with one order of fields.
      random_source_share: share of contexts whose source has a random end.
      log_rtt: encode RTTs on a logarithmic scale.
      window_shares: the smallest and the largest window, as shares of a row.

    Raises:
      UsageError: the crop is too small for a measurement, or another value is not allowed.

    Example:

        row = ProbeRowDataSource("rows/train")[0]
        for example in ProbeRowSampler(crop_size=256, seed=1).examples(row, epoch=0):
            example["inputs"]  # int32 [256]
    """

    def __init__(
        self,
        crop_size: int = 1024,
        avg_tokens_per_measurement: int = 30,
        max_contexts_per_row: int = 16,
        mode_weights: tuple[float, float, float] = (0.40, 0.30, 0.30),
        seed: int | None = None,
        repeat_share: float = 0.0,
        fixed_order_share: float = 0.0,
        random_source_share: float = 0.0,
        log_rtt: bool = False,
        window_shares: tuple[float, float] = (0.0, 1.0),
    ):
        config = DataConfig(
            files="",
            batch_size=1,
            crop_size=crop_size,
            mode_weights=mode_weights,
            repeat_share=repeat_share,
            fixed_order_share=fixed_order_share,
            random_source_share=random_source_share,
            log_rtt=log_rtt,
            window_shares=window_shares,
        )
        super().__init__(config.drawing, seed)
        self.avg_tokens_per_meas = avg_tokens_per_measurement
        self.max_K = max_contexts_per_row
        self.mode_weights = mode_weights

    def num_contexts(self, n_measurements: int) -> int:
        """Returns K of a large row."""
        return max(1, min(-(-n_measurements // self.avg_tokens_per_meas), self.max_K))

    def is_small(self, row: Mapping[str, Any]) -> bool:
        """Returns whether the row's measurements without timestamps cannot fill a crop."""
        tokens = untimed_tokens_of(*row["measurements"].columns, _source(row)[2])
        return bool(tokens <= self.crop_size)

    def contexts(self, row: Mapping[str, Any], epoch: int = 0) -> list[Context]:
        """Draws the K contexts of a large row in an epoch.

        Raises:
          ProbelineError: the row is damaged.
        """
        return self._draw(row, epoch, 0, self.num_contexts(len(row["measurements"])))

    def examples(self, row: Mapping[str, Any], epoch: int = 0) -> Iterator[Example]:
        """Yields all examples of a row in an epoch; those of a small row are padded."""
        if not self.is_small(row):
            yield from (context.example for context in self.contexts(row, epoch))
            return
        measurements = row["measurements"]
        identity = key_of(row["src_id"], row["row_index"])
        # A crop loses less than one measurement plus a new absolute time.
        tokens = len(measurements) * MAX_MEASUREMENT_TOKENS
        min_per_crop = self.crop_size - MAX_MEASUREMENT_TOKENS - ABS_TOKENS
        crops = new_crops(tokens // min_per_crop + 1, self.crop_size)
        num_crops = pad_small(
            *measurements.columns,
            _source(row),
            context_keys(key_of(self.seed), np.int64(epoch), identity, 0, 1)[0],
            self._drawing,
            new_scratch(self._drawing.num_tokens, len(measurements)),
            crops,
        )
        if num_crops == DAMAGED:
            raise _damaged(row)
        batch = to_batch(crops)
        for number in range(num_crops):
            yield {name: values[number].copy() for name, values in batch.items()}


class ProbeWindowSampler(_Sampler):
    """Draws one context per visit from every stride-th measurement, with strides 1, 2, 4, ….

    Measurements are in order of time. In mode partial, each timestamp is kept with probability 1/2.
    A row too short to fill the crop is padded.

    Args:
      crop_size: tokens of an example.
      avg_tokens_per_meas: limits a context to crop_size // avg_tokens_per_meas measurements, padded
        if they do not fill the crop; None takes as many as fill the crop.
      mode_weights: weights of full, partial and no timestamps.
      seed: seed of all draws; None is 0.

    Raises:
      UsageError: the crop is too small for a measurement, or avg_tokens_per_meas is out of range.

    Example:

        row = ProbeRowDataSource("rows/train")[0]
        ProbeWindowSampler(crop_size=256, seed=1).context(row, epoch=0, k=0).mode
    """

    def __init__(
        self,
        crop_size: int = 1024,
        avg_tokens_per_meas: int | None = None,
        mode_weights: tuple[float, float, float] = (0.40, 0.30, 0.30),
        seed: int | None = None,
    ):
        bound = {}
        if avg_tokens_per_meas is not None:
            if not 1 <= avg_tokens_per_meas <= crop_size:
                raise UsageError(
                    f"avg_tokens_per_meas is {avg_tokens_per_meas}: it must be from 1 to "
                    f"crop_size={crop_size}"
                )
            bound = {"max_measurements": crop_size // avg_tokens_per_meas}
        super().__init__(new_drawing(crop_size, mode_weights, strided=True, **bound), seed)

    def context(self, row: Mapping[str, Any], epoch: int = 0, k: int = 0) -> Context:
        """Draws the k-th context of a row in an epoch.

        Raises:
          ProbelineError: the row is damaged.
        """
        return self._draw(row, epoch, k, 1)[0]


def sample_federated_batch(dataset_iter: Iterator[Example], probes_per_round: int) -> Example:
    """Returns the batch of one round of simulated federated learning, one example per probe.

    Args:
      dataset_iter: an iterator of a dataset with sampler="windows", whose examples are of different
        probes.
      probes_per_round: number of examples to take from the next batch.

    Returns:
      The arrays of a batch, int32 [probes_per_round, crop_size] each.

    Raises:
      ProbelineError: a batch has fewer than `probes_per_round` examples.

    Example:

        config = DataConfig(files="rows/train", batch_size=4, sampler="windows")
        batch = sample_federated_batch(iter(build_dataset(config)), probes_per_round=2)
    """
    batch = next(dataset_iter)
    batch_size = len(batch["inputs"])
    if not 1 <= probes_per_round <= batch_size:
        raise ProbelineError(
            f"probes_per_round is {probes_per_round}, but a batch has {batch_size} probes: build "
            "the dataset with a larger batch_size"
        )
    return {name: values[:probes_per_round] for name, values in batch.items()}
