"""Rows of a record's bytes, read by the kernels and as the codec decodes them.

`reading_of` reads every measurement by the kernels; `decoded` is what `row_codec` says of the
same bytes.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from beam_pipeline.dataset import arrow_record, row_codec
from beam_pipeline.dataset.row_codec import RowKey, decode_record
from beam_pipeline.dataset.rtt import encode_rtt
from tests.support.helpers import MAPPED_IPV4, make_run, records_as_tuples
from training.rows.measurement_at import dst_at, is_ipv6_at, rtt_code_at, second_at
from training.rows.row_layout import COMPACT, Columns, Located

KEY = RowKey("192.0.2.1", 3)


class Reading(NamedTuple):
    """All that a row says: (second, RTT code, destination) of each measurement."""

    src_id: int
    row_index: int
    measurements: list[tuple[int, int, int]]


@njit
def read_all(raw, layout, seconds, codes, hi, lo, families):
    for i in range(layout.num_measurements):
        seconds[i] = second_at(raw, layout, i)
        codes[i] = rtt_code_at(raw, layout, i)
        hi[i], lo[i], family = dst_at(raw, layout, i)
        families[i] = family
        if family >= 0 and (family == 1) != is_ipv6_at(raw, layout, i):
            families[i] = -2


def assert_within(columns: Columns) -> None:
    """Reading past the end could end the process: so first what the kernels will rely on."""
    raw, layout = columns
    n, num_ipv6 = layout.num_measurements, layout.num_ipv6
    sizes = {"times": 8 * n, "rtts": 4 * n, "dst": 4 * (n + 1), "families": n}
    if layout.kind == COMPACT:
        sizes = {
            "times": 4 * n,
            "rtts": 2 * n,
            "dst": 4 * (n - num_ipv6),
            "dst_more": 16 * num_ipv6,
        }
        if 0 < num_ipv6 < n:
            sizes |= {"families": (n + 7) // 8, "ranks": (n + 511) // 512 * 4}
            bits = raw[layout.families :][: (n + 7) // 8]
            set_bits = int(np.unpackbits(bits, count=n, bitorder="little").sum())
            assert set_bits == num_ipv6, f"families say {set_bits} IPv6, the header {num_ipv6}"
    for name, size in sizes.items():
        assert 0 <= getattr(layout, name) <= len(raw) - size, f"{name} ends beyond the bytes"


def reading_of(located: Located) -> Reading | None:
    """Reads all measurements; None if a destination is marked as damaged."""
    assert_within(located.columns)
    n = located.columns.layout.num_measurements
    seconds, codes, families = (np.zeros(n, np.int64) for _ in range(3))
    hi, lo = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    read_all(*located.columns, seconds, codes, hi, lo, families)
    if (families == -1).any():
        return None
    assert (families >= 0).all()
    lo[families == 0] |= np.uint64(MAPPED_IPV4)
    addresses = [high << 64 | low for high, low in zip(hi.tolist(), lo.tolist(), strict=True)]
    measurements = list(zip(seconds.tolist(), (codes & 0xFFFF).tolist(), addresses, strict=True))
    return Reading(located.src_id, located.row_index, measurements)


def decoded(record: bytes) -> Reading:
    row = decode_record(record)
    codes = encode_rtt(row.run["rtt"]).tolist()
    measurements = [
        (time // 1_000_000, code, address)
        for (time, address, _), code in zip(records_as_tuples(row.run), codes, strict=True)
    ]
    return Reading(row.src_id, row.row_index, measurements)


def run_of_families(is_ipv6: np.ndarray, seed: int) -> np.ndarray:
    """Returns a WIDE run whose i-th destination is IPv6 where is_ipv6[i]."""
    run = make_run(len(is_ipv6), seed=seed, wide=True)
    rng = np.random.default_rng(seed)
    run["dst_hi"] = np.where(is_ipv6, rng.integers(1, 2**63, len(run)), 0)
    low = rng.integers(0, 2**32, len(run), np.uint64)
    run["dst_lo"] = np.where(is_ipv6, low << np.uint64(31), low | np.uint64(MAPPED_IPV4))
    return run


def record_around(measurements: bytes, run: np.ndarray) -> bytes:
    return arrow_record.encode_record(row_codec.columns_of(measurements, run, KEY))


def written(batch: pa.RecordBatch, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
