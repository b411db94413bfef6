"""Queries the model: the loss of every target, and distributions over the bytes of RTTs.

There are two kinds of passes, with arrays of one shape. The causal pass over the unchanged examples
gives every loss, an RTT's first byte, and its second byte after the true first one. The second byte
after a different first byte needs a what-if pass:

  … RTT_START  first byte  second byte  …      the example
  … RTT_START  different   padding      …      what if; the prediction at `different` counts
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.evaluation.examples import Examples, TrainedContexts
from training.tokens.tokenizer import FIRST_BYTE, VOCABULARY_SIZE

Advance = Callable[[float], None]


class Predictor(TrainedContexts, Protocol):
    """A trained model: tokens in, the next token's distribution out."""

    @property
    def step(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def description(self) -> str: ...

    def __call__(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        """Returns log-probabilities (base e), float32 [batch, crop, 267].

        A token with a negative number of a segment is a branch of segment 1, which precedes it: it
        sees that segment and the tokens of its own number. `training.rtt_prediction` needs them.
        """
        ...


class Pass(NamedTuple):
    """Predictions of the causal pass, for the examples and for `queries` among them."""

    bits: np.ndarray  # float32 [n, crop_size], −log2 of the target's probability
    first: np.ndarray  # float64 [queries, 256], probabilities of an RTT's first byte
    second: np.ndarray  # float64 [queries, 256], of the second byte after the true first one


def causal_pass(
    predictor: Predictor, examples: Examples, queries: np.ndarray, advance: Advance
) -> Pass:
    """Runs the model over all examples once; `queries` are MEASUREMENT in the order of examples."""
    bits = np.empty(examples.targets.shape, np.float32)
    first, second = np.empty((2, len(queries), 256))
    size = examples.batch_size
    for begin in range(0, len(bits), size):
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
        advance(size / len(bits))
    return Pass(bits, first, second)


def second_bytes_after(
    predictor: Predictor,
    examples: Examples,
    queries: np.ndarray,
    first_bytes: np.ndarray,
    advance: Advance,
) -> np.ndarray:
    """Returns the second byte's probabilities after a different first byte: [queries, 256]."""
    size = examples.batch_size
    second = np.empty((len(queries), 256))
    for begin in range(0, len(queries), size):
        # The last batch is filled up, since a different shape would have to be compiled.
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
        advance(min(size, len(queries) - begin) / len(queries))
    return second


def byte_probabilities(log_p: np.ndarray) -> np.ndarray:
    """Returns the probabilities of the 256 bytes among all tokens, [n, 267] to float64 [n, 256]."""
    of_bytes = log_p[:, FIRST_BYTE:].astype(np.float64)
    of_bytes[np.isneginf(of_bytes).all(axis=1)] = 0
    p = np.exp(of_bytes - of_bytes.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def ask(
    predictor: Predictor, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
) -> np.ndarray:
    """Returns the model's log-probabilities, [batch, crop, 267], after checking them."""
    log_p = np.asarray(predictor(inputs, positions, segmentation))
    expected = (*inputs.shape, VOCABULARY_SIZE)
    if log_p.shape != expected:
        raise ProbelineError(
            f"the model predicts an array {list(log_p.shape)}; measurements need "
            f"{list(expected)}: the model was trained on different tokens"
        )
    if np.isnan(log_p[segmentation != 0]).any():
        raise ProbelineError(
            "the model predicts probabilities that are not numbers (nan): its training "
            "diverged; use an earlier checkpoint"
        )
    return log_p
