"""Runs of the analysis of padding, and small datasets for it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline import main as pipeline
from training.analyze_padding import main

BRIEF = ("--max_rows=40", "--num_batches=4")


def dataset_of(folder: Path, counts: list[int], num_destinations: int) -> Path:
    """Writes a dataset of a probe for each number of measurements."""
    n = sum(counts)
    table = pa.table(
        {
            "event_time": pa.array(1_700_000_000 + 300 * np.arange(n), pa.timestamp("s")),
            "src_addr": np.repeat([f"192.0.2.{number}" for number in range(len(counts))], counts),
            "dst_addr": [f"198.51.100.{i % num_destinations}" for i in range(n)],
            "ip_version": pa.array([4] * n, pa.int8()),
            "rtt": pa.array(np.arange(n) / 7 + 1, pa.float32()),
        }
    )
    pq.write_table(table, folder / "in.parquet")
    flags = [f"--input={folder}/in.parquet", f"--output={folder}/rows"]
    assert pipeline.main([*flags, "--measurement_encoding=arrow"]) == 0
    return folder / "rows"


def analyse(folder: Path, output: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and what figures.json holds."""
    code = main([str(folder), f"--output={output}", *BRIEF, *flags])
    return code, json.loads((output / "figures.json").read_bytes())


def results(figures: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["result"] for check in figures["checks"]}


def failed(figures: dict[str, Any]) -> set[str]:
    return {name for name, result in results(figures).items() if result == "FAIL"}
