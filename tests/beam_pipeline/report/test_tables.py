"""Tables and numbers as text."""

import math

import pytest

from beam_pipeline.report.page import environment
from beam_pipeline.report.tables import (
    NONE,
    Table,
    bytes_text,
    count_text,
    ms_text,
    number_of,
    percent,
    share_text,
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


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.0001, "<0.1 %"), (0.5, "50.0 %"), (0.9999, ">99.9 %"), (1, "100 %")],
)
def test_only_0_and_1_are_whole(share: float, text: str) -> None:
    assert share_text(share) == text.replace(" ", "\u00a0")


def test_cells_have_the_format_of_their_column() -> None:
    columns = ("name", "rows", ("share", "percent"), ("size", "bytes"))
    table = Table("A table", columns, [("a", 1200, 0.25, 1e6), ("b", "1 of 2", None, math.nan)])
    assert table.headings == ["name", "rows", "share", "size"]
    assert table.formats == ["text", "count", "percent", "bytes"]
    assert table.cells == [["a", "1,200", "25.0 %", "1.0 MB"], ["b", "1 of 2", NONE, NONE]]


def test_html_of_a_table_is_escaped() -> None:
    table = Table("<b>", ("name", "rows"), [("<i>", 1)], "small", num_left_out=2)
    html = (
        environment()
        .from_string('{% from "table.html.jinja" import table %}{{ table(shown) }}')
        .render(shown=table)
    )
    assert "<caption>&lt;b&gt;: the first 1 of 3</caption>" in html
    assert '<th scope="row" class="text">&lt;i&gt;</th><td>1</td>' in html
