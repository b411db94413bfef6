"""Runs of beam_pipeline.generate, and what they wrote."""

from pathlib import Path

from beam_pipeline import generate


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
