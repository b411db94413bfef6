"""The examples of an evaluation: drawn and packed by `build_dataset`, as in training."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.batches.mixture import check_single
from training.batches.planning import fitting
from training.dataset import build_dataset
from training.extent import EvaluationExtent
from training.rows.row_table import RowTable, ShardSet, find_shards, load_rows


@dataclass(frozen=True)
class Split:
    """The rows of a split, or of some of its shards; `files` as in `DataConfig`."""

    files: str
    shards: ShardSet
    rows: RowTable


class Examples(NamedTuple):
    """Examples of a split: int32 [n, crop_size] each, n a multiple of the batch size."""

    inputs: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segmentation: np.ndarray
    batch_size: int


def open_splits(data: str) -> tuple[Split, Split]:
    """Opens the split to evaluate and the training split.

    `data` is a dataset's folder (its test split), a split's, or a glob of shards. Raises
    ProbelineError if one of the splits has no rows, UsageError for a mixture.
    """
    check_single(data, "training.evaluate")
    dataset = open_dataset(data)
    files = dataset.file("test") if data.rstrip("/") == dataset.path else data
    return _open_split(files), _open_split(dataset.file("train"))


def _open_split(files: str) -> Split:
    shards = find_shards(files)
    rows = load_rows(shards)
    if not len(rows):
        raise ProbelineError(
            f"{files} has no rows; an evaluation needs rows to test on, and training rows for the "
            "baselines: name a different split or dataset"
        )
    return Split(files, shards, rows)


class TrainedContexts(Protocol):
    """The kind of contexts that a model was trained on, and so is evaluated on."""

    @property
    def crop_size(self) -> int: ...

    @property
    def fixed_order_share(self) -> float: ...

    @property
    def log_rtt(self) -> bool: ...


def take_batches(
    split: Split,
    trained: TrainedContexts,
    num_contexts: int,
    extent: EvaluationExtent,
    **drawn: Any,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of a split with at least `num_contexts` examples in total.

    `drawn` are fields of DataConfig that differ from the defaults.
    """
    config = DataConfig(
        split.files,
        batch_size=min(extent.batch_size, num_contexts),
        crop_size=trained.crop_size,
        seed=extent.seed,
        fixed_order_share=trained.fixed_order_share,
        log_rtt=trained.log_rtt,
        **drawn,
    )
    config = fitting(config, split.rows)
    batches = iter(build_dataset(config))
    try:
        yield from itertools.islice(batches, -(-num_contexts // config.batch_size))
    finally:
        batches.close()


def draw_examples(
    split: Split, trained: TrainedContexts, extent: EvaluationExtent, **drawn: Any
) -> Examples:
    """Draws the examples to evaluate; `drawn` as in `take_batches`."""
    batches = list(take_batches(split, trained, extent.num_contexts, extent, **drawn))
    inputs, targets, positions, segmentation = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("inputs", "targets", "inputs_position", "inputs_segmentation")
    )
    return Examples(inputs, targets, positions, segmentation, len(batches[0]["inputs"]))
