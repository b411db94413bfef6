"""The measurements of a dataset, or some of them, in its order, and the file they go to.

The row index chooses the rows to read, the time window the measurements within them. A table, a row
group in Parquet, is about a million measurements: long rows have several, short rows share one.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from isal import igzip
from pyarrow import csv

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.end_names import Names, address_of
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.row_index import INDEX_SCHEMA, RowIndex
from beam_pipeline.dataset.rows import Dataset, RowReader, open_whole, verify_cure
from beam_pipeline.errors import ProbelineError, UsageError, number_of, printable
from beam_pipeline.report.tables import bytes_text
from beam_pipeline.sources.options import Sample
from beam_pipeline.sources.sampling import in_window, sampled_probes
from beam_pipeline.storage.files import atomic_write, check_path, exists

SUFFIXES = (".parquet", ".csv", ".csv.gz")
_PART_ROWS = 1 << 17  # decoded at a time
_TABLE_ROWS = (1 << 20) - _PART_ROWS  # or up to 2**20, which Arrow writes as one row group
_FORMULA = "^[=+@\\t-]"  # names that a spreadsheet would compute get an apostrophe
_YEAR_10000_US = 253_402_300_800_000_000
_SOURCE = pa.field("src_addr", pa.dictionary(pa.int32(), pa.string()))
_TIME = pa.field("event_time", pa.timestamp("us", "UTC"))
_SCHEMA = MEASUREMENT_SCHEMA.set(0, _TIME).insert(1, _SOURCE)


def export(batches: Iterator[pa.RecordBatch], output: str, overwrite: bool) -> None:
    """Writes batches from `chosen_batches` and prints a line; ProbelineError if there are none.

    `output` is a path in one of SUFFIXES, or - for CSV on stdout.
    """
    is_stdout = output == "-"
    if not is_stdout:
        check_path("output", output)
        if not output.endswith(SUFFIXES):
            raise UsageError(f"--output={output}: give a name in {', '.join(SUFFIXES)}, or -")
        if exists(output) and not overwrite:
            raise UsageError(f"--output={output} exists: choose another or pass --overwrite")
    tables = _tables(batches)
    if (first := next(tables, None)) is None:
        raise ProbelineError(
            "no measurement matches: beam_pipeline.inspect shows a dataset's splits, probes, times"
        )
    num_measurements, probes, size = 0, set[str](), ""
    with contextlib.nullcontext(sys.stdout.buffer) if is_stdout else atomic_write(output) as file:
        if is_stdout:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly with its reader, as head
        with _writer(output, file) as write:
            for table in chain([first], tables):
                write(table)
                num_measurements += table.num_rows
                probes.update(table.column("src_addr").chunk(0).dictionary.to_pylist())
        if not is_stdout:
            size = f", {bytes_text(file.tell())}"
    print(
        f"{number_of(num_measurements, 'measurement')} of {number_of(len(probes), 'probe')} in "
        f"{printable(output)}{size}",
        file=sys.stderr if is_stdout else sys.stdout,
    )


# --- measurements ---------------------------------------------------------------------------------


def chosen_batches(
    path: str, split: str, probes: Sequence[str] | None, sample: Sample
) -> Iterator[pa.RecordBatch]:
    """Yields the chosen measurements of a dataset in its order, some 100,000 at a time.

    Raises:
      UsageError: `path` is a part of a dataset, or a probe is not an address.
      ProbelineError: the dataset is unfinished, or a row is damaged.
    """
    dataset = open_whole(path)
    names = Names.read(dataset)
    wanted = None if probes is None else _canonical(",".join(probes).split(","), names)
    for name in SPLITS if split == "all" else (split,):
        for lines in _lines_by_shard(dataset, name):
            reader = RowReader(dataset, name, lines, verify_cure(dataset))
            chosen = np.flatnonzero(_may_match(lines, wanted, sample))
            for rows, batch in reader.batches(chosen, _PART_ROWS):
                if sample.has_window:
                    times = batch.column("event_time").view(pa.int64()).to_numpy()
                    is_in = in_window(times, sample)
                    rows, batch = rows[is_in], batch.filter(pa.array(is_in))
                if batch.num_rows:
                    if names:
                        shown = names.shown(batch.column("dst_addr"))
                        batch = batch.set_column(1, "dst_addr", shown)
                    distinct, codes = np.unique(rows, return_inverse=True)
                    source = names.shown(lines.src_addr.take(pa.array(distinct)))
                    codes = pa.array(codes, pa.int32())
                    sources = pa.DictionaryArray.from_arrays(codes, source)
                    yield batch.add_column(1, "src_addr", sources)


def _canonical(texts: list[str], names: Names) -> pa.StringArray:
    """Returns addresses and names of --probe as the row index has them."""
    known = set(names)
    texts = [address_of(text) if text in known else text for text in texts]
    hi, lo, status = addresses.parse(pa.array(texts))
    for text, family in zip(texts, status.tolist(), strict=True):
        if family not in (addresses.FAMILY_IPV4, addresses.FAMILY_IPV6):
            raise UsageError(
                f"--probe={printable(text)} is not an IP address" + (" or name" if names else "")
            )
    return addresses.format_any(hi, lo)


def _lines_by_shard(dataset: Dataset, split: str) -> Iterator[RowIndex]:
    """Yields the lines of each shard that has rows."""
    lines = dataset.index_lines(split, INDEX_SCHEMA.names)
    waiting = INDEX_SCHEMA.empty_table()
    for shard in dataset.manifest.splits[split].shards:
        while len(waiting) < shard.num_records:
            waiting = pa.concat_tables([waiting, next(lines)])
        if shard.num_records:
            yield RowIndex.of(waiting.slice(0, shard.num_records))
        waiting = waiting.slice(shard.num_records)


def _may_match(lines: RowIndex, probes: pa.StringArray | None, sample: Sample) -> np.ndarray:
    """Returns which rows may have a chosen measurement, bool [rows]."""
    chosen = lines.last_us >= sample.since_us
    if sample.until_us is not None:  # compact rows have whole seconds, their lines the exact times
        chosen &= lines.first_us // 1_000_000 * 1_000_000 < sample.until_us
    if probes is not None:
        chosen &= pc.is_in(lines.src_addr, probes).to_numpy(zero_copy_only=False)
    if sample.probes < 1:
        hi, lo, _ = addresses.parse(lines.src_addr)
        chosen &= sampled_probes(hi, lo, sample.probes)
    return chosen


# --- files ----------------------------------------------------------------------------------------


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the measurements of batches, about a million at a time."""
    held: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in batches:
        held.append(batch)
        num_rows += batch.num_rows
        if num_rows >= _TABLE_ROWS:
            yield pa.Table.from_batches(held).unify_dictionaries()
            held, num_rows = [], 0
    if num_rows:
        yield pa.Table.from_batches(held).unify_dictionaries()


@contextlib.contextmanager
def _writer(path: str, file: Any) -> Iterator[Callable[[pa.Table], None]]:
    """Yields a function that writes a table in the format of the path's suffix."""
    if path.endswith(".parquet"):
        with pq.ParquetWriter(
            file,
            _SCHEMA,
            compression="zstd",
            use_dictionary=_SCHEMA.names[1:],  # pyright: ignore[reportArgumentType]
            column_encoding={"event_time": "DELTA_BINARY_PACKED"},
            store_schema=False,  # so that the dictionary reads back as plain strings
        ) as writer:
            yield lambda table: writer.write_table(table.cast(_SCHEMA))
    elif path.endswith(".gz"):
        with (
            igzip.IGzipFile(fileobj=file, mode="wb", mtime=0) as packed,
            _writer(path.removesuffix(".gz"), packed) as write,
        ):
            yield write
    else:
        file.write(f"{','.join(_SCHEMA.names)}\n".encode())
        yield partial(_write_csv, path, file)


def _write_csv(path: str, file: Any, table: pa.Table) -> None:
    """Writes lines of CSV; times are ISO 8601 with microseconds and Z."""
    times = table.column("event_time")
    if pc.max(times).value >= _YEAR_10000_US:
        raise ProbelineError(f"{path}: CSV has no time after 9999: choose a .parquet")
    # Arrow's own text of UTC takes ten times as long.
    text = pc.binary_replace_slice(times.cast(pa.string()), 10, 11, "T")
    text = pc.binary_join_element_wise(text, "Z", "")
    table = table.set_column(0, "event_time", text)
    quoting = "none"
    for column, name in enumerate(_SCHEMA.names[1:3], 1):
        ends = table.column(name).cast(pa.string())
        if pc.any(pc.match_substring_regex(ends, f'{_FORMULA}|[",]')).as_py():
            safe = pc.replace_substring_regex(ends, _FORMULA, r"'\0")
            table, quoting = table.set_column(column, name, safe), "needed"
    csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style=quoting))
