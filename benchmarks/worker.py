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

from beam_pipeline.dataset.layout import MAX_SHARD_RUN_BYTES
from beam_pipeline.dataset.options import DatasetOptions
from beam_pipeline.dataset.sorted_run import NARROW
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.external_sort import SortedRun
from beam_pipeline.probe_rows.grouping import PreGroup, SortProbe
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.row_splitting import OpenRows
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import Record, StagedRecord, StageRecords
from beam_pipeline.shards.writing import ShardEntry, ShardTarget, WriteShard
from beam_pipeline.sources.inputs import WorkUnit, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from benchmarks.scale import CHUNK_RECORDS, INLINE_BYTES, MIN_HOT_MEASUREMENTS

_SRC_ADDR = "192.0.2.1"


class Steps:
    """Figures by name: `STEP_mib`, the process's peak during a step, `_cpu_s` and `_wall_s`."""

    def __init__(self) -> None:
        _give_back_memory()
        self.figures: dict[str, float] = {"start_mib": _memory_mib("VmRSS")}

    @contextmanager
    def measured(self, step: str) -> Iterator[None]:
        _give_back_memory()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.figures |= {
            f"{step}_mib": _memory_mib("VmHWM"),
            f"{step}_cpu_s": time.process_time() - cpu,
            f"{step}_wall_s": time.perf_counter() - wall,
        }


def _give_back_memory() -> None:
    """Returns to the system what allocators keep of the steps before."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def _memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status[field].removesuffix("kB")) / 1024


def chunks(num_measurements: int) -> Iterator[SortedRun]:
    """Yields sorted inline chunks of CHUNK_RECORDS, each later than the one before."""
    rng = np.random.default_rng(1)
    records = np.zeros(CHUNK_RECORDS, NARROW)
    records["event_time"] = np.sort(rng.integers(0, CHUNK_RECORDS, CHUNK_RECORDS)) * 1_000_000
    records["dst_lo"] = 0xC6336400 + rng.integers(0, 15, CHUNK_RECORDS)
    records["rtt"] = rng.gamma(3.0, 20.0, CHUNK_RECORDS)
    records["event_time"] += 1_700_000_000_000_000
    for _ in range(num_measurements // CHUNK_RECORDS):
        yield SortedRun(False, records.tobytes())
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
    sort = SortProbe(workspace, options.row_format)
    sort.setup()
    with steps.measured("sort"):
        tagged = list(sort.process((_SRC_ADDR, chunks(num_measurements))))
    segments = [out.value[1] for out in tagged]  # type: ignore[union-attr]
    rows = OpenRows(_SRC_ADDR, [], 0, options.row_format, ClaimReader())
    with steps.measured("cut"):
        records = (
            probe_rows.stage_row(row, options) for part in segments for row in rows.append(part)
        )
        stored = staged(records, workspace, INLINE_BYTES)
    shard = _one_shard(stored)
    writer = shard_writer(
        folder, options, lambda data, row: probe_rows.encode(data, row, options.row_format)
    )
    with steps.measured("shard"):
        list(writer.process((0, [ShardEntry(row) for row in shard]), 1))
        writer.teardown()
    steps.figures["shard_run_bytes"] = sum(row.num_bytes for row in shard)
    steps.figures["spilled_bytes"] = sort._sorter.spilled_bytes
    return steps.figures


def staged(
    records: Iterable[Record], workspace: Workspace, inline_bytes: int
) -> list[StagedRecord]:
    """Stages records as one bundle does."""
    stage = StageRecords(workspace.below("records"), inline_bytes)
    stage.start_bundle()
    found = [out for record in records for out in stage.process(record, 0, GlobalWindow())]
    return found + [last.value for last in stage.finish_bundle()]


def _one_shard(rows: list[StagedRecord]) -> list[StagedRecord]:
    """Returns the first rows, as many as a shard has at most on average."""
    taken, num_bytes = [], 0
    for value in rows:
        taken.append(value)
        num_bytes += value.num_bytes
        if num_bytes >= MAX_SHARD_RUN_BYTES:
            break
    return taken


def shard_writer(
    folder: Path, options: DatasetOptions, encode: Callable[[bytes, bytes], bytes]
) -> WriteShard:
    """Returns the DoFn that writes shards into a folder, ready to process one."""
    open_writer = partial(ArrayRecordWriter, options=options.array_record_options)
    target = ShardTarget(
        f"{folder}/shard", "", "-SSSSS-of-NNNNN", open_writer, str(folder / "t"), encode=encode
    )
    writer = WriteShard(target)
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
