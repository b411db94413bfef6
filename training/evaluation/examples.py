"""The contexts that are evaluated: drawn and packed by `build_dataset`, as in training."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from beam_pipeline.dataset.manifest import open_dataset
from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig, fitting
from training.dataset import build_dataset
from training.rows.row_table import RowTable, ShardSet, find_shards, load_rows


class Predictor(Protocol):
    """A trained model: tokens in, the next token's distribution out.

    Attributes:
      crop_size: tokens of the examples that it was trained on.
      step: of training.
      description: of the model, for people.
    """

    @property
    def crop_size(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def description(self) -> str: ...

    def __call__(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        """Returns natural logarithms of probabilities, float32 [batch, crop, 267].

        Args: int32 [batch, crop_size] each, as in a batch of `build_dataset`.
        """
        ...


@dataclass(frozen=True)
class Extent:
    """How much is looked at.

    Attributes:
      num_train_contexts: of the training split, on which unigrams are counted.
      num_train_rows: of the training split, at most, from which RTT medians are taken.
      batch_size: halved until the rows have contexts for so many examples.
    """

    num_contexts: int = 192
    num_rtt: int = 2000
    num_train_contexts: int = 2000
    num_train_rows: int = 4000
    batch_size: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Split:
    """The rows of a split, or of some of its shards; `files` is what `build_dataset` takes."""

    files: str
    shards: ShardSet
    rows: RowTable


class Examples(NamedTuple):
    """Examples of a split: int32 [n, crop_size] each, n a multiple of the batch size.

    Those from `num_counted` on only fill the last batch.
    """

    inputs: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segmentation: np.ndarray
    batch_size: int
    num_counted: int


def open_splits(data: str) -> tuple[Split, Split]:
    """Returns the split that `data` means, of a dataset's folder the test split, and training's.

    Raises:
      ProbelineError: there is no such finished dataset, or one of them has no rows.
    """
    dataset = open_dataset(data)
    files = dataset.file("test") if data.rstrip("/") == dataset.path else data
    return _open_split(files), _open_split(dataset.file("train"))


def _open_split(files: str) -> Split:
    shards = find_shards(files)
    rows = load_rows(shards)
    if not len(rows):
        raise ProbelineError(
            f"{files} has no rows, and an evaluation needs some to test on and some of the "
            "training split for its baselines: name another split or dataset"
        )
    return Split(files, shards, rows)


def config_of(split: Split, crop_size: int, num_contexts: int, extent: Extent) -> DataConfig:
    """Returns the configuration of a split's batches.

    Raises:
      UsageError: its rows give no example of that crop size.
    """
    config = DataConfig(
        split.files,
        batch_size=min(extent.batch_size, num_contexts),
        crop_size=crop_size,
        seed=extent.seed,
    )
    return fitting(config, split.rows)


def take_batches(config: DataConfig, num_contexts: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of at least so many examples."""
    batches = iter(build_dataset(config))
    try:
        yield from itertools.islice(batches, -(-num_contexts // config.batch_size))
    finally:
        batches.close()


def draw_examples(split: Split, crop_size: int, extent: Extent) -> Examples:
    """Draws the examples that are evaluated."""
    config = config_of(split, crop_size, extent.num_contexts, extent)
    batches = list(take_batches(config, extent.num_contexts))
    inputs, targets, positions, segmentation = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("inputs", "targets", "inputs_position", "inputs_segmentation")
    )
    return Examples(
        inputs, targets, positions, segmentation, config.batch_size, extent.num_contexts
    )
