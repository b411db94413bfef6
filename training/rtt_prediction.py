"""Predicts the distribution of one RTT from a probe's history and a destination.

  predictor = load_predictor("runs/first")
  predict_rtt(predictor, "192.0.2.1", history, "198.51.100.7", event_time).quantile_ms(0.5)

The model gets the history as in training, then the destination (and the time) of the next ping,
then, as branches of the same context, every possible first byte of an RTT. That gives the
probability of every RTT that two bytes can encode. All calls have one shape, which is compiled
once; several pings at a time have another.
"""
# pyarrow has no types.
# pyright: reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.errors import UsageError, one_line
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
_NUM_BRANCHES = 256  # one for each first byte
_AT_ONCE = 8


@dataclass(frozen=True)
class RttDistribution:
    """A model's prediction of the next RTT.

    Attributes:
      p_failed: probability that the ping fails.
      rtt_ms: float64 [n], every RTT that two bytes can encode, ascending.
      p: float64 [n], the probability of each if the ping does not fail.
      num_history: number of measurements from the end of the history that the model got.

    Example:

        from beam_pipeline import open_dataset
        from training import load_predictor, predict_rtt

        predictor = load_predictor("runs/first")
        row = open_dataset("rows").rows("test")[0]
        predicted = predict_rtt(predictor, row.src_addr, row.to_arrow(), "198.51.100.7")
        predicted.p_failed, predicted.quantile_ms(0.5)
    """

    p_failed: float
    rtt_ms: np.ndarray
    p: np.ndarray
    num_history: int

    def quantile_ms(self, share: float) -> float:
        """Returns the smallest RTT whose cumulative probability is at least `share`, 0 to 1."""
        if not 0 <= share <= 1:
            raise UsageError(f"quantile_ms({share}): a share is between 0 and 1")
        below = self.p.cumsum()
        return float(self.rtt_ms[np.searchsorted(below, share * below[-1])])


def predict_rtt(
    predictor: Predictor,
    src_addr: str,
    history: Any,
    dst_addr: str,
    event_time: datetime | None = None,
) -> RttDistribution:
    """Predicts the RTT of a probe's next ping.

    Args:
      predictor: the model, see `load_predictor`.
      src_addr: the probe.
      history: its measurements so far: a RecordBatch, Table or pandas DataFrame whose columns
        event_time, dst_addr and rtt (in ms, below 0 if it failed) can be cast to
        `row_codec.MEASUREMENT_SCHEMA`. The model gets the latest that fit into a crop.
      dst_addr: the destination of the next ping.
      event_time: its time; UTC if it has no zone. If None, the model gets no times at all.

    Raises:
      ValueError: an address is invalid.
      UsageError: the history lacks a column or has unusable values; or the model's crop is too
        small for one measurement.
      ProbelineError: the model does not predict probabilities of the 267 tokens.

    Example:

        from beam_pipeline import open_dataset
        from training import load_predictor, predict_rtt

        predictor = load_predictor("runs/first")
        row = open_dataset("rows").rows("test")[0]
        predict_rtt(predictor, row.src_addr, row.to_arrow(), "198.51.100.7").quantile_ms(0.5)
    """
    return predict_rtts(predictor, [(src_addr, history, dst_addr, event_time)])[0]


def predict_rtts(predictor: Predictor, pings: Sequence[tuple[Any, ...]]) -> list[RttDistribution]:
    """Predicts the RTTs of several pings, each from its own history.

    Args:
      predictor: the model, see `load_predictor`.
      pings: of each, the arguments of `predict_rtt`: src_addr, history, dst_addr and, if the model
        is to get times, event_time.

    Raises:
      ProbelineError: as in `predict_rtt`, with UsageError and ValueError.

    Example:

        from beam_pipeline import open_dataset
        from training import load_predictor, predict_rtts

        predictor = load_predictor("runs/first")
        row = open_dataset("rows").rows("test")[0]
        pings = [(row.src_addr, row.to_arrow(), f"198.51.100.{i}") for i in range(20)]
        [found.quantile_ms(0.5) for found in predict_rtts(predictor, pings)]
    """
    asked = [_tokens(predictor, *ping) for ping in pings]
    size = _AT_ONCE if len(asked) > 1 else 1
    found: list[RttDistribution] = []
    for begin in range(0, len(asked), size):
        part = asked[begin : begin + size]
        log_p = _ask(predictor, [tokens for tokens, _ in part], size)
        found += [
            _distribution(log_p[i], len(tokens), num_history, predictor.log_rtt)
            for i, (tokens, num_history) in enumerate(part)
        ]
    return found


def _ask(predictor: Predictor, contexts: list[np.ndarray], size: int) -> np.ndarray:
    """Returns log-probabilities, [size, crop + 256, 267]: of each context, then of its branches."""
    crop_size = predictor.crop_size
    inputs, positions, segmentation = np.zeros((3, size, crop_size + _NUM_BRANCHES), np.int32)
    branches = np.arange(_NUM_BRANCHES)
    for line, tokens in enumerate(contexts):
        n = len(tokens)
        inputs[line, :n], inputs[line, crop_size:] = tokens, FIRST_BYTE + branches
        positions[line, :n], positions[line, crop_size:] = np.arange(n), n
        segmentation[line, :n], segmentation[line, crop_size:] = 1, -1 - branches
    return ask(predictor, inputs, positions, segmentation)


def _distribution(
    log_p: np.ndarray, num_tokens: int, num_history: int, log_rtt: bool
) -> RttDistribution:
    encoded, rtt_ms = _written(log_rtt)
    first = byte_probabilities(log_p[num_tokens - 1 : num_tokens])[0]
    second = byte_probabilities(log_p[-_NUM_BRANCHES:])
    p = first[encoded >> 8] * second[encoded >> 8, encoded & 255]
    before = log_p[num_tokens - 2]
    log_odds = float(before[FAILED]) - float(before[RTT_START])
    return RttDistribution(
        p_failed=float(1 / (1 + np.exp(-log_odds))),
        rtt_ms=rtt_ms,
        p=p / p.sum(),
        num_history=num_history,
    )


@functools.cache
def _written(log_rtt: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes that are written, as tokens have them, and their RTTs in ms."""
    encoded = np.unique(token_codes(WRITTEN_CODES, log_rtt))
    return encoded, decode_rtt(stored_codes(encoded, log_rtt)).astype(np.float64)


def _tokens(
    predictor: Predictor,
    src_addr: str,
    history: Any,
    dst_addr: str,
    event_time: datetime | None = None,
) -> tuple[np.ndarray, int]:
    """Returns the tokens up to the predicted RTT_START, and the number of past measurements."""
    at = datetime(1970, 1, 1) if event_time is None else event_time
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"event_time={at!r} is not a datetime")
    asked = pa.RecordBatch.from_pydict(
        {
            "event_time": [at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at],
            "dst_addr": [dst_addr],
            "ip_version": [6 if ":" in dst_addr else 4],
            "rtt": [0.0],
        },
        schema=MEASUREMENT_SCHEMA,
    )
    known, crop_size = measurements_of(history), predictor.crop_size

    def tokens_after(num_history: int) -> np.ndarray:
        table = pa.Table.from_batches([known.slice(known.num_rows - num_history), asked])
        shown = table.combine_chunks().to_batches()[0]
        is_timed = np.full(shown.num_rows, event_time is not None)
        orders = np.full(shown.num_rows, FIXED_ORDER if event_time is None else FIXED_TIMED_ORDER)
        return encode(src_addr, shown, is_timed, orders, predictor.log_rtt)[: 1 - _RTT_TOKENS]

    # The largest number that fits: more measurements always take more tokens.
    fits, too_many = -1, min(known.num_rows, crop_size // _MIN_TOKENS) + 1
    tokens = np.empty(0, np.int32)
    while too_many - fits > 1:
        number = (fits + too_many) // 2
        found = tokens_after(number)
        if len(found) < crop_size:
            fits, tokens = number, found
        else:
            too_many = number
    if fits < 0:
        raise UsageError(
            f"the model was trained on crops of {crop_size} tokens, but the ping alone takes "
            f"{len(tokens_after(0)) + 1}: train it on longer ones"
        )
    return tokens, fits


def measurements_of(history: Any) -> pa.RecordBatch:
    """Returns a history as MEASUREMENT_SCHEMA, in order of time; UsageError if it is none."""
    if not isinstance(history, pa.RecordBatch | pa.Table):
        try:
            history = pa.Table.from_pandas(history, preserve_index=False)
        except (AttributeError, TypeError, pa.ArrowException) as error:
            raise UsageError(
                f"the history is a {type(history).__name__}: it must be a RecordBatch, Table or "
                f"DataFrame ({one_line(error)})"
            ) from None
    columns: dict[str, Any] = {}
    for field in MEASUREMENT_SCHEMA:
        if field.name == "ip_version":
            is_ipv6 = pc.match_substring(columns["dst_addr"], ":")
            columns[field.name] = pc.cast(pc.if_else(is_ipv6, 6, 4), field.type)
            continue
        if field.name not in history.schema.names:
            raise UsageError(f"the history has no {field.name}: it needs event_time, dst_addr, rtt")
        values = history.column(field.name)
        try:
            if pa.types.is_integer(values.type) and field.name == "event_time":
                raise pa.ArrowTypeError("numbers have no unit, cast them to a timestamp")
            columns[field.name] = pc.cast(values, field.type, safe=field.name == "dst_addr")
        except pa.ArrowException as error:
            raise UsageError(
                f"the history's {field.name} is {values.type}, not {field.type}: {one_line(error)}"
            ) from None
        if values.null_count:
            raise UsageError(f"the history has {values.null_count} empty {field.name}: omit them")
    if not (is_finite := np.isfinite(np.asarray(columns["rtt"]))).all():
        line = int(is_finite.argmin())
        raise UsageError(
            f"the history's rtt {line} is {columns['rtt'][line]}: a failed ping has -1"
        )
    table = pa.table(columns, schema=MEASUREMENT_SCHEMA)
    times = np.asarray(columns["event_time"])
    if (times[1:] < times[:-1]).any():
        table = table.take(np.argsort(times, kind="stable"))
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=MEASUREMENT_SCHEMA)
