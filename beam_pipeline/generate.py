"""Writes simulated ping measurements as Parquet, shaped like real data, with known truth.

    python -m beam_pipeline.generate --output=/tmp/pings --num_measurements=10000000 \\
        --num_probes=5000 --seed=1

Writes `measurements-00000-of-00004.parquet`, …, in time order within and across files, and the
truth behind them in `truth/probes.parquet` and `truth/anchors.parquet`. The same flags give the
same bytes. Memory does not grow with the number of measurements (about 210 MiB for 5,000 probes),
only with the network, by about 2 KiB a probe.
"""

import itertools
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags, check_range, flag
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.report.formatting import time_text
from beam_pipeline.simulation.measurements import simulate
from beam_pipeline.simulation.network import (
    CITIES,
    Network,
    NetworkOptions,
    Nodes,
    build_network,
)
from beam_pipeline.storage.files import atomic_write

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


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """All flags; those that determine the measurements are in NetworkOptions."""

    output: str = flag("Local folder to write into.")
    num_files: int | None = flag(
        "By default, at most 5 M rows a file and at least 4 files.", None, type=int
    )
    overwrite: bool = flag("Replace the measurements in --output.", False, action="store_true")

    def __post_init__(self) -> None:
        if "://" in self.output:
            raise UsageError(
                f"--output={self.output} is not a local folder; write to a local one, then copy "
                "it (gcloud storage cp -r)"
            )
        super().__post_init__()
        num_files = self.num_files if self.num_files is not None else self.count_files()
        check_range("num_files", num_files, 1, min(_MAX_FILES, self.num_measurements))

    def count_files(self) -> int:
        """Returns --num_files, or the number that suits the number of measurements."""
        few = min(4, math.ceil(self.num_measurements / _MIN_ROWS_PER_FILE))
        return self.num_files or max(few, math.ceil(self.num_measurements / _ROWS_PER_FILE))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _generate, "stopped; the measurements are incomplete")


def _generate(argv: Sequence[str]) -> None:
    parser = OneLineParser(
        "beam_pipeline.generate",
        "Write simulated ping measurements, and the truth behind them, as Parquet.",
    )
    add_flags(parser, fields(Options))
    options = Options(**vars(parser.parse_args(argv)))
    folder = Path(options.output)
    with explained_os_errors("write", options.output):
        _prepare_folder(folder, overwrite=options.overwrite)
        network = build_network(options)
        _write_truth(network, folder / "truth")
        num_bytes, last_time_us = _write_measurements(network, options, folder)
    _print_summary(options, num_bytes, last_time_us)


# ---- files ----


def _prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Creates the folder; refuses or removes measurements from an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = list(folder.glob("measurements-*.parquet"))
    if finished and not overwrite:
        raise UsageError(
            f"--output={folder} already holds {len(finished)} measurements-*.parquet and must "
            "hold none; choose another folder or add --overwrite to replace them"
        )
    for path in [*finished, *folder.glob("measurements-*.parquet.*tmp")]:
        path.unlink()


def _write_truth(network: Network, folder: Path) -> None:
    """Writes the place, delay and loss rate of every node, to test a model against."""
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
        with atomic_write(str(folder / name)) as file:
            pq.write_table(pa.table(columns), file, compression="zstd")


def _places(nodes: Nodes, copies: int = 1) -> dict[str, NDArray[np.generic]]:
    return {
        "city": np.tile(CITIES["name"][nodes.city], copies),
        "latitude": np.tile(nodes.latitude, copies),
        "longitude": np.tile(nodes.longitude, copies),
    }


def _write_measurements(network: Network, options: Options, folder: Path) -> tuple[int, int]:
    """Streams all measurements into files of about equal length.

    Returns:
      The bytes of all files; the time of the last measurement, in microseconds since 1970.
    """
    num_files = options.count_files()
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
        with atomic_write(str(path)) as file:
            with pq.ParquetWriter(
                file,
                _WRITTEN_SCHEMA,
                compression="zstd",
                use_dictionary=["src_addr", "dst_addr", "ip_version"],  # pyright: ignore[reportArgumentType]
                store_schema=False,  # so that the dictionaries read back as plain strings
            ) as writer:
                for rows in itertools.islice(groups, len(sizes)):
                    writer.write_table(_to_table(rows, *addresses), row_group_size=_ROW_GROUP_ROWS)
                    last_time_us = int(rows["time_us"][-1])
            num_bytes += file.tell()
    return num_bytes, last_time_us


def _regroup(arrays: Iterable[np.ndarray], sizes: Iterable[int]) -> Iterator[np.ndarray]:
    """Regroups a stream of arrays into arrays of the given lengths."""
    stream = iter(arrays)
    held: list[np.ndarray] = []
    for size in sizes:
        while sum(map(len, held)) < size:
            held.append(next(stream))
        joined = held[0] if len(held) == 1 else np.concatenate(held)
        yield joined[:size]
        held = [joined[size:]]


def _to_table(rows: np.ndarray, sources: pa.Array, destinations: pa.Array) -> pa.Table:
    """Returns MEASUREMENT rows as Arrow; Parquet writes the dictionaries of addresses as is."""
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
    """Returns addresses[index]; the dictionary has only used entries, since all are written."""
    used = np.flatnonzero(np.bincount(index, minlength=len(addresses)))
    position = np.zeros(len(addresses), np.int32)
    position[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(position[index], addresses.take(pa.array(used)))


def _print_summary(options: Options, num_bytes: int, last_time_us: int) -> None:
    period = f"{time_text(options.start_us)} to {time_text(last_time_us)} UTC"
    print(f"measurements  {options.num_measurements:,}")
    print(f"probes        {options.num_probes:,}")
    print(f"files         {options.count_files():,} ({num_bytes:,} bytes)")
    print(f"period        {period}")
    print(f"truth         {Path(options.output)}/truth")
    source = shlex.quote(f"{Path(options.output)}/*.parquet")
    print(f"next: python -m beam_pipeline.main --input {source} --output OUT")


if __name__ == "__main__":
    sys.exit(main())
