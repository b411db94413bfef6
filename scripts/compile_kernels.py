"""Compiles the kernels that most users need, so that no first run waits for them.

python scripts/compile_kernels.py [--more]

Runs both jobs and the loader on a little data; numba keeps what it compiled beside the modules.
--more goes on to what developers and tests come to: large rows, rows read one by one, further
options of the overlap job.
A kernel that is missing here, or has changed since, is compiled when it is first called.
"""

import concurrent.futures
import contextlib
import dataclasses
import io
import json
import multiprocessing
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def run(more: bool) -> None:
    """Runs the steps, those that do not wait for each other in processes of their own."""
    rounds: list[tuple[Callable[[Path], None], ...]] = [(draw_batches, compare_texts)]
    if more:  # later: both rounds run the jobs
        rounds.append((draw_large_row, read_rows, compare_texts_again))
    started = time.monotonic()
    print("Compiling kernels, once for this environment …", flush=True)
    spawn = multiprocessing.get_context("spawn")  # Beam starts threads
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool,
    ):
        for steps in rounds:
            started_steps = [
                pool.submit(quietly, step, Path(folder, step.__name__)) for step in steps
            ]
            for step in started_steps:
                step.result()
    print(f"Kernels are compiled: {time.monotonic() - started:.0f} s", flush=True)


def quietly(step: Callable[[Path], None], folder: Path) -> None:
    """Runs a step and shows its output only if it fails."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            step(folder)
    except BaseException:
        print(output.getvalue())
        raise


def draw_batches(folder: Path) -> None:
    """Writes datasets of both encodings and draws batches of rows large and small."""
    from training.dataset import DataConfig, build_dataset

    for encoding in ("compact", "arrow"):
        rows = write_dataset(folder / encoding, encoding)
        config = DataConfig(files=str(rows / "train"), batch_size=4)
        for each in (
            config,
            dataclasses.replace(config, pack=False),
            dataclasses.replace(config, sampler="windows"),
            dataclasses.replace(config, cache_dir=str(folder / "cache")),
        ):
            next(iter(build_dataset(each)))


def draw_large_row(folder: Path) -> None:
    """Draws from a row of over 512 KiB, which is read where it lies in its shard."""
    from training.dataset import DataConfig, build_dataset

    rows = write_dataset(folder, "compact", num_probes=1, num_measurements=60_000)
    next(iter(build_dataset(DataConfig(files=str(rows), batch_size=4))))


def read_rows(folder: Path) -> None:
    """Reads the measurements of a row one by one and draws its examples, as a small row too."""
    from training.rows.row_source import ProbeRowDataSource
    from training.sampler import ProbeRowSampler

    for encoding in ("compact", "arrow"):
        row = ProbeRowDataSource(str(write_dataset(folder / encoding, encoding) / "train"))[0]
        list(row["measurements"])
        for crop_size in (1024, 1 << 17):
            next(ProbeRowSampler(crop_size).examples(row))


def write_dataset(
    folder: Path, encoding: str, num_probes: int = 20, num_measurements: int = 20_000
) -> Path:
    """Runs the probe-rows job, with IPv4 and IPv6 destinations; returns the dataset."""
    from beam_pipeline import generate, main

    measurements, rows = folder / "measurements", folder / "rows"
    size = f"--num_measurements={num_measurements}", f"--num_probes={num_probes}"
    generate.main([f"--output={measurements}", *size])
    flags = f"--input={measurements}", f"--output={rows}", f"--measurement_encoding={encoding}"
    succeed(main.main, *flags)
    return rows


def compare_texts(folder: Path, *flags: str) -> None:
    """Runs the overlap job on a few words."""
    from beam_pipeline.overlap.__main__ import main

    folder.mkdir()
    texts = folder / "texts.jsonl"
    texts.write_text(json.dumps({"id": "1", "text": " ".join(map(str, range(30)))}) + "\n")
    succeed(
        main,
        f"--input_path={texts}",
        f"--decontaminate_source={texts}",
        f"--output_path={folder / 'overlap'}",
        *flags,
    )


def compare_texts_again(folder: Path) -> None:
    """Runs the overlap job with options that take kernels of their own."""
    compare_texts(folder, "--ngram_length=1,2", "--max_document_frequency=2")


def succeed(program: Callable[[list[str]], int], *arguments: str) -> None:
    if program([*arguments]):
        raise RuntimeError(f"{program.__module__} {shlex.join(arguments)} failed")


if __name__ == "__main__":
    run("--more" in sys.argv[1:])
