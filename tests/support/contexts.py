"""Measurements to make contexts of: tables of them and strategies."""

import pyarrow as pa
from hypothesis import strategies as st

from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from tests.support.helpers import MAPPED_IPV4, canonical

YEAR_2500 = 16_725_225_600


def measured(*measurements: tuple[int, str, float]) -> pa.RecordBatch:
    """Returns measurements of (µs since 1970, destination, RTT in ms)."""
    return pa.RecordBatch.from_pydict(
        {
            "event_time": [time for time, _, _ in measurements],
            "dst_addr": [dst for _, dst, _ in measurements],
            "ip_version": [6 if ":" in dst else 4 for _, dst, _ in measurements],
            "rtt": [rtt for _, _, rtt in measurements],
        },
        schema=MEASUREMENT_SCHEMA,
    )


addresses = st.one_of(
    st.sampled_from(
        ["0.0.0.0", "255.255.255.255", "::", "::1", "::102:304", "::fffe:102:304", "2001:db8::"]
    ),
    st.integers(0, 2**32 - 1).map(lambda value: canonical(MAPPED_IPV4 | value)),
    st.integers(0, 2**128 - 1).map(canonical),
)


rtts = st.one_of(
    st.sampled_from([-1.0, 0.0, 1e-40, 0.0005, 2.047, 2.0475, 2.048, 4.096, 4.3e9]),
    st.floats(0, 2**32, width=32),
)


# Times of a context do not have to be in order: `encode` is for any.
deltas = st.one_of(
    st.sampled_from([0, 1, 255, 256, 2**32 - 1, 2**32, -1]), st.integers(-(2**33), 2**33)
)


@st.composite
def contexts(draw) -> tuple[str, list[tuple[int, str, float]], list[bool], list[int]]:
    second = draw(st.integers(0, YEAR_2500))
    measurements, is_timed, orders = [], [], []
    for _ in range(draw(st.integers(1, 12))):
        second = min(max(0, second + draw(deltas)), YEAR_2500)
        time_us = second * 1_000_000 + draw(st.integers(0, 999_999))
        measurements.append((time_us, draw(addresses), draw(rtts)))
        is_timed.append(draw(st.booleans()))
        orders.append(draw(st.integers(6, 29) if is_timed[-1] else st.integers(0, 5)))
    return draw(addresses), measurements, is_timed, orders
