"""The last step of the job: dead letters, the proof of the counts, the manifest and `_SUCCESS`."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics

from beam_pipeline import __version__
from beam_pipeline.checksum import checksum_text
from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.files import create_file, is_local, move, size_and_checksum
from beam_pipeline.grouping import UnitSummary
from beam_pipeline.inputs import open_parquet
from beam_pipeline.manifest import (
    DEAD_LETTER_FOLDER,
    FORMAT_VERSION,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    SUCCESS_NAME,
    Counts,
    Manifest,
    Shard,
    Split,
    success_stamp,
)
from beam_pipeline.sharded_write import ShardInfo


class Commit(beam.DoFn):
    """Moves the dead letters, proves the counts, writes the manifest and `_SUCCESS`, tidies up.

    Every step may have been done by an attempt before this one.
    """

    def __init__(
        self,
        output: str,
        run_folder: str,
        options: dict[str, Any],
        num_files: int,
    ):
        self._output = output
        self._run_folder = run_folder
        self._options = options
        self._num_files = num_files
        self._probes = {split: Metrics.counter("probeline", f"{split}_probes") for split in SPLITS}

    def process(
        self,
        _: None,
        summaries: Iterable[UnitSummary],
        *splits: Iterable[ShardInfo],
    ) -> Iterator[Any]:
        summaries = sorted(UnitSummary(*summary) for summary in summaries)
        described = {
            name: describe_split(self._output, name, [ShardInfo(*shard) for shard in shards])
            for name, shards in zip(SPLITS, splits, strict=True)
        }
        counts = _count(summaries, self._num_files)
        check_counts(counts, described.values())
        self._move_dead_letters(summaries)
        for name, split in described.items():
            self._probes[name].inc(split.num_probes)
        whole = Manifest(
            FORMAT_VERSION,
            self._options,
            library_versions(),
            counts,
            described,
        )
        write_success(self._output, whole.to_json())
        if FileSystems.exists(self._run_folder) or not is_local(self._run_folder):
            FileSystems.delete([self._run_folder])
        return iter(())

    def _move_dead_letters(self, summaries: Sequence[UnitSummary]) -> None:
        parts = [path for summary in summaries for path in summary.dead_letter_parts]
        for number, path in enumerate(parts):
            name = f"dead_letter_{number:05d}-of-{len(parts):05d}.parquet"
            target = FileSystems.join(self._output, DEAD_LETTER_FOLDER, name)
            found = path if FileSystems.exists(path) else target
            move(path, target, *size_and_checksum(found))


def _count(summaries: Sequence[UnitSummary], num_files: int) -> Counts:
    dead_letters: Counter[str] = Counter()
    for summary in summaries:
        dead_letters.update(summary.dead_letters)
    return Counts(
        input_files=num_files,
        rows_read=sum(summary.num_rows for summary in summaries),
        measurements=sum(summary.num_measurements for summary in summaries),
        dead_letters=dict(sorted(dead_letters.items())),
    )


def check_counts(counts: Counts, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless every row read is in a shard or among the dead letters."""
    written = sum(split.num_measurements for split in splits)
    if counts.rows_read != counts.measurements + counts.num_dead_letters:
        raise ProbelineError(
            f"{counts.rows_read} rows were read, but {counts.measurements} were grouped and "
            f"{counts.num_dead_letters} are dead letters: this is a fault of Probeline, report it"
        )
    if counts.measurements != written:
        raise ProbelineError(
            f"{counts.measurements} measurements were grouped, but {written} were written: this "
            "is a fault of Probeline or of the runner, report it"
        )


def describe_split(output: str, name: str, shards: Sequence[ShardInfo]) -> Split:
    """Returns the manifest's account of a split, measurements counted from its rows.parquet."""
    index_path = FileSystems.join(output, name, INDEX_NAME)
    measurements = [0] * len(shards)
    num_probes = 0
    with open_parquet(index_path) as file:
        for batch in file.iter_batches(columns=["shard", "row_index", "n_measurements"]):
            in_shard = batch.column("shard").to_numpy()
            counts = batch.column("n_measurements").to_numpy()
            for shard in np.unique(in_shard).tolist():
                measurements[shard] += int(counts[in_shard == shard].sum(dtype=np.int64))
            num_probes += int(np.count_nonzero(batch.column("row_index").to_numpy() == 0))
    listed = [
        Shard(
            path=f"{name}/{FileSystems.split(shard.path)[1]}",
            num_records=shard.num_records,
            num_measurements=measurements[shard.shard],
            num_bytes=shard.num_bytes,
            crc32c=checksum_text(shard.crc32c),
        )
        for shard in sorted(shards, key=lambda shard: shard.shard)
    ]
    return Split(
        num_probes=num_probes,
        num_records=sum(shard.num_records for shard in listed),
        num_measurements=sum(measurements),
        num_bytes=sum(shard.num_bytes for shard in listed),
        shards=listed,
        index_crc32c=checksum_text(size_and_checksum(index_path)[1]),
    )


def library_versions() -> dict[str, str]:
    """Returns the versions of what shapes the bytes of a shard."""
    names = ("apache-beam", "array-record", "numpy", "pyarrow")
    return {"probeline": __version__, **{name: version(name) for name in names}}


def write_success(output: str, manifest: bytes) -> None:
    """Commits the dataset: the manifest first, `_SUCCESS` last, each whole or not at all."""
    _write_whole(FileSystems.join(output, MANIFEST_NAME), manifest)
    _write_whole(FileSystems.join(output, SUCCESS_NAME), success_stamp(manifest))


def _write_whole(path: str, data: bytes) -> None:
    """Writes a small file so that no reader sees half of it; doing it again changes nothing."""
    with explained_os_errors("write", path):
        if not is_local(path):
            with create_file(path) as file:  # an object appears when its upload ends
                file.write(data)
            return
        temporary_path = f"{path}.{os.getpid()}.tmp"
        with open(temporary_path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, path)
