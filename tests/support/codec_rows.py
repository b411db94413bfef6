"""Rows for the codec: of a short span, and side by side in one run."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, RECORD_ENCODINGS
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support.helpers import (
    MAPPED_IPV4,
    YEAR_2024_US,
    records_as_tuples,
    run_of_tuples,
    runs_strategy,
)

KEY = RowKey("192.0.2.1", 0)
IPV4 = MAPPED_IPV4 | 0xC0000201
IPV6 = 0x2001_0DB8 << 96 | 1
both_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
both_records = pytest.mark.parametrize("record_encoding", RECORD_ENCODINGS)


def encoded_size(run: np.ndarray, encoding, src_addr: str = KEY.src_addr) -> int:
    return len(encode_row(run, RowKey(src_addr, 0), encoding))


def short_span(run: np.ndarray) -> np.ndarray:
    """The same run in which times stay so near that only bytes can end a compact row."""
    run = run.copy()
    run["event_time"] %= 1000
    run.sort(order=list(run.dtype.names or ()))
    return run


class SideBySide(NamedTuple):
    """Sorted runs that lie side by side."""

    run: np.ndarray
    bounds: np.ndarray

    @property
    def rows(self) -> list[np.ndarray]:
        return [self.run[start:end] for start, end in pairwise(self.bounds.tolist())]


@st.composite
def side_by_side(draw, max_rows: int, max_size: int = 40) -> SideBySide:
    """Some rows, all narrow or all wide; of wide ones any part may be IPv6, also all or none."""
    wide = draw(st.booleans())
    kinds = st.booleans() if wide else st.just(False)
    rows = [
        run_of_tuples(records_as_tuples(draw(runs_strategy(max_size=max_size, wide=each))), wide)
        for each in draw(st.lists(kinds, min_size=1, max_size=max_rows))
    ]
    return SideBySide(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def golden_run() -> np.ndarray:
    return run_of_tuples(
        [
            (YEAR_2024_US, IPV4, 12.5),
            (YEAR_2024_US + 1_250_000, IPV6, -1.0),
            (YEAR_2024_US + 1_250_000, IPV6, 0.125),
            (YEAR_2024_US + 86_400_000_000, MAPPED_IPV4 | 0x08080808, 250.0),
        ]
    )
