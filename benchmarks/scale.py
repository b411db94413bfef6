"""Bench: the resources of the job per measurement, for runs that no single machine can hold.

    python -m benchmarks.scale --sizes 10m 100m

A run of 35 B measurements is represented by two parts: all of its probes for a slice of time, which
have its chunks and work units, and some of its probes for all of the time, which have its
histories. Also measured: short histories, ten or a hundred measurements for each of a million
probes or more; a hot probe; the job on Prism, on Flink and against a GCS emulator; and one work
unit and one bucket of a run of 35 B measurements, by the number of its probes. All use
--inline_bytes=65536, as on Dataflow, and otherwise the defaults. Results go to results/;
`benchmarks.estimate` computes costs from them.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import engines, runner
from benchmarks.engine_servers import GCS_EMULATOR, running_gcs_emulator, upload
from benchmarks.random_probes import write_measurements
from benchmarks.results import Run
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found, appears_whole

INLINE_BYTES = 64 << 10
CHUNK_RECORDS = 200
NUM_PROBES = 10_000  # about as many as RIPE Atlas has
PROBE_MEASUREMENTS = 2_500_000  # of each of few probes
MANY_SHARDS = 100
LARGE_RUN = 35_000_000_000  # measurements of the estimated run
MANY_PROBES = (NUM_PROBES, 1_000_000, 10_000_000, 3_500_000_000)  # of such a run
_BUCKET_TURNS = 3
_ENGINES = {"memory": "memory", "prism": "prism", "flink": "flink-2", "gcs": "memory-gcs"}


@dataclass(frozen=True)
class Shape:
    """A simulated input and how to run the job on it."""

    name: str
    num_measurements: int
    num_probes: int
    hot_share: float = 0.0
    place: str = "memory"  # of the run, or of its input and output: memory, prism, flink or gcs
    group_rows: int = 0  # rows pre-grouped at a time; 0 is the job's default
    num_shards: int = 0
    is_even: bool = False  # all probes have about as many measurements

    @property
    def case(self) -> dict[str, str | int]:
        """The shape as named in the results."""
        return {"shape": self.name, "place": self.place, "num_measurements": self.num_measurements}


def shapes(sizes: Sequence[int]) -> list[Shape]:
    """Returns the runs: two shapes at every size, the rest at the smallest or the largest."""
    small, large = min(sizes), max(sizes)
    wanted = [shape for size in sorted(sizes) for shape in (_all_probes(size), _few_probes(size))]
    wanted += [_short(small, 10, place) for place in ("memory", "prism", "flink")]
    wanted += [_short(large, length) for length in (100, 10)]
    wanted.append(Shape("a hot probe", large // 2, 1000, hot_share=0.96))
    wanted.append(_all_probes(small, "prism"))
    tenth = small // 10  # the difference shows costs that do not grow with the input
    wanted += [
        shape(size, "gcs") for shape in (_all_probes, _few_probes) for size in (tenth, small)
    ]
    wanted.append(Shape("many shards", tenth, NUM_PROBES, place="gcs", num_shards=MANY_SHARDS))
    return wanted


def _all_probes(size: int, place: str = "memory") -> Shape:
    return Shape("all probes", size, NUM_PROBES, place=place)


def _few_probes(size: int, place: str = "memory") -> Shape:
    num_probes = max(2, size // PROBE_MEASUREMENTS)
    return Shape("few probes", size, num_probes, 0.0, place, num_probes * CHUNK_RECORDS)


def _short(size: int, length: int, place: str = "memory") -> Shape:
    """Returns the shape of probes with `length` measurements on average."""
    return Shape(f"histories of {length}", size, size // length, place=place, is_even=True)


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("scale", "Measures what a far larger run would take.", rounds=1)
    sizes = [10_000_000, 100_000_000]
    parser.add_argument("--sizes", nargs="+", type=runner.number, default=sizes)
    args = parser.parse_args(argv)
    bench = Bench("scale", args, {"seed": args.seed, "inline_bytes": INLINE_BYTES})
    bench.warm_up("the job", _measured(bench, _all_probes(WARM_UP_MEASUREMENTS), 0))
    for number in range(args.rounds):
        for run in _round(bench, number):
            bench.keep(run)
    return bench.end()


def _round(bench: Bench, number: int) -> Iterator[Run]:
    """Yields a round's runs; records in the results what cannot run."""
    for shape in shapes(bench.args.sizes):
        if bench.can_run(shape.case, _obstacle(shape)):
            yield _measured(bench, shape, number)
    for turn in range(_BUCKET_TURNS):  # they take only seconds, so one may be disturbed
        for num_probes in MANY_PROBES:
            yield _bucket(bench, num_probes, number * _BUCKET_TURNS + turn)


def _obstacle(shape: Shape) -> str | None:
    """Returns the reason why the job cannot run on a shape here, or None."""
    return engines.obstacle(_ENGINES[shape.place])


def _data(bench: Bench, shape: Shape) -> Path:
    """Returns a folder with the shape's measurements."""
    flags = {name: getattr(shape, name) for name in ("num_measurements", "num_probes", "hot_share")}
    seed = bench.args.seed
    if shape.is_even:
        folder = bench.args.data_dir / f"even-{shape.num_measurements}-{shape.num_probes}-{seed}"
        if not folder.exists():
            with appears_whole(folder) as being_made:
                write_measurements(being_made, shape.num_measurements, shape.num_probes, seed)
        return folder
    name = f"scale-{shape.num_measurements}-{shape.num_probes}-{shape.hot_share:g}-{seed}"
    return runner.generated(bench.args.data_dir / name, **flags, seed=seed)


def _measured(bench: Bench, shape: Shape, number: int) -> Run:
    """Runs the job on a shape."""
    data = _data(bench, shape)
    with ExitStack() as stack:
        source, endpoint = f"{data}/*.parquet", ""
        if shape.place == "gcs":
            folder = bench.args.data_dir / "gcs-emulator"
            folder.mkdir(exist_ok=True)
            endpoint = stack.enter_context(running_gcs_emulator(str(GCS_EMULATOR), folder))
            for path in sorted(data.glob("*.parquet")):
                upload(path, f"gs://bench/in/{path.name}", endpoint)
            source = "gs://bench/in/*"

        def command(folder: Path) -> list[str]:
            return engines.job_command(
                _ENGINES[shape.place],
                endpoint,
                input=source,
                output="gs://bench/rows" if endpoint else folder / "rows",
                inline_bytes=INLINE_BYTES,
                group_rows=shape.group_rows or None,
                num_shards=shape.num_shards or None,
            )

        def check(_: Path, printed: str) -> Found:
            counters, requests = runner.json_lines(printed)[-2:]
            if counters["rows_read"] == shape.num_measurements:
                return Found(counters | requests)
            read, given = counters["rows_read"], shape.num_measurements
            return Found({}, f"{read:,} rows were read, not {given:,}")

        return bench.measured(shape.case, number, command, check)


def _bucket(bench: Bench, num_probes: int, number: int) -> Run:
    """Measures a work unit and a bucket of a large run with that many probes."""
    command = runner.call_command("benchmarks.many_probes:measure", num_probes, LARGE_RUN)
    return bench.measured(
        Shape("a unit and a bucket", LARGE_RUN, num_probes).case | {"num_probes": num_probes},
        number,
        lambda _: command,
        lambda _, printed: Found(runner.json_lines(printed)[-1]),
    )


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
