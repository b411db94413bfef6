"""Reads a dataset once, shard by shard, and runs every check over it.

Each split is compared with its rows.parquet shard by shard; what only all rows together show is
checked last.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from itertools import chain

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import INDEX_NAME, SPLITS, Dataset, Shard, Split
from beam_pipeline.dataset.row_index import parse_index
from beam_pipeline.dataset.tfrecord import DamagedRecordError
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.storage.files import checksum_text, exists, read_file, size_and_checksum
from beam_pipeline.verify.across import (
    ROW_CHECKS,
    FactCollector,
    Fault,
    index_lines,
    row_indices,
    shard_order,
)
from beam_pipeline.verify.files import (
    letters,
    read_shard,
    shard_names,
    shard_totals,
    split_totals,
    stray_files,
    sums,
)
from beam_pipeline.verify.record import RECORD_CHECKS, UNREADABLE_RECORD, Place, read_row

# Name of a check: its promise, and what it counts.
PROMISES = {
    "counts": ("the manifest's sums add up", "sums"),
    "dead_letters": ("none is missing, by reason", "rows"),
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
# What an unreadable record leaves partly checked.
_OF_RECORDS = tuple(PROMISES)[4:]


@dataclass
class Check:
    """The outcome of one check; only the first few of its faults are kept."""

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
        """The number of faults of all checks."""
        return sum(check.num_faults for check in self.checks.values())

    def result(self, name: str) -> str:
        """Returns ok, FAILED, or "partly": no fault in the records that could be read."""
        if self.checks[name].num_faults:
            return "FAILED"
        return "ok" if self.is_complete or name not in _OF_RECORDS else "partly"


def verify(
    dataset: Dataset, max_faults: int = 20, advance: Callable[[float], None] = lambda _: None
) -> Report:
    """Checks a dataset.

    Args:
      max_faults: the number of faults kept of each check; all are counted.
      advance: called with the number of bytes done; each shard is read twice.

    Raises:
      ProbelineError: the manifest lacks options.
    """
    report = Report(max_faults)
    manifest = dataset.manifest
    report.take("counts", sums(manifest), 2 + 3 * len(manifest.splits))
    report.take("dead_letters", letters(dataset), manifest.counts.num_dead_letters)
    options = _options(dataset)
    walk = _Walk(dataset, options, report, advance, FactCollector(options))
    for name, split in manifest.splits.items():
        if name in SPLITS:
            walk.check_split(name, split)
    walk.check_all_rows()
    return report


def _options(dataset: Dataset) -> DatasetOptions:
    said = dataset.manifest.options
    names = [f.name for f in fields(DatasetOptions) if f.name in said or f.default is MISSING]
    try:
        return DatasetOptions(**{name: said[name] for name in names})
    except KeyError as error:
        raise ProbelineError(
            f"the manifest of {dataset.path} has no option {error}: it was not written by this "
            "version of Probeline"
        ) from error


@dataclass
class _Walk:
    """One pass over all records; `shard_paths` by split and number."""

    dataset: Dataset
    options: DatasetOptions
    report: Report
    advance: Callable[[float], None]
    facts: FactCollector
    shard_paths: dict[tuple[int, int], str] = field(default_factory=dict)

    def check_split(self, name: str, split: Split) -> None:
        """Checks the files and records of a split."""
        take = self.report.take
        names = shard_names(name, split, self.options.shard_suffix)
        take("files", chain(names, stray_files(self.dataset, name, split)))
        index = self._read_index(name, split)
        is_whole, num_probes, first_line = True, 0, 0
        for number, shard in enumerate(split.shards):
            place = Place(shard.path, 0, SPLITS.index(name), number, len(split.shards))
            self.shard_paths[place.split, number] = shard.path
            lines = self._check_shard(shard, place)
            is_whole = is_whole and len(lines) == shard.num_records
            num_probes += int(np.count_nonzero(lines["row_index"].to_numpy() == 0))
            take("placement", shard_order(shard.path, lines))
            if index is not None:
                found = index.slice(first_line, shard.num_records)
                take("index", index_lines(shard.path, found, lines), len(lines))
            first_line += shard.num_records
        if is_whole:
            take("totals", split_totals(name, split, num_probes, self.options), 1)

    def check_all_rows(self) -> None:
        """Checks what only all rows together show."""
        rows = self.facts.all_rows(self.shard_paths)
        take = self.report.take
        take("probe_rows", row_indices(rows, self.report.is_complete), len(rows.facts))
        for name, check in ROW_CHECKS:
            take(name, check(rows, self.options))

    def _check_shard(self, shard: Shard, place: Place) -> pa.Table:
        """Checks a shard; returns the lines of rows.parquet for the records that can be read."""
        num_bytes = self._check_file(shard.path, shard.crc32c)
        self.advance(shard.num_bytes)
        if num_bytes is None:
            self.report.is_complete = False
            return self.facts.end_shard(place.split)
        num_records = num_read = 0
        try:
            for record in read_shard(self.dataset.file(shard.path), self.options.output_format):
                num_read += self._check_record(record, place._replace(record=num_records))
                num_records += 1
                self.advance(num_bytes / max(1, shard.num_records))
        except (DamagedRecordError, OSError) as error:
            self.report.is_complete = False
            self.report.take("records", [Fault(shard.path, None, one_line(error))])
            return self.facts.end_shard(place.split)
        lines = self.facts.end_shard(place.split)
        counted = int(lines["n_measurements"].to_numpy().sum())
        if num_read < num_records:  # already a fault, which explains missing measurements
            counted = shard.num_measurements
        self.report.take("totals", shard_totals(shard, num_bytes, num_records, counted), 1)
        return lines

    def _check_file(self, path: str, crc32c: str) -> int | None:
        """Checks a file's checksum; returns its size, None if it cannot be read."""
        full_path, size, message = self.dataset.file(path), None, "it is missing"
        try:
            if exists(full_path):
                size, checksum = size_and_checksum(full_path)
                found = checksum_text(checksum)
                is_same = found == crc32c
                message = "" if is_same else f"its crc32c is {found}, the manifest says {crc32c}"
        except OSError as error:
            message = f"it cannot be read: {one_line(error)}"
        self.report.take("files", [Fault(path, None, message)] if message else [], 1)
        return size

    def _check_record(self, record: bytes | DamagedRecordError, place: Place) -> bool:
        """Checks a record and keeps its facts; returns whether it can be read."""
        take = self.report.take
        try:
            if isinstance(record, DamagedRecordError):
                raise record
            stored = read_row(record, place)
        except UNREADABLE_RECORD as error:
            self.report.is_complete = False
            message = f"it cannot be read: {error}"
            take("records", [Fault(place.shard, place.record, message)], 1)
            return False
        take("records", (), 1)
        for name, check in RECORD_CHECKS.items():
            messages = check(stored, self.options)
            is_of_measurements = PROMISES[name][1] == "measurements"
            num_checked = len(stored.columns.time_us) if is_of_measurements else 1
            take(name, (Fault(place.shard, place.record, text) for text in messages), num_checked)
        self.facts.add(stored)
        return True

    def _read_index(self, name: str, split: Split) -> pa.Table | None:
        """Reads rows.parquet, None if that is not possible."""
        path = f"{name}/{INDEX_NAME}"
        if self._check_file(path, split.index_crc32c) is None:
            return None
        try:
            index = parse_index(read_file(self.dataset.file(path)) or b"")
        except ValueError as error:
            self.report.take("index", [Fault(path, None, str(error))])
            return None
        if index.num_rows != split.num_records:
            message = f"it has {index.num_rows} lines for {split.num_records} records"
            self.report.take("index", [Fault(path, None, message)])
        return index
