"""Asks the model: the loss of every target, and distributions over the bytes of RTTs.

Two kinds of passes, all of one shape. The causal pass over the examples as they are gives every
loss, an RTT's first byte, and the second one behind the true first one. What would follow another
first byte takes a pass of its own:

    … RTT_START  first byte  second byte  …      the example
    … RTT_START  another     padding      …      what if; its answer is read behind `another`
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.evaluation.examples import Examples, Predictor
from training.tokens.tokenizer import FIRST_BYTE, VOCABULARY_SIZE

Tell = Callable[[str, int, int], None]  # what is done, of how many how many batches


class Pass(NamedTuple):
    """What the causal pass says of the examples and of `queries` among them.

    Attributes:
      bits: float32 [n, crop_size], −log2 of the target's probability.
      first: float64 [queries, 256], probabilities of an RTT's first byte.
      second: float64 [queries, 256], of the second one behind the true first one.
    """

    bits: np.ndarray
    first: np.ndarray
    second: np.ndarray


def causal_pass(predictor: Predictor, examples: Examples, queries: np.ndarray, tell: Tell) -> Pass:
    """Runs the model over all examples once.

    Args:
      queries: MEASUREMENT, in the order of examples.

    Raises:
      ProbelineError: the model does not predict probabilities of our tokens.
    """
    bits = np.empty(examples.targets.shape, np.float32)
    first, second = np.empty((2, len(queries), 256))
    size = examples.batch_size
    for begin in range(0, len(bits), size):
        tell("contexts", begin // size, len(bits) // size)
        part = slice(begin, begin + size)
        log_p = ask(
            predictor, examples.inputs[part], examples.positions[part], examples.segmentation[part]
        )
        of_targets = np.take_along_axis(log_p, examples.targets[part, :, np.newaxis], axis=2)
        bits[part] = of_targets[..., 0] / -math.log(2)
        among = slice(*np.searchsorted(queries["example"], [begin, begin + size]))
        example, place = queries["example"][among] - begin, queries["place"][among]
        first[among] = byte_probabilities(log_p[example, place])
        second[among] = byte_probabilities(log_p[example, place + 1])
    return Pass(bits, first, second)


def second_bytes_after(
    predictor: Predictor,
    examples: Examples,
    queries: np.ndarray,
    first_bytes: np.ndarray,
    tell: Tell,
) -> np.ndarray:
    """Returns the second byte's probabilities, [queries, 256], if the first byte had been another.

    Args:
      queries: MEASUREMENT.
      first_bytes: of each query, 0 to 255.
    """
    size = examples.batch_size
    second = np.empty((len(queries), 256))
    for begin in range(0, len(queries), size):
        tell("what if", begin // size, -(-len(queries) // size))
        # Every batch has the same size, so that nothing is compiled anew: the last one is filled.
        number = np.minimum(np.arange(begin, begin + size), len(queries) - 1)
        example, place = queries["example"][number], queries["place"][number]
        is_before = np.arange(examples.inputs.shape[1]) <= place[:, np.newaxis] + 1
        inputs, positions, segmentation = (
            np.where(is_before, values[example], np.int32(0))
            for values in (examples.inputs, examples.positions, examples.segmentation)
        )
        lines = np.arange(size)
        inputs[lines, place + 1] = FIRST_BYTE + first_bytes[number]
        log_p = ask(predictor, inputs, positions, segmentation)
        second[number] = byte_probabilities(log_p[lines, place + 1])
    return second


def byte_probabilities(log_p: np.ndarray) -> np.ndarray:
    """Returns the probabilities of the 256 bytes among all tokens, [n, 267] to float64 [n, 256].

    Where a model thinks that no byte is possible, all are taken for equal.
    """
    of_bytes = log_p[:, FIRST_BYTE:].astype(np.float64)
    of_bytes[np.isneginf(of_bytes).all(axis=1)] = 0
    p = np.exp(of_bytes - of_bytes.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def ask(
    predictor: Predictor, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
) -> np.ndarray:
    """Returns what the model says of one batch: log-probabilities [batch, crop, 267].

    Raises:
      ProbelineError: they are not of our tokens, or are no numbers.
    """
    log_p = np.asarray(predictor(inputs, positions, segmentation))
    expected = (*inputs.shape, VOCABULARY_SIZE)
    if log_p.shape != expected:
        raise ProbelineError(
            f"the model predicts an array {list(log_p.shape)}, of measurements it must be "
            f"{list(expected)}: it was trained on other tokens"
        )
    if np.isnan(log_p[segmentation > 0]).any():
        raise ProbelineError(
            "the model predicts probabilities that are no numbers (nan): its training has "
            "diverged, take an earlier checkpoint"
        )
    return log_p
