"""Batches of measurements, good but for what a test says of them, and what their check finds."""

import pyarrow as pa

from beam_pipeline.sources.measurements import Block, check
from beam_pipeline.sources.options import COLUMNS
from tests.support.helpers import canonical

GOOD = {
    "event_time": 1_700_000_000_000_000,
    "src_addr": "192.0.2.1",
    "dst_addr": "198.51.100.7",
    "ip_version": 4,
    "rtt": 12.5,
}
TYPES = {
    "event_time": pa.timestamp("us"),
    "src_addr": pa.string(),
    "dst_addr": pa.string(),
    "ip_version": pa.int8(),
    "rtt": pa.float32(),
}


def batch_of(rows: list[dict], **arrays: pa.Array) -> pa.RecordBatch:
    """Returns rows that differ from GOOD where they say so; whole columns may be given instead."""
    return pa.RecordBatch.from_arrays(
        [
            arrays[name]
            if name in arrays
            else pa.array([r.get(name, good) for r in rows], TYPES[name])
            for name, good in GOOD.items()
        ],
        names=list(COLUMNS),
    )


def with_column(name: str, column: pa.Array) -> pa.RecordBatch:
    """Returns rows that are good but for one column."""
    return batch_of([{}] * len(column), **{name: column})


def reasons_of(batch: pa.RecordBatch) -> list[str | None]:
    """Returns, row by row, the reason why it is none, or None."""
    block, faults = check(batch)
    reasons: list[str | None] = [None] * batch.num_rows
    for row, reason in zip(faults.rows.tolist(), faults.reasons, strict=True):
        reasons[row] = reason
    assert len(block) == batch.num_rows - len(faults.reasons)
    assert len(block.src.codes) == len(block.dst.codes) == len(block.rtt) == len(block)
    return reasons


def times_of(block: Block) -> list[int]:
    return block.event_time.tolist()


def addresses_of(column) -> list[str]:
    return [canonical(int(column.hi[code]) << 64 | int(column.lo[code])) for code in column.codes]
