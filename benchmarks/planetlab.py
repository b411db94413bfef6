"""Converts published RTT matrices between PlanetLab nodes to measurements in one Parquet file.

    python -m benchmarks.planetlab NetLatency-Data/PlanetLab planetlab.parquet

Reads PlanetLabData_1 and so on, one slice of time each: one line per source, one column per
destination, in ms. The matrices have neither addresses nor times. Node i becomes 10.1.h.l, with i =
256 h + l. A slice lasts 14.7 hours, the first from 1.4e9 seconds after 1970, and in it all sources
ping the next destination every 108 seconds. A node's RTT to itself is omitted.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.dataset.layout import split_of
from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows.options import Options

_NAME = re.compile(r"PlanetLabData_(\d+)")
_FIRST_SECOND = 1_400_000_000
_SECONDS_A_DESTINATION = 108
_SECONDS_A_SLICE = 52_920


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was written")


def _run(argv: Sequence[str]) -> None:
    parser = OneLineParser("benchmarks.planetlab", "Published RTTs of PlanetLab as Parquet.")
    parser.add_argument("matrices", type=Path, help="the folder with PlanetLabData_1 and so on")
    parser.add_argument("output", type=Path, help="the Parquet file to write")
    args = parser.parse_args(argv)
    pq.write_table(pa.concat_tables(_slices(args.matrices)), args.output, compression="zstd")


def _slices(folder: Path) -> Iterator[pa.Table]:
    found = {int(m[1]): path for path in folder.glob("*") if (m := _NAME.fullmatch(path.name))}
    if not found:
        raise ProbelineError(f"{folder} has no file PlanetLabData_1: name the folder that has")
    for number in sorted(found):
        yield measurements_of(np.loadtxt(found[number], ndmin=2), number - 1)


def measurements_of(matrix: np.ndarray, slice_number: int) -> pa.Table:
    """Returns the measurements of a slice, numbered from 0.

    `matrix` has RTTs in ms, [sources, destinations], of the same nodes.
    """
    source, destination = np.nonzero(~np.eye(len(matrix), dtype=bool))
    nodes = pa.array([f"10.1.{i >> 8}.{i & 255}" for i in range(len(matrix))])
    second = _FIRST_SECOND + _SECONDS_A_SLICE * slice_number + _SECONDS_A_DESTINATION * destination
    return pa.table(
        {
            "event_time": pa.array(second * 1_000_000, pa.timestamp("us")),
            "src_addr": nodes.take(pa.array(source)),
            "dst_addr": nodes.take(pa.array(destination)),
            "ip_version": pa.array(np.full(len(source), 4, np.int8)),
            "rtt": pa.array(matrix[source, destination].astype(np.float32)),
        }
    )


def write_without_held_out(measurements: Path, output: Path) -> None:
    """Writes the measurements except those to nodes of the test split.

    Each node is also a destination: for a held-out probe's address to be new to the model, training
    must not ping it.
    """
    table = pq.read_table(measurements)
    nodes = pc.unique(pc.cast(table["src_addr"], pa.string())).to_pylist()
    split = [split_of(node, Options.train_ratio, Options.split_seed) for node in nodes]
    train = pa.array([node for node, is_test in zip(nodes, split, strict=True) if not is_test])
    pq.write_table(table.filter(pc.is_in(table["dst_addr"].cast(pa.string()), train)), output)


if __name__ == "__main__":
    sys.exit(main())
