"""Measurements of randomly drawn probes, whose number determines how many each has.

A simulated network gives most rows to few of its probes; here all have about as many, so that ten
million of them with ten measurements each are an input of 100 M rows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.addresses import format_ipv4
from beam_pipeline.simulation.files import WRITTEN_SCHEMA

START_US = 1_767_225_600_000_000  # 2026-01-01
INTERVAL_US = 50  # between two measurements
NUM_DESTINATIONS, FIRST_DESTINATION = 200, 0xC6336400
_FILE_ROWS, _ROW_GROUP_ROWS = 5_000_000, 1 << 17


def address_of(probe: np.ndarray) -> np.ndarray:
    """Returns IPv4 addresses, uint32 [n]; consecutive numbers have distant addresses."""
    return (probe.astype(np.uint32) * np.uint32(2_654_435_761)).astype(np.uint32)


def write_measurements(folder: Path, num_measurements: int, num_probes: int, seed: int) -> None:
    """Writes Parquet files of measurements in time order, each of a random probe."""
    rng = np.random.default_rng([seed, num_measurements, num_probes])
    folder.mkdir(parents=True, exist_ok=True)
    for file_start in range(0, num_measurements, _FILE_ROWS):
        file_end = min(file_start + _FILE_ROWS, num_measurements)
        path = folder / f"measurements-{file_start // _FILE_ROWS:05d}.parquet"
        with pq.ParquetWriter(
            path, WRITTEN_SCHEMA, compression="zstd", store_schema=False
        ) as writer:
            for start in range(file_start, file_end, _ROW_GROUP_ROWS):
                rows = min(_ROW_GROUP_ROWS, file_end - start)
                writer.write_table(_measurements(rng, start, rows, num_probes))


def _measurements(rng: np.random.Generator, start: int, rows: int, num_probes: int) -> pa.Table:
    """Returns measurements from number `start`."""
    probes, codes = np.unique(rng.integers(0, num_probes, rows), return_inverse=True)
    times = pa.array(START_US + (start + np.arange(rows)) * INTERVAL_US)
    columns = [
        times.cast(WRITTEN_SCHEMA.field("event_time").type),
        pa.DictionaryArray.from_arrays(codes.astype(np.int32), format_ipv4(address_of(probes))),
        pa.DictionaryArray.from_arrays(
            rng.integers(0, NUM_DESTINATIONS, rows, dtype=np.int32),
            format_ipv4(FIRST_DESTINATION + np.arange(NUM_DESTINATIONS, dtype=np.uint32)),
        ),
        pa.repeat(pa.scalar(4, pa.int8()), rows),
        pa.array(rng.gamma(3.0, 20.0, rows).astype(np.float32)),
    ]
    return pa.Table.from_arrays(columns, schema=WRITTEN_SCHEMA)
