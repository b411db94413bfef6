"""Simulated measurements as Parquet files, and their ground truth."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from beam_pipeline.simulation.measurements import simulate
from beam_pipeline.simulation.network import CITIES, Network, Nodes
from beam_pipeline.simulation.options import NetworkOptions
from beam_pipeline.storage.files import atomic_write

# Dictionaries of addresses are written many times faster than text.
_ADDRESS = pa.dictionary(pa.int32(), pa.string())
_EVENT_TIME = pa.timestamp("us", tz="UTC")
WRITTEN_SCHEMA = pa.schema(
    [
        ("event_time", _EVENT_TIME),
        ("src_addr", _ADDRESS),
        ("dst_addr", _ADDRESS),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)

_ROW_GROUP_ROWS = 1 << 17


def write_truth(network: Network, folder: Path) -> None:
    """Writes the place, delay and loss rate of every node, to evaluate models against."""
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


def write_measurements(
    network: Network, options: NetworkOptions, num_files: int, folder: Path
) -> tuple[int, int]:
    """Writes all measurements to files of equal length; returns total bytes and the last time."""
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
                WRITTEN_SCHEMA,
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
    return pa.Table.from_arrays(columns, schema=WRITTEN_SCHEMA)


def _addresses_at(addresses: pa.Array, index: NDArray[np.int32]) -> pa.DictionaryArray:
    """Returns addresses[index]; the dictionary has only used entries, since all are written."""
    used = np.flatnonzero(np.bincount(index, minlength=len(addresses)))
    position = np.zeros(len(addresses), np.int32)
    position[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(position[index], addresses.take(pa.array(used)))
