"""One run of the loading bench: a loader feeds a consumer that counts tokens.

    python -m benchmarks.loading_process --loader=shards --files=rows/train --output=figures.json

Builds the loader, takes the first batch and checks its form, continues for --warm_up_s, measures
for --seconds, and writes {figure: number}, or {"error": reason}, to --output. A loader may prepare
all contexts of its rows together and then yield them over many batches, so whole cycles of --cycle
batches are measured, unless that would take over --longest_s.

  first_batch_s            from the start of this process (--started, monotonic seconds)
  first_batch_of_build_s   from the call that builds the dataset; its modules are imported before
  first_batch_requests     to gs:// until then, including the manifest and the row index
  tokens_per_s             real tokens, those whose targets_segmentation is not 0, per second
  tokens_per_cpu_s         the same per CPU second of this process and its workers
  padding                  share of a batch's positions without a real token
  num_batches              batches measured
  waiting                  share of the time that the consumer waited
  main_cpu, worker_cpu     CPU seconds per second, of this process and of each worker
  requests_per_batch       to gs://

--step_ms makes the consumer sleep after every batch, like a host with an accelerator. --request_ms
delays each request to gs://, as on a network. --fill_only ends after the first batch.
"""

import argparse
import contextlib
import faulthandler
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from benchmarks.loading_cases import LOADERS

CROP_SIZE = 1024
NAMES = tuple(
    f"{side}{suffix}"
    for side in ("inputs", "targets")
    for suffix in ("", "_segmentation", "_position")
)
_VOCABULARY_SIZE = 267

type Batches = Iterator[Mapping[str, np.ndarray]]


def loader(args: argparse.Namespace) -> Callable[[], Batches]:
    """Returns a builder of a loader's batches; only that loader is imported."""
    if args.loader == "seed":
        from benchmarks.peers import seed_sampler

        return partial(seed_sampler.batches, f"{args.files}/*.arrayrecord", args.batch_size)
    from training.dataset import DataConfig, build_dataset

    config = DataConfig(
        files=args.files,
        batch_size=args.batch_size,
        crop_size=CROP_SIZE,
        seed=0,
        shuffle=True,
        num_epochs=None,
        num_workers=args.num_workers,
        num_threads=args.num_threads,
        cache_dir=args.cache_dir,
    )
    return lambda: iter(build_dataset(config))


def fault(batch: Mapping[str, np.ndarray], batch_size: int) -> str | None:
    """Returns the fault of a batch's form, or None."""
    if sorted(batch) != sorted(NAMES):
        return f"a batch has {sorted(batch)}, not {sorted(NAMES)}"
    for name in NAMES:
        values = batch[name]
        if values.dtype != np.int32 or values.shape != (batch_size, CROP_SIZE):
            return f"{name} is {values.dtype} {values.shape}, not int32 {(batch_size, CROP_SIZE)}"
    for name in ("inputs", "targets"):
        if batch[name].min() < 0 or batch[name].max() >= _VOCABULARY_SIZE:
            return f"{name} has tokens outside of the vocabulary of {_VOCABULARY_SIZE}"
    if not batch["targets_segmentation"].any():
        return "a batch has no real token"
    return None


def measure(
    batches: Batches,
    seconds: float,
    *,
    step_s: float = 0,
    num_workers: int = 0,
    cycle: int = 1,
    longest_s: float = math.inf,
) -> dict[str, float]:
    """Takes whole cycles of batches, at least one, for some seconds; returns the figures."""
    num_batches = num_tokens = num_places = 0
    waited_s = 0.0
    main_before_s, workers_before_s = time.process_time(), workers_cpu_s()
    started = time.perf_counter()
    while True:
        asked = time.perf_counter()
        is_whole = num_batches > 0 and num_batches % cycle == 0
        if asked - started >= (seconds if is_whole else longest_s):
            break
        batch = next(batches)
        waited_s += time.perf_counter() - asked
        num_batches += 1
        num_tokens += np.count_nonzero(batch["targets_segmentation"])
        num_places += batch["targets_segmentation"].size
        if step_s:
            time.sleep(step_s)
    wall_s = time.perf_counter() - started
    main_s = time.process_time() - main_before_s
    workers_s = workers_cpu_s() - workers_before_s
    return {
        "tokens_per_s": num_tokens / wall_s,
        "tokens_per_cpu_s": num_tokens / (main_s + workers_s),
        "padding": 1 - num_tokens / num_places,
        "num_batches": num_batches,
        "waiting": waited_s / wall_s,
        "main_cpu": main_s / wall_s,
        "worker_cpu": workers_s / wall_s / max(num_workers, 1),
    }


def workers_cpu_s() -> float:
    """Returns the CPU seconds of all descendants, including ended ones."""
    ended = os.times()
    total = ended.children_user + ended.children_system
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
    return total


def run(args: argparse.Namespace) -> dict[str, float]:
    """Builds the loader and returns the figures.

    Raises:
      ValueError: its first batch is not of the right form.
    """
    if not args.files.startswith("gs://"):
        return _run(args, num_requests=None)
    from benchmarks import gcs_requests

    with gcs_requests.counted_requests(args.request_ms / 1000) as counts:
        return _run(args, lambda: gcs_requests.num_requests(counts))


def _run(args: argparse.Namespace, num_requests: Callable[[], int] | None) -> dict[str, float]:
    build = loader(args)
    build_started = time.monotonic()
    batches = build()
    first = next(batches)
    first_batch_at = time.monotonic()
    if wrong := fault(first, args.batch_size):
        raise ValueError(wrong)
    figures = {"first_batch_of_build_s": first_batch_at - build_started}
    if args.started is not None:
        figures["first_batch_s"] = first_batch_at - args.started
    if num_requests:
        figures["first_batch_requests"] = num_requests()
    if not args.fill_only:
        step_s = args.step_ms / 1000
        measure(batches, args.warm_up_s, step_s=step_s)
        before = num_requests() if num_requests else 0
        figures |= measure(
            batches,
            args.seconds,
            step_s=step_s,
            num_workers=args.num_workers,
            cycle=args.cycle,
            longest_s=args.longest_s,
        )
        if num_requests:
            figures["requests_per_batch"] = (num_requests() - before) / figures["num_batches"]
    if close := getattr(batches, "close", None):
        close()
    return figures


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One run of the loading bench.")
    add = parser.add_argument
    add("--loader", required=True, choices=LOADERS)
    add("--files", required=True, help="a split's folder")
    add("--output", required=True, type=Path)
    add("--batch_size", type=int, default=256)
    add("--num_workers", type=int, default=0)
    add("--num_threads", type=int, default=0)
    add("--cache_dir")
    add("--step_ms", type=float, default=0)
    add("--request_ms", type=float, default=0)
    add("--seconds", type=float, default=2)
    add("--cycle", type=int, default=32, help="batches, twice the contexts of a row")
    add("--longest_s", type=float, default=20)
    add("--warm_up_s", type=float, default=0.5)
    add("--timeout_s", type=float, default=600)
    add("--started", type=float)
    add("--fill_only", action="store_true")
    args = parser.parse_args(argv)
    faulthandler.dump_traceback_later(args.timeout_s, exit=True)
    try:
        found = run(args)
    except Exception as error:
        # Output of the exiting interpreter may hide the traceback's last line.
        args.output.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    args.output.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
