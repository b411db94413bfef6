"""Dead letters: files written per work unit, which get their final names when the run commits.

LetterBox of a work unit -> [LetterPart], temporary names -> dead_letter_names
"""

import os
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.dataset import dead_letters
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import explained_os_errors
from beam_pipeline.jobs.messages import Message
from beam_pipeline.storage.files import create_file, digests_of, read_file, unique_path

_MAX_LETTERS_IN_MEMORY = 20_000


class LetterPart(Message, frozen=True):
    """A Parquet file of dead letters with its temporary name."""

    path: str
    num_bytes: int
    crc32c: int
    sha256: str


class LetterBox:
    """Collects the dead letters of a work unit and writes them to files of bounded size."""

    def __init__(self, folder: str, name: str):
        self.counts: Counter[str] = Counter()
        self.files: list[LetterPart] = []
        self._folder = folder
        self._name = name
        self._letters: list[DeadLetter] = []

    def add(self, letters: list[DeadLetter]) -> None:
        """Buffers letters, and writes them once there are many."""
        self.counts.update(dead_letters.count_by_reason(letters))
        self._letters += letters
        if len(self._letters) > _MAX_LETTERS_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Writes the buffered letters."""
        if not self._letters:
            return
        path = unique_path(self._folder, self._name)
        data = dead_letters.to_parquet(self._letters)
        with explained_os_errors("write", path), create_file(path) as file:
            file.write(data)
        self.files.append(LetterPart(path, *digests_of(data)))
        self._letters = []


def numbered(part: LetterPart, first_rows: Mapping[str, int]) -> LetterPart:
    """Returns a new file of the letters with the first row of their file's part added to each."""
    table = pq.read_table(pa.BufferReader(read_file(part.path)))
    first = pa.array([first_rows.get(path, 0) for path in table["file"].to_pylist()], pa.int64())
    rows = pc.add(table["row"], first)
    data = dead_letters.table_to_parquet(table.set_column(1, "row", rows))
    path = unique_path(os.path.dirname(part.path), "numbered")
    with explained_os_errors("write", path), create_file(path) as file:
        file.write(data)
    return LetterPart(path, *digests_of(data))


def dead_letter_names(count: int) -> list[str]:
    """Returns the final names of `count` dead-letter files."""
    return [f"dead_letter_{number:05d}-of-{count:05d}.parquet" for number in range(count)]
