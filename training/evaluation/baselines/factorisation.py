"""Factorisation: the logarithm of an RTT is a mean plus the product of two vectors.

As networks are completed by Liao et al., "DMFSGD", IEEE/ACM ToN 2013, and Zhu et al., IEEE/ACM ToN
2017: each probe and each destination has a vector. Here alternating least squares with a ridge find
those of the training pairs; one more such step finds the source's, from what its context has shown.
Logarithms, because errors are relative and no RTT is below 0.
"""

from collections.abc import Sequence

import numpy as np

from training.evaluation.baselines.history import Context
from training.evaluation.baselines.pairs import Pairs, log_ms

_RANK = 10
_RIDGE = 1.0
_ROUNDS = 10


def predict_factorisation(pairs: Pairs, contexts: Sequence[Context], seed: int) -> np.ndarray:
    """Returns the product of source and destination: ms, [queries].

    NaN where the destination has no vector, or the context shows none that has.
    """
    known = ~np.isnan(pairs.ms)
    logs = log_ms(pairs.ms)
    mean = logs[known].mean()
    predicted = np.full(len(contexts), np.nan)
    of_destination = _factorise(np.where(known, logs - mean, 0), known.astype(np.float64), seed)
    for number, context in enumerate(contexts):
        if context.destination >= 0 and len(context.known):
            values = log_ms(context.known_ms)[np.newaxis] - mean
            weights = np.ones(values.shape)
            of_source = _solve(values, weights, of_destination[context.known])[0]
            predicted[number] = np.exp(mean + of_source @ of_destination[context.destination])
    return predicted


def _factorise(values: np.ndarray, known: np.ndarray, seed: int) -> np.ndarray:
    """Returns the vectors of rows, [rows, _RANK], whose products with columns' are the values.

    Args:
      values: [rows, columns], 0 where unknown.
      known: 1 where known, 0 elsewhere.
    """
    of_row = np.random.default_rng(seed).normal(size=(len(values), _RANK))
    for _ in range(_ROUNDS):
        of_column = _solve(values.T, known.T, of_row)
        of_row = _solve(values, known, of_column)
    return of_row


def _solve(values: np.ndarray, known: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns for each row the vector whose products with `vectors` are nearest to its values."""
    squares = (vectors[:, :, np.newaxis] * vectors[:, np.newaxis]).reshape(len(vectors), -1)
    of_rows = (known @ squares).reshape(-1, _RANK, _RANK) + _RIDGE * np.eye(_RANK)
    return np.linalg.solve(of_rows, (values @ vectors)[..., np.newaxis])[..., 0]
