"""The networks of benchmarks.arena, each as a dataset that one command makes.

    python -m benchmarks.networks small reroute
    python -m benchmarks.networks planetlab --planetlab=planetlab.parquet

  simulated  8,000 probes, which ping 10 to 20 of 50 destinations each; noise of 2 %
  small      100 probes, 50 to 100 of 100 destinations; log-normal noise of sigma 0.5, in 5 % of the
             pairs half of the RTTs times 3; 10 ms to 3 s
  reroute    2,000 probes; at half time the RTTs of half of the pairs change, by a factor of
             sigma 0.5, to stay
  drifting   99 hosts ping each other for three hours: the level of each host drifts, that of a pair
             jumps now and then, noise differs by pair, 3 % of the RTTs are 1.5 to 6 times too long
             and 2 % of the pings fail; no recipe was tuned on it
  planetlab  RTTs between 490 nodes, measured; docs/learning.md names the source

The dataset goes to build/arena/NAME/rows; one that is there is kept.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.dataset.layout import split_of
from beam_pipeline.errors import UsageError
from beam_pipeline.probe_rows.options import Options
from benchmarks import ROOT, runner
from benchmarks.runner import module_command

FOLDER = ROOT / "build" / "arena"


class Network(NamedTuple):
    """The flags of a simulation, and what becomes of its RTTs."""

    flags: tuple[str, ...]
    changed: Callable[["Pings"], np.ndarray] | None = None


class Pings(NamedTuple):
    """Answered pings in the order of time: arrays [pings]."""

    second: np.ndarray  # float64, since the first
    rtt_ms: np.ndarray  # float64
    pair: np.ndarray  # int64, below num_pairs
    num_pairs: int


def _noisy(pings: Pings) -> np.ndarray:
    rng = np.random.default_rng(2)
    is_bimodal = rng.random(pings.num_pairs) < 0.05
    # The simulator's 4 to 350 ms, stretched to 10 to 1,500 before the noise.
    rtt_ms = 2.1 * pings.rtt_ms**1.12 * rng.lognormal(0, 0.5, len(pings.rtt_ms))
    rtt_ms[is_bimodal[pings.pair] & (rng.random(len(rtt_ms)) < 0.5)] *= 3
    return np.clip(rtt_ms, 10, 3000)


def _rerouted(pings: Pings) -> np.ndarray:
    rng = np.random.default_rng(2)
    factor = rng.lognormal(0, 0.5, pings.num_pairs)
    factor[rng.random(pings.num_pairs) < 0.5] = 1
    is_late = pings.second >= pings.second[-1] / 2
    return pings.rtt_ms * np.where(is_late, factor[pings.pair], 1)


NETWORKS = {
    "simulated": Network(("--num_measurements=10000000", "--num_probes=8000", "--num_anchors=50")),
    "small": Network(
        (
            *("--num_measurements=2000000", "--num_probes=100", "--num_anchors=100"),
            *("--max_destinations=100", "--ipv6_share=0"),
        ),
        _noisy,
    ),
    "reroute": Network(
        ("--num_measurements=3000000", "--num_probes=2000", "--num_anchors=50"), _rerouted
    ),
}
DRIFTING, PLANETLAB = "drifting", "planetlab"
NAMES = (*NETWORKS, DRIFTING, PLANETLAB)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; the dataset is incomplete")


def _run(argv: Sequence[str]) -> None:
    parser = OneLineParser("benchmarks.networks", "Makes the datasets of benchmarks.arena.")
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    add_flags(parser)
    parser.add_argument("--data_dir", type=Path, default=FOLDER, help="where to")
    args = parser.parse_args(argv)
    for name in args.names:
        print(make(name, args.data_dir, args.planetlab))


def add_flags(parser: OneLineParser) -> None:
    """Adds the flag for measured RTTs."""
    parser.add_argument(
        "--planetlab",
        type=Path,
        metavar="PATH",
        help="PlanetLab's matrices: their folder, or their measurements in one Parquet file",
    )


def make(name: str, folder: Path, measured: Path | None = None) -> Path:
    """Returns the dataset of a network, made if it is not there; the seed of the data is 1.

    A name that is not of NAMES is a dataset's folder.
    """
    if name not in NAMES:
        return Path(name).absolute()
    work = folder.absolute() / name
    measurements, rows = work / "measurements", work / "rows"
    if (rows / "_SUCCESS").exists():
        return rows
    if not measurements.exists():
        with runner.appears_whole(measurements) as being_made:
            if name in NETWORKS:
                _simulate(NETWORKS[name], being_made)
            else:
                table = read_planetlab(measured) if name == PLANETLAB else drifting_pings()
                being_made.mkdir()
                pq.write_table(table, being_made / "all.parquet")
    _python("beam_pipeline.main", f"--input={measurements}/*.parquet", f"--output={rows}")
    return rows


def _python(module: str, *arguments: str) -> None:
    subprocess.run([*module_command(module), *arguments], cwd=ROOT, check=True)


def _simulate(network: Network, folder: Path) -> None:
    _python("beam_pipeline.generate", f"--output={folder}", *network.flags, "--seed=1")
    if network.changed:
        files = sorted(folder.glob("*.parquet"))
        table = pa.concat_tables(map(pq.read_table, files))
        pq.write_table(_changed(table, network.changed), folder / "changed.parquet")
        for file in files:
            file.unlink()


def _changed(table: pa.Table, changed: Callable[[Pings], np.ndarray]) -> pa.Table:
    rtt_ms = table["rtt"].to_numpy().astype(np.float64)
    answered = np.flatnonzero(rtt_ms >= 0)
    time_us = table["event_time"].cast(pa.int64()).to_numpy()
    source, destination = (
        pc.rank(table[name], tiebreaker="dense").to_numpy().astype(np.int64) - 1
        for name in ("src_addr", "dst_addr")
    )
    num_destinations = int(destination.max()) + 1
    pings = Pings(
        (time_us - time_us[0])[answered] / 1e6,
        rtt_ms[answered],
        (source * num_destinations + destination)[answered],
        (int(source.max()) + 1) * num_destinations,
    )
    rtt_ms[answered] = changed(pings)
    return table.set_column(4, "rtt", pa.array(rtt_ms.astype(np.float32)))


def drifting_pings() -> pa.Table:
    """Simulates the network `drifting`; no host pings one of the test split."""
    rng, num_hosts, num_rounds = np.random.default_rng(7), 99, 240
    hosts = [f"10.2.0.{i + 1}" for i in range(num_hosts)]
    access_ms = rng.lognormal(np.log(40), 1, num_hosts)
    place = rng.uniform(0, 1, (num_hosts, 2))
    path_ms = 80 * np.linalg.norm(place[:, None] - place, axis=2)
    detour = rng.lognormal(0, 0.35, path_ms.shape)
    base_ms = np.clip((access_ms[:, None] + access_ms + path_ms) * detour, 10, 2500)
    noise = np.exp(rng.uniform(np.log(0.02), np.log(0.25), path_ms.shape))
    drift = np.exp(np.cumsum(rng.normal(0, 0.01, (num_rounds, num_hosts)), axis=0))
    source, destination = np.nonzero(~np.eye(num_hosts, dtype=bool) & ~_are_held_out(hosts))
    num_pairs = len(source)
    level_of_pair = np.ones(num_pairs)
    times_us, rtts_ms = [], []
    for number, level_of_host in enumerate(drift):
        jumps = rng.random(num_pairs) < 0.003
        level_of_pair[jumps] = rng.lognormal(0, 0.4, jumps.sum())
        rtt_ms = base_ms[source, destination] * level_of_pair
        rtt_ms *= level_of_host[source]
        rtt_ms *= level_of_host[destination]
        rtt_ms *= rng.lognormal(0, noise[source, destination])
        is_spike = rng.random(num_pairs) < 0.03
        rtt_ms[is_spike] *= rng.uniform(1.5, 6, is_spike.sum())
        rtt_ms = np.clip(rtt_ms, 5, 3000)
        rtt_ms[rng.random(num_pairs) < 0.02] = -1
        rtts_ms.append(rtt_ms)
        times_us.append(number * 45_000_000 + rng.integers(0, 44_000_000, num_pairs))
    return pa.table(
        {
            "event_time": pa.array(
                1_450_000_000_000_000 + np.concatenate(times_us), pa.timestamp("us")
            ),
            "src_addr": pa.array(hosts).take(pa.array(np.tile(source, num_rounds))),
            "dst_addr": pa.array(hosts).take(pa.array(np.tile(destination, num_rounds))),
            "ip_version": pa.array(np.full(num_pairs * num_rounds, 4, np.int8)),
            "rtt": pa.array(np.round(np.concatenate(rtts_ms), 3).astype(np.float32)),
        }
    )


# --- PlanetLab ------------------------------------------------------------------------------------
#
# PlanetLabData_1 and so on hold one slice of time each: one line per source, one column per
# destination, in ms, without addresses and times. Node i becomes 10.1.h.l, with i = 256 h + l. A
# slice lasts 14.7 hours, the first from 1.4e9 seconds after 1970, and in it all sources ping the
# next destination every 108 seconds. A node's RTT to itself is omitted.

_NAME = re.compile(r"PlanetLabData_(\d+)")
_FIRST_SECOND = 1_400_000_000
_SECONDS_A_DESTINATION = 108
_SECONDS_A_SLICE = 52_920


def read_planetlab(path: Path | None) -> pa.Table:
    """Reads measurements, or matrices from a folder, except those to nodes of the test split.

    Each node is also a destination: for a held-out probe's address to be new to the model, training
    must not ping it.
    """
    if not path or not path.exists():
        raise UsageError("planetlab needs --planetlab=PATH: docs/learning.md names the source")
    table = pq.read_table(path) if path.is_file() else pa.concat_tables(_slices(path))
    nodes = pc.unique(pc.cast(table["src_addr"], pa.string())).to_pylist()
    train = pa.array(nodes).filter(pa.array(~_are_held_out(nodes)))
    return table.filter(pc.is_in(table["dst_addr"].cast(pa.string()), train))


def _are_held_out(nodes: Sequence[str]) -> np.ndarray:
    """Returns whether each node is of the test split, bool [nodes]."""
    split = [split_of(node, Options.train_ratio, Options.split_seed) for node in nodes]
    return np.array(split, bool)


def _slices(folder: Path) -> Iterator[pa.Table]:
    found = {int(m[1]): path for path in folder.glob("*") if (m := _NAME.fullmatch(path.name))}
    if not found:
        raise UsageError(f"{folder} has no file PlanetLabData_1: name the folder that has")
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


if __name__ == "__main__":
    sys.exit(main())
