"""What became of the input: files without a measurement, and values that look like a wrong unit.

A work unit tallies its files; the commit turns the tallies into warnings, which the manifest keeps
and `main`, `inspect` and the data card show, and refuses a run that kept nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from beam_pipeline.dataset.manifest import Counts
from beam_pipeline.errors import ProbelineError, number_of
from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.letters import LetterBox, LetterPart
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
    "rtt_unreadable": "write numbers with a point and no unit; if the text means a lost ping, name "
    "it with --failed=TEXT",
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

    def plus(self, later: FileOutcome) -> FileOutcome:
        """Returns the outcome of both."""
        first = self if self.reason else later
        num_rows, num_alive = self.num_rows + later.num_rows, self.num_alive + later.num_alive
        return FileOutcome(self.path, num_rows, num_alive, first.reason, first.value)


class SpanLines(Message, frozen=True):
    """The number of lines of a span, whose dead letters count rows from its first line."""

    path: str
    start: int
    num_lines: int


class UnitSummary(Message, frozen=True):
    """Counts of a work unit, which prove that no row was lost."""

    unit: int
    dead_letters: dict[str, int]
    dead_letter_files: list[LetterPart]  # in order
    planned_rows: int = 0  # of its Parquet files, including unreadable ones
    num_rows: int = 0
    num_measurements: int = 0
    num_left_out: int = 0  # not in the sample
    num_kept: int = 0  # measurements that the dataset being appended to already has
    first_us: int | None = None  # of the new measurements
    last_us: int | None = None
    num_answered: int = 0  # of the new measurements, and those with a short or a long RTT
    num_short: int = 0
    num_long: int = 0
    files: tuple[FileOutcome, ...] = ()
    spans: tuple[SpanLines, ...] = ()


class UnitTally:
    """Counts what a work unit reads."""

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._counts: Counter[str] = Counter()  # by fields of UnitSummary
        self._times: list[int] = []  # the first and the last
        self._files: dict[str, FileOutcome] = {}
        self._spans: list[SpanLines] = []

    def add(self, piece: Piece, batch: CheckedBatch) -> None:
        """Counts a batch of a piece."""
        num_measurements = len(batch.block or ())
        self._counts.update(
            num_rows=batch.num_rows,
            num_left_out=batch.num_left_out,
            num_measurements=num_measurements,
        )
        if piece.shard and piece.shard.is_of_output:
            self._counts["num_kept"] += num_measurements
            return
        letters = [(each.reason, each.value[:_MAX_VALUE_CHARS]) for each in batch.letters[:1]]
        num_alive = num_measurements + batch.num_left_out
        found = FileOutcome(piece.path, batch.num_rows, num_alive, *(letters or [("", "")])[0])
        so_far = self._files.get(piece.path)
        self._files[piece.path] = so_far.plus(found) if so_far else found
        if batch.block is not None and num_measurements:
            self._add_values(batch.block)

    def _add_values(self, block: Block) -> None:
        times = [*self._times, int(block.event_time.min()), int(block.event_time.max())]
        self._times = [min(times), max(times)]
        self._counts.update(
            num_answered=int(np.count_nonzero(block.rtt >= 0)),
            num_short=int(np.count_nonzero((block.rtt >= 0) & (block.rtt < _SHORT_MS))),
            num_long=int(np.count_nonzero(block.rtt > _LONG_MS)),
        )

    def end(self, piece: Piece, next_row: int) -> None:
        """Counts a piece that was read to its end."""
        self._counts["planned_rows"] += piece.num_rows
        if piece.span:
            self._spans.append(SpanLines(piece.path, piece.span[0], next_row))

    def summary(self, letters: LetterBox) -> UnitSummary:
        """Returns the counts; `files` are those without a measurement, or shared with other units.

        A file of several units is the first or the last of each.
        """
        files, (first_us, last_us) = list(self._files.values()), self._times or (None, None)
        return UnitSummary(
            self._unit,
            dict(letters.counts),
            letters.files,
            first_us=first_us,
            last_us=last_us,
            files=tuple(
                file
                for number, file in enumerate(files)
                if file.num_rows and (not file.num_alive or number in (0, len(files) - 1))
            ),
            spans=tuple(self._spans),
            **self._counts,
        )


def dead_files(outcomes: Iterable[FileOutcome]) -> list[FileOutcome]:
    """Returns the files that had rows and gave no measurement, in order."""
    found: dict[str, FileOutcome] = {}
    for each in sorted(outcomes):
        found[each.path] = found[each.path].plus(each) if each.path in found else each
    return [file for file in found.values() if not file.num_alive]


def warnings(dead: list[FileOutcome], units: Sequence[UnitSummary], started: str) -> Iterator[str]:
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
