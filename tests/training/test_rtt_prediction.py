"""`predict_rtt` against a plain chain of single predictions; the models are fakes."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from beam_pipeline.errors import UsageError
from tests.support.evaluation_helpers import Network, Uniform
from training.rtt_prediction import RttDistribution, predict_rtt, predict_rtts
from training.tokens.log_rtt import token_codes
from training.tokens.tokenizer import (
    FAILED,
    FIRST_BYTE,
    MEASUREMENT_START,
    RTT_START,
    VOCABULARY_SIZE,
    decode,
)

CROP = 128
START = datetime(2026, 3, 1, 12)
NEXT = START + timedelta(hours=5)
SOURCE, DESTINATION = "192.0.2.1", "198.51.100.7"


def history(n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "event_time": [START + timedelta(seconds=90 * i) for i in range(n)],
            "dst_addr": [f"198.51.100.{i % 5}" if i % 4 else f"2001:db8::{i}" for i in range(n)],
            "ip_version": [4 if i % 4 else 6 for i in range(n)],
            "rtt": [-1.0 if i % 6 == 5 else 8.0 + i for i in range(n)],
        },
        schema=MEASUREMENT_SCHEMA,
    )


class Listening(Network):
    """Remembers what it was told."""

    told: np.ndarray

    def log_p(self, inputs, positions, segmentation):
        self.told = inputs[0][segmentation[0] > 0]
        return super().log_p(inputs, positions, segmentation)


class Certain(Uniform):
    """Knows that the next RTT has a certain code, whatever it is told."""

    def __init__(self, code: int, log_rtt: bool = False):
        super().__init__(CROP, log_rtt=log_rtt)
        self.code = int(token_codes(np.array([code]), log_rtt)[0])

    def log_p(self, inputs, positions, segmentation):
        log_p = np.full((*inputs.shape, VOCABULARY_SIZE), -20.0)
        for line, at in np.argwhere(inputs == RTT_START):
            log_p[line, at - 1, RTT_START] = 0
            log_p[line, at, FIRST_BYTE + (self.code >> 8)] = 0
        is_true = inputs == FIRST_BYTE + (self.code >> 8)
        log_p[(segmentation < 0) & is_true, FIRST_BYTE + (self.code & 255)] = 0
        log_p[(segmentation < 0) & ~is_true, FIRST_BYTE] = 0
        return log_p


def predict(predictor: Uniform, n: int = 4, event_time: datetime | None = NEXT) -> RttDistribution:
    return predict_rtt(predictor, SOURCE, history(n), DESTINATION, event_time)


def test_every_probability_is_that_of_the_chain() -> None:
    model = Listening(CROP)
    found = predict(model)
    tokens = model.told.tolist()
    assert tokens[-1] == RTT_START

    def log_p_after(tokens: list[int]) -> np.ndarray:
        line = np.array([tokens], np.int32)
        return Network(CROP)(line, np.arange(len(tokens))[None].astype(np.int32), line * 0 + 1)[0]

    last = log_p_after(tokens[:-1])[-1].astype(float)
    assert found.p_failed == pytest.approx(
        np.exp(last[FAILED]) / (np.exp(last[FAILED]) + np.exp(last[RTT_START])), rel=1e-5
    )
    codes = encode_rtt(found.rtt_ms)
    assert (decode_rtt(codes) == found.rtt_ms.astype(np.float32)).all()
    assert found.p.sum() == pytest.approx(1) and (np.diff(found.rtt_ms) > 0).all()
    chain = {}
    for code in codes[::4001].tolist():
        after = log_p_after([*tokens, FIRST_BYTE + (code >> 8)]).astype(float)
        chain[code] = after[-2, FIRST_BYTE + (code >> 8)] + after[-1, FIRST_BYTE + (code & 255)]
        chain[code] -= np.logaddexp.reduce(after[-1, FIRST_BYTE:])
    assert len(chain) == 9
    of_chain = np.exp(np.array([*chain.values()]))
    assert found.p[::4001] / found.p[0] == pytest.approx(of_chain / of_chain[0], rel=1e-3)


@pytest.mark.parametrize("log_rtt", [False, True])
def test_every_written_rtt_can_be_predicted(log_rtt: bool) -> None:
    longest = 1048 if log_rtt else 1e7  # to which the scale is exact
    values = np.unique(encode_rtt(np.geomspace(1e-3, longest, 200_000)))
    rtt_ms = predict(Uniform(CROP, log_rtt=log_rtt)).rtt_ms
    assert (np.diff(rtt_ms) > 0).all()
    assert np.isin(decode_rtt(values[values != FAILED_RTT]), rtt_ms.astype(np.float32)).all()


@pytest.mark.parametrize("log_rtt", [False, True])
@pytest.mark.parametrize("rtt_ms", [0.0, 17.25])
def test_a_model_that_is_certain(rtt_ms: float, log_rtt: bool) -> None:
    found = predict(Certain(int(encode_rtt(np.array([rtt_ms]))[0]), log_rtt))
    assert [found.quantile_ms(share) for share in (0.05, 0.5, 0.95)] == pytest.approx(
        [rtt_ms] * 3, rel=5e-4
    )
    assert found.p_failed < 1e-8


@pytest.mark.parametrize("log_rtt", [False, True])
def test_what_the_model_is_told(log_rtt: bool) -> None:
    model = Listening(CROP, log_rtt)
    found = predict(model, n=100)
    told = decode(model.told[:-1], log_rtt)
    assert len(model.told) < CROP and len(told) == found.num_history + 1
    expected = history(100).to_pylist()[-found.num_history :]
    for known, said in zip(expected, told[:-1], strict=True):
        assert (said.src_addr, said.dst_addr, said.is_whole) == (SOURCE, known["dst_addr"], True)
        assert said.rtt_ms == pytest.approx(known["rtt"], rel=5e-4)
        assert said.event_time == known["event_time"].replace(tzinfo=UTC).timestamp()
    assert told[-1].dst_addr == DESTINATION and told[-1].rtt_ms is None
    assert told[-1].event_time == NEXT.replace(tzinfo=UTC).timestamp()
    # One more measurement would not have fitted in.
    (starts,) = np.nonzero(model.told == MEASUREMENT_START)
    assert len(model.told) + 48 > CROP and len(starts) == len(told)

    zoned = NEXT.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=9)))
    assert (predict(model, n=100, event_time=zoned).p == found.p).all()
    untimed = predict(model, n=100, event_time=None)
    assert untimed.num_history > found.num_history
    assert {measurement.event_time for measurement in decode(model.told[:-1])} == {None}
    assert predict(model, n=0).num_history == 0
    # Where the ping fills the crop to the last token.
    assert {predict(Uniform(crop), n=9).num_history for crop in range(40, 100)} == {0, 1, 2, 3, 4}


def test_any_table_is_a_history() -> None:
    """Other types, a table in pieces, pandas, without ip_version and out of order."""
    model = Network(CROP)
    expected = predict(model)
    columns = history(4).to_pydict()
    near = pa.table(
        {
            "dst_addr": pa.array(columns["dst_addr"]).dictionary_encode(),
            "rtt": pa.array(columns["rtt"], pa.float64()),
            "event_time": pa.array(columns["event_time"], pa.timestamp("ns"))
            .cast(pa.timestamp("ns", "UTC"))
            .cast(pa.timestamp("ns", "Asia/Tokyo")),
        }
    ).take([2, 0, 3, 1])
    for form in (near, near.to_pandas(), pa.concat_tables([near[:1], near[1:]])):
        assert (predict_rtt(model, SOURCE, form, DESTINATION, NEXT).p == expected.p).all()


def test_many_pings_at_a_time() -> None:
    model = Network(CROP)
    pings = [(SOURCE, history(n), f"198.51.100.{n}", NEXT) for n in range(11)]
    shapes = len(model.shapes)
    for ping, found in zip(pings, predict_rtts(model, pings), strict=True):
        np.testing.assert_allclose(found.p, predict_rtt(model, *ping).p, rtol=1e-5)
    assert len(model.shapes) == shapes + 2  # of one ping, and of several
    assert predict_rtts(model, []) == []


def test_no_history() -> None:
    for column, values, words in (
        ("rtt", [1.0, None], "1 empty rtt"),
        ("rtt", [1.0, float("nan")], "rtt 1 is nan: a failed ping has -1"),
        ("event_time", [1, 2], "numbers have no unit"),
        ("dst_addr", None, "has no dst_addr"),
    ):
        table = pa.table(history(2).to_pydict()).drop_columns(column)
        if values:
            table = table.append_column(column, pa.array(values))
        with pytest.raises(UsageError, match=words):
            predict_rtt(Uniform(CROP), SOURCE, table, DESTINATION)


def test_errors() -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        predict(Uniform(CROP)).quantile_ms(1.1)
    with pytest.raises(UsageError, match="a list: it must be a RecordBatch, Table or DataFrame"):
        predict_rtt(Uniform(CROP), SOURCE, [1.0], DESTINATION)
    with pytest.raises(UsageError, match="not a datetime"):
        predict(Uniform(CROP), event_time="now")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="not an IP address"):
        predict_rtt(Uniform(CROP), SOURCE, history(2), "nowhere", NEXT)
    with pytest.raises(UsageError, match="crops of 16 tokens"):
        predict(Uniform(16))
