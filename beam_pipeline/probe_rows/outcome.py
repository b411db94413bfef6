"""What became of the input: files without a measurement, and values that look like a wrong unit.

A work unit tallies its files; the commit turns the tallies into warnings, which the manifest keeps
and `main`, `inspect` and the data card show, and refuses a run that kept nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np

from beam_pipeline.dataset.manifest import Counts
from beam_pipeline.errors import ProbelineError, number_of
from beam_pipeline.jobs.messages import Message
from beam_pipeline.sources.inputs import Piece
from beam_pipeline.sources.measurements import Block
from beam_pipeline.sources.options import time_text
from beam_pipeline.sources.reading import CheckedBatch

_MAX_NAMED_FILES = 100
_MAX_VALUE_CHARS = 120
_SHORT_MS, _LONG_MS = 0.01, 60_000.0
_YEAR_2000_US = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_ADDRESS_CURE = (
    "an address is a text such as 192.0.2.1 or 2001:db8::1, without prefix or port; "
    "for names of hosts or sites, pass --ends=names"
)
_UNIT_CURE = "check the unit of the times (--time_unit)"
CURES = {
    "event_time_unreadable": "write times in ISO 8601, or as numbers with --time_unit",
    "event_time_before_1970": _UNIT_CURE,
    "event_time_out_of_range": _UNIT_CURE,
    "src_addr_invalid": _ADDRESS_CURE,
    "dst_addr_invalid": _ADDRESS_CURE,
    "rtt_null": "if a missing RTT means a lost ping, pass --failed=null",
    "rtt_not_finite": "if NaN means a lost ping, pass --failed=nan",
    "rtt_unreadable": "if the text means a lost ping, name it with --failed=TEXT",
    "rtt_out_of_range": "check the unit of the RTTs (--rtt_unit)",
    "not_a_ping": "only results of ping and traceroute are read",
    "csv_columns": "every row needs the columns of the header",
}


class FileOutcome(Message, frozen=True):
    """The rows of a file in one work unit, and the first one that became a dead letter."""

    path: str
    num_rows: int
    num_alive: int  # measurements, and rows outside the sample
    reason: str = ""
    value: str = ""


class UnitTally:
    """Counts what a work unit reads."""

    def __init__(self) -> None:
        self.num_kept = 0  # measurements that the dataset being appended to already has
        self.first_us: int | None = None  # of the new measurements
        self.last_us: int | None = None
        self.num_answered = self.num_short = self.num_long = 0
        self._files: dict[str, FileOutcome] = {}

    def add(self, piece: Piece, batch: CheckedBatch) -> None:
        """Counts a batch of a piece."""
        if piece.shard and piece.shard.is_of_output:
            self.num_kept += len(batch.block or ())
            return
        file = self._files.get(piece.path) or FileOutcome(piece.path, 0, 0)
        num_alive = len(batch.block or ()) + batch.num_left_out
        reason, value = file.reason, file.value
        if batch.letters and not reason:
            reason, value = batch.letters[0].reason, batch.letters[0].value[:_MAX_VALUE_CHARS]
        self._files[piece.path] = FileOutcome(
            file.path, file.num_rows + batch.num_rows, file.num_alive + num_alive, reason, value
        )
        if batch.block is not None and len(batch.block):
            self._add_values(batch.block)

    def _add_values(self, block: Block) -> None:
        ends = int(block.event_time.min()), int(block.event_time.max())
        self.first_us = ends[0] if self.first_us is None else min(self.first_us, ends[0])
        self.last_us = max(ends[1], self.last_us or 0)
        self.num_answered += int(np.count_nonzero(block.rtt >= 0))
        self.num_short += int(np.count_nonzero((block.rtt >= 0) & (block.rtt < _SHORT_MS)))
        self.num_long += int(np.count_nonzero(block.rtt > _LONG_MS))

    def outcomes(self) -> list[FileOutcome]:
        """Returns the files without a measurement, and those that other units may share.

        A file of several units is the first or the last of each.
        """
        files = list(self._files.values())
        return [
            file
            for number, file in enumerate(files)
            if file.num_rows and (not file.num_alive or number in (0, len(files) - 1))
        ]


def dead_files(outcomes: Iterable[FileOutcome]) -> list[FileOutcome]:
    """Returns the files that had rows and gave no measurement, in order."""
    found: dict[str, FileOutcome] = {}
    for each in sorted(outcomes):
        so_far = found.get(each.path)
        if so_far is None:
            found[each.path] = each
        else:
            found[each.path] = FileOutcome(
                each.path,
                so_far.num_rows + each.num_rows,
                so_far.num_alive + each.num_alive,
                so_far.reason or each.reason,
                so_far.value if so_far.reason else each.value,
            )
    return [file for file in found.values() if not file.num_alive]


class Tally(Protocol):
    """The values of a work unit that `warnings` looks at."""

    @property
    def last_us(self) -> int | None: ...
    @property
    def num_answered(self) -> int: ...
    @property
    def num_short(self) -> int: ...
    @property
    def num_long(self) -> int: ...


def warnings(dead: list[FileOutcome], units: Sequence[Tally], started: str) -> Iterator[str]:
    """Yields a sentence for each file without a measurement, and for values of a wrong unit."""
    yield from map(describe, dead[:_MAX_NAMED_FILES])
    if len(dead) > _MAX_NAMED_FILES:
        yield f"{len(dead) - _MAX_NAMED_FILES:,} more files have only dead letters"
    lasts = [unit.last_us for unit in units if unit.last_us is not None]
    if lasts:
        # SOURCE_DATE_EPOCH may set an earlier start.
        now = max(datetime.fromisoformat(started), datetime.now(UTC))
        is_late = max(lasts) > (now + timedelta(days=1)).timestamp() * 1e6
        if is_late or max(lasts) < _YEAR_2000_US:
            what = "after tomorrow" if is_late else "before 2000"
            yield f"the last time is {_shown_time(max(lasts))}, {what}: {_UNIT_CURE}"
    answered = sum(unit.num_answered for unit in units)
    for count, limit in (
        (sum(unit.num_short for unit in units), "under 10 µs"),
        (sum(unit.num_long for unit in units), "over 60 s"),
    ):
        if 2 * count > answered:
            yield (
                f"{count:,} of {answered:,} RTTs are {limit}: check the unit of the RTTs "
                "(--rtt_unit)"
            )


def _shown_time(time_us: int) -> str:
    try:
        return time_text(time_us)
    except OverflowError:
        return f"after the year 9999 ({time_us} µs since 1970)"


def describe(file: FileOutcome) -> str:
    """Returns a sentence about a file without a measurement."""
    cure = CURES.get(file.reason)
    return (
        f"{file.path}: all {file.num_rows:,} rows are dead letters, the first one for "
        f"{file.reason} ({file.value})" + (f"; {cure}" if cure else "")
    )


def check_kept(counts: Counts, dead: list[FileOutcome], appends: bool) -> None:
    """Raises ProbelineError if a run kept no measurement; appending nothing new is no error."""
    if counts.measurements or counts.duplicates_dropped or (appends and not counts.rows_read):
        return
    if not counts.rows_read:
        raise ProbelineError(
            f"the {counts.input_files} input files have no rows: check --input, there is nothing "
            "to keep"
        )
    if counts.rows_left_out:
        raise ProbelineError(
            f"none of {counts.rows_read:,} rows is in the sample: widen --since, --until, "
            "--sample_probes or --sample_measurements"
        )
    letters = Counter(counts.dead_letters).most_common(3)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in letters)
    shown = f"; {describe(dead[0])}" if dead else ""
    raise ProbelineError(
        f"all {counts.rows_read:,} rows of {number_of(counts.input_files, 'file')} are dead "
        f"letters ({reasons}){shown}"
    )
