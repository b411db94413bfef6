"""A model's predictions of RTTs: medians, errors, calibration.

An RTT's distribution is that of its first byte times that of its second byte given the first. The
median has one first byte, so one of the 256 second distributions suffices; the probability integral
transform needs that of the true first byte. Codes, the two bytes as a number, ascend with the RTT,
except for codes that are never written; a trained model gives these almost no probability.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt

MODEL = "model"
GROUPS = ("all", "first", "repeat")
INTERVALS = (0.5, 0.8, 0.9)
NUM_BINS = 20
# Mean deviation of n calibrated values from uniform, times √n, from a Brownian bridge.
_BY_CHANCE = math.sqrt(2 * math.pi) / 8

SecondBytes = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class RttPredictions:
    """Predictions for the queries: arrays [queries]."""

    true_ms: np.ndarray  # as encoded by the tokens
    is_repeat: np.ndarray  # whether the destination occurs earlier in the segment
    is_usual: np.ndarray  # in the usual mix; the others fill up the rarer group
    predicted_ms: dict[str, np.ndarray]  # by method; the first one is the model
    pit: np.ndarray  # probability integral transform: share of the distribution below the truth
    num_what_if: int  # queries that needed a what-if pass

    def relative_errors(self, method: str) -> np.ndarray:
        """Returns |predicted - true| / true."""
        return np.abs(self.predicted_ms[method] - self.true_ms) / self.true_ms

    def usual(self) -> "RttPredictions":
        """Returns the predictions for the usual mix only."""
        chosen = self.is_usual
        return replace(
            self,
            true_ms=self.true_ms[chosen],
            is_repeat=self.is_repeat[chosen],
            is_usual=chosen[chosen],
            predicted_ms={name: values[chosen] for name, values in self.predicted_ms.items()},
            pit=self.pit[chosen],
        )

    def groups(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields non-empty GROUPS and their queries, bool [queries]; "all" is the usual mix."""
        chosen = (self.is_usual, ~self.is_repeat, self.is_repeat)
        yield from (
            (name, group) for name, group in zip(GROUPS, chosen, strict=True) if group.any()
        )


@dataclass(frozen=True)
class RttError:
    """Median errors of a method over a group of queries."""

    method: str
    group: str
    num_queries: int
    median_relative: float
    median_ms: float
    model_nearer: int  # queries where the model is nearer to the truth
    model_farther: int  # queries where it is farther


@dataclass(frozen=True)
class Calibration:
    """The position of the truths in the model's distributions.

    `deviation` is the mean distance of the sorted transforms from an even spread: the area between
    their distribution function and that of the uniform distribution.
    """

    num_queries: int
    coverage: dict[str, float]  # share of truths within each central interval
    pit_histogram: list[int]  # counts in NUM_BINS equal bins of [0, 1]
    deviation: float
    deviation_by_chance: float  # expected for a calibrated model and independent queries


def choose_queries(measurements: np.ndarray, limit: int) -> np.ndarray:
    """Returns the numbers of at most `limit` queries among `kinds.MEASUREMENT`s, evenly spread."""
    return _spread(np.flatnonzero(measurements["is_query"]), limit)


def fill_up_groups(
    chosen: np.ndarray, queries: np.ndarray, is_repeat: np.ndarray, limit: int
) -> np.ndarray:
    """Adds queries to new or repeated destinations until each group has half of `limit`.

    `chosen` are from `choose_queries`, `queries` all of them. Returns the numbers, ascending.
    """
    is_chosen = np.isin(queries, chosen)
    parts = [chosen]
    for group in (is_repeat, ~is_repeat):
        missing = limit // 2 - int((is_chosen & group).sum())
        parts.append(_spread(queries[group & ~is_chosen], max(0, missing)))
    return np.sort(np.concatenate(parts))


def _spread(numbers: np.ndarray, limit: int) -> np.ndarray:
    """Returns at most `limit` of the numbers, evenly spread."""
    if len(numbers) <= limit:
        return numbers
    return numbers[np.arange(limit) * len(numbers) // limit]


def median_codes(
    first: np.ndarray, second: np.ndarray, codes: np.ndarray, second_after: SecondBytes
) -> tuple[np.ndarray, int]:
    """Returns the codes at half of the cumulative probability, and the number of what-if queries.

    Args:
      first, second: float64 [n, 256], the second byte's after the true first byte.
      codes: the true codes.
      second_after: returns the second byte's probabilities, given the numbers of queries and
        a first byte for each.
    """
    lines = np.arange(len(codes))
    bytes_ = _byte_at(first, np.full(len(codes), 0.5))
    below = first.cumsum(axis=1)[lines, bytes_] - first[lines, bytes_]
    share = np.clip((0.5 - below) / first[lines, bytes_], np.finfo(float).tiny, 1)
    others = np.flatnonzero(bytes_ != codes >> 8)
    if len(others):
        second = second.copy()
        second[others] = second_after(others, bytes_[others])
    return bytes_ << 8 | _byte_at(second, share), len(others)


def _byte_at(p: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Returns the first byte at which each line of `p` reaches a share of its sum."""
    reached = p.cumsum(axis=1)
    return (reached >= share[:, np.newaxis] * reached[:, -1:]).argmax(axis=1)


def code_ms(codes: np.ndarray) -> np.ndarray:
    """Returns RTTs in ms, float64; a failed ping counts as the largest RTT."""
    return decode_rtt(np.minimum(codes, FAILED_RTT - 1)).astype(np.float64)


def integral_transforms(first: np.ndarray, second: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns P(code < true) + P(true) / 2, float64 [n]; arguments as in `median_codes`."""
    lines, high, low = np.arange(len(codes)), codes >> 8, codes & 255
    within = _below(second, low) + second[lines, low] / 2
    return np.clip(_below(first, high) + first[lines, high] * within, 0, 1)


def _below(p: np.ndarray, bytes_: np.ndarray) -> np.ndarray:
    return (p * (np.arange(256) < bytes_[:, np.newaxis])).sum(axis=1)


def summarise_errors(predictions: RttPredictions) -> list[RttError]:
    """Returns median errors by method and group, without empty groups."""
    of_model = predictions.relative_errors(MODEL)
    errors = []
    for method, predicted in predictions.predicted_ms.items():
        relative = predictions.relative_errors(method)
        absolute = np.abs(predicted - predictions.true_ms)
        errors += [
            RttError(
                method=method,
                group=name,
                num_queries=int(group.sum()),
                median_relative=float(np.median(relative[group])),
                median_ms=float(np.median(absolute[group])),
                model_nearer=int((of_model < relative)[group].sum()),
                model_farther=int((of_model > relative)[group].sum()),
            )
            for name, group in predictions.groups()
        ]
    return errors


def calibration(pit: np.ndarray) -> Calibration:
    """Compares one or more integral transforms with the uniform distribution."""
    n = len(pit)
    return Calibration(
        num_queries=n,
        coverage={f"{share:.0%}": coverage(pit, share) for share in INTERVALS},
        pit_histogram=np.histogram(pit, NUM_BINS, (0, 1))[0].tolist(),
        deviation=float(np.abs(np.sort(pit) - (np.arange(n) + 0.5) / n).mean()),
        deviation_by_chance=_BY_CHANCE / math.sqrt(n),
    )


def coverage(pit: np.ndarray, share: float) -> float:
    """Returns the share of truths in the central interval with nominal share `share`."""
    return float((np.abs(pit - 0.5) <= share / 2).mean())
