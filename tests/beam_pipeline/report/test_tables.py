"""Tables and numbers as text."""

import math

import pytest

from beam_pipeline.report.tables import NONE, Table, share_text, span_text


def test_span_text() -> None:
    seconds = (0, 0.25, 90, 36 * 3600, 2 * 365 * 86_400)
    assert list(map(span_text, seconds)) == ["0 s", "0.2 s", "1.5 min", "1.5 days", "2 years"]


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
