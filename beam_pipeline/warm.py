"""Compiles the kernels that most users need, so that no first run waits for them.

  probeline warm

Runs both jobs and the loader on a little data. What is compiled is kept in the user's cache folder
(`beam_pipeline.kernels`). A kernel that is missing here is compiled when it is first called.
"""

import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import io
import json
import multiprocessing
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from beam_pipeline.cli.command import run_command, tidy_up_on_signals
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError

Step = Callable[[Path], None]


def make_parser() -> OneLineParser:
    """Returns the parser of the command line."""
    parser = OneLineParser(
        "beam_pipeline.warm",
        "Compile the kernels of the jobs and of the loader, so that no first run waits for them.",
        "overlap",
    )
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"one of {', '.join(PARTS)} (all whose packages are installed)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped")


def _run(argv: Sequence[str]) -> None:
    parts = make_parser().parse_args(argv).parts
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"there is no part {part}: give {', '.join(PARTS)}, or none for all")
    missing = {
        package: part
        for part in parts or PARTS
        for package in ("apache_beam", *(("grain",) if part == "batches" else ()))
        if importlib.util.find_spec(package) is None
    }
    if missing and (parts or "apache_beam" in missing):
        package, part = next(iter(missing.items()))
        raise ModuleNotFoundError(f"warm {part} needs {package}", name=package)
    chosen = [part for part in parts or PARTS if part not in missing.values()]
    compile_by([[PARTS[part] for part in chosen]])


def compile_by(rounds: Sequence[Sequence[Step]]) -> None:
    """Runs steps, those of a round in processes of their own; prints when each is done."""
    started = time.monotonic()
    print("Compiling kernels, once for this version …", flush=True)
    spawn = multiprocessing.get_context("spawn")  # Beam starts threads
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool,
    ):
        for steps in rounds:
            running = {
                pool.submit(quietly, step, Path(folder, step.__name__)): step for step in steps
            }
            for done in concurrent.futures.as_completed(running):
                name = running[done].__name__.replace("_", " ")
                print(f"{name}: {done.result()} kernels compiled", flush=True)
    print(f"Kernels are compiled: {time.monotonic() - started:.0f} s", flush=True)


def quietly(step: Step, folder: Path) -> int:
    """Runs a step, shows its output only if it fails, and returns how many kernels it compiled."""
    os.environ["PROBELINE_QUIET"] = "1"
    from beam_pipeline.kernels import compilation

    before, output = compilation.count, io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            step(folder)
    except BaseException:
        print(output.getvalue())
        raise
    return compilation.count - before


def make_rows(folder: Path) -> None:
    """Runs the probe-rows job with the default encoding."""
    write_dataset(folder, "compact")


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


def succeed(program: Callable[[list[str]], int], *arguments: str) -> None:
    if program([*arguments]):
        raise RuntimeError(f"{program.__module__} {shlex.join(arguments)} failed")


PARTS: dict[str, Step] = {
    "rows": make_rows,
    "batches": draw_batches,
    "overlap": compare_texts,
}


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
