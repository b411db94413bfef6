"""Peer: a first, naive Beam pipeline, with a dictionary per measurement.

ReadFromParquet, GroupByKey on src_addr, sort each group, write; on the in-memory runner. Every
bundle writes its own shards.
"""

import argparse
import uuid
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks.peers import common
from benchmarks.peers.common import MEASUREMENT_SCHEMA, Row

_COLUMNS = ["src_addr", *MEASUREMENT_SCHEMA.names]


def to_rows(group: tuple[str, Iterable[dict[str, Any]]], max_row_bytes: int) -> list[Row]:
    """Sorts a probe's measurements and cuts them into rows."""
    src_addr, measurements = group
    ordered = sorted(measurements, key=lambda m: [m[name] for name in MEASUREMENT_SCHEMA.names])
    batch = pa.RecordBatch.from_pylist(ordered, schema=MEASUREMENT_SCHEMA)
    return list(common.cut(src_addr, [batch], max_row_bytes))


class WriteRows(beam.DoFn):
    """Writes lists of rows to shards of the bundle."""

    def __init__(self, args: argparse.Namespace):
        self._args = args

    def start_bundle(self):
        self._shards = common.Shards(self._args, shard=uuid.uuid4().hex)

    def process(self, rows: list[Row]):  # pyright: ignore[reportIncompatibleMethodOverride]
        self._shards.write(rows)

    def finish_bundle(self):
        self._shards.close()


def main() -> None:
    args = common.arguments("Groups measurements by probe with Beam, naively.")
    max_row_bytes = int(args.max_row_size_mb * 2**20)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | "Read measurements" >> beam.io.ReadFromParquet(args.input, columns=_COLUMNS)
            | "Key by probe" >> beam.Map(lambda measurement: (measurement["src_addr"], measurement))
            | "Group by probe" >> beam.GroupByKey()
            | "Sort and cut" >> beam.Map(to_rows, max_row_bytes)
            | "Write" >> beam.ParDo(WriteRows(args))
        )


if __name__ == "__main__":
    main()
