"""Runs of beam_pipeline.generate, and what they wrote."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline import generate

NUM_MEASUREMENTS, NUM_PROBES = 200_000, 400


def run(folder: Path, *flags: str, num_measurements: int = 3000, num_probes: int = 20) -> int:
    return generate.main(
        [
            f"--output={folder}",
            f"--num_measurements={num_measurements}",
            f"--num_probes={num_probes}",
            *(() if any(flag.startswith("--seed") for flag in flags) else ("--seed=1",)),
            *flags,
        ]
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def rows_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in files_of(folder)])
