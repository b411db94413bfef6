"""Units of training documents on their way through the job: planned, scanned, numbered.

  files → Work (a unit and a pass) → ScannedUnit, by path → NumberedUnit

A scanned unit whose matches lie in its part already is not read again: that is how a run resumes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from apache_beam.io.filesystems import FileSystems

from beam_pipeline.overlap.documents.reading import UNIT_BYTES, DocumentFile, DocumentUnit, units_of
from beam_pipeline.overlap.results.match_files import PartSummary

_UNITS_OF_A_PASS = 16  # that one worker scans after another, so that a pass is opened once for all


class Work(NamedTuple):
    """A unit that is scanned in one of the passes; units are ordered by the first two numbers."""

    file_number: int
    unit_number: int
    unit: DocumentUnit
    part: int

    def part_path(self, folder: str) -> str:
        """Returns where the matches go."""
        return FileSystems.join(folder, f"{self.unit.name}-pass-{self.part:05d}.parquet")


class ScannedUnit(NamedTuple):
    """A unit and pass whose matches are in a part."""

    work: Work
    summary: PartSummary


class NumberedUnit(NamedTuple):
    """A unit whose place in its file is known, with the parts of all passes."""

    file_number: int
    unit_number: int
    path: str
    first_row: int
    is_relative: bool  # whether the rows in the parts count from first_row
    parts: tuple[str, ...]
    num_matches: int
    num_letters: int

    @property
    def name(self) -> str:
        """A name that sorts as the output is sorted."""
        return f"{self.file_number:06d}-{self.unit_number:06d}"

    @property
    def row_offset(self) -> int:
        """What is added to the rows in the parts."""
        return self.first_row if self.is_relative else 0


def works_of(
    file: tuple[int, DocumentFile], text_field: str, num_parts: int, num_buckets: int
) -> Iterator[tuple[str, Work]]:
    """Yields the units of a file for each pass, keyed by who does them one after another."""
    file_number, document_file = file
    for unit_number, unit in enumerate(units_of(document_file, text_field, UNIT_BYTES)):
        key = unit.name
        if num_buckets:
            key = str(int(unit.name, 16) % num_buckets)
        for part in range(num_parts):
            yield key, Work(file_number, unit_number, unit, part)


def count_buckets(num_bytes: int, num_parts: int) -> int:
    """Returns in how many buckets the units are scanned, 0: each on its own."""
    return max(1, num_bytes // (UNIT_BYTES * _UNITS_OF_A_PASS)) if num_parts > 1 else 0


def number_units(
    units: Iterable[ScannedUnit], folder: str, num_parts: int
) -> Iterator[NumberedUnit]:
    """Gives the units of one file their first rows, by adding up those before."""
    ordered = sorted(units, key=lambda scanned: scanned.work)
    first_row = 0
    for start in range(0, len(ordered), num_parts):
        passes: Sequence[ScannedUnit] = ordered[start : start + num_parts]
        work, summary = passes[0]
        assert [scanned.work.part for scanned in passes] == list(range(num_parts))
        known = work.unit.first_row
        yield NumberedUnit(
            work.file_number,
            work.unit_number,
            work.unit.path,
            first_row if known is None else known,
            known is None,
            tuple(scanned.work.part_path(folder) for scanned in passes),
            sum(scanned.summary.num_matches for scanned in passes),
            sum(summary.letters.values()),
        )
        first_row += summary.num_rows
