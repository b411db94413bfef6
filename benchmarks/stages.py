"""Where the job's CPU goes: its own DoFns in a plain loop, without a runner.

    python -m benchmarks.stages [--num_measurements 10000000]

Prints nanoseconds of CPU a measurement, stage by stage, and writes them to results/. What a whole
run takes beyond their sum is the start of the interpreter, Beam, and the runner.
"""

import argparse
import collections
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apache_beam.transforms.window import GlobalWindow
from rich.console import Console
from rich.table import Table

from beam_pipeline import generate
from beam_pipeline.array_record_io import ArrayRecordFraming
from beam_pipeline.dataset.layout import DatasetOptions, shard_of
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.external_sort import SortedRun
from beam_pipeline.probe_rows.grouping import PreGroup, SortProbe
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.row_splitting import CutRow, OpenRows
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import StagedRecord, StageRecords
from beam_pipeline.shards.writing import ShardEntry, ShardTarget, WriteShard
from beam_pipeline.sources.inputs import ReadOptions, inspect, match_files, plan_units
from benchmarks import results as results_files
from benchmarks.results import Results

NUM_SHARDS = 5


class Stopwatch:
    """CPU nanoseconds by stage."""

    def __init__(self) -> None:
        self.ns: collections.Counter[str] = collections.Counter()

    def time(self, stage: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function; a generator is run to its end."""
        started = time.process_time_ns()
        value = function(*args)
        if isinstance(value, Iterator):
            value = list(value)
        self.ns[stage] += time.process_time_ns() - started
        return value


def run(source: Path, folder: Path, watch: Stopwatch) -> None:
    """Runs all stages over the Parquet files of `source`."""
    options = parse([f"--input={source}/*.parquet", "--output=x"])[0].dataset_options()
    workspace = Workspace(str(folder), inline_bytes=256)
    rows = list(_rows(source, workspace, options, watch))
    stage = StageRecords(workspace.below("records"), 256)
    stage.start_bundle()
    staged: list[StagedRecord] = []
    for row in rows:
        record = watch.time("describe rows", probe_rows.stage_row, row, options)
        staged += watch.time("stage rows", stage.process, record, 0, GlobalWindow())
    staged += [value.value for value in watch.time("stage rows", stage.finish_bundle)]
    _write(staged, folder, options, watch)


def _rows(
    source: Path, workspace: Workspace, options: DatasetOptions, watch: Stopwatch
) -> Iterable[CutRow]:
    files = [inspect(*file, ReadOptions()) for file in match_files([f"{source}/*.parquet"])]
    pregroup = PreGroup(ReadOptions(), workspace)
    groups: dict[str, list[SortedRun]] = collections.defaultdict(list)
    for unit in plan_units(files):
        for element in watch.time("read, check and pre-group", pregroup.process, unit):
            if isinstance(element, tuple):
                groups[element[0]].append(element[1])
    sort = SortProbe(workspace, options.row_format)
    sort.setup()
    for src_addr, chunks in groups.items():
        segments = []
        for out in watch.time("sort each probe", sort.process, (src_addr, chunks)):
            if isinstance(out, CutRow):
                yield out
            else:
                segments.append(out.value[1])
        rows = OpenRows(src_addr, [], 0, options.row_format, ClaimReader())
        for segment in segments:
            yield from watch.time("cut rows", rows.append, segment)


def _write(
    staged: list[StagedRecord], folder: Path, options: DatasetOptions, watch: Stopwatch
) -> None:
    def encode(data: bytes, attributes: bytes) -> bytes:
        return watch.time("encode rows", probe_rows.encode, data, attributes, options.row_format)

    framing = ArrayRecordFraming(options.array_record_options)
    target = ShardTarget(
        f"{folder}/shard", "", "-SSSSS-of-NNNNN", framing, str(folder / "t"), encode=encode
    )
    writer = WriteShard(target)
    writer.setup()
    shards: dict[int, list[ShardEntry]] = collections.defaultdict(list)
    for record in staged:
        shards[shard_of(record.key, NUM_SHARDS)].append(ShardEntry(record))
    for shard in shards.items():
        watch.time("write shards", writer.process, shard, NUM_SHARDS)
    watch.ns["write shards"] -= watch.ns["encode rows"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU of each stage of the job.")
    parser.add_argument("--num_measurements", type=int, default=10_000_000)
    parser.add_argument("--num_probes", type=int, default=5000)
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="stages-") as folder:
        source = Path(folder) / "in"
        for name, size in (("warm", 20_000), ("in", args.num_measurements)):
            flags = [f"--num_measurements={size}", f"--num_probes={args.num_probes}"]
            generate.main([f"--output={folder}/{name}", *flags])
        run(Path(folder) / "warm", Path(folder) / "warm-up", Stopwatch())
        watch = Stopwatch()
        run(source, Path(folder) / "run", watch)
    per_measurement = {stage: ns / args.num_measurements for stage, ns in watch.ns.items()}
    table = Table("stage", "ns of CPU a measurement")
    for stage, ns in [*per_measurement.items(), ("sum", sum(per_measurement.values()))]:
        table.add_row(stage, f"{ns:.0f}")
    Console().print(table)
    options = {**vars(args), "results": None, "ns_per_measurement": per_measurement}
    found = Results("stages", datetime.now(UTC).isoformat(timespec="seconds"), options)
    results_files.save(found, results_files.path_for(found, args.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
