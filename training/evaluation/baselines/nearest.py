"""Five nearest: the median RTT of the training probes that are most like the source.

Two probes are alike if they measure alike RTTs to the destinations that the context has shown:
the landmarks of binning (Ratnasamy et al., INFOCOM 2002), with a logarithm so that near and far
ones count alike.
"""

from collections.abc import Sequence

import numpy as np

from training.evaluation.baselines.history import Context
from training.evaluation.baselines.pairs import Pairs, log_ms

_NUM_NEAREST = 5


def predict_nearest(pairs: Pairs, contexts: Sequence[Context]) -> np.ndarray:
    """Returns the median of the nearest probes to each query's destination: ms, [queries].

    NaN where no training probe has measured it and one of the context's destinations.
    """
    logs = log_ms(pairs.ms)
    return np.array([_predicted(pairs.ms, logs, context) for context in contexts])


def _predicted(ms: np.ndarray, logs: np.ndarray, context: Context) -> float:
    if context.destination < 0 or not len(context.known):
        return np.nan
    differences = np.abs(logs[context.known] - log_ms(context.known_ms)[:, np.newaxis])
    num_shared = (~np.isnan(differences)).sum(axis=0)
    # One more destination, a factor of e off: few that agree by chance are not near.
    distance = (np.nansum(differences, axis=0) + 1) / (num_shared + 1)
    candidates = np.flatnonzero((num_shared > 0) & ~np.isnan(ms[context.destination]))
    if not len(candidates):
        return np.nan
    nearest = candidates[np.argsort(distance[candidates], kind="stable")[:_NUM_NEAREST]]
    return float(np.median(ms[context.destination, nearest]))
