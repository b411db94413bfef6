"""A work unit to staged records, and what became of each of its records."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from beam_pipeline.convert.blocks import BlockWriter, StagedBlock
from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.convert.reading import Batch, read_unit
from beam_pipeline.convert.units import WorkUnit
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import count_dead_letters, counter, logged
from beam_pipeline.shards.letters import LetterBox, LetterPart
from beam_pipeline.sources.reading import UnreadableInputError


class StagedUnit(Message, frozen=True):
    """The records of a work unit, and the counts that prove that none was lost."""

    file: int  # its number
    unit: int
    num_units: int  # of the file
    is_whole: bool  # not cut short by damage
    num_read: int
    num_blank: int
    num_bytes: int  # of plain JSON lines
    dead_letters: dict[str, int]
    letter_files: list[LetterPart]
    blocks: list[StagedBlock]

    @property
    def num_staged(self) -> int:
        """The records that go to the output."""
        return sum(block.num_records for block in self.blocks)


@dataclass
class _Reader:
    """Reads a unit as the options say, and remembers whether it came to the end."""

    unit: WorkUnit
    options: RecordOptions
    is_whole: bool = True

    def batches(self) -> Iterator[Batch]:
        try:
            for batch in read_unit(self.unit, self.options):
                if batch.letters and self.options.on_bad_record == "fail":
                    raise bad_record(batch.letters[0], self.unit.start)
                yield batch
        except UnreadableInputError as error:
            if self.options.on_bad_file == "fail":
                raise error.as_error() from error
            self.is_whole = False
            yield Batch(1, [], [error.as_letter()])


def bad_record(letter: DeadLetter, first_byte: int) -> ProbelineError:
    """Returns the error for a record that cannot be converted."""
    place = f" after byte {first_byte}" if first_byte else ""
    shown = f": {letter.value[:80]!r}" if letter.value else ""
    return ProbelineError(
        f"{letter.file} (row {letter.row}{place}) cannot be converted, {letter.reason}{shown}; "
        "repair the file, or say --on_bad_record=dead_letter to go on without such records"
    )


def stage_unit(unit: WorkUnit, options: RecordOptions, folder: str) -> StagedUnit:
    """Reads a work unit and writes its records to files below a folder.

    Raises:
      ProbelineError: the file was changed; it is damaged, or has a bad record, and that is to fail.
    """
    name = f"file-{unit.file.number:06d}-{unit.number:06d}"
    writer, letters = BlockWriter(f"{folder}/records", name), LetterBox(f"{folder}/letters", name)
    reader = _Reader(unit, options)
    num_read = num_blank = num_bytes = 0
    for batch in reader.batches():
        writer.write(batch.records)
        letters.add(batch.letters)
        num_read += batch.num_read
        num_blank += batch.num_blank
        num_bytes += batch.num_bytes
    writer.close()
    letters.flush()
    return StagedUnit(
        unit.file.number,
        unit.number,
        unit.num_units,
        reader.is_whole,
        num_read,
        num_blank,
        num_bytes,
        dict(letters.counts),
        letters.files,
        writer.blocks,
    )


class StageUnit(beam.DoFn):
    """WorkUnit → StagedUnit."""

    def __init__(self, options: RecordOptions, folder: str):
        self._options = options
        self._folder = folder
        self._read, self._unreadable = counter("rows_read"), counter("files_unreadable")

    def process(self, element: WorkUnit, *_: Any) -> Iterator[StagedUnit]:
        with logged("Read and stage", file=element.file.file.path, unit=element.number):
            staged = stage_unit(element, self._options, self._folder)
        self._read.inc(staged.num_read)
        self._unreadable.inc(not staged.is_whole)
        for reason, count in staged.dead_letters.items():
            count_dead_letters(reason, count)
        yield staged
