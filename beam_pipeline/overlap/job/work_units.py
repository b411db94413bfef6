"""Work units of training documents on their way through the job: planned, then numbered.

  files → (worker key, WorkUnit) → ScannedUnit, by path → ScannedUnit that knows its rows

A work unit that has match files is not scanned again: that is how a run resumes.
"""

from collections.abc import Iterable, Iterator

from beam_pipeline.overlap.documents.reading import (
    WORK_UNIT_BYTES,
    DocumentFile,
    WorkUnit,
    cut_into_work_units,
)
from beam_pipeline.overlap.results.match_files import ScannedUnit

_WORK_UNITS_PER_GROUP = 16  # scanned one after another, so that an index shard is opened once


def plan_work_units(
    file_number: int, file: DocumentFile, text_field: str, num_groups: int
) -> Iterator[tuple[str, WorkUnit]]:
    """Yields the work units of a file, keyed by group; without groups each is its own.

    Args:
      file_number: the place of the file in the order of the output.
      num_groups: of `count_groups`.
    """
    for unit in cut_into_work_units(file, text_field, WORK_UNIT_BYTES):
        key = str(int(unit.name, 16) % num_groups) if num_groups else unit.name
        yield key, unit._replace(file_number=file_number)


def count_groups(num_bytes: int, num_index_shards: int) -> int:
    """Returns in how many groups work units are scanned, 0 if each is scanned on its own."""
    if num_index_shards == 1:
        return 0
    return max(1, num_bytes // (WORK_UNIT_BYTES * _WORK_UNITS_PER_GROUP))


def number_rows(units: Iterable[ScannedUnit]) -> Iterator[ScannedUnit]:
    """Gives the work units of one file their first rows, by adding up those before."""
    first_row = 0
    for scanned in sorted(units, key=lambda scanned: scanned.order):
        row_offset = first_row if scanned.unit.first_row is None else 0
        yield scanned._replace(row_offset=row_offset)
        first_row += scanned.match_files[0].summary.num_rows
