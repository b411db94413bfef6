"""Encodes many probe rows at a time as records; kernels write each measurement once, in place.

`row_codec` defines the formats and decodes them.
"""
# pyarrow and kernels are untyped.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import arrow_record, layout, tf_example
from beam_pipeline.dataset.addresses import string_buffers
from beam_pipeline.dataset.arrow_record import END_OF_STREAM, place_buffers
from beam_pipeline.dataset.layout import Encoding, RecordEncoding, RowFormat
from beam_pipeline.dataset.row_codec import (
    RowKey,
    arrow_measurements_bytes,
    arrow_template,
    columns_of,
    compact_measurements_bytes,
    format_destinations,
    is_ipv6,
)
from beam_pipeline.dataset.rtt import rtt_code
from beam_pipeline.dataset.sorted_run import WIDE
from beam_pipeline.kernels import kernel

_US_PER_SECOND = 1_000_000


def encode_compact(run: np.ndarray) -> bytes:
    """Encodes the measurements of a sorted run that spans less than 2**32 s as compact bytes."""
    return encode_compact_rows(run, np.array([0, len(run)]))[0]


def encode_compact_rows(run: np.ndarray, bounds: np.ndarray) -> list[bytes]:
    """Encodes each run[bounds[i]:bounds[i + 1]], not empty, as `encode_compact`."""
    sizes = compact_sizes(run, bounds)
    ends = np.cumsum(arrow_record.padded(sizes))
    starts = np.append(0, ends[:-1])
    words = np.zeros(ends[-1] // 8, np.int64)
    _write_compact(*_fields(run), bounds, starts, *_views(words))
    data, stops = words.tobytes(), (starts + sizes).tolist()
    return [data[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True)]


def compact_sizes(run: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Returns the compact size in bytes of each run[bounds[i]:bounds[i + 1]], int64."""
    num_ipv6 = np.zeros(len(bounds) - 1, np.int64)
    if run.dtype == WIDE:
        num_ipv6 = np.add.reduceat(is_ipv6(run), bounds[:-1], dtype=np.int64)
    return compact_measurements_bytes(np.diff(bounds), num_ipv6)


def _fields(run: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the columns of a run; without high halves if all addresses are IPv4."""
    hi = run["dst_hi"] if run.dtype == WIDE else np.zeros(0, np.uint64)
    return run["event_time"], hi, run["dst_lo"], run["rtt"]


def _views(words: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(words.view(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64))


@kernel
def _write_compact(times, dst_hi, dst_lo, rtts, bounds, starts, out8, out16, out32, out64):
    """Writes each run[bounds[i]:bounds[i + 1]] from byte starts[i], a multiple of 8."""
    for row in range(len(starts)):
        start, end = bounds[row], bounds[row + 1]
        n = end - start
        at = starts[row]
        num_ipv6 = 0
        for i in range(start, end if len(dst_hi) else start):
            num_ipv6 += dst_hi[i] != 0 or dst_lo[i] >> 32 != 0xFFFF
        first = times[start] // _US_PER_SECOND
        out8[at], out8[at + 1], out8[at + 2], out8[at + 3] = 80, 76, 99, 49  # COMPACT_MAGIC
        out32[at // 4 + 1] = n
        out32[at // 4 + 2] = num_ipv6
        out32[at // 4 + 3] = first & 0xFFFFFFFF
        out32[at // 4 + 4] = (first >> 32) & 0xFFFFFFFF
        seconds = (at + 20) // 4
        codes = (at + 20 + 4 * n) // 2
        for i in range(n):
            out32[seconds + i] = times[start + i] // _US_PER_SECOND - first
            out16[codes + i] = rtt_code(rtts[start + i])
        at += 20 + 6 * n
        bits = at
        if 0 < num_ipv6 < n:
            at += (n + 7) // 8
        ipv6 = at + 4 * (n - num_ipv6)
        for i in range(n):
            lo = np.uint64(dst_lo[start + i])
            hi = dst_hi[start + i] if len(dst_hi) else np.uint64(0)
            if num_ipv6 and (hi != 0 or lo >> np.uint64(32) != 0xFFFF):
                if num_ipv6 < n:
                    out8[bits + i // 8] |= np.uint8(1 << (i % 8))
                for byte in range(8):
                    out8[ipv6 + byte] = (hi >> np.uint64(56 - 8 * byte)) & np.uint64(255)
                    out8[ipv6 + 8 + byte] = (lo >> np.uint64(56 - 8 * byte)) & np.uint64(255)
                ipv6 += 16
            else:
                for byte in range(4):
                    out8[at + byte] = (lo >> np.uint64(24 - 8 * byte)) & np.uint64(255)
                at += 4


def encode_arrow(run: np.ndarray) -> bytes:
    """Encodes the measurements of a sorted run as an Arrow IPC stream."""
    bounds, texts = np.array([0, len(run)]), format_destinations(run)
    (size,) = _arrow_sizes(texts, bounds).tolist()
    words = np.zeros(size // 8, np.int64)
    _write_arrow_rows(run, texts, bounds, np.zeros(1, np.int64), words)
    return words.tobytes()


def _arrow_sizes(texts: pa.StringArray, bounds: np.ndarray) -> np.ndarray:
    ends = string_buffers(texts)[0].astype(np.int64)
    text_bytes = ends[bounds[1:]] - ends[bounds[:-1]]
    return np.asarray(arrow_measurements_bytes(np.diff(bounds), text_bytes))


def _write_arrow_rows(
    run: np.ndarray,
    texts: pa.StringArray,
    bounds: np.ndarray,
    starts: np.ndarray,
    words: np.ndarray,
) -> None:
    offsets, text = string_buffers(texts)
    _write_arrow(
        *_fields(run), is_ipv6(run), bounds, offsets, text, starts, *arrow_template(), words,
        words.view(np.uint8), words.view(np.uint32), words.view(np.float32),
    )  # fmt: skip


@kernel
def _write_arrow(
    times, _hi, _lo, rtts, ipv6, bounds, offsets, text, starts, template, buffers_at,
    body_bytes_at, counts_at, out64, out8, out32, out_floats,
):  # fmt: skip
    """Writes each run[bounds[i]:bounds[i + 1]] from byte starts[i], a multiple of 8."""
    for row in range(len(starts)):
        start, end = bounds[row], bounds[row + 1]
        n = end - start
        first_text = np.int64(offsets[start])
        num_text = np.int64(offsets[end]) - first_text
        at = starts[row] // 8
        for i in range(len(template)):
            out64[at + i] = template[i]
        for place in counts_at:
            out64[at + place] = n
        place_buffers(
            out64,
            at,
            buffers_at,
            body_bytes_at,
            (0, 8 * n, 0, 4 * (n + 1), num_text, 0, n, 0, 4 * n),
        )
        at += len(template)
        for i in range(n):
            out64[at + i] = times[start + i]
        at += n
        for i in range(n + 1):
            out32[2 * at + i] = offsets[start + i] - first_text
        at += (4 * (n + 1) + 7) // 8
        # Separate views let the compiler copy many bytes at a time.
        own_text, copy = text[first_text:], out8[8 * at :]
        for i in range(num_text):
            copy[i] = own_text[i]
        at += (num_text + 7) // 8
        for i in range(n):
            out8[8 * at + i] = 6 if ipv6[start + i] else 4
        at += (n + 7) // 8
        for i in range(n):
            out_floats[2 * at + i] = rtts[start + i]
        at += (4 * n + 7) // 8
        out64[at] = END_OF_STREAM


class RowKeys(NamedTuple):
    """The keys of r rows, as columns."""

    src_ids: np.ndarray  # int64 [r]
    src_addrs: pa.StringArray  # [r]
    row_indexes: np.ndarray  # int64 [r]

    @classmethod
    def of(cls, keys: Sequence[RowKey]) -> Self:
        src_addrs, row_indexes = zip(*keys, strict=True)
        src_ids = np.array([layout.src_id(src_addr) for src_addr in src_addrs])
        return cls(src_ids, pa.array(src_addrs, pa.string()), np.array(row_indexes))


def encode_rows(
    run: np.ndarray, bounds: np.ndarray, keys: RowKeys, row_format: RowFormat
) -> list[bytes]:
    """Returns the records of rows run[bounds[i]:bounds[i + 1]], sorted runs that are not empty."""
    is_arrow = row_format.encoding == "arrow"
    if row_format.record_encoding == "tf_example":
        encode = encode_arrow if is_arrow else encode_compact
        rows = [run[start:end] for start, end in itertools.pairwise(bounds.tolist())]
        each = map(RowKey, keys.src_addrs.to_pylist(), keys.row_indexes.tolist())
        columns = (columns_of(encode(row), row, key) for row, key in zip(rows, each, strict=True))
        return [tf_example.encode_example(row) for row in columns]
    if is_arrow:
        texts = format_destinations(run)
        framed = _frame(run, bounds, keys, _arrow_sizes(texts, bounds))
        words = framed.data.view(np.int64)
        _write_arrow_rows(run, texts, bounds, framed.measurements_at, words)
    else:
        framed = _frame(run, bounds, keys, compact_sizes(run, bounds))
        views = _views(framed.data.view(np.int64))
        _write_compact(*_fields(run), bounds, framed.measurements_at, *views)
    data = memoryview(framed.data)
    return [bytes(data[start:end]) for start, end in itertools.pairwise(framed.bounds.tolist())]


def _frame(
    run: np.ndarray, bounds: np.ndarray, keys: RowKeys, sizes: np.ndarray
) -> arrow_record.Records:
    fields = np.empty(len(sizes), arrow_record.FIELDS)
    fields["num_bytes"], fields["n_measurements"] = sizes, np.diff(bounds)
    fields["src_id"], fields["row_index"] = keys.src_ids, keys.row_indexes
    firsts, lasts = run["event_time"][bounds[:-1]], run["event_time"][bounds[1:] - 1]
    fields["first_timestamp"], fields["last_timestamp"] = firsts, lasts
    ends = zip(firsts.tolist(), lasts.tolist(), strict=True)
    fields["time_span_seconds"] = [(last - first) / _US_PER_SECOND for first, last in ends]
    return arrow_record.frame_records(fields, keys.src_addrs)


def encode_row(
    run: np.ndarray, key: RowKey, encoding: Encoding, record_encoding: RecordEncoding = "arrow_ipc"
) -> bytes:
    """Returns the record of a sorted run of at least one measurement."""
    row_format = RowFormat(encoding, 0, record_encoding)
    return encode_rows(run, np.array([0, len(run)]), RowKeys.of([key]), row_format)[0]
