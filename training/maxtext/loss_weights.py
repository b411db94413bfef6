"""Weights of the loss by kind of token: with weight 0.25, a quarter of a kind's targets count.

MaxText's loss either counts a target or not, according to targets_segmentation, so a weight is the
share of a kind's targets that are kept. The choice depends on the seed, the example's tokens and
the position only, so it is the same on any number of hosts and after a resume.
"""
# The arguments of kernels get their types from numba.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from collections.abc import Mapping

import numpy as np

from beam_pipeline.errors import UsageError
from beam_pipeline.kernels import kernel
from training.dataset import Batch
from training.rows.keyed_random import combine, key_of, uniform
from training.tokens.kinds import KIND_NAMES, NOTHING, parse

_SALT = 0x6C6F_7373  # of the choice of targets


def weights_of_kinds(weights: Mapping[str, float]) -> np.ndarray:
    """Returns the weight of each of `kinds.KIND_NAMES`, 1 by default: float64 [kinds]."""
    for kind, weight in weights.items():
        if kind not in KIND_NAMES:
            raise UsageError(
                f"network_loss_weights has {kind!r}: the kinds are {'; '.join(KIND_NAMES)}"
            )
        if not 0 <= weight <= 1:
            raise UsageError(
                f"network_loss_weights has {weight} for {kind}: it must be from 0 to 1"
            )
    of_kinds = np.array([weights.get(kind, 1.0) for kind in KIND_NAMES])
    if not of_kinds.any():
        raise UsageError("network_loss_weights are all 0: set one kind of token above 0")
    return of_kinds


def keep_targets(batch: Batch, of_kinds: np.ndarray, seed: int) -> Batch:
    """Returns a batch whose targets_segmentation is 0 where a target does not count."""
    targets, segmentation = batch["targets"], batch["targets_segmentation"]
    kept = np.zeros_like(segmentation)
    kinds = parse(targets, segmentation).kinds
    _keep(targets, segmentation, kinds, of_kinds, key_of(seed, _SALT), kept)
    return {**batch, "targets_segmentation": kept}


@kernel
def _keep(targets, segmentation, kinds, of_kinds, key, kept):
    for example in range(len(targets)):
        of_example = key
        for at in range(targets.shape[1]):
            of_example = combine(of_example, targets[example, at])
        for at in range(targets.shape[1]):
            kind = kinds[example, at]
            if kind != NOTHING and uniform(combine(of_example, at)) < of_kinds[kind]:
                kept[example, at] = segmentation[example, at]
