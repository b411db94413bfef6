"""Mixtures: chooses the dataset of each example of a batch, by the datasets' weights.

A weight is a share of the examples, and so of the tokens, for any sizes of datasets and rows.
Nothing is random: the number of each dataset's examples among the first n of a run follows from n
and the weights alone, and the lanes they go to rotate from step to step. So every part of a run
and, in the long run, every lane has the proportions, and a step's assignment needs no state.
"""

import functools
import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np

from beam_pipeline.errors import UsageError
from training.rows.keyed_random import key_of
from training.rows.row_table import ShardSet, find_shards

_LOG = logging.getLogger("training")
_LANES, _ROTATIONS = 6, 7  # purposes of keys below a seed; see also `lanes`


class Assignment:
    """The dataset of each example of each step; only the ratios of the weights matter.

    In any run of consecutive batches, a dataset's number of examples is its weight times the total,
    within the number of datasets minus one: with two datasets, within one example.
    """

    def __init__(self, weights: Sequence[float], batch_size: int, seed: int):
        exact = [Fraction(str(weight)) for weight in weights]  # 0.1 is a tenth
        unit = math.lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * unit) for weight in exact]
        self._batch_size = batch_size
        self._seed = seed
        # A host's lanes are neighbours; they must not all switch to one dataset in the same step.
        self._places = np.array(_shuffled(batch_size, seed, _LANES))

    def __call__(self, step: int) -> np.ndarray:
        """Returns the number of the dataset of each example of a step: int64 [batch_size]."""
        size = self._batch_size
        ends = zip(self._counts(step * size), self._counts((step + 1) * size), strict=True)
        numbers = np.repeat(np.arange(len(self._weights)), [end - begin for begin, end in ends])
        # Every `size` steps, a lane is in every place once.
        rotation = _shuffled(size, self._seed, _ROTATIONS, step // size)[step % size]
        return numbers[(self._places + rotation) % size]

    def _counts(self, num_examples: int) -> list[int]:
        """Returns each dataset's number of examples among the first `num_examples` of a run."""
        counts: list[int] = []
        left, total = num_examples, sum(self._weights)
        for weight in self._weights:
            counts.append(left * weight // total)
            left, total = left - counts[-1], total - weight
        return counts


@functools.lru_cache(maxsize=8)
def _shuffled(size: int, *key: int) -> list[int]:
    return sorted(range(size), key=lambda value: int(key_of(*key, value)))


def checked_weights(files: Mapping[Any, Any]) -> dict[str, float]:
    """Returns a copy of the weights of a mixture; UsageError unless all are above 0."""
    if not files:
        raise UsageError('files is an empty mixture: name datasets, {"rows/a": 0.7, "rows/b": 0.3}')
    for name, weight in files.items():
        if not isinstance(name, str):
            raise UsageError(f"files has {name!r}: a dataset of a mixture is a path or a glob")
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        if not is_number or not 0 < float(weight) < math.inf:
            raise UsageError(
                f"{name} has weight {weight!r} in the mixture: give a number above 0, or leave "
                "the dataset out"
            )
    return {name: float(weight) for name, weight in files.items()}


def parse_files(text: str) -> str | dict[str, float]:
    """Parses the value of a key such as network_train_files; UsageError if it is malformed.

    Accepts a path or a glob; a mixture as MaxText writes it, "rows/a,0.7;rows/b,0.3"; or one as a
    JSON object, '{"rows/a": 0.7, "rows/b": 0.3}'.
    """
    try:
        if text.lstrip().startswith("{"):
            pairs = json.loads(text, object_pairs_hook=list)
        elif ";" in text:
            parts = [part.rpartition(",") for part in text.split(";") if part.strip()]
            pairs = [(name.strip(), float(weight)) for name, _, weight in parts]
        else:
            return text
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a mixture: write rows/a,0.7;rows/b,0.3 or "
            '{"rows/a": 0.7, "rows/b": 0.3}'
        ) from error
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"{twice} is in the mixture twice: name it once, with the sum of the weights"
        )
    return checked_weights(dict(pairs))


def check_single(files: str, program: str) -> None:
    """Raises UsageError if `files` is a mixture, which `program` does not support."""
    if not isinstance(parse_files(files), str):
        raise UsageError(f"{files} is a mixture, but {program} takes one dataset: name one of them")


def find_datasets(files: Any) -> list[ShardSet]:
    """Finds the shards of one dataset, or of each dataset of a mixture (see `DataConfig.files`).

    Raises UsageError if the datasets of a mixture share a shard, or are of different splits.
    """
    if not isinstance(files, Mapping):
        return [find_shards(files)]
    found = {name: find_shards(name) for name in files}
    for (name, shards), (other, others) in itertools.combinations(found.items(), 2):
        _check_pair(name, shards, other, others)
    return list(found.values())


def _check_pair(name: str, shards: ShardSet, other: str, others: ShardSet) -> None:
    if shards.split != others.split:
        raise UsageError(
            f"{name} is a {shards.split} split, but {other} is a {others.split} split: name the "
            "same split of all datasets of a mixture"
        )
    if shards.index_crc32c == others.index_crc32c and set(shards.chosen) & set(others.chosen):
        raise UsageError(
            f"{name} and {other} have the same rows: name each dataset of a mixture once, with the "
            "sum of the weights"
        )
    splits = [
        tuple(each.dataset.manifest.options.get(key) for key in ("train_ratio", "split_seed"))
        for each in (shards, others)
    ]
    if splits[0] != splits[1]:
        _LOG.warning(
            "%s and %s have different --train_ratio and --split_seed, %s and %s: a probe may be in "
            "the test split of one and in the train split of the other",
            *(name, other, *splits),
        )
