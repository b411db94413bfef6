"""Writes simulated ping measurements as Parquet, shaped like real data, with known truth.

    python -m beam_pipeline.generate --output=/tmp/pings --num_measurements=10000000 \\
        --num_probes=5000 --seed=1

Writes `measurements-00000-of-00004.parquet`, …, in time order within and across files, and the
truth behind them in `truth/probes.parquet` and `truth/anchors.parquet`. The same flags give the
same bytes. Memory grows only with the network, by about 2 KiB per probe (about 210 MiB for 5,000
probes), not with the number of measurements.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags, check_range, flag
from beam_pipeline.errors import UsageError, explained_os_errors, program
from beam_pipeline.simulation.options import NetworkOptions

_ROWS_PER_FILE = 5_000_000
_MIN_ROWS_PER_FILE = 10_000  # below that, fewer than four files
_MAX_FILES = 100_000  # five digits in a file's name


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """All flags; those that determine the measurements are in NetworkOptions."""

    output: str = flag("Local folder to write into.", group="output")
    num_files: int | None = flag(
        "By default, at most 5 M rows per file and at least 4 files.",
        None,
        type=int,
        group="output",
    )
    overwrite: bool = flag(
        "Replace the measurements in --output.", False, action="store_true", group="output"
    )

    def __post_init__(self) -> None:
        if "://" in self.output:
            raise UsageError(
                f"--output={self.output} is not a local folder; write to a local one, then copy "
                "it (gcloud storage cp -r)"
            )
        super().__post_init__()
        num_files = self.num_files if self.num_files is not None else self.count_files()
        check_range("num_files", num_files, 1, min(_MAX_FILES, self.num_measurements))

    def count_files(self) -> int:
        """Returns --num_files, or a default for the number of measurements."""
        few = min(4, math.ceil(self.num_measurements / _MIN_ROWS_PER_FILE))
        return self.num_files or max(few, math.ceil(self.num_measurements / _ROWS_PER_FILE))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _generate, "stopped; the measurements are incomplete")


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        "beam_pipeline.generate",
        "Writes simulated ping measurements, and the truth behind them, as Parquet.",
        "--output data --num_measurements 1000000 --num_probes 5200",
    )
    add_flags(parser, fields(Options))
    return parser


def _generate(argv: Sequence[str]) -> None:
    options = Options(**vars(make_parser().parse_args(argv)))
    from beam_pipeline.simulation.files import write_measurements, write_truth
    from beam_pipeline.simulation.network import build_network

    folder, num_files = Path(options.output), options.count_files()
    with explained_os_errors("write", options.output):
        _prepare_folder(folder, overwrite=options.overwrite)
        network = build_network(options)
        write_truth(network, folder / "truth")
        num_bytes, last_time_us = write_measurements(network, options, num_files, folder)
    _print_summary(options, num_bytes, last_time_us)


def _prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Creates the folder; rejects or removes measurements of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    finished = list(folder.glob("measurements-*.parquet"))
    if finished and not overwrite:
        raise UsageError(
            f"--output={folder} already has {len(finished)} measurements-*.parquet; choose another "
            "folder or pass --overwrite to replace them"
        )
    for path in [*finished, *folder.glob("measurements-*.parquet.*tmp")]:
        path.unlink()


def _print_summary(options: Options, num_bytes: int, last_time_us: int) -> None:
    from beam_pipeline.report.tables import time_text

    period = f"{time_text(options.start_us)} to {time_text(last_time_us)} UTC"
    print(f"measurements  {options.num_measurements:,}")
    print(f"probes        {options.num_probes:,}")
    print(f"files         {options.count_files():,} ({num_bytes:,} bytes)")
    print(f"period        {period}")
    print(f"truth         {Path(options.output)}/truth")
    source = shlex.quote(f"{Path(options.output)}/*.parquet")
    print(f"next: {program('rows', 'beam_pipeline.main')} --input {source} --output OUT")


if __name__ == "__main__":
    sys.exit(main())
