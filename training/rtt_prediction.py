"""Predicts the distribution of one RTT from a probe's history and a destination.

  predictor = load_predictor("runs/first")
  predict_rtt(predictor, "192.0.2.1", history, "198.51.100.7", event_time).quantile_ms(0.5)

The model gets the history as in training, then the destination (and the time) of the next ping,
then every possible first byte of an RTT. That gives the probability of every RTT that two bytes
can encode.
"""
# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.errors import UsageError
from training.evaluation.predictions import Predictor, ask, byte_probabilities
from training.tokens.log_rtt import WRITTEN_CODES, stored_codes, token_codes
from training.tokens.tokenizer import (
    FAILED,
    FIRST_BYTE,
    FIXED_ORDER,
    FIXED_TIMED_ORDER,
    RTT_START,
    encode,
)

_RTT_TOKENS = 3  # RTT_START and two bytes
_MIN_TOKENS = 12  # of a measurement: failed, IPv4, without time
_NUM_BATCHES = 4  # for all first bytes


@dataclass(frozen=True)
class RttDistribution:
    """A model's prediction of the next RTT.

    Attributes:
      p_failed: probability that the ping fails.
      rtt_ms: float64 [n], every RTT that two bytes can encode, ascending.
      p: float64 [n], the probability of each if the ping does not fail.
      num_history: number of measurements from the end of the history that the model got.

    Example:

        history = open_dataset("rows").rows("test")[0].to_arrow()
        predicted = predict_rtt(predictor, "192.0.2.1", history, "198.51.100.7")
        predicted.p_failed, predicted.quantile_ms(0.5)
    """

    p_failed: float
    rtt_ms: np.ndarray
    p: np.ndarray
    num_history: int

    def quantile_ms(self, share: float) -> float:
        """Returns the smallest RTT whose cumulative probability is at least `share`."""
        return float(self.rtt_ms[np.searchsorted(self.p.cumsum(), share * self.p.sum())])


def predict_rtt(
    predictor: Predictor,
    src_addr: str,
    history: pa.RecordBatch,
    dst_addr: str,
    event_time: datetime | None = None,
) -> RttDistribution:
    """Predicts the RTT of a probe's next ping.

    Args:
      predictor: the model, see `load_predictor`.
      src_addr: the probe.
      history: its measurements so far, `row_codec.MEASUREMENT_SCHEMA`, in order of time. The
        model gets the most recent ones that fit into a crop.
      dst_addr: the destination of the next ping.
      event_time: its time; UTC if it has no zone. If None, the model gets no times at all.

    Raises:
      ValueError: an address is invalid.
      UsageError: the model's crop is too small for one measurement.
      ProbelineError: the model does not predict probabilities of the 267 tokens.

    Example:

        row = open_dataset("rows").rows("test")[0]
        predict_rtt(predictor, row.src_addr, row.to_arrow(), "198.51.100.7").quantile_ms(0.5)
    """
    tokens, num_history = _tokens(predictor, src_addr, history, dst_addr, event_time)
    length = len(tokens) + 1
    encoded = np.unique(token_codes(WRITTEN_CODES, predictor.log_rtt))
    all_first_bytes = np.unique(encoded >> 8).reshape(_NUM_BATCHES, -1)
    inputs = np.zeros((all_first_bytes.shape[1], predictor.crop_size), np.int32)
    inputs[:, : len(tokens)] = tokens
    segmentation = np.zeros_like(inputs)
    segmentation[:, :length] = 1
    positions = np.zeros_like(inputs)
    positions[:, :length] = np.arange(length)
    second = np.empty((256, 256))
    log_p = np.empty(0)
    for first_bytes in all_first_bytes:
        inputs[:, length - 1] = FIRST_BYTE + first_bytes
        log_p = ask(predictor, inputs, positions, segmentation)
        second[first_bytes] = byte_probabilities(log_p[:, length - 1])
    # All examples are equal up to the first byte.
    first = byte_probabilities(log_p[:1, length - 2])[0]
    p = first[encoded >> 8] * second[encoded >> 8, encoded & 255]
    log_odds = float(log_p[0, length - 3, FAILED]) - float(log_p[0, length - 3, RTT_START])
    return RttDistribution(
        p_failed=float(1 / (1 + np.exp(-log_odds))),
        rtt_ms=decode_rtt(stored_codes(encoded, predictor.log_rtt)).astype(np.float64),
        p=p / p.sum(),
        num_history=num_history,
    )


def _tokens(
    predictor: Predictor,
    src_addr: str,
    history: pa.RecordBatch,
    dst_addr: str,
    event_time: datetime | None,
) -> tuple[np.ndarray, int]:
    """Returns the tokens up to the predicted RTT_START, and the number of past measurements."""
    at = datetime(1970, 1, 1) if event_time is None else event_time
    asked = pa.RecordBatch.from_pydict(
        {
            "event_time": [at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at],
            "dst_addr": [dst_addr],
            "ip_version": [6 if ":" in dst_addr else 4],
            "rtt": [0.0],
        },
        schema=MEASUREMENT_SCHEMA,
    )
    tokens = np.empty(0, np.int32)
    crop_size = predictor.crop_size
    for num_history in range(min(history.num_rows, crop_size // _MIN_TOKENS), -1, -1):
        known = history.slice(history.num_rows - num_history)
        shown = pa.Table.from_batches([known, asked]).combine_chunks().to_batches()[0]
        is_timed = np.full(shown.num_rows, event_time is not None)
        orders = np.full(shown.num_rows, FIXED_ORDER if event_time is None else FIXED_TIMED_ORDER)
        tokens = encode(src_addr, shown, is_timed, orders, predictor.log_rtt)[: 1 - _RTT_TOKENS]
        if len(tokens) < crop_size:
            return tokens, num_history
    raise UsageError(
        f"the model was trained on crops of {crop_size} tokens, but the ping alone takes "
        f"{len(tokens) + 1}: train it on longer ones"
    )
