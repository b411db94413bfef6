"""One probe with most of the data: memory stays bounded, whatever its history is."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from beam_pipeline import verify
from beam_pipeline.manifest import open_dataset

MIB = 1 << 20


def peak_memory(command: list[str]) -> int:
    """Runs a command; returns the largest sum of resident bytes of it and its children."""
    process = psutil.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            total = 0
            for one in [process, *process.children(recursive=True)]:
                try:
                    total += one.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak = max(peak, total)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.wait() == 0
    watcher.join()
    return peak


def generate(folder: Path, num_measurements: int, hot_share: float) -> None:
    command = [
        sys.executable, "-m", "beam_pipeline.generate", f"--output={folder}",
        f"--num_measurements={num_measurements}", "--num_probes=500", f"--hot_share={hot_share}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def run_job(source: Path, output: Path, *flags: str) -> int:
    command = [
        sys.executable, "-m", "beam_pipeline.main", f"--input={source}/*.parquet",
        f"--output={output}", *flags,
    ]  # fmt: skip
    return peak_memory(command)


@pytest.mark.slow
def test_a_probe_of_twenty_million_measurements(tmp_path: Path) -> None:
    generate(tmp_path / "in", 21_000_000, hot_share=0.96)
    peak = run_job(tmp_path / "in", tmp_path / "out")
    assert peak < 600 * MIB, f"{peak / MIB:.0f} MiB"
    splits = open_dataset(str(tmp_path / "out")).manifest.splits.values()
    assert sum(split.num_measurements for split in splits) == 21_000_000
    assert verify.main([str(tmp_path / "out")]) == 0


@pytest.mark.slow
@pytest.mark.prism
def test_a_hot_probe_on_prism(tmp_path: Path, prism: str) -> None:
    """The runner is a process of its own; both together stay within bounds."""
    generate(tmp_path / "in", 10_000_000, hot_share=0.9)
    peak = run_job(
        tmp_path / "in", tmp_path / "out", "--runner=PrismRunner", f"--prism_location={prism}"
    )
    assert peak < 800 * MIB, f"{peak / MIB:.0f} MiB"
    assert verify.main([str(tmp_path / "out")]) == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    peaks = []
    for millions in (5, 20):
        generate(tmp_path / f"in{millions}", millions * 1_000_000, hot_share=0)
        peaks.append(run_job(tmp_path / f"in{millions}", tmp_path / f"out{millions}"))
    assert peaks[1] - peaks[0] < 100 * MIB, [f"{peak / MIB:.0f} MiB" for peak in peaks]
