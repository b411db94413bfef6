"""Reads a dataset once, shard by shard, and runs every check.

Each split is compared with its rows.parquet shard by shard; checks over all rows come last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.decoded_rows import DecodedRows, decode, in_batches
from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import INDEX_NAME, NAMES_NAME, SPLITS, Shard, Split
from beam_pipeline.dataset.row_index import parse_index
from beam_pipeline.dataset.rows import Dataset, read_shard
from beam_pipeline.dataset.tfrecord import DamagedRecordError
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.storage.files import read_file
from beam_pipeline.verify import across, files, records
from beam_pipeline.verify.across import AllRows, FactCollector, Fault
from beam_pipeline.verify.records import RecordFault, ShardPlace, StoredRows


class Promise(NamedTuple):
    """What a check proves, in which units, and the checks of each record and of all rows."""

    text: str
    unit: str
    of_records: Callable[[StoredRows], Iterator[RecordFault]] | None = None
    of_rows: Sequence[Callable[[AllRows], Iterator[Fault]]] = ()


PROMISES = {
    "counts": Promise("the manifest's sums add up", "sums"),
    "descriptions": Promise("README.md, croissant.json say the same", "figures"),
    "dead_letters": Promise("none is missing, by reason", "rows"),
    "files": Promise("names, checksums, none extra", "files"),
    "records": Promise("readable, one schema, one row", "records"),
    "totals": Promise("the manifest's numbers are true", "files"),
    "encoding": Promise("as the options say", "records", records.encoding),
    "row_columns": Promise("count, timestamps, span are true", "records", records.row_columns),
    "order": Promise("by event_time, dst_addr, rtt", "measurements", records.measurement_order),
    "rtt": Promise("finite, negative only as -1.0", "measurements", records.rtt_values),
    "destinations": Promise("canonical, of their ip_version", "measurements", records.destinations),
    "size": Promise(
        "none too large, full but the last", "records", records.too_large, [across.underfull]
    ),
    "identity": Promise(
        "src_id and src_addr, one to one", "records", records.identity, [across.collisions]
    ),
    "placement": Promise(
        "right split, shard, order there", "records", records.placement, [across.one_split]
    ),
    "probe_rows": Promise(
        *("0, 1, … and in time order", "records"),
        of_rows=[across.row_indices, across.row_order],
    ),
    "index": Promise("rows.parquet says the same", "lines"),
}
# Checks left incomplete by an unreadable record.
_OF_RECORDS = tuple(PROMISES)[5:]


@dataclass
class Check:
    """The outcome of one check, with only its first faults."""

    num_checked: int = 0
    num_faults: int = 0
    faults: list[Fault] = field(default_factory=list)


class Verification:
    """One pass over a dataset, and its outcome."""

    def __init__(self, dataset: Dataset, max_faults: int, advance: Callable[[float], None]):
        self.checks = {name: Check() for name in PROMISES}
        self.is_complete = True  # False once a record is unreadable
        self._dataset, self._max_faults, self._advance = dataset, max_faults, advance
        self._options = _options(dataset)
        self._facts = FactCollector(self._options)

    @property
    def num_faults(self) -> int:
        return sum(check.num_faults for check in self.checks.values())

    def result(self, name: str) -> str:
        """Returns ok, FAILED, or "partly": no fault in the readable records."""
        if self.checks[name].num_faults:
            return "FAILED"
        return "ok" if self.is_complete or name not in _OF_RECORDS else "partly"

    def run(self) -> None:
        """Checks the manifest, each split, then all rows together."""
        manifest = self._dataset.manifest
        self._take("counts", files.sums(manifest), 2 + 3 * len(manifest.splits))
        self._take("descriptions", files.descriptions(self._dataset), files.num_claims(manifest))
        if manifest.names:
            self._check_file(NAMES_NAME, manifest.names.crc32c, manifest.names.sha256)
        self._take("dead_letters", files.letters(self._dataset), manifest.counts.num_dead_letters)
        splits = [split for split in manifest.splits if split in SPLITS]
        for split in splits:
            self._check_split(split, manifest.splits[split])
        paths = {
            (SPLITS.index(split), number): shard.path
            for split in splits
            for number, shard in enumerate(manifest.splits[split].shards)
        }
        rows = self._facts.all_rows(paths, self.is_complete)
        for name, promise in PROMISES.items():
            for check in promise.of_rows:
                self._take(name, check(rows))
        self._take("probe_rows", (), len(rows.facts))

    def _take(self, name: str, faults: Iterable[Fault], num_checked: int = 0) -> None:
        """Adds the faults of a check, and `num_checked` units."""
        check = self.checks[name]
        check.num_checked += num_checked
        for fault in faults:
            check.num_faults += 1
            if len(check.faults) < self._max_faults:
                check.faults.append(fault)

    def _check_split(self, name: str, split: Split) -> None:
        self._take("files", files.shard_files(self._dataset, name, self._options))
        index = self._read_index(name, split)
        is_whole, num_probes, first_line = True, 0, 0
        version = self._dataset.manifest.format_version
        for number, shard in enumerate(split.shards):
            numbers = SPLITS.index(name), number, len(split.shards), version
            lines = self._check_shard(shard, ShardPlace(self._options, shard.path, *numbers))
            is_whole = is_whole and len(lines) == shard.num_records
            num_probes += int(np.count_nonzero(lines["row_index"].to_numpy() == 0))
            self._take("placement", across.shard_order(shard.path, lines, version))
            if index is not None:
                found = index.slice(first_line, shard.num_records)
                self._take("index", across.index_lines(shard.path, found, lines), len(lines))
            first_line += shard.num_records
        if is_whole:
            totals = files.split_totals(name, split, num_probes, self._options, version)
            self._take("totals", totals, 1)

    def _check_shard(self, shard: Shard, place: ShardPlace) -> pa.Table:
        """Checks a shard; returns the expected rows.parquet lines of its readable records."""
        num_bytes = self._check_file(shard.path, shard.crc32c, shard.sha256)
        self._advance(shard.num_bytes)
        if num_bytes is None:
            self.is_complete = False
            return self._facts.end_shard()
        num_records = num_read = 0
        reading = read_shard(self._dataset.file(shard.path), self._options.output_format)
        try:
            for some in in_batches(reading):
                num_read += self._check_records(some, place, num_records)
                num_records += len(some)
                self._advance(num_bytes * len(some) / max(1, shard.num_records))
        except (DamagedRecordError, OSError) as error:
            self.is_complete = False
            self._take("records", [Fault(shard.path, None, one_line(error))])
            return self._facts.end_shard()
        lines = self._facts.end_shard()
        found = {"num_bytes": num_bytes, "num_records": num_records}
        if num_read == num_records:  # else already a fault that explains missing measurements
            found["num_measurements"] = int(lines["n_measurements"].to_numpy().sum())
        self._take("totals", files.shard_totals(shard, found), 1)
        return lines

    def _check_file(self, path: str, crc32c: str, sha256: str) -> int | None:
        """Checks a file's checksums; returns its size, None if unreadable."""
        size, message = files.content(self._dataset.file(path), crc32c, sha256)
        self._take("files", [Fault(path, None, message)] if message else [], 1)
        return size

    def _check_records(
        self, data: Sequence[bytes | DamagedRecordError], place: ShardPlace, first: int
    ) -> int:
        """Checks records and keeps their facts; returns how many are readable."""
        number, num_read = first, 0
        for found in decode(data):
            if isinstance(found, DecodedRows):
                rows = StoredRows.of(found, place, number)
                self._check_rows(rows)
                num_read += len(rows.sizes)
                number += len(rows.sizes)
            else:
                self.is_complete = False
                message = f"it cannot be read: {found}"
                self._take("records", [Fault(place.path, number, message)], 1)
                number += 1
        return num_read

    def _check_rows(self, rows: StoredRows) -> None:
        num_rows, num_measurements = len(rows.sizes), int(rows.bounds[-1])
        self._take("records", (), num_rows)
        for name, promise in PROMISES.items():
            if promise.of_records:
                faults = (
                    Fault(rows.shard.path, rows.first_record + row, message)
                    for row, message in promise.of_records(rows)
                )
                is_of_measurements = promise.unit == "measurements"
                self._take(name, faults, num_measurements if is_of_measurements else num_rows)
        self._facts.add(rows)

    def _read_index(self, name: str, split: Split) -> pa.Table | None:
        """Reads rows.parquet; None if unreadable."""
        path = f"{name}/{INDEX_NAME}"
        if self._check_file(path, split.index_crc32c, split.index_sha256) is None:
            return None
        try:
            index = parse_index(read_file(self._dataset.file(path)) or b"")
        except ValueError as error:
            self._take("index", [Fault(path, None, str(error))])
            return None
        if index.num_rows != split.num_records:
            message = f"it has {index.num_rows} lines for {split.num_records} records"
            self._take("index", [Fault(path, None, message)])
        return index


def verify(
    dataset: Dataset, max_faults: int = 20, advance: Callable[[float], None] = lambda _: None
) -> Verification:
    """Checks a dataset, keeping `max_faults` faults per check; ProbelineError without options.

    `advance` is called with the number of bytes done; each shard is read twice.
    """
    verification = Verification(dataset, max_faults, advance)
    verification.run()
    return verification


def _options(dataset: Dataset) -> DatasetOptions:
    said = dataset.manifest.options
    names = [f.name for f in fields(DatasetOptions) if f.name in said or f.default is MISSING]
    try:
        return DatasetOptions(**{name: said[name] for name in names})
    except KeyError as error:
        raise ProbelineError(
            f"the manifest of {dataset.path} has no option {error}: another version of Probeline "
            "wrote it; use that version"
        ) from error
