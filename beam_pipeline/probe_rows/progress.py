"""How far a job run is, by the files in its temporary folder.

chunks/unit-000007-…                     reading: this work unit has been read
records/records-…                        sorting: rows are staged
train/train_shard_00001-of-00004.…       writing: this shard is being written
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.jobs.progress import Snapshot
from beam_pipeline.sources.inputs import WorkUnit
from beam_pipeline.storage.files import file_infos

_UNIT = re.compile(r"unit-(\d+)-")
_SHARD = re.compile(r"(train|test)_shard_(\d+)-of-(\d+)\.")


def look(run_folder: str, units: Sequence[WorkUnit]) -> Snapshot:
    """Returns the progress of a job run.

    Args:
      units: those of the input, empty if workers plan them.
    """
    shards = {found for split in SPLITS for found in _names(run_folder, split, _SHARD)}
    if shards:
        total = sum(int(count) for _, count in {(split, count) for split, _, count in shards})
        return Snapshot("writing", len(shards), total, f"{len(shards)} of {total} shards")
    if staged := _size(run_folder, "records"):
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
    """Returns the groups of the pattern for each file of a kind whose name matches."""
    found = (pattern.match(path.name) for path in _files(run_folder, kind))
    return [match.groups() for match in found if match]


def _size(run_folder: str, kind: str) -> int:
    infos = file_infos(map(str, _files(run_folder, kind)))
    return sum(info.num_bytes for info in infos.values() if info)
