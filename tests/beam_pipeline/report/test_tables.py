"""Numbers as people read them."""

import math

import pytest

from beam_pipeline.report.tables import (
    NONE,
    bytes_text,
    count_text,
    ms_text,
    number_of,
    percent,
    span_text,
    time_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (90, "1.5 min"),
        (3600, "1 h"),
        (86_400, "1 day"),
        (36 * 3600, "1.5 days"),
        (400 * 86_400, "400 days"),
        (2 * 365 * 86_400, "2 years"),
    ],
)
def test_span_text(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1e3, "1.0 kB"), (8 << 20, "8.4 MB"), (2e12, "2.0 TB")],
)
def test_bytes_text(num_bytes: float, text: str) -> None:
    assert bytes_text(num_bytes) == text


def test_counts_and_nouns() -> None:
    assert (count_text(1_234_567), count_text(0.5)) == ("1,234,567", "0.5")
    assert (number_of(1, "row"), number_of(1200, "row")) == ("1 row", "1,200 rows")


def test_shares_and_round_trips() -> None:
    assert (percent(0.12345), percent(0.5, 0)) == ("12.3 %", "50 %")
    assert (ms_text(0.0123), ms_text(41.26), ms_text(1234.5)) == ("0.0123", "41.3", "1,234")


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_does_not_exist_is_a_dash(value: float | None) -> None:
    assert count_text(value) == percent(value) == ms_text(value) == NONE


def test_times_are_utc() -> None:
    assert time_text(0) == "1970-01-01 00:00"
