"""Where the job's CPU goes: its own DoFns in a plain loop, without a runner.

    python -m benchmarks.stages [--num_measurements 10000000]

Prints nanoseconds of CPU per measurement of each stage and writes them to results/. A whole run
takes more than their sum: the start of the interpreter, Beam, and the runner. A second table has
one probe that exceeds the memory: its segments, written and read, against rows that are cut in the
sort's own stream, which no code but this does.
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
from statistics import median

import numpy as np
import pyarrow as pa

from beam_pipeline import generate
from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, join, sort_groups
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.bucket import Bucket, LargeHistory
from beam_pipeline.probe_rows.chunks import Chunk, store_chunks
from beam_pipeline.probe_rows.external_sort import ExternalSort
from beam_pipeline.probe_rows.grouping import (
    SORT_MEMORY_BYTES,
    PreGroup,
    RowsOrSegment,
    SortBucket,
)
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import LOCAL_INLINE_BYTES, parse
from beam_pipeline.probe_rows.pregroup import Grouped
from beam_pipeline.probe_rows.row_splitting import CutRows, OpenRows, cut
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter
from beam_pipeline.shards.staging import StagedRecords
from beam_pipeline.shards.writing import AssignToShards
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.results import Results
from benchmarks.scale import MIN_HOT_MEASUREMENTS
from benchmarks.worker import shard_writer, staged

NUM_SHARDS = 5
HOT_CHUNK_RECORDS = 200_000  # a tenth of a work unit
HOT_ROUNDS = 3


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
            for shard, rows_of_shard in assign.process(part, [NUM_SHARDS]):
                shards[shard].append(rows_of_shard)

    def encode(payloads: list[bytes], attributes: pa.Table) -> list[bytes]:
        with watch.time("encode rows"):
            return probe_rows.encode(payloads, attributes, options.row_format)

    writer = shard_writer(folder, options, encode)
    with watch.time("write shards"):
        for shard in shards.items():
            list(writer.process(shard, [NUM_SHARDS]))
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


def run_hot(num_measurements: int, folder: Path, watch: Stopwatch) -> None:
    """Sorts and cuts one probe, whose chunks of HOT_CHUNK_RECORDS do not overlap, in both ways."""
    row_format = parse(["--input=x", "--output=x"])[0].dataset_options().row_format
    workspace = Workspace(str(folder), 0)
    chunks = [
        chunk
        for number in range(num_measurements // HOT_CHUNK_RECORDS)
        for chunk in _hot_chunks(number, number, workspace)
    ]
    overlapping = [
        chunk for number in range(len(chunks)) for chunk in _hot_chunks(number, 0, workspace)
    ]
    sort = SortBucket(workspace, row_format)
    sort.setup()
    with watch.time("sort, write segments"):
        outputs = list(sort.process((0, chunks)))
    with watch.time("read and cut segments"):
        of_segments = [row.counts for row in _cut(outputs, row_format)]  # type: ignore[arg-type]
    with watch.time("sort chunks of the same hour, write segments"):
        for _ in sort.process((0, overlapping)):
            pass
    reader = ClaimReader(str(folder))
    with watch.time("sort and cut in one stream"):
        bucket = Bucket(chunks, reader, SORT_MEMORY_BYTES, str(folder))
        (history,) = bucket.histories()
        assert isinstance(history, LargeHistory)
        blocks = ExternalSort(str(folder), reader, SORT_MEMORY_BYTES).sort(history.runs)
        of_stream = [row.counts for row in _cut_stream(blocks, row_format)]
    assert of_stream == of_segments


def _hot_chunks(number: int, hour: int, workspace: Workspace) -> Iterator[Chunk]:
    rng = np.random.default_rng(number)
    records = np.zeros(HOT_CHUNK_RECORDS, NARROW)
    seconds = np.sort(rng.integers(0, 3600, len(records))) + 3600 * hour
    records["event_time"] = (1_700_000_000 + seconds) * 1_000_000
    records["dst_lo"] = rng.integers(0, 1 << 32, len(records))
    records["rtt"] = rng.gamma(3.0, 20.0, len(records))
    bounds = np.array([0, len(records)])
    sort_groups(records, bounds)
    writer = ClaimWriter(f"{workspace.folder}/chunks", "unit", root=workspace.folder)
    probe = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.full(1, MAPPED_IPV4 + 1, np.uint64)
    chunks = store_chunks(Grouped(*probe, records, bounds, np.zeros(0, WIDE), 0 * bounds), writer)
    writer.close()
    return (chunk for _, chunk in chunks)


def _cut_stream(blocks: Iterable[np.ndarray], row_format: RowFormat) -> Iterator[CutRows]:
    """Cuts consecutive blocks of a history into rows, with one row and one block in memory."""
    rest, index = np.zeros(0, NARROW), 0
    for block in blocks:
        rest, at = join([rest, block]), 0
        for row in cut(rest, RowKey("192.0.2.1", index), row_format, is_last=False):
            yield row
            index, at = index + 1, at + row.counts[0]
        rest = rest[at:]
    yield from cut(rest, RowKey("192.0.2.1", index), row_format)


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
        run_hot(MIN_HOT_MEASUREMENTS, Path(folder) / "warm-hot", Stopwatch())
        hot = [Stopwatch() for _ in range(HOT_ROUNDS)]
        for number, hot_watch in enumerate(hot):
            run_hot(args.num_measurements, Path(folder) / f"hot-{number}", hot_watch)
    per_measurement = {stage: ns / args.num_measurements for stage, ns in watch.ns.items()}
    shown = {**per_measurement, "sum": sum(per_measurement.values())}
    of_hot = {
        stage: [round(one.ns[stage] / args.num_measurements, 1) for one in hot]
        for stage in hot[0].ns
    }
    for title, table in (
        ("stage", shown),
        ("one probe", {stage: median(rounds) for stage, rounds in of_hot.items()}),
    ):
        rows = [[stage, f"{ns:.0f}"] for stage, ns in table.items()]
        print(md.table([title, "ns of CPU a measurement"], rows))
    options = {
        **vars(args),
        "results": None,
        "ns_per_measurement": per_measurement,
        "hot_probe_ns_per_measurement": of_hot,
    }
    found = Results("stages", datetime.now(UTC).isoformat(timespec="seconds"), options)
    results_files.save(found, results_files.path_for(found, args.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
