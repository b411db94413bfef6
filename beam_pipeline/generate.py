"""Writes Parquet shaped like real ping data, from a simulated network whose truth is known.

    python -m beam_pipeline.generate --output=/tmp/pings --num_measurements=10000000 \\
        --num_probes=5000 --seed=1

Leaves `measurements-00000-of-00004.parquet`, … (time-ordered, also from file to file) and the
truth behind them in `truth/probes.parquet` and `truth/anchors.parquet`. The same flags give the
same bytes. Measurements stream: memory does not grow with them (about 210 MiB for 5,000 probes),
only with the network, by about 2 KiB a probe.
"""

import argparse
import itertools
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.simulation.measurements import simulate
from beam_pipeline.simulation.network import (
    CITIES,
    Network,
    NetworkOptions,
    Nodes,
    build_network,
)

# Addresses go to the writer as dictionaries, which is many times faster than as text.
_ADDRESS = pa.dictionary(pa.int32(), pa.string())
_EVENT_TIME = pa.timestamp("us", tz="UTC")
_WRITTEN_SCHEMA = pa.schema(
    [
        ("event_time", _EVENT_TIME),
        ("src_addr", _ADDRESS),
        ("dst_addr", _ADDRESS),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)

_ROW_GROUP_ROWS = 1 << 17
_ROWS_PER_FILE = 5_000_000
_MIN_ROWS_PER_FILE = 10_000  # below that, fewer than four files
_MAX_FILES = 100_000  # five digits in a file's name
_MAX_PROBES = 1_000_000  # a city's prefixes hold a quarter of a million addresses
_MAX_ANCHORS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_START = datetime(2200, 1, 1, tzinfo=UTC)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _generate, "stopped; the measurements are incomplete")


def _generate(argv: Sequence[str]) -> None:
    args = _parser().parse_args(argv)
    options, num_files = _checked_options(args)
    folder = Path(args.output)
    with explained_os_errors("write", args.output):
        _prepare_folder(folder, overwrite=args.overwrite)
        network = build_network(options)
        _write_truth(network, folder / "truth")
        num_bytes, last_time_us = _write_measurements(network, options, folder, num_files)
    _print_summary(options, folder, num_files, num_bytes, last_time_us)


# ---- flags ----


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        "beam_pipeline.generate",
        "Write simulated ping measurements, and the truth behind them, as Parquet.",
    )
    add = parser.add_argument
    add("--output", required=True, help="local folder to write into")
    add("--num_measurements", type=int, required=True, help="rows, exactly")
    add("--num_probes", type=int, required=True, help="sources; the busiest has most of the rows")
    add("--seed", type=int, default=0, help="the same flags give the same bytes")
    add("--num_files", type=int, help="default: at most 5 M rows a file, at least 4 files")
    add("--num_anchors", type=int, default=200, help="destinations (default: %(default)s)")
    add("--ipv6_share", type=float, default=0.1, help="of the probes (default: %(default)s)")
    add(
        "--interval_seconds",
        type=float,
        default=900.0,
        help="average time between a probe's pings of one destination (default: %(default)s); "
        "stretched or shrunk where the period would be under a day or over a year",
    )
    add(
        "--hot_share",
        type=float,
        default=0.0,
        help="share of all rows for the busiest probe, if that is more than by Zipf's law "
        "(default: %(default)s)",
    )
    add("--start", default="2026-01-01", help="ISO date, UTC (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace the measurements in --output")
    return parser


def _checked_options(args: argparse.Namespace) -> tuple[NetworkOptions, int]:
    """Returns the options and the number of files, or raises UsageError."""
    if "://" in args.output:
        raise UsageError(
            f"--output={args.output} is not a local folder; write to a local one, then copy it "
            "(gcloud storage cp -r)"
        )
    _check_range("num_measurements", args.num_measurements, 1, None)
    _check_range("num_probes", args.num_probes, 1, _MAX_PROBES)
    _check_range("num_anchors", args.num_anchors, 1, _MAX_ANCHORS)
    _check_range("seed", args.seed, 0, None)
    _check_range("ipv6_share", args.ipv6_share, 0, 1)
    _check_range("hot_share", args.hot_share, 0, 1)
    if not (0 < args.interval_seconds < math.inf):
        raise UsageError(f"--interval_seconds={args.interval_seconds:g} must be above 0")
    num_files = args.num_files
    if num_files is None:
        num_files = max(
            min(4, math.ceil(args.num_measurements / _MIN_ROWS_PER_FILE)),
            math.ceil(args.num_measurements / _ROWS_PER_FILE),
        )
    _check_range("num_files", num_files, 1, min(_MAX_FILES, args.num_measurements))
    options = NetworkOptions(
        num_measurements=args.num_measurements,
        num_probes=args.num_probes,
        num_anchors=args.num_anchors,
        ipv6_share=args.ipv6_share,
        interval_seconds=args.interval_seconds,
        hot_share=args.hot_share,
        start_us=_start_us(args.start),
        seed=args.seed,
    )
    return options, num_files


def _check_range(name: str, value: float, least: int, most: int | None) -> None:
    if not (value >= least and (most is None or value <= most)):  # NaN is out of any range
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"--{name}={value} is out of range; give a value {limit}")


def _start_us(text: str) -> int:
    """Returns microseconds since 1970 of an ISO date or time, UTC unless it says otherwise."""
    try:
        start = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--start={text} is no ISO date; write it like 2026-01-31") from None
    if start.tzinfo is None:
        start = start.replace(tzinfo=UTC)
    if not _EPOCH <= start < _LATEST_START:
        raise UsageError(f"--start={text} is out of range; choose a date from 1970 to 2199")
    return (start - _EPOCH) // timedelta(microseconds=1)


# ---- files ----


def _prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Makes the folder; refuses or removes what an earlier run left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = list(folder.glob("measurements-*.parquet"))
    if finished and not overwrite:
        raise UsageError(
            f"--output={folder} already holds {len(finished)} measurements-*.parquet and must "
            "hold none; choose another folder or add --overwrite to replace them"
        )
    for path in [*finished, *folder.glob("measurements-*.parquet.tmp")]:
        path.unlink()


@contextmanager
def _appears_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary name, renamed to `path` if the body ends well and removed if not."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_truth(network: Network, folder: Path) -> None:
    """Writes who is where, how slow and how lossy: what a model may be tested against."""
    folder.mkdir(exist_ok=True)
    probes, anchors = network.probes, network.anchors
    num_anchors = len(anchors.load_ms)
    tables = {
        "probes.parquet": {
            "src_addr": probes.addresses,
            **_places(probes.nodes),
            "access_delay_ms": probes.access_delay_ms,
            "loss_rate": probes.loss_rate,
            "weight": probes.weight,
        },
        "anchors.parquet": {
            "dst_addr": anchors.addresses,
            "ip_version": np.repeat(np.array([4, 6], np.int8), num_anchors),
            **_places(anchors.nodes, copies=2),
        },
    }
    for name, columns in tables.items():
        with _appears_whole(folder / name) as temporary:
            pq.write_table(pa.table(columns), temporary, compression="zstd")


def _places(nodes: Nodes, copies: int = 1) -> dict[str, NDArray[np.generic]]:
    return {
        "city": np.tile(np.array([city.name for city in CITIES])[nodes.city], copies),
        "latitude": np.tile(nodes.latitude, copies),
        "longitude": np.tile(nodes.longitude, copies),
    }


def _write_measurements(
    network: Network, options: NetworkOptions, folder: Path, num_files: int
) -> tuple[int, int]:
    """Streams all measurements into files of about equal length; returns (bytes, last time)."""
    bounds = [options.num_measurements * i // num_files for i in range(num_files + 1)]
    group_sizes = [
        [min(_ROW_GROUP_ROWS, end - at) for at in range(begin, end, _ROW_GROUP_ROWS)]
        for begin, end in itertools.pairwise(bounds)
    ]
    groups = _regroup(simulate(network, options), itertools.chain.from_iterable(group_sizes))
    addresses = pa.array(network.probes.addresses), pa.array(network.anchors.addresses)
    num_bytes, last_time_us = 0, options.start_us
    for index, sizes in enumerate(group_sizes):
        path = folder / f"measurements-{index:05d}-of-{num_files:05d}.parquet"
        with _appears_whole(path) as temporary:
            with _parquet_writer(temporary) as writer:
                for rows in itertools.islice(groups, len(sizes)):
                    writer.write_table(_to_table(rows, *addresses), row_group_size=_ROW_GROUP_ROWS)
                    last_time_us = int(rows["time_us"][-1])
            num_bytes += temporary.stat().st_size
    return num_bytes, last_time_us


def _parquet_writer(path: Path) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        _WRITTEN_SCHEMA,
        compression="zstd",
        use_dictionary=["src_addr", "dst_addr", "ip_version"],  # pyright: ignore[reportArgumentType]
        store_schema=False,  # so that the dictionaries read back as plain strings
    )


def _regroup(arrays: Iterable[np.ndarray], sizes: Iterable[int]) -> Iterator[np.ndarray]:
    """Cuts a stream of arrays anew, into arrays of the given lengths."""
    stream = iter(arrays)
    held: list[np.ndarray] = []
    for size in sizes:
        while sum(map(len, held)) < size:
            held.append(next(stream))
        joined = held[0] if len(held) == 1 else np.concatenate(held)
        yield joined[:size]
        held = [joined[size:]]


def _to_table(rows: np.ndarray, sources: pa.Array, destinations: pa.Array) -> pa.Table:
    """Turns MEASUREMENT rows into Arrow; addresses as dictionaries, which Parquet takes over."""
    is_ipv6 = rows["destination"] >= len(destinations) // 2
    columns = [
        pa.array(rows["time_us"].copy()).cast(_EVENT_TIME),
        _addresses_at(sources, rows["probe"]),
        _addresses_at(destinations, rows["destination"]),
        pa.array(np.where(is_ipv6, np.int8(6), np.int8(4))),
        pa.array(rows["rtt_ms"].copy()),
    ]
    return pa.Table.from_arrays(columns, schema=_WRITTEN_SCHEMA)


def _addresses_at(addresses: pa.Array, index: NDArray[np.int32]) -> pa.DictionaryArray:
    """Picks addresses[index]; the dictionary holds only what is used, for it is written whole."""
    used = np.flatnonzero(np.bincount(index, minlength=len(addresses)))
    position = np.zeros(len(addresses), np.int32)
    position[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(position[index], addresses.take(pa.array(used)))


def _print_summary(
    options: NetworkOptions, folder: Path, num_files: int, num_bytes: int, last_time_us: int
) -> None:
    first, last = (
        f"{_EPOCH + timedelta(microseconds=time_us):%Y-%m-%d %H:%M}"
        for time_us in (options.start_us, last_time_us)
    )
    summary = Table.grid(padding=(0, 2))
    summary.add_row("measurements", f"{options.num_measurements:,}")
    summary.add_row("probes", f"{options.num_probes:,}")
    summary.add_row("files", f"{num_files:,} ({num_bytes:,} bytes)")
    summary.add_row("period", f"{first} to {last} UTC")
    summary.add_row("truth", escape(f"{folder}/truth"))
    console = Console(highlight=False)
    console.print(summary)
    command = f"python -m beam_pipeline.main --input {shlex.quote(f'{folder}/*.parquet')}"
    console.print(f"next: {command} --output OUT", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
