"""Rows for the codec: of a short span, and side by side in one run."""

import numpy as np
import pytest

from beam_pipeline.dataset.layout import ENCODINGS, RECORD_ENCODINGS
from beam_pipeline.dataset.row_codec import RowKey
from tests.support.helpers import MAPPED_IPV4, YEAR_2024_US, run_of_tuples

KEY = RowKey("192.0.2.1", 0)
IPV4 = MAPPED_IPV4 | 0xC0000201
IPV6 = 0x2001_0DB8 << 96 | 1
both_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
both_records = pytest.mark.parametrize("record_encoding", RECORD_ENCODINGS)


def golden_run() -> np.ndarray:
    return run_of_tuples(
        [
            (YEAR_2024_US, IPV4, 12.5),
            (YEAR_2024_US + 1_250_000, IPV6, -1.0),
            (YEAR_2024_US + 1_250_000, IPV6, 0.125),
            (YEAR_2024_US + 86_400_000_000, MAPPED_IPV4 | 0x08080808, 250.0),
        ]
    )
