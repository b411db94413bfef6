"""What must hold of a dataset's files (SPEC 4): the manifest's sums, names, sizes, checksums.

Each promise is a small generator of faults, as in `verify_checks`; here a fault is of a file and
has no record. Files are read through Beam's filesystems, but for ArrayRecord shards: those are
read by ArrayRecord itself, which reads `gs://` natively.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset import dead_letters
from beam_pipeline.dataset.layout import DatasetOptions, OutputFormat, count_shards
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    Dataset,
    Manifest,
    Shard,
    Split,
)
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.dataset.tfrecord import DamagedRecordError, read_tfrecord
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    checksum_text,
    exists,
    is_local,
    open_ranges,
    size_and_checksum,
)
from beam_pipeline.storage.gcs import prepare_native_reader
from beam_pipeline.verify.across import INDEX_SCHEMA
from beam_pipeline.verify.record import Fault

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_ERRORS = (RuntimeError, ValueError, IndexError)
_INDEX_BATCH_LINES = 16_384


class UnreadableError(Exception):
    """A file or record that cannot be read; the message says why."""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --- the manifest -------------------------------------------------------------------------------


def sums(manifest: Manifest) -> Iterator[Fault]:
    """Every row read is a measurement of one shard or a dead letter; shards make up splits."""
    counts = manifest.counts
    accounted = counts.measurements + counts.num_dead_letters
    if tuple(sorted(manifest.splits)) != tuple(sorted(SPLITS)):
        yield _wrong(f"its splits are {sorted(manifest.splits)}, not {sorted(SPLITS)}")
    if counts.rows_read != accounted:
        yield _wrong(
            f"rows_read is {counts.rows_read}, {counts.measurements} measurements and "
            f"{counts.num_dead_letters} dead letters are {accounted}"
        )
    written = sum(split.num_measurements for split in manifest.splits.values())
    if counts.measurements != written:
        yield _wrong(f"measurements is {counts.measurements}, the splits' sum {written}")
    for name, split in manifest.splits.items():
        for column in ("num_records", "num_measurements", "num_bytes"):
            total = sum(getattr(shard, column) for shard in split.shards)
            if getattr(split, column) != total:
                yield _wrong(f"{column} of {name} is {getattr(split, column)}, its shards' {total}")


def shard_totals(
    shard: Shard, num_bytes: int, num_records: int, num_measurements: int
) -> Iterator[Fault]:
    """A shard holds what the manifest says."""
    found = {
        "num_bytes": num_bytes,
        "num_records": num_records,
        "num_measurements": num_measurements,
    }
    for name, number in found.items():
        said = getattr(shard, name)
        if said != number:
            yield Fault(shard.path, None, f"its {name} is {number}, the manifest says {said}")


def split_totals(
    name: str, split: Split, num_probes: int, options: DatasetOptions
) -> Iterator[Fault]:
    """A split has the probes that the manifest says, and as many shards as follow from its size.

    Args:
      num_probes: how many its records turned out to be of.
    """
    if split.num_probes != num_probes:
        yield _wrong(f"num_probes of {name} is {split.num_probes}, its shards hold {num_probes}")
    # The writer counts 16 or 28 bytes a measurement; of which family they are is not said here.
    least, most = (
        count_shards(num_probes, split.num_measurements * dtype.itemsize, options)
        for dtype in (NARROW, WIDE)
    )
    if not least <= len(split.shards) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        yield _wrong(
            f"{name} has {len(split.shards)} shards; {num_probes} probes and "
            f"{split.num_measurements} measurements make {wanted}"
        )


def _wrong(message: str) -> Fault:
    return Fault(MANIFEST_NAME, None, message)


# --- files --------------------------------------------------------------------------------------


def names_in(folder: str) -> list[str]:
    """Returns the names of the files right below a folder, sorted; none if it is not there."""
    if is_local(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    below = (path.removeprefix(f"{folder}/") for path in gcs.list_objects(f"{folder}/"))
    return sorted(name for name in below if "/" not in name)


def shard_names(name: str, split: Split, suffix: str) -> Iterator[Fault]:
    """Shards are named train_shard_00000-of-00016.arrayrecord, each number once and in order.

    Args:
      suffix: of the file format that the options say.
    """
    for number, shard in enumerate(split.shards):
        wanted = f"{name}/{name}_shard_{number:05d}-of-{len(split.shards):05d}{suffix}"
        if shard.path != wanted:
            yield Fault(shard.path, None, f"the manifest names it where {wanted} belongs")


def stray_files(dataset: Dataset, name: str, split: Split) -> Iterator[Fault]:
    """A split's folder holds no shard that the manifest does not name."""
    named = {shard.path for shard in split.shards}
    for file in names_in(dataset.file(name)):
        looks_like_shard = "_shard_" in file or file.endswith((".arrayrecord", ".tfrecord"))
        if looks_like_shard and f"{name}/{file}" not in named:
            yield Fault(f"{name}/{file}", None, "the manifest does not name it: remove it")


def file_checksum(dataset: Dataset, path: str) -> tuple[int, str]:
    """Reads a file through; returns its size and CRC-32C.

    Raises:
      UnreadableError: it is missing or cannot be read.
    """
    full_path = dataset.file(path)
    try:
        if not exists(full_path):
            raise UnreadableError("it is missing")
        size, checksum = size_and_checksum(full_path)
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {_one_line(error)}") from error
    return size, checksum_text(checksum)


def checksum_agrees(path: str, found: str, said: str) -> Iterator[Fault]:
    """A file has the checksum that the manifest says."""
    if found != said:
        yield Fault(path, None, f"its crc32c is {found}, the manifest says {said}")


def letters(dataset: Dataset) -> Iterator[Fault]:
    """The files of dead letters are all there and hold as many of each reason as were counted."""
    found: Counter[str] = Counter()
    numbers: dict[int, set[int]] = {}
    for name in names_in(dataset.file(DEAD_LETTER_FOLDER)):
        path = f"{DEAD_LETTER_FOLDER}/{name}"
        match = re.fullmatch(r"dead_letter_(\d{5,})-of-(\d{5,})\.parquet", name)
        if match is None:
            yield Fault(path, None, "it is no file of dead letters: remove it")
            continue
        numbers.setdefault(int(match[2]), set()).add(int(match[1]))
        try:
            found.update(_reasons(dataset.file(path)))
        except (OSError, pa.ArrowException) as error:
            yield Fault(path, None, f"it cannot be read: {_one_line(error)}")
    for total, there in numbers.items():
        for number in sorted(set(range(total)) - there):
            name = f"dead_letter_{number:05d}-of-{total:05d}.parquet"
            yield Fault(f"{DEAD_LETTER_FOLDER}/{name}", None, "it is missing")
    said = dataset.manifest.counts.dead_letters
    for reason in sorted({*said, *found}):
        counted = said.get(reason, 0)
        if counted != found[reason]:
            message = f"it holds {found[reason]} rows of {reason}, the manifest says {counted}"
            yield Fault(DEAD_LETTER_FOLDER, None, message)


def _reasons(path: str) -> Counter[str]:
    reasons: Counter[str] = Counter()
    with open_ranges(path) as stream:
        file = pq.ParquetFile(stream)
        if not file.schema_arrow.equals(dead_letters.SCHEMA):
            raise pa.ArrowInvalid(f"its columns are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=["reason"]):
            for count in batch.column("reason").value_counts().to_pylist():
                reasons[str(count["values"])] += count["counts"]
    return reasons


# --- records and their index --------------------------------------------------------------------


def read_shard(path: str, output_format: OutputFormat) -> Iterator[bytes | UnreadableError]:
    """Yields each record of a shard, or why that one cannot be read; holds one at a time.

    Raises:
      UnreadableError: the file as a whole, or all that follows, cannot be read.
    """
    return _read_tfrecord(path) if output_format == "tfrecord" else _read_array_record(path)


def _read_tfrecord(path: str) -> Iterator[bytes | UnreadableError]:
    try:
        for record in read_tfrecord(path):
            is_damaged = isinstance(record, DamagedRecordError)
            yield UnreadableError(str(record)) if is_damaged else record
    except (DamagedRecordError, OSError) as error:
        raise UnreadableError(_one_line(error)) from error


def _read_array_record(path: str) -> Iterator[bytes | UnreadableError]:
    num_read = 0
    with _open_shard(path) as reader:
        num_records = reader.num_records()
        with contextlib.suppress(*_READER_ERRORS):
            for _ in range(num_records):
                yield reader.read()
                num_read += 1
            return
    # A reader that failed reads no more. Random access, in a new one, gets at what is whole.
    with _open_shard(path) as reader:
        for record in range(num_read, num_records):
            try:
                yield reader.read(record, record + 1)[0]
            except _READER_ERRORS as error:
                yield UnreadableError(_one_line(error))


@contextlib.contextmanager
def _open_shard(path: str) -> Iterator[ArrayRecordReader]:
    prepare_native_reader(path)
    reader = ArrayRecordReader(path, _READER_OPTIONS)
    # A damaged file opens without an error and has 0 records; closing it tells what is wrong.
    if not reader.ok():
        reason = ""
        try:
            reader.close()
        except RuntimeError as error:
            reason = f": {_one_line(error)}"
        raise UnreadableError(f"it is no whole ArrayRecord file{reason}")
    yield reader
    with contextlib.suppress(*_READER_ERRORS):  # told already, of the record that it is about
        reader.close()


class IndexLines:
    """The lines of a split's rows.parquet, taken from its start on.

    Raises:
      UnreadableError: it is no Parquet file with the columns of INDEX_SCHEMA.
    """

    def __init__(self, dataset: Dataset, split: str):
        try:
            self._file = pq.ParquetFile(open_ranges(dataset.file(f"{split}/{INDEX_NAME}")))
        except (OSError, pa.ArrowException) as error:
            raise UnreadableError(f"it cannot be read: {_one_line(error)}") from error
        if not self._file.schema_arrow.equals(INDEX_SCHEMA):
            names = ", ".join(self._file.schema_arrow.names)
            raise UnreadableError(
                f"its columns are {names}, or their types other than {INDEX_SCHEMA}"
            )
        self.num_lines = self._file.metadata.num_rows
        self._batches = self._file.iter_batches(_INDEX_BATCH_LINES, use_threads=False)
        self._waiting = INDEX_SCHEMA.empty_table()

    def take(self, count: int) -> pa.Table:
        """Returns the next lines, fewer than `count` at the end."""
        while self._waiting.num_rows < count:
            try:
                batch = next(self._batches)
            except StopIteration:
                break
            except (OSError, pa.ArrowException) as error:
                raise UnreadableError(f"it cannot be read: {_one_line(error)}") from error
            more = pa.Table.from_batches([batch], INDEX_SCHEMA)
            self._waiting = pa.concat_tables([self._waiting, more])
        taken, self._waiting = self._waiting.slice(0, count), self._waiting.slice(count)
        return taken
