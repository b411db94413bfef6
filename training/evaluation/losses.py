"""Loss in bits by kind of token and by timestamp mode, next to those of two unigrams.

One unigram has the frequency of each token in the training split; the other also knows each token's
kind, which a model has to infer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from training.statistics.collector import Batch, count_tokens
from training.tokens.kinds import KIND_NAMES, MODE_CLASSES, NOTHING, Parsed

_SMOOTHING = 0.01  # added to every count


@dataclass(frozen=True)
class Loss:
    """Mean bits per token of a class of tokens, for the model and both unigrams."""

    name: str
    num_tokens: int
    bits: float
    kind_unigram_bits: float
    unigram_bits: float


@dataclass(frozen=True)
class Losses:
    """Losses of all tokens and of each class present."""

    overall: Loss
    kinds: list[Loss]
    modes: list[Loss]


class Unigrams(NamedTuple):
    """Bits of each token: by kind, float64 [kinds, 267], and for all kinds, [267]."""

    of_kind: np.ndarray
    of_all: np.ndarray
    num_tokens: int


def count_unigrams(batches: Iterable[Batch]) -> Unigrams:
    """Counts the targets of batches of `build_dataset`."""
    counts = count_tokens(batches)
    return Unigrams(_bits(counts), _bits(counts.sum(axis=0)), int(counts.sum()))


def _bits(counts: np.ndarray) -> np.ndarray:
    smooth = counts + _SMOOTHING
    return -np.log2(smooth / smooth.sum(axis=-1, keepdims=True))


def summarise_losses(
    bits: np.ndarray, targets: np.ndarray, parsed: Parsed, unigrams: Unigrams
) -> Losses:
    """Averages over all targets, int32 [n, crop_size], except padding."""
    is_token = parsed.kinds != NOTHING
    tokens, kinds, modes = targets[is_token], parsed.kinds[is_token], parsed.modes[is_token]
    values = (bits[is_token], unigrams.of_kind[kinds, tokens], unigrams.of_all[tokens])
    return Losses(
        overall=_means(np.zeros_like(kinds), ("all",), values)[0],
        kinds=_means(kinds, KIND_NAMES, values),
        modes=_means(modes, MODE_CLASSES, values),
    )


def _means(labels: np.ndarray, names: Sequence[str], values: Sequence[np.ndarray]) -> list[Loss]:
    counts = np.bincount(labels, minlength=len(names))
    sums = [np.bincount(labels, weights=each, minlength=len(names)) for each in values]
    return [
        Loss(name, int(counts[i]), *(float(each[i] / counts[i]) for each in sums))
        for i, name in enumerate(names)
        if counts[i]
    ]
