"""Reads a whole dataset back and checks every promise of its format, record by record.

  python -m beam_pipeline.verify rows
  python -m beam_pipeline.verify gs://bucket/rows --max_faults=100

Needs the file format and no runner; memory is one record and some 50 bytes a row. Prints what
was checked, and each fault with its shard and record. Exit code 0: all promises are kept.
1: some are not, or there is no finished dataset. 2: the command cannot be run as given.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import chain

from rich.console import Console
from rich.table import Table

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import INDEX_NAME, SPLITS, Dataset, Shard, Split, open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.report.terminal import progress_bar
from beam_pipeline.verify.across import (
    ROW_CHECKS,
    FactCollector,
    IndexLine,
    index_line,
    index_lines,
    row_indices,
    shard_order,
)
from beam_pipeline.verify.files import (
    IndexLines,
    UnreadableError,
    checksum_agrees,
    file_checksum,
    letters,
    read_shard,
    shard_names,
    shard_totals,
    split_totals,
    stray_files,
    sums,
)
from beam_pipeline.verify.record import RECORD_CHECKS, UNREADABLE_RECORD, Fault, Place, read_row

# Name of a check: what it holds the dataset to, and in what it counts.
PROMISES = {
    "counts": ("the manifest's sums add up", "sums"),
    "dead_letters": ("all there, by reason", "rows"),
    "files": ("names, checksums, none extra", "files"),
    "records": ("readable, one schema, one row", "records"),
    "totals": ("the manifest's numbers are true", "files"),
    "encoding": ("as the options say", "records"),
    "row_columns": ("count, timestamps, span are true", "records"),
    "order": ("by event_time, dst_addr, rtt", "measurements"),
    "rtt": ("finite, negative only as -1.0", "measurements"),
    "destinations": ("canonical, of their ip_version", "measurements"),
    "size": ("none too large, full but the last", "records"),
    "identity": ("src_id and src_addr, one to one", "records"),
    "placement": ("right split, shard, order there", "records"),
    "probe_rows": ("0, 1, … and in time order", "records"),
    "index": ("rows.parquet says the same", "lines"),
}
_PER_MEASUREMENT = ("order", "rtt", "destinations")
# What an unreadable record leaves half checked.
_OF_RECORDS = tuple(PROMISES)[4:]


@dataclass
class Check:
    """How one check went; of its faults only the first few are kept."""

    num_checked: int = 0
    num_faults: int = 0
    faults: list[Fault] = field(default_factory=list)


class Report:
    """What was checked and found.

    Attributes:
      checks: by the names of PROMISES.
      is_complete: False once a record could not be read.
    """

    def __init__(self, max_faults: int):
        self.checks = {name: Check() for name in PROMISES}
        self.is_complete = True
        self._max_faults = max_faults

    def take(self, name: str, faults: Iterable[Fault], num_checked: int = 0) -> None:
        """Runs a check over `num_checked` more of what it counts."""
        check = self.checks[name]
        check.num_checked += num_checked
        for fault in faults:
            check.num_faults += 1
            if len(check.faults) < self._max_faults:
                check.faults.append(fault)

    @property
    def num_faults(self) -> int:
        return sum(check.num_faults for check in self.checks.values())

    def result(self, name: str) -> str:
        """Returns ok, FAILED, or "partly": no fault in what could be read."""
        if self.checks[name].num_faults:
            return "FAILED"
        return "ok" if self.is_complete or name not in _OF_RECORDS else "partly"


def verify(
    dataset: Dataset, max_faults: int = 20, advance: Callable[[float], None] = lambda _: None
) -> Report:
    """Checks a dataset.

    Args:
      max_faults: how many faults of a check are kept, all are counted.
      advance: is told of bytes done; each shard is read twice.

    Raises:
      ProbelineError: the manifest lacks options.
    """
    report = Report(max_faults)
    manifest = dataset.manifest
    report.take("counts", sums(manifest), 2 + 3 * len(manifest.splits))
    report.take("dead_letters", letters(dataset), manifest.counts.num_dead_letters)
    walk = _Walk(dataset, _options(dataset), report, advance)
    for name, split in manifest.splits.items():
        if name in SPLITS:
            walk.split(name, split)
    walk.all_rows()
    return report


def _options(dataset: Dataset) -> DatasetOptions:
    said = dataset.manifest.options
    try:
        return DatasetOptions(
            **{
                item.name: said[item.name]
                for item in fields(DatasetOptions)
                if item.name in said or item.default is MISSING
            }
        )
    except KeyError as error:
        raise ProbelineError(
            f"the manifest of {dataset.path} has no option {error}: it was not written by this "
            "version of Probeline"
        ) from error


class _Walk:
    """Goes once through all records, shard by shard, as rows.parquet does."""

    def __init__(
        self,
        dataset: Dataset,
        options: DatasetOptions,
        report: Report,
        advance: Callable[[float], None],
    ):
        self._dataset = dataset
        self._options = options
        self._report = report
        self._advance = advance
        self._facts = FactCollector(options)
        self._shard_paths: dict[tuple[int, int], str] = {}

    def split(self, name: str, split: Split) -> None:
        """Checks the files and records of a split."""
        take = self._report.take
        names = shard_names(name, split, self._options.shard_suffix)
        take("files", chain(names, stray_files(self._dataset, name, split)))
        index = self._open_index(name, split)
        is_whole, num_probes = True, 0
        for number, shard in enumerate(split.shards):
            place = Place(shard.path, 0, SPLITS.index(name), number, len(split.shards))
            self._shard_paths[place.split, number] = shard.path
            lines = self._shard(shard, place)
            is_whole = is_whole and len(lines) == shard.num_records
            num_probes += sum(line.row_index == 0 for line in lines)
            take("placement", shard_order(shard.path, lines))
            index = self._compare_index(index, name, shard, lines)
        if is_whole:
            take("totals", split_totals(name, split, num_probes, self._options), 1)

    def _shard(self, shard: Shard, place: Place) -> list[IndexLine]:
        """Checks a shard; returns what rows.parquet must say of those records that can be read."""
        num_bytes = self._file(shard.path, shard.crc32c)
        self._advance(shard.num_bytes)
        lines: list[IndexLine] = []
        num_records = 0
        if num_bytes is None:
            self._report.is_complete = False
            return lines
        try:
            path = self._dataset.file(shard.path)
            for record in read_shard(path, self._options.output_format):
                line = self._record(record, place._replace(record=num_records))
                lines += [line] if line else []
                num_records += 1
                self._advance(num_bytes / max(1, shard.num_records))
        except UnreadableError as error:
            self._report.is_complete = False
            self._report.take("records", [Fault(shard.path, None, str(error))])
        else:
            counted = sum(line.n_measurements for line in lines)
            if len(lines) < num_records:  # a fault already, which explains what is missing
                counted = shard.num_measurements
            totals = shard_totals(shard, num_bytes, num_records, counted)
            self._report.take("totals", totals, 1)
        self._facts.end_shard()
        return lines

    def _file(self, path: str, crc32c: str) -> int | None:
        """Checks a file's checksum; returns its size, None if it cannot be read."""
        try:
            num_bytes, checksum = file_checksum(self._dataset, path)
        except UnreadableError as error:
            self._report.take("files", [Fault(path, None, str(error))], 1)
            return None
        self._report.take("files", checksum_agrees(path, checksum, crc32c), 1)
        return num_bytes

    def _record(self, record: bytes | UnreadableError, place: Place) -> IndexLine | None:
        """Checks a record; returns its line of rows.parquet, None if it cannot be read."""
        take = self._report.take
        try:
            if isinstance(record, UnreadableError):
                raise ValueError(str(record))
            stored = read_row(record, place)
        except UNREADABLE_RECORD as error:
            self._report.is_complete = False
            message = f"it cannot be read: {error}"
            take("records", [Fault(place.shard, place.record, message)], 1)
            return None
        take("records", (), 1)
        num_measurements = len(stored.columns.time_us)
        for name, check in RECORD_CHECKS.items():
            num_checked = num_measurements if name in _PER_MEASUREMENT else 1
            take(name, check(stored, self._options), num_checked)
        self._facts.add(stored)
        return index_line(stored)

    def _open_index(self, name: str, split: Split) -> IndexLines | None:
        path = f"{name}/{INDEX_NAME}"
        if self._file(path, split.index_crc32c) is None:
            return None
        try:
            index = IndexLines(self._dataset, name)
        except UnreadableError as error:
            self._report.take("index", [Fault(path, None, str(error))])
            return None
        if index.num_lines != split.num_records:
            message = f"it has {index.num_lines} lines for {split.num_records} records"
            self._report.take("index", [Fault(path, None, message)])
        return index

    def _compare_index(
        self, index: IndexLines | None, name: str, shard: Shard, lines: list[IndexLine]
    ) -> IndexLines | None:
        """Compares the next lines; returns the index, None once it cannot be read on."""
        if index is None:
            return None
        try:
            found = index.take(shard.num_records)
        except UnreadableError as error:
            self._report.take("index", [Fault(f"{name}/{INDEX_NAME}", None, str(error))])
            return None
        self._report.take("index", index_lines(shard.path, found, lines), len(lines))
        return index

    def all_rows(self) -> None:
        """Checks what only all rows together tell."""
        rows = self._facts.all_rows(self._shard_paths)
        take = self._report.take
        take("probe_rows", row_indices(rows, self._report.is_complete), len(rows.facts))
        for name, check in ROW_CHECKS:
            take(name, check(rows, self._options))


# --- the command --------------------------------------------------------------------------------


def print_report(dataset: Dataset, report: Report, seconds: float) -> None:
    """Prints a line a check, a line a fault, and what it comes to, to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 100  # of a log nobody knows
    table = Table("check", "what holds", "checked", "faults", "", box=None, pad_edge=False)
    for column in (2, 3):
        table.columns[column].justify = "right"
    for name, (promise, unit) in PROMISES.items():
        check, result = report.checks[name], report.result(name)
        style = {"ok": "green", "FAILED": "bold red"}.get(result, "yellow")
        numbers = (f"{check.num_checked:,} {unit}", f"{check.num_faults:,}")
        table.add_row(name, promise, *numbers, f"[{style}]{result}[/]")
    console.print(table)
    for line in _fault_lines(report):
        console.print(line, soft_wrap=True, markup=False)
    console.print(_conclusion(dataset, report, seconds), soft_wrap=True, markup=False)


def _fault_lines(report: Report) -> Iterator[str]:
    for name, check in report.checks.items():
        for shard, record, message in check.faults:
            where = shard if record is None else f"{shard} record {record}"
            yield " ".join(f"{name}: {where}: {message}".split())
        left_out = check.num_faults - len(check.faults)
        if left_out:
            yield f"{name}: and {left_out:,} more; --max_faults={check.num_faults} shows all"


def _conclusion(dataset: Dataset, report: Report, seconds: float) -> str:
    failed = [name for name in PROMISES if report.checks[name].num_faults]
    if failed:
        return (
            f"{dataset.path} FAILED: {report.num_faults:,} faults in {', '.join(failed)}; copy it "
            "again from where it is whole, or make it anew with python -m beam_pipeline.main"
        )
    measurements = report.checks["order"].num_checked
    rate = measurements / max(seconds, 1e-9) / 1e6
    return (
        f"{dataset.path} keeps every promise: {measurements:,} measurements in "
        f"{report.checks['records'].num_checked:,} records read in {seconds:.1f} s ({rate:.1f} M/s)"
    )


def _parse(argv: Sequence[str]) -> tuple[str, int]:
    parser = OneLineParser(
        "beam_pipeline.verify", "Checks every promise of a dataset of probe rows."
    )
    parser.add_argument("dataset", help="the folder that --output named, local or gs://")
    parser.add_argument(
        "--max_faults", type=int, default=20, help="faults shown of each check (%(default)s)"
    )
    args = parser.parse_args(argv)
    if args.max_faults < 0:
        raise UsageError(f"--max_faults={args.max_faults} is negative; give 0 or more")
    return args.dataset, args.max_faults


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; the dataset was not checked to its end")


def _run(argv: Sequence[str]) -> int:
    path, max_faults = _parse(argv)
    dataset = open_dataset(path)
    started = time.monotonic()
    total = 2 * sum(split.num_bytes for split in dataset.manifest.splits.values())
    with progress_bar("verify", total) as advance:
        report = verify(dataset, max_faults, advance)
    print_report(dataset, report, time.monotonic() - started)
    return 1 if report.num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
