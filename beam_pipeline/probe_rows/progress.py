"""Terminal output of a job: its progress, and a summary at the end.

Progress is derived from the files in the run's temporary folder:

  chunks/unit-000007-…                     reading: this work unit has been read
  packets/packets-…                        sorting: rows are in packets
  train/train_shard_00001-of-00004.…       writing: this shard is being written
"""

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from beam_pipeline.dataset.manifest import DEAD_LETTER_FOLDER, SPLITS
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import number_of, printable, program
from beam_pipeline.jobs.monitoring import Snapshot
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.probe_rows.outcome import CURES
from beam_pipeline.report.tables import Table
from beam_pipeline.report.terminal import new_console, print_table, say
from beam_pipeline.sources.inputs import MeasurementUnit
from beam_pipeline.storage.files import file_infos

_UNIT = re.compile(r"unit-(\d+)-")
_MAX_WARNINGS = 10
_SHARD = re.compile(r"(train|test)_shard_(\d+)-of-(\d+)\.")


def look(run_folder: str, units: Sequence[MeasurementUnit]) -> Snapshot:
    """Returns the progress of a job run; `units` is empty if workers plan them."""
    shards = {found for split in SPLITS for found in _names(run_folder, split, _SHARD)}
    if shards:
        total = sum(int(count) for _, count in {(split, count) for split, _, count in shards})
        return Snapshot("writing", len(shards), total, f"{len(shards)} of {total} shards")
    if staged := _size(run_folder, "packets"):
        total = max(staged, _size(run_folder, "chunks"))  # small chunks traveled inline
        text = f"{staged / 1e6:,.0f} of about {total / 1e6:,.0f} MB"
        return Snapshot("sorting", staged, total, text)
    seen = {int(number) for (number,) in _names(run_folder, "chunks", _UNIT)}
    if not units:
        return Snapshot("reading", 0, 0, f"{len(seen)} work units")
    done = [piece for unit in units if unit.index in seen for piece in unit.pieces]
    pieces = [piece for unit in units for piece in unit.pieces]
    text = f"{len({p.path for p in done})} of {len({p.path for p in pieces})} files"
    if num_rows := sum(piece.num_rows for piece in pieces):
        rows_read = sum(piece.num_rows for piece in done)
        text += f", {rows_read / 1e6:,.1f} of {num_rows / 1e6:,.1f} M measurements"
        return Snapshot("reading", rows_read, num_rows, text, "M/s")
    num_bytes = sum(piece.num_bytes for piece in pieces)
    return Snapshot("reading", sum(p.num_bytes for p in done), max(1, num_bytes), text)


def _files(run_folder: str, kind: str) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return list(Path(run_folder, kind).iterdir())
    return []


def _names(run_folder: str, kind: str, pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    """Returns the pattern's groups for each matching file of a kind."""
    found = (pattern.match(path.name) for path in _files(run_folder, kind))
    return [match.groups() for match in found if match]


def _size(run_folder: str, kind: str) -> int:
    infos = file_infos(map(str, _files(run_folder, kind)))
    return sum(info.num_bytes for info in infos.values() if info)


def print_summary(_: Options, dataset: Dataset, seconds: float) -> None:
    """Prints counts, sizes, the dataset's path and the next commands to stdout."""
    console = new_console()
    counts = dataset.manifest.counts
    rows = [
        (
            *(name, split.num_probes, split.num_records, split.num_measurements),
            *(f"{split.num_bytes / 1e6:,.1f}", len(split.shards)),
        )
        for name, split in dataset.manifest.splits.items()
    ]
    columns = ("", "probes", "rows", "measurements", "MB", "shards")
    print_table(console, Table(dataset.path, columns, rows))
    say(
        console,
        f"{number_of(counts.measurements, 'measurement')} of "
        f"{number_of(counts.input_files, 'file')} in {seconds:.1f} s "
        f"({counts.measurements / max(seconds, 1e-9) / 1e6:.2f} M/s)",
    )
    if counts.rows_left_out:
        say(console, f"{counts.rows_left_out:,} of {counts.rows_read:,} rows are not in the sample")
    if counts.duplicates_dropped:
        say(console, f"{counts.duplicates_dropped:,} duplicates were dropped")
    if counts.dead_letters:
        reasons = ", ".join(f"{count:,} {name}" for name, count in counts.dead_letters.items())
        folder = dataset.file(DEAD_LETTER_FOLDER)
        letters = number_of(counts.num_dead_letters, "dead letter")
        say(console, f"{letters} in {folder}: {reasons}")
        for reason in filter(CURES.get, counts.dead_letters):
            say(console, f"{reason}: {CURES[reason]}")
    for text in dataset.manifest.warnings[-_MAX_WARNINGS:]:
        say(console, f"warning: {text}")
    path = printable(shlex.quote(dataset.path))
    inspect, verify = (program(name, f"beam_pipeline.{name}") for name in ("inspect", "verify"))
    print(f"Next: {inspect} {path}, to see what is in it")
    print(f"      {verify} {path}, to check every byte")
