"""Medians of the training split: by prefix and destination, by destination, of everything."""

from typing import NamedTuple

import numpy as np

from training.evaluation.baselines.grouping import grouped_medians
from training.evaluation.baselines.sample import Sample

_PREFIX_BITS = 34


class TrainingMedians(NamedTuple):
    """Medians of the training split: ms, [queries].

    NaN where the sample has no measurement to a destination, or from a prefix to it.
    """

    prefix_ms: np.ndarray
    destination_ms: np.ndarray
    global_ms: float


def training_medians(
    sample: Sample, queries: np.ndarray, destinations: np.ndarray
) -> TrainingMedians:
    """Returns the medians that a query's source and destination tell.

    Args:
      sample: at least one RTT.
      queries: `kinds.MEASUREMENT`.
      destinations: int64 [queries], their numbers, −1 for those that the sample does not have.
    """
    prefix = _prefixes(sample.probe_hi, sample.probe_lo)[sample.probe]
    query_prefix = _prefixes(queries["src_hi"], queries["src_lo"])
    return TrainingMedians(
        prefix_ms=_medians_of(
            sample.destination << _PREFIX_BITS | prefix,
            sample.rtt_ms,
            destinations << _PREFIX_BITS | query_prefix,
        ),
        destination_ms=_medians_of(sample.destination, sample.rtt_ms, destinations),
        global_ms=float(np.median(sample.rtt_ms)),
    )


def _prefixes(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns the /16 of IPv4 and the /32 of IPv6 addresses, below 2 ** _PREFIX_BITS: int64."""
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == np.uint64(0xFFFF))
    of_ipv4 = (lo >> np.uint64(16)) & np.uint64(0xFFFF) | np.uint64(1 << 33)
    return np.where(is_ipv4, of_ipv4, hi >> np.uint64(32)).astype(np.int64)


def _medians_of(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the median of the values with each wanted key, NaN where there are none."""
    found, medians = grouped_medians(keys, values)
    places = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return np.where(found[places] == wanted, medians[places], np.nan)
