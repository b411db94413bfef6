"""Bench: probe rows to batches of tokens, `training` and its peers.

    python -m benchmarks.loading --rounds 3

Datasets are made once. Every round runs all cases, each as a separate process, and begins with a
different one. The first dataset also runs with various workers and threads, and with a consumer
that sleeps to simulate a training step. Before the first round, caches are filled, and each loader
that compiles code runs once on each dataset, unmeasured. All runs, including failed ones, and their
medians go to results/.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import loading_table, runner
from benchmarks import results as results_files
from benchmarks.loading_cases import (
    DEFAULT_DATASETS,
    LOADERS,
    OF_TRAINING,
    SHAPES,
    Case,
    cases,
    folder_name,
    obstacle,
)
from benchmarks.results import Run
from benchmarks.runner import FIGURES, Bench, Found

_PACKAGES = ("array-record", "grain", "numba", "numpy", "pyarrow")
# For a batch of 256 the seed's sampler reads 16 rows: some six seconds if they have 8 MiB. And 20 M
# measurements make about 30 such rows, too few for 256 examples with different rows.
_SMALL_BATCH_SIZE = 32
_OPTIONS = ("seconds", "batch_size", "num_measurements", "seed")
_SHOWN = {"tokens_per_s": "tokens/s", "tokens_per_cpu_s": "tokens/CPU s", "peak_mib": "MiB"}


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("loading", "Compares loaders.")
    add = parser.add_argument
    runner.add_choices(parser, "--datasets", SHAPES, DEFAULT_DATASETS)
    runner.add_choices(parser, "--loaders", LOADERS, [*LOADERS][:-1], "; --gcs adds gcs")
    add("--gcs", action="store_true", help="read from the emulator at $STORAGE_EMULATOR_HOST, too")
    add("--num_workers", nargs="+", type=int, default=[0, 1, 2], help="on the first dataset")
    add("--num_threads", nargs="+", type=int, default=[0, 2], help="on the first dataset")
    add("--step_ms", type=float, default=100, help="simulated training step; 0: leave it out")
    add("--request_ms", type=float, default=50, help="of slow requests to gs://; 0: leave them out")
    add("--seconds", type=float, default=2, help="measured in each run")
    add("--batch_size", type=int, default=256)
    add("--num_measurements", type=int, default=20_000_000, help="small, mixed: a tenth of it")
    args = parser.parse_args(argv)
    if args.gcs and "gcs" not in args.loaders:
        args.loaders.append("gcs")
    options = {name: getattr(args, name) for name in _OPTIONS}
    options |= {"small_batch_size": min(_SMALL_BATCH_SIZE, args.batch_size), "stored": {}}
    bench = LoadingBench("loading", args, options, results_files.versions(_PACKAGES))
    for dataset in args.datasets:
        bench.make(dataset)
    varied = args.num_workers, args.num_threads, args.step_ms, args.request_ms
    wanted = cases(args.datasets, args.loaders, *varied)
    wanted = [case for case in wanted if bench.can_run(asdict(case), bench.obstacle(case))]
    bench.fill_caches(wanted)
    # Without its cache, a loader would be reported as reading from it.
    wanted = [case for case in wanted if bench.can_run(asdict(case), bench.empty_cache(case))]
    for number, case in bench.rounds(wanted):
        bench.keep(bench.load(case, number), _SHOWN)
    return bench.end(loading_table.markdown(bench.results))


class LoadingBench(Bench):
    """The bench with its datasets."""

    @property
    def stored(self) -> dict[str, dict]:
        """Facts of each dataset, by name; of its cache as cache."""
        return self.results.options["stored"]

    def obstacle(self, case: Case) -> str | None:
        """Returns the reason why a case cannot run, or None."""
        if reason := obstacle(case):
            return reason
        if case.dataset not in self.stored:
            return "the dataset could not be made"
        return None

    def empty_cache(self, case: Case) -> str | None:
        """Returns a reason if the cache of a case was not filled, or None."""
        is_filled = case.loader != "cache" or "cache" in self.stored[case.dataset]
        return None if is_filled else "its cache was not filled"

    def make(self, dataset: str) -> None:
        """Makes a dataset and records its size on disk."""
        args = self.args
        self.say(f"making {dataset}")
        given = (dataset, args.num_measurements, args.seed, args.data_dir)
        try:
            described = runner.call("benchmarks.loading_data:make", *given)
            rows = Path(described.pop("folder"))
            self.stored[dataset] = described
            if "gcs" in args.loaders and obstacle(Case(dataset, "gcs")) is None:
                endpoint = os.environ["STORAGE_EMULATOR_HOST"]
                target = self._bucket_folder(dataset)
                runner.call("benchmarks.engine_servers:upload", rows, target, endpoint)
        except RuntimeError as error:
            self.say(str(error))
            return
        runner.read_all(rows.rglob("*.arrayrecord"))

    def _folder(self, kind: str, dataset: str) -> Path:
        name = folder_name(kind, dataset, self.args.num_measurements, self.args.seed)
        return self.args.data_dir / name

    def _bucket_folder(self, dataset: str) -> str:
        return f"gs://probeline-bench/{self._folder('rows', dataset).name}"

    def fill_caches(self, wanted: Sequence[Case]) -> None:
        """Compiles code and fills the caches; records the time."""
        for case in wanted:
            if case.loader not in OF_TRAINING or not case.is_plain:
                continue
            cache = self._folder("cache", case.dataset)
            if case.loader == "cache":
                shutil.rmtree(cache, ignore_errors=True)
            run = self.load(case, 0, fill_only=True)
            self.warm_up(f"{case.loader} on {case.dataset}", run)
            files = [path for path in cache.rglob("*") if path.is_file()]
            num_bytes = sum(path.stat().st_size for path in files)
            if case.loader == "cache" and not run.error and num_bytes:
                filled = {"fill_s": run.figures["first_batch_of_build_s"], "file_bytes": num_bytes}
                self.stored[case.dataset]["cache"] = filled

    def load(self, case: Case, number: int, *, fill_only: bool = False) -> Run:
        """Runs a loader; with `fill_only`, only until its first batch."""

        def command(folder: Path) -> list[str]:
            output, started = folder / FIGURES, time.monotonic()
            module = "benchmarks.loading_process"
            flags = runner.module_command(
                module, output=output, started=started, **self._flags(case, folder)
            )
            return [*flags, *(["--fill_only"] if fill_only else [])]

        def check(folder: Path, printed: str) -> Found:
            return Found(json.loads((folder / FIGURES).read_text()))

        return self.measured(asdict(case), number, command, check)

    def _flags(self, case: Case, folder: Path) -> dict[str, object]:
        flags: dict[str, object] = {
            "loader": case.loader,
            "files": self._folder("rows", case.dataset) / "train",
            "batch_size": self.args.batch_size,
            "num_workers": case.num_workers,
            "num_threads": case.num_threads,
            "step_ms": case.step_ms,
            "request_ms": case.request_ms,
            "seconds": self.args.seconds,
        }
        if case.loader not in OF_TRAINING:
            flags["cycle"] = 1  # their load does not come in bursts
        if case.loader == "seed" or "8m" in case.dataset:
            flags["batch_size"] = self.results.options["small_batch_size"]
        if case.loader == "cache":
            filled = self._folder("cache", case.dataset)
            flags["cache_dir"] = folder / "cache" if case.request_ms else filled
        if case.is_on_gcs:
            flags["files"] = f"{self._bucket_folder(case.dataset)}/train"
        return flags


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
