"""The baselines of benchmarks.arena beyond the three that `training.evaluate` has.

  moving average        of the earlier RTTs to the destination, each with a weight of 1/8 (as TCP's
                        SRTT, RFC 6298)
  random forest         over the past RTTs of the context; needs scikit-learn
  prefix × destination  the median of training probes in the source's /16 (IPv6: /32)
  factorisation         latent factors of training probes and destinations, then of the source
  five nearest          the median of the training probes most similar on the segment's destinations

The last two know only the destinations measured most in the training sample (`Pairs`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import kernel
from training.evaluation.baselines import Sample, grouped_medians, medians_of
from training.evaluation.examples import Split, draw_examples
from training.extent import EvaluationExtent
from training.tokens.kinds import parse

_MAX_CELLS = 1 << 22
_PREFIX_BITS = 34


class Contexts(NamedTuple):
    """The contexts of the arena, which a model's own need not be."""

    crop_size: int = 1024
    fixed_order_share: float = 1.0
    log_rtt: bool = True


def predict(
    sample: Sample, train: Split, measurements: np.ndarray, queries: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Predicts the RTTs of queries; see `training.evaluation.baselines.MoreBaselines`."""
    rows, lo = train.rows, train.rows.src_lo
    sources = np.stack([rows.src_hi if len(rows.src_hi) else np.zeros_like(lo), lo])[:, sample.row]
    (hi, lo), probe = np.unique(sources, axis=1, return_inverse=True)
    destinations = sample.numbers_of(measurements)
    asked = measurements[queries]
    prefix_ms = medians_of(
        sample.destination << _PREFIX_BITS | _prefixes(hi, lo)[probe],
        sample.rtt_ms,
        destinations[queries] << _PREFIX_BITS | _prefixes(asked["src_hi"], asked["src_lo"]),
    )
    pairs = make_pairs(probe, sample.destination, sample.rtt_ms)
    contexts = contexts_of(measurements, pairs.rows_of(destinations), queries)
    past = past_of(sample, measurements, queries)
    return {
        "moving average": np.exp(past[:, 0]),
        "random forest": predict_forest(past, sample, train, seed),
        "prefix × destination": prefix_ms,
        "factorisation": predict_factorisation(pairs, contexts, seed),
        "five nearest": predict_nearest(pairs, contexts),
    }


def _prefixes(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns the /16 of IPv4 and the /32 of IPv6 addresses, below 2 ** _PREFIX_BITS: int64."""
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == np.uint64(0xFFFF))
    of_ipv4 = (lo >> np.uint64(16)) & np.uint64(0xFFFF) | np.uint64(1 << 33)
    return np.where(is_ipv4, of_ipv4, hi >> np.uint64(32)).astype(np.int64)


# --- pairs of probe and destination ---------------------------------------------------------------


class Pairs(NamedTuple):
    """Median RTTs of pairs, one row per destination."""

    ms: np.ndarray  # float64 [rows, probes], NaN where the sample has no RTT
    row_of: np.ndarray  # int64 [destinations], −1 if it has none

    def rows_of(self, destinations: np.ndarray) -> np.ndarray:
        """Returns the rows of destinations by number, −1 for those without one."""
        return np.where(destinations < 0, -1, self.row_of[destinations])


class Context(NamedTuple):
    """A query, and the destinations measured before it in its segment."""

    destination: int  # the query's row of `Pairs`, −1 if it has none
    known: np.ndarray  # int64 [known], ascending rows of the others; may include the query's
    known_ms: np.ndarray  # float64 [known], the median of each one's answered pings


def make_pairs(probe: np.ndarray, destination: np.ndarray, rtt_ms: np.ndarray) -> Pairs:
    """Returns the pairs of all probes with the most measured destinations, up to 32 MiB.

    Takes probe and destination numbers and RTTs, [rtts], at least one.
    """
    num_probes = int(probe.max()) + 1
    counts = np.bincount(destination)
    kept = np.argsort(-counts, kind="stable")[: max(1, _MAX_CELLS // num_probes)]
    row_of = np.full(len(counts), -1)
    row_of[kept] = np.arange(len(kept))
    cell = row_of[destination] * num_probes + probe
    cells, medians = grouped_medians(cell[cell >= 0], rtt_ms[cell >= 0])
    ms = np.full((len(kept), num_probes), np.nan)
    ms.flat[cells] = medians
    return Pairs(ms, row_of)


def contexts_of(measurements: np.ndarray, rows: np.ndarray, queries: np.ndarray) -> list[Context]:
    """Returns the context of each query.

    Args:
      measurements: `kinds.MEASUREMENT`, of whole segments.
      rows: int64 [measurements], the `Pairs` rows of their destinations, −1 without.
      queries: int64, indices into the measurements.
    """
    begins = np.searchsorted(measurements["segment"], measurements["segment"][queries])
    is_known = (measurements["code"] != FAILED_RTT) & (rows >= 0)
    rtt_ms = decode_rtt(measurements["code"]).astype(np.float64)
    contexts = []
    for query, begin in zip(queries.tolist(), begins.tolist(), strict=True):
        before = begin + np.flatnonzero(is_known[begin:query])
        known = grouped_medians(rows[before], rtt_ms[before])
        contexts.append(Context(int(rows[query]), *known))
    return contexts


def log_ms(ms: np.ndarray) -> np.ndarray:
    """Returns the natural logarithm of RTTs, of half a µs at least."""
    return np.log(np.maximum(ms, 0.0005))


# --- past RTTs ------------------------------------------------------------------------------------

_NUM_LAGS = 4
_NUM_PAST = 4 + _NUM_LAGS  # numbers of a query
_WEIGHT = 1 / 8
_NUM_CONTEXTS = 256  # of the training split, for the forest


def past_of(sample: Sample, measurements: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Describes what precedes each query in its segment, in logarithms of ms: [queries, 8].

    The moving average of the RTTs to the destination, the median of the destination in the training
    sample, the mean of all RTTs of the segment, their mean difference from the medians of their
    destinations, and the last four RTTs to the destination. NaN for what there is not.
    """
    medians = log_ms(medians_of(sample.destination, sample.rtt_ms, sample.numbers_of(measurements)))
    rtt_ms = decode_rtt(measurements["code"]).astype(np.float64)
    past = np.full((len(queries), _NUM_PAST), np.nan)
    begins = np.searchsorted(measurements["segment"], measurements["segment"][queries])
    _fill_past(measurements, rtt_ms, log_ms(rtt_ms), medians, begins, queries, past)
    past[:, 1] = medians[queries]
    return past


@kernel
def _fill_past(measurements, rtt_ms, logs, medians, begins, queries, past):
    for i in range(len(queries)):
        query, average = measurements[queries[i]], np.nan
        total, count, difference, num_differences = 0.0, 0, 0.0, 0
        for at in range(begins[i], queries[i]):
            if rtt_ms[at] < 0:
                continue
            total, count = total + logs[at], count + 1
            if not np.isnan(medians[at]):
                difference, num_differences = (
                    difference + logs[at] - medians[at],
                    num_differences + 1,
                )
            before = measurements[at]
            if before.dst_hi == query.dst_hi and before.dst_lo == query.dst_lo:
                step = _WEIGHT * (rtt_ms[at] - average)
                average = rtt_ms[at] if np.isnan(average) else average + step
                for lag in range(_NUM_PAST - 1, 4, -1):
                    past[i, lag] = past[i, lag - 1]
                past[i, 4] = logs[at]
        if not np.isnan(average):
            past[i, 0] = np.log(max(average, 0.0005))
        if count:
            past[i, 2] = total / count
        if num_differences:
            past[i, 3] = difference / num_differences


def predict_forest(past: np.ndarray, sample: Sample, train: Split, seed: int) -> np.ndarray:
    """Returns the RTTs that a random forest predicts from `past_of`: ms, [queries].

    It learns the logarithms of RTTs in contexts of the training split.
    """
    extent = EvaluationExtent(num_contexts=_NUM_CONTEXTS, seed=seed)
    drawn = draw_examples(train, Contexts(), extent)
    measurements = parse(drawn.targets, drawn.segmentation, True).measurements
    queries = np.flatnonzero(measurements["is_query"])
    truth = log_ms(decode_rtt(measurements["code"][queries]).astype(np.float64))
    forest = RandomForestRegressor(min_samples_leaf=5, random_state=seed)
    return np.exp(forest.fit(past_of(sample, measurements, queries), truth).predict(past))


# --- factorisation --------------------------------------------------------------------------------
#
# The logarithm of an RTT is a mean plus the product of two vectors, as networks are completed by
# Liao et al., "DMFSGD", IEEE/ACM ToN 2013, and Zhu et al., IEEE/ACM ToN 2017. Alternating least
# squares with a ridge find the vectors of the training pairs; one more step finds the source's from
# its context. Logarithms, because errors are relative and no RTT is below 0.

_RANK = 10
_RIDGE = 1.0
_ROUNDS = 10


def predict_factorisation(pairs: Pairs, contexts: Sequence[Context], seed: int) -> np.ndarray:
    """Returns the product of source and destination: ms, [queries].

    NaN where the destination has no vector, or no destination of the context has one.
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
    """Returns row vectors, [rows, _RANK], whose products with column vectors approximate values.

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
    """Returns for each row the vector whose products with `vectors` best fit its values."""
    squares = (vectors[:, :, np.newaxis] * vectors[:, np.newaxis]).reshape(len(vectors), -1)
    of_rows = (known @ squares).reshape(-1, _RANK, _RANK) + _RIDGE * np.eye(_RANK)
    return np.linalg.solve(of_rows, (values @ vectors)[..., np.newaxis])[..., 0]


# --- five nearest ---------------------------------------------------------------------------------
#
# Probes are similar if they measure similar RTTs to the destinations of the context: the landmarks
# of binning (Ratnasamy et al., INFOCOM 2002), with a logarithm so that near and far destinations
# weigh the same.

_NUM_NEAREST = 5


def predict_nearest(pairs: Pairs, contexts: Sequence[Context]) -> np.ndarray:
    """Returns the median of the nearest probes to each query's destination: ms, [queries].

    NaN where no training probe has measured both it and a destination of the context.
    """
    logs = log_ms(pairs.ms)
    return np.array([_predicted(pairs.ms, logs, context) for context in contexts])


def _predicted(ms: np.ndarray, logs: np.ndarray, context: Context) -> float:
    if context.destination < 0 or not len(context.known):
        return np.nan
    differences = np.abs(logs[context.known] - log_ms(context.known_ms)[:, np.newaxis])
    num_shared = (~np.isnan(differences)).sum(axis=0)
    # One virtual destination, off by a factor of e, penalises few shared destinations.
    distance = (np.nansum(differences, axis=0) + 1) / (num_shared + 1)
    candidates = np.flatnonzero((num_shared > 0) & ~np.isnan(ms[context.destination]))
    if not len(candidates):
        return np.nan
    nearest = candidates[np.argsort(distance[candidates], kind="stable")[:_NUM_NEAREST]]
    return float(np.median(ms[context.destination, nearest]))
