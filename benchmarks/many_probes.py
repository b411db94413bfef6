"""The cost of a run of 35 B measurements by its number of probes: one work unit, one bucket.

`measure` pre-groups a work unit whose rows are of random probes, then sorts, cuts and writes a
bucket, which has one ten-thousandth of the probes and a small chunk from every unit: the
job's own DoFns in a plain loop, payloads inline as on Dataflow. Linux only.
"""

import ctypes
import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from array_record.python.array_record_module import ArrayRecordWriter

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.probe_rows.bucket import MAX_BUCKETS
from beam_pipeline.probe_rows.chunks import Chunk, store_chunks
from beam_pipeline.probe_rows.grouping import PreGroup, SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.packets import Packet, PacketShards, PacketWriter
from beam_pipeline.probe_rows.pregroup import Grouped, rank
from beam_pipeline.probe_rows.row_splitting import OpenRows
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter
from beam_pipeline.shards.writing import ShardTarget, WriteShard
from beam_pipeline.sources.inputs import UNIT_ROWS, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from benchmarks.measure import memory_mib
from benchmarks.random_probes import (
    FIRST_DESTINATION,
    INTERVAL_US,
    NUM_DESTINATIONS,
    START_US,
    address_of,
    write_measurements,
)
from benchmarks.scale import INLINE_BYTES

_WARM_UP_MEASUREMENTS = 200_000  # of the bucket
_CHUNKS_AT_A_TIME = 1000


class _Steps:
    """Figures by name: `STEP_mib`, the process's peak during a step, `_cpu_s` and `_wall_s`."""

    def __init__(self) -> None:
        _give_back_memory()
        self.figures: dict[str, float] = {"start_mib": memory_mib("VmRSS")}

    @contextmanager
    def measured(self, step: str) -> Iterator[None]:
        _give_back_memory()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.figures |= {
            f"{step}_mib": memory_mib("VmHWM"),
            f"{step}_cpu_s": time.process_time() - cpu,
            f"{step}_wall_s": time.perf_counter() - wall,
        }


def _give_back_memory() -> None:
    """Returns the allocators' unused memory to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def _chunks(num_measurements: int, num_probes: int) -> Iterator[Chunk]:
    """Yields the inline chunks of a bucket, one per work unit, in time order."""
    rng = np.random.default_rng(num_probes)
    num_records, num_chunks = UNIT_ROWS // MAX_BUCKETS, num_measurements * MAX_BUCKETS // UNIT_ROWS
    own = MAPPED_IPV4 | address_of(np.arange(num_probes // MAX_BUCKETS)).astype(np.uint64)
    own = own[rank(np.zeros_like(own), own)[0]]  # the bucket's probes, in order
    for first in range(0, num_chunks, _CHUNKS_AT_A_TIME):
        some = np.arange(first, min(first + _CHUNKS_AT_A_TIME, num_chunks))
        probes = np.sort(rng.integers(0, len(own), (len(some), num_records)), axis=1)
        line = np.column_stack([np.ones(len(some), bool), np.diff(probes) != 0]).ravel()
        starts = np.flatnonzero(line)
        narrow = np.zeros(line.size, NARROW)
        elapsed = rng.integers(0, UNIT_ROWS, probes.shape) + some[:, None] * UNIT_ROWS
        narrow["event_time"] = (START_US + elapsed * INTERVAL_US).ravel()
        narrow["dst_lo"] = FIRST_DESTINATION + rng.integers(0, NUM_DESTINATIONS, line.size)
        narrow["rtt"] = rng.gamma(3.0, 20.0, line.size)
        bounds = np.append(starts, line.size)
        sort_groups(narrow, bounds)
        src_lo = own[probes.ravel()[starts]]
        wide = np.zeros(0, WIDE), np.zeros(len(bounds), np.int64)
        src_hi = np.zeros(len(starts), np.uint64)
        grouped = Grouped(starts // num_records, src_hi, src_lo, narrow, bounds, *wide)
        writer = ClaimWriter("", "", INLINE_BYTES)
        yield from (chunk for _, chunk in store_chunks(grouped, writer))


def _packets(chunks: list[Chunk], workspace: Workspace, options: DatasetOptions) -> list[Packet]:
    """Returns the packets of a bucket."""
    sort = SortBucket(workspace, options)
    sort.setup()
    split: OpenRows | None = None
    packets, long = [], PacketWriter(workspace, options)
    for out in sort.process((0, chunks)):
        if isinstance(out, Packet):
            packets.append(out)
        elif out.tag == SortBucket.SEGMENTS:
            src_addr, segment = out.value  # type: ignore[misc]
            if split is None:
                reader = ClaimReader(workspace.folder)
                split = OpenRows(src_addr, [], 0, options.row_format, reader)
            for row in split.append(segment):
                long.add_row(src_addr, *row)
            split = None if segment.is_last else split
    return packets + long.close()


def _bucket(steps: _Steps, num_measurements: int, num_probes: int, folder: Path) -> dict[str, int]:
    """Sorts, cuts and writes a bucket; returns its bytes and counts."""
    options = parse(["--input=x", "--output=x"])[0].dataset_options()
    workspace = Workspace(str(folder), INLINE_BYTES)
    chunks = list(_chunks(num_measurements, num_probes))
    with steps.measured("sort"):
        packets = _packets(chunks, workspace, options)
    open_writer = partial(ArrayRecordWriter, options=options.array_record_options)
    target = ShardTarget(f"{folder}/shard", "", "-SSSSS-of-NNNNN", open_writer, str(folder / "t"))
    writer = WriteShard([target], PacketShards(options.row_format, str(folder)))
    writer.setup()
    with steps.measured("write"):
        (written,) = writer.process((0, packets), [1])
        writer.teardown()
    stored = [payload for packet in packets for payload in (packet.rows, packet.run)]
    return {
        "grouped_by_probe_bytes": sum(8 + len(chunk.encode()) for chunk in chunks),
        "grouped_by_shard_bytes": sum(len(packet.encode()) for packet in packets),
        "packets": len(packets),
        "rows": sum(packet.num_rows for packet in packets),
        "payloads_stored": sum(not isinstance(payload, bytes) for payload in stored),
        "shard_bytes": written.info.num_bytes,
    }


def _unit(steps: _Steps, data: Path, folder: Path, rows_in_all: int) -> None:
    """Pre-groups the first work unit of some files, as one of a run of `rows_in_all`."""
    files = [inspect(file, ReadOptions()) for file in match_files([f"{data}/*.parquet"])]
    unit = plan_units(files)[0]._replace(rows_in_all=rows_in_all)
    pregroup = PreGroup(ReadOptions(), Workspace(str(folder), INLINE_BYTES))
    with steps.measured("unit"):
        num_chunks = sum(not isinstance(out, TaggedOutput) for out in pregroup.process(unit))
    steps.figures["unit_chunks"] = num_chunks


def measure(num_probes: int, num_measurements: int) -> dict[str, float]:
    """Measures all steps, once their compiled code is loaded.

    Args:
      num_probes: of the whole run, at least one per bucket.
      num_measurements: of the whole run.

    Returns:
      For "unit", "sort" and "write" CPU seconds, wall seconds and peak process memory; the
      rows of the unit, and the bucket's measurements, bytes and rows.
    """
    with tempfile.TemporaryDirectory(prefix="many-probes-") as name:
        folder = Path(name)
        write_measurements(folder / "unit", UNIT_ROWS, num_probes, seed=1)
        _bucket(_Steps(), _WARM_UP_MEASUREMENTS, num_probes, folder / "warm-up")
        _unit(_Steps(), folder / "unit", folder / "warm-up", num_measurements)
        steps, of_bucket = _Steps(), num_measurements // MAX_BUCKETS
        _unit(steps, folder / "unit", folder / "run", num_measurements)
        found = _bucket(steps, of_bucket, num_probes, folder / "run")
        return steps.figures | found | {"unit_rows": UNIT_ROWS, "measurements": of_bucket}
