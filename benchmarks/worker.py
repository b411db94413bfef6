"""What one thread of a worker needs, step by step: the job's own DoFns in a plain loop.

`measure` pre-groups one work unit, then sorts, cuts and writes one hot probe of simulated
measurements, whose chunks arrive one after the other, as from a shuffle service. Linux only.
"""

import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from array_record.python.array_record_module import ArrayRecordWriter

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import MAX_SHARD_RUN_BYTES, DatasetOptions
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.chunks import Chunk, store_chunks
from beam_pipeline.probe_rows.grouping import PreGroup, SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.pregroup import Grouped
from beam_pipeline.probe_rows.row_splitting import OpenRows, Segment
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter
from beam_pipeline.shards.staging import Records, StagedRecords, StageRecords
from beam_pipeline.shards.writing import ShardTarget, WriteShard
from beam_pipeline.sources.inputs import WorkUnit, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from benchmarks.measure import memory_mib
from benchmarks.scale import CHUNK_RECORDS, INLINE_BYTES, MIN_HOT_MEASUREMENTS


class Steps:
    """Figures by name: `STEP_mib`, the process's peak during a step, `_cpu_s` and `_wall_s`."""

    def __init__(self) -> None:
        _give_back_memory()
        self.figures: dict[str, float] = {"start_mib": memory_mib("VmRSS")}

    @contextmanager
    def measured(self, step: str) -> Iterator[None]:
        _give_back_memory()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.figures |= {
            f"{step}_mib": memory_mib("VmHWM"),
            f"{step}_cpu_s": time.process_time() - cpu,
            f"{step}_wall_s": time.perf_counter() - wall,
        }


def _give_back_memory() -> None:
    """Returns to the system what allocators keep of the steps before."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def chunks(num_measurements: int) -> Iterator[Chunk]:
    """Yields inline chunks of a probe, CHUNK_RECORDS each and later than the one before."""
    rng = np.random.default_rng(1)
    records = np.zeros(CHUNK_RECORDS, NARROW)
    records["event_time"] = np.sort(rng.integers(0, CHUNK_RECORDS, CHUNK_RECORDS)) * 1_000_000
    records["dst_lo"] = 0xC6336400 + rng.integers(0, 15, CHUNK_RECORDS)
    records["rtt"] = rng.gamma(3.0, 20.0, CHUNK_RECORDS)
    records["event_time"] += 1_700_000_000_000_000
    address, ends = np.uint64(addresses.MAPPED_IPV4 | 0xC0000201), np.array([0, CHUNK_RECORDS])
    probe = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.full(1, address)
    grouped = Grouped(*probe, records, ends, np.zeros(0, WIDE), np.zeros(2, np.int64))
    ((_, chunk),) = store_chunks(grouped, ClaimWriter("", "", INLINE_BYTES))
    for _ in range(num_measurements // CHUNK_RECORDS):
        yield Chunk(chunk.probes, records.tobytes(), chunk.wide, chunk.spans)
        records["event_time"] += CHUNK_RECORDS * 1_000_000


def run(unit: WorkUnit, num_measurements: int, folder: Path) -> dict[str, float]:
    """Takes all steps and returns their figures."""
    steps = Steps()
    options = parse(["--input=x", "--output=x"])[0].dataset_options()
    workspace = Workspace(str(folder), INLINE_BYTES)
    pregroup = PreGroup(ReadOptions(), workspace)
    with steps.measured("unit"):
        for _ in pregroup.process(unit):
            pass
    sort = SortBucket(workspace, options.row_format)
    sort.setup()
    with steps.measured("sort"):
        tagged = list(sort.process((0, chunks(num_measurements))))
    segments: list[tuple[str, Segment]] = [out.value for out in tagged]  # type: ignore[union-attr]
    rows = OpenRows(segments[0][0], [], 0, options.row_format, ClaimReader())
    with steps.measured("cut"):
        records = (
            probe_rows.describe(row, options) for _, part in segments for row in rows.append(part)
        )
        stored = staged(records, workspace, INLINE_BYTES)
    shard = _one_shard(stored)
    writer = shard_writer(
        folder, options, partial(probe_rows.encode, row_format=options.row_format)
    )
    with steps.measured("shard"):
        list(writer.process((0, shard), [1]))
        writer.teardown()
    steps.figures["shard_run_bytes"] = sum(map(_run_bytes, shard))
    steps.figures["spilled_bytes"] = sort._sorter.spilled_bytes
    return steps.figures


def staged(
    records: Iterable[Records], workspace: Workspace, inline_bytes: int
) -> list[StagedRecords]:
    """Stages records as one bundle does."""
    stage = StageRecords(workspace.below("records"), inline_bytes, probe_rows.ATTRIBUTES)
    stage.start_bundle()
    found = [out for some in records for out in stage.process(some, 0, GlobalWindow())]
    return found + [last.value for last in stage.finish_bundle()]


def _one_shard(parts: list[StagedRecords]) -> list[StagedRecords]:
    """Returns the first parts, which have as many bytes as a shard at most on average."""
    ends = np.cumsum([_run_bytes(part) for part in parts])
    return parts[: int(np.searchsorted(ends, MAX_SHARD_RUN_BYTES)) + 1]


def _run_bytes(part: StagedRecords) -> int:
    return int(part.batch(probe_rows.ATTRIBUTES)["length"].to_numpy().sum())


def shard_writer(
    folder: Path, options: DatasetOptions, encode: Callable[[list[bytes], pa.Table], list[bytes]]
) -> WriteShard:
    """Returns the DoFn that writes shards into a folder, ready to process one."""
    open_writer = partial(ArrayRecordWriter, options=options.array_record_options)
    prefix, template, temp = f"{folder}/shard", "-SSSSS-of-NNNNN", str(folder / "t")
    target = ShardTarget(
        prefix, "", template, open_writer, temp, probe_rows.ATTRIBUTES, encode=encode
    )
    writer = WriteShard([target])
    writer.setup()
    return writer


def measure(pattern: str, num_measurements: int) -> dict[str, float]:
    """Measures all steps, once their compiled code is loaded.

    Args:
      pattern: Parquet files; their first work unit is pre-grouped.
      num_measurements: of the hot probe, MIN_HOT_MEASUREMENTS or more.

    Returns:
      For each step the peak memory of the process, CPU and wall seconds, and for the probe
      "shard_run_bytes" and "spilled_bytes".
    """
    files = [inspect(file, ReadOptions()) for file in match_files([pattern])]
    unit = plan_units(files)[0]
    small = unit._replace(pieces=unit.pieces[:1])
    with tempfile.TemporaryDirectory(prefix="worker-") as folder:
        run(small, MIN_HOT_MEASUREMENTS, Path(folder) / "warm-up")
        return run(unit, num_measurements, Path(folder) / "run")
