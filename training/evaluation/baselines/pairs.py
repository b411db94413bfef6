"""The RTTs between training probes and destinations as a matrix, for methods that need all."""

from typing import NamedTuple

import numpy as np

from training.evaluation.baselines.grouping import grouped_medians
from training.evaluation.baselines.sample import Sample

_MAX_CELLS = 1 << 22


class Pairs(NamedTuple):
    """Median RTTs of pairs.

    Attributes:
      ms: float64 [rows, probes], a row for each destination, NaN where the sample has no RTT.
      row_of: int64 [destinations], the row of each, −1 if it has none.
    """

    ms: np.ndarray
    row_of: np.ndarray

    def rows_of(self, destinations: np.ndarray) -> np.ndarray:
        """Returns the rows of destinations by number, −1 for those without one."""
        return np.where(destinations < 0, -1, self.row_of[destinations])


def make_pairs(sample: Sample) -> Pairs:
    """Returns the pairs of all probes and as many destinations, the most measured, as fit 32 MiB.

    Args:
      sample: at least one RTT.
    """
    num_probes = len(sample.probe_lo)
    counts = np.bincount(sample.destination)
    kept = np.argsort(-counts, kind="stable")[: max(1, _MAX_CELLS // num_probes)]
    row_of = np.full(len(counts), -1)
    row_of[kept] = np.arange(len(kept))
    cell = row_of[sample.destination] * num_probes + sample.probe
    cells, medians = grouped_medians(cell[cell >= 0], sample.rtt_ms[cell >= 0])
    ms = np.full((len(kept), num_probes), np.nan)
    ms.flat[cells] = medians
    return Pairs(ms, row_of)


def log_ms(ms: np.ndarray) -> np.ndarray:
    """Returns the natural logarithm of RTTs; one of 0, below half a µs, counts as half a µs."""
    return np.log(np.maximum(ms, 0.0005))
