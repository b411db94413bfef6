"""Compiles the kernels that most users need, so that no first run waits for them.

python scripts/compile_kernels.py

Runs both jobs and the loader on a little data; numba keeps what it compiled beside the modules.
A kernel that is missing here, or has changed since, is compiled when it is first called.
"""

import concurrent.futures
import contextlib
import dataclasses
import io
import json
import multiprocessing
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def run() -> None:
    """Runs the steps, those that do not wait for each other in processes of their own."""
    started = time.monotonic()
    print("Compiling kernels, once for this environment …", flush=True)
    spawn = multiprocessing.get_context("spawn")  # Beam starts threads
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool,
    ):
        steps = [
            pool.submit(quietly, step, Path(folder, step.__name__))
            for step in (draw_batches, compare_texts)
        ]
        for step in steps:
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


def write_dataset(folder: Path, encoding: str) -> Path:
    """Runs the probe-rows job, with IPv4 and IPv6 destinations; returns the dataset."""
    from beam_pipeline import generate, main

    measurements, rows = folder / "measurements", folder / "rows"
    generate.main([f"--output={measurements}", "--num_measurements=20000", "--num_probes=20"])
    flags = f"--input={measurements}", f"--output={rows}", f"--measurement_encoding={encoding}"
    succeed(main.main, *flags)
    return rows


def compare_texts(folder: Path) -> None:
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
    )


def succeed(program: Callable[[list[str]], int], *arguments: str) -> None:
    if program([*arguments]):
        raise RuntimeError(f"{program.__module__} {shlex.join(arguments)} failed")


if __name__ == "__main__":
    run()
