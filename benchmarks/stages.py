"""Where the job's CPU goes: its own DoFns in a plain loop, without a runner.

    python -m benchmarks.stages [--num_measurements 10000000]

Prints nanoseconds of CPU per measurement of each stage and writes them to results/. A whole run
takes more than their sum: the start of the interpreter, Beam, and the runner.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from beam_pipeline import generate
from beam_pipeline.dataset.options import RowFormat
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.bucket import Chunk
from beam_pipeline.probe_rows.grouping import PreGroup, RowsOrSegment, SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import LOCAL_INLINE_BYTES, parse
from beam_pipeline.probe_rows.row_splitting import CutRows, OpenRows
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import StagedRecords
from beam_pipeline.shards.writing import AssignToShards
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.results import Results
from benchmarks.worker import shard_writer, staged

NUM_SHARDS = 5


class Stopwatch:
    """CPU nanoseconds by stage."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Adds what the block takes to a stage."""
        started = time.process_time_ns()
        yield
        self.ns[stage] += time.process_time_ns() - started


def run(source: Path, folder: Path, watch: Stopwatch) -> None:
    """Runs all stages over the Parquet files of `source`."""
    options = parse([f"--input={source}/*.parquet", "--output=x"])[0].dataset_options()
    workspace = Workspace(str(folder), LOCAL_INLINE_BYTES)
    files = [inspect(file, ReadOptions()) for file in match_files([f"{source}/*.parquet"])]
    pregroup = PreGroup(ReadOptions(), workspace)
    buckets: dict[int, list[Chunk]] = defaultdict(list)
    with watch.time("read, check and pre-group"):
        elements = [element for unit in plan_units(files) for element in pregroup.process(unit)]
    for element in elements:
        if isinstance(element, tuple):
            buckets[element[0]].append(element[1])
    sort = SortBucket(workspace, options.row_format)
    sort.setup()
    with watch.time("sort each bucket"):
        outputs = [out for bucket in buckets.items() for out in sort.process(bucket)]
    with watch.time("cut rows"):
        rows = list(_cut(outputs, options.row_format))  # type: ignore[arg-type]
    with watch.time("describe rows"):
        records = [probe_rows.describe(some, options) for some in rows]
    with watch.time("stage rows"):
        parts = staged(records, workspace, LOCAL_INLINE_BYTES)
    shards: dict[int, list[StagedRecords]] = defaultdict(list)
    assign = AssignToShards(probe_rows.ATTRIBUTES)
    with watch.time("assign rows to shards"):
        for part in parts:
            for shard, rows_of_shard in assign.process(part, NUM_SHARDS):
                shards[shard].append(rows_of_shard)

    def encode(payloads: list[bytes], attributes: pa.Table) -> list[bytes]:
        with watch.time("encode rows"):
            return probe_rows.encode(payloads, attributes, options.row_format)

    writer = shard_writer(folder, options, encode)
    with watch.time("write shards"):
        for shard in shards.items():
            list(writer.process(shard, NUM_SHARDS))
    watch.ns["write shards"] -= watch.ns["encode rows"]


def _cut(outputs: Iterable[RowsOrSegment], row_format: RowFormat) -> Iterator[CutRows]:
    """Yields all rows; a probe's segments follow one another."""
    probe = None
    for out in outputs:
        if isinstance(out, CutRows):
            yield out
            continue
        src_addr, segment = out.value
        if probe is None or segment.seq == 0:
            probe = OpenRows(src_addr, [], 0, row_format, ClaimReader())
        yield from probe.append(segment)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU of each stage of the job.")
    parser.add_argument("--num_measurements", type=int, default=10_000_000)
    parser.add_argument("--num_probes", type=int, default=5000)
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="stages-") as folder:
        for name, size in (("warm", 20_000), ("in", args.num_measurements)):
            flags = [f"--num_measurements={size}", f"--num_probes={args.num_probes}"]
            generate.main([f"--output={folder}/{name}", *flags])
        run(Path(folder) / "warm", Path(folder) / "warm-up", Stopwatch())
        watch = Stopwatch()
        run(Path(folder) / "in", Path(folder) / "run", watch)
    per_measurement = {stage: ns / args.num_measurements for stage, ns in watch.ns.items()}
    shown = {**per_measurement, "sum": sum(per_measurement.values())}
    rows = [[stage, f"{ns:.0f}"] for stage, ns in shown.items()]
    print(md.table(["stage", "ns of CPU a measurement"], rows))
    options = {**vars(args), "results": None, "ns_per_measurement": per_measurement}
    found = Results("stages", datetime.now(UTC).isoformat(timespec="seconds"), options)
    results_files.save(found, results_files.path_for(found, args.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
