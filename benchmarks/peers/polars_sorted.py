"""Peer: Polars sorts everything in memory, slices of the frame become the records.

Addresses are sorted as Enums, as in the DuckDB peer. CPU-seconds at 1 M and 4 M measurements,
5,000 probes, 400 destinations, 2 cores, start and writing included:
  Enum, in-memory engine                    0.99   2.7   kept: takes the least memory
  Enum, streaming engine, collect_batches   1.01   2.6
  Enum, streaming engine, collect           0.99   3.4
  Categorical, in-memory engine             1.06
  strings as they are, in-memory engine     1.13
  strings as they are, streaming engine     1.23
"""

import argparse
import os
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.peers import common

_SLICE_ROWS = 1 << 18
_COLUMNS = ("src_addr", "event_time", "dst_addr", "ip_version", "rtt")


def ordered(args: argparse.Namespace) -> Iterator[pa.RecordBatch]:
    """Yields all measurements in order; addresses are dictionaries."""
    os.environ["POLARS_MAX_THREADS"] = str(args.threads)  # read when polars is imported
    import polars as pl

    source = pl.scan_parquet(args.input).select(_COLUMNS)
    enums = {}
    for column in ("src_addr", "dst_addr"):
        values = source.select(pl.col(column).unique().sort()).collect(engine="in-memory")
        enums[column] = pl.Enum(values[column])
    frame = source.cast(enums).sort(_COLUMNS).collect(engine="in-memory")
    oldest = pl.CompatLevel.oldest()
    for part in frame.iter_slices(_SLICE_ROWS):
        yield from part.to_arrow(compat_level=oldest).combine_chunks().to_batches()


if __name__ == "__main__":
    arguments = common.arguments("Groups measurements by probe with Polars.")
    common.write_ordered(ordered(arguments), arguments)
