"""Predictions of RTTs without a model: from the segment so far, and from the training split.

  last seen             the last RTT to the destination in the segment
  context median        the median of all before in the segment
  prefix × destination  the median of training probes in the source's /16 (IPv6: /32)
  destination           the median of all training probes
  global                the median of all training RTTs
  Vivaldi               coordinates: training probes and destinations first, then the source
  factorisation         factors, likewise
  five nearest          the median of the training probes most alike on the segment's destinations

Where one has nothing to go by, it takes the destination's, and that the global one. Of the training
split they see a sample of rows, and some measurements of each; of the segment what precedes the
query. The last three know the destinations that the sample has measured most (`pairs`).
"""

from typing import NamedTuple

import numpy as np

from training.evaluation.baselines.factorisation import predict_factorisation
from training.evaluation.baselines.history import contexts_of, look_back
from training.evaluation.baselines.medians import training_medians
from training.evaluation.baselines.nearest import predict_nearest
from training.evaluation.baselines.pairs import make_pairs
from training.evaluation.baselines.sample import draw_sample
from training.evaluation.baselines.vivaldi import predict_vivaldi
from training.evaluation.examples import Split
from training.evaluation.extent import Extent


class Baselines(NamedTuple):
    """What the baselines predict for the queries, and from how much.

    Attributes:
      predicted_ms: by name, [queries]; empty if no ping of the sample was answered.
      is_repeat: whether the segment has pinged the destination before, bool [queries].
      num_rows, num_rtts: of the sample of the training split.
    """

    predicted_ms: dict[str, np.ndarray]
    is_repeat: np.ndarray
    num_rows: int
    num_rtts: int


def predict_baselines(
    measurements: np.ndarray, queries: np.ndarray, train: Split, extent: Extent
) -> Baselines:
    """Predicts the RTTs of queries in every way that needs no model.

    Args:
      measurements: `kinds.MEASUREMENT`, of whole segments.
      queries: int64 [queries], numbers of the queries among them.

    Raises:
      ProbelineError: a training row cannot be read.
    """
    history = look_back(measurements, queries)
    sample = draw_sample(train, extent)
    if not len(sample.rtt_ms):
        return Baselines({}, history.is_repeat, sample.num_rows, 0)
    destinations = sample.numbers_of(measurements)
    medians = training_medians(sample, measurements[queries], destinations[queries])
    everywhere = np.full(len(queries), medians.global_ms)
    of_destination = _filled(medians.destination_ms, everywhere)
    pairs = make_pairs(sample)
    contexts = contexts_of(measurements, pairs.rows_of(destinations), queries)
    predicted = {
        "last seen": history.last_ms,
        "context median": history.median_ms,
        "prefix × destination": medians.prefix_ms,
        "destination": of_destination,
        "global": everywhere,
        "Vivaldi": predict_vivaldi(pairs, contexts, extent.seed),
        "factorisation": predict_factorisation(pairs, contexts, extent.seed),
        "five nearest": predict_nearest(pairs, contexts),
    }
    return Baselines(
        {name: _filled(values, of_destination) for name, values in predicted.items()},
        history.is_repeat,
        sample.num_rows,
        len(sample.rtt_ms),
    )


def _filled(values: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), other, values)
