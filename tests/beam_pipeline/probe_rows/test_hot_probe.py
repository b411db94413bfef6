"""One probe with most of the data: memory stays bounded, whatever its history is."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.verify import __main__ as verify
from benchmarks.engine_servers import running_flink
from tests.support.engines import flink_is_built
from tests.support.job_runs import files_of
from tests.support.peak_memory import peak_memory


def generate(folder: Path, num_measurements: int, hot_share: float) -> None:
    command = [
        sys.executable, "-m", "beam_pipeline.generate", f"--output={folder}",
        f"--num_measurements={num_measurements}", "--num_probes=500", f"--hot_share={hot_share}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def run_job(source: Path, output: Path, *flags: str) -> float:
    command = [
        sys.executable, "-m", "beam_pipeline.main", f"--input={source}/*.parquet",
        f"--output={output}", *flags,
    ]  # fmt: skip
    return peak_memory(command)


@pytest.mark.slow
def test_a_probe_of_twenty_million_measurements(tmp_path: Path) -> None:
    generate(tmp_path / "in", 21_000_000, hot_share=0.96)
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_job(tmp_path / "in", one, "--direct_num_workers=1") < 600
    assert run_job(tmp_path / "in", two, "--direct_num_workers=2") < 900
    splits = open_dataset(str(one)).manifest.splits.values()
    assert sum(split.num_measurements for split in splits) == 21_000_000
    assert verify.main([str(one)]) == 0
    assert files_of(one) == files_of(two)


@pytest.mark.slow
@pytest.mark.flink
def test_a_hot_probe_on_flink(tmp_path: Path) -> None:
    """Its 400 MB fit neither Flink's default memory, 128 MB, nor the heap given here."""
    generate(tmp_path / "in", 27_000_000, hot_share=0.96)
    flink_is_built()
    with running_flink(tmp_path / "flink", "-Xmx384m") as flink:
        python_mib = run_job(tmp_path / "in", tmp_path / "out", *flink.flags())
        java_mib = flink.peak_mib()
    print(f"Python {python_mib:.0f} MiB, Java {java_mib:.0f} MiB")
    assert python_mib < 900  # two tasks sort at the same time
    assert java_mib < 1000
    index = pq.read_table(tmp_path / "out" / "train" / "rows.parquet")
    of_probes = index.group_by("src_addr").aggregate([("n_measurements", "sum")])
    assert max(of_probes["n_measurements_sum"].to_pylist()) * 16 > 384 << 20
    assert verify.main([str(tmp_path / "out")]) == 0
