"""The last step: dead letters, the check of the counts, descriptions, manifest and `_SUCCESS`."""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import zip_longest

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import __version__
from beam_pipeline.dataset.croissant import write_croissant
from beam_pipeline.dataset.data_card import read_totals, write_card
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    FORMAT_VERSION,
    INDEX_NAME,
    SPLITS,
    SUCCESS_NAME,
    Counts,
    Generation,
    LetterFile,
    Manifest,
    Shard,
    Split,
    committed_manifest,
    success_stamp,
    write_success,
)
from beam_pipeline.dataset.row_index import index_batches
from beam_pipeline.errors import ProbelineError, same_src_id
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.jobs.output_lease import LostOutputError
from beam_pipeline.probe_rows.grouping import UnitSummary
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.switch import switch
from beam_pipeline.shards.letters import LetterPart, dead_letter_names
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, copy_files, move_files, write_guarded


class Commit(beam.DoFn):
    """Moves the dead letters, checks the counts, describes and commits the dataset, tidies up.

    An earlier attempt may have done any of these steps.
    """

    def __init__(self, job: Job, num_files: int):
        self._job = job
        self._num_files = num_files
        self._probes = {split: counter(f"{split}_probes") for split in SPLITS}

    def process(
        self,
        _: bytes,
        planned: Iterable[tuple[int, int]],
        summaries: Iterable[UnitSummary],
        dropped: Iterable[int],
        shards: Iterable[ShardInfo],
    ) -> None:
        with logged("Commit the dataset", output=self._job.output):
            read = sorted(summaries)
            check_plan(sorted(planned), read)
            self._commit(read, sum(dropped), list(shards))

    def _commit(
        self,
        summaries: Sequence[UnitSummary],
        num_dropped: int,
        shards: Sequence[ShardInfo],
    ) -> None:
        job, marker = self._job, self._job.marker
        # An attempt that finished, but whose result was lost, has released the marker.
        with self._unless(self._is_finished):
            if marker is not None:
                marker.check()
        if job.base and self._is_finished():
            self._tidy_up()
            return
        with _local_indexes(job.folder) as indexes:
            described = {
                split: describe_split(indexes, split, self._shards_of(split, shards))
                for split in SPLITS
            }
            check_shards(job.folder, described.values())
            check_src_ids(indexes)
            added = _count(summaries, self._num_files, num_dropped)
            counts = job.base.counts.plus(added) if job.base else added
            if job.base:
                check_kept(job.base, added, summaries)
            check_counts(counts, described.values())
            letters = self._move_dead_letters(summaries)
            for name, split in described.items():
                self._probes[name].inc(split.num_probes)
            options, versions = job.manifest_options(), library_versions()
            manifest = Manifest(FORMAT_VERSION, options, versions, counts, described, letters)
            manifest = replace(manifest, generations=self._generations(manifest, added, summaries))
            data, success = manifest.to_json(), f"{job.folder}/{SUCCESS_NAME}"
            with self._unless(lambda: files.read_file(success) == success_stamp(data)):
                totals = read_totals(indexes)
                write_card(job.folder, manifest, totals, job.command, self._write)
                write_croissant(job.folder, manifest, totals, data, self._write)
                write_success(job.folder, data, self._write)
        if job.base:
            with self._unless(self._is_finished):
                switch(job.output, job.workspace.below("commit"), marker and marker.check)
        self._tidy_up()

    def _shards_of(self, split: str, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
        folder = FileSystems.join(self._job.folder, split, "")
        return [shard for shard in shards if shard.path.startswith(folder)]

    def _is_finished(self) -> bool:
        """Tells whether an attempt has done everything but tidy up."""
        output = self._job.output.rstrip("/")
        base, planned = self._job.base, self._job.planned
        if base is None or planned is None:
            return files.exists(f"{output}/{SUCCESS_NAME}")
        try:
            found = Manifest.from_json(committed_manifest(output)).generations
        except ProbelineError:
            return False
        is_longer = len(found) == len(base.generations) + 1
        return is_longer and found[-1].started == planned.started

    def _move_dead_letters(self, summaries: Sequence[UnitSummary]) -> list[LetterFile]:
        """Names the files of dead letters, those of earlier generations first."""
        kept = self._job.base.dead_letter_files if self._job.base else []
        kept = [replace(file, path=f"{self._job.output}/{file.path}") for file in kept]
        written = [_as_file(part) for each in summaries for part in each.dead_letter_files]
        named = _name_dead_letters([*kept, *written])
        moves = [
            Move(old.path, f"{self._job.folder}/{new.path}", old.num_bytes, int(old.crc32c, 16))
            for old, new in zip([*kept, *written], named, strict=True)
        ]
        copy_files(moves[: len(kept)], self._job.workspace.below("commit"))
        move_files(moves[len(kept) :])
        return named

    def _generations(
        self, manifest: Manifest, added: Counts, summaries: Sequence[UnitSummary]
    ) -> list[Generation]:
        job = self._job
        if job.planned is None:
            return []
        firsts = [each.first_us for each in summaries if each.first_us is not None]
        lasts = [each.last_us for each in summaries if each.last_us is not None]
        generation = replace(
            job.planned,
            versions=manifest.versions,
            counts=added,
            num_probes=sum(split.num_probes for split in manifest.splits.values()),
            num_records=sum(split.num_records for split in manifest.splits.values()),
            first_us=min(firsts, default=None),
            last_us=max(lasts, default=None),
        )
        return [*(job.base.generations if job.base else []), generation]

    def _tidy_up(self) -> None:
        files.remove_folder(self._job.workspace.folder)
        if self._job.marker is not None:
            self._job.marker.release()

    @contextlib.contextmanager
    def _unless(self, is_finished: Callable[[], bool]) -> Iterator[None]:
        """Ends the block when the marker is lost: an error unless another attempt finished."""
        try:
            yield
        except LostOutputError:
            if not is_finished():
                raise

    def _write(self, path: str, data: bytes) -> None:
        guard = self._job.marker.check if self._job.marker else None
        write_guarded(path, data, self._job.workspace.below("commit"), guard)


@contextlib.contextmanager
def _local_indexes(output: str) -> Iterator[str]:
    """Yields a local folder with the row index of each split, which is read several times."""
    if files.is_local(output):
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        for split in SPLITS:
            os.mkdir(os.path.join(folder, split))
            with files.local_copy(FileSystems.join(output, split, INDEX_NAME)) as copy:
                shutil.move(copy, os.path.join(folder, split, INDEX_NAME))
        yield folder


def _as_file(part: LetterPart) -> LetterFile:
    return LetterFile(part.path, part.num_bytes, files.checksum_text(part.crc32c), part.sha256)


def _name_dead_letters(letter_files: Sequence[LetterFile]) -> list[LetterFile]:
    names = dead_letter_names(len(letter_files))
    return [
        replace(file, path=f"{DEAD_LETTER_FOLDER}/{name}")
        for file, name in zip(letter_files, names, strict=True)
    ]


def _count(summaries: Sequence[UnitSummary], num_files: int, num_dropped: int) -> Counts:
    """Counts the input, without what the dataset that is added to has already.

    Of duplicates, that dataset's measurement counts as the one that is kept.
    """
    dead_letters: Counter[str] = Counter()
    for summary in summaries:
        dead_letters.update(summary.dead_letters)
    rows_read = sum(summary.num_rows for summary in summaries)
    measurements = sum(summary.num_measurements for summary in summaries)
    num_kept = sum(summary.num_kept for summary in summaries)
    rows_read, measurements = rows_read - num_kept, measurements - num_kept - num_dropped
    left_out = sum(summary.num_left_out for summary in summaries)
    letters = dict(sorted(dead_letters.items()))
    return Counts(num_files, rows_read, measurements, letters, left_out, num_dropped)


def check_plan(planned: Sequence[tuple[int, int]], summaries: Sequence[UnitSummary]) -> None:
    """Raises ProbelineError unless every work unit of the plan was read once, to its last row.

    Args:
      planned: number and rows of every work unit, in order.
      summaries: in the same order.
    """
    read = [(summary.unit, summary.planned_rows) for summary in summaries]
    if read != list(planned):
        unit, rows = next((a for a, b in zip_longest(planned, read) if a != b), None) or read[-1]
        raise ProbelineError(
            f"{len(planned)} work units of {sum(n for _, n in planned)} rows were planned and "
            f"{len(read)} of {sum(n for _, n in read)} read, the first that differs is unit {unit} "
            f"of {rows} rows: this is a fault of Probeline or of the runner, report it"
        )


def check_kept(base: Manifest, added: Counts, summaries: Iterable[UnitSummary]) -> None:
    """Raises ProbelineError unless all of the dataset that is added to was read, and stays."""
    kept, said = sum(summary.num_kept for summary in summaries), base.counts.measurements
    if kept != said:
        raise ProbelineError(
            f"{kept} of the dataset's {said} measurements were read: this is a fault of Probeline "
            "or of the runner, report it"
        )
    if added.measurements < 0:
        raise ProbelineError(
            f"the dataset has {-added.measurements} duplicates or more, though its option "
            "duplicates is drop: it was altered; write it anew with it as --input"
        )


def check_counts(counts: Counts, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless every row read is in a shard, a dead letter or not wanted."""
    written = sum(split.num_measurements for split in splits)
    if counts.rows_read != counts.accounted:
        raise ProbelineError(
            f"{counts.rows_read} rows were read, but {counts.measurements} were grouped, "
            f"{counts.num_dead_letters} are dead letters, {counts.rows_left_out} not in the "
            f"sample and {counts.duplicates_dropped} duplicates: this is a fault of Probeline, "
            "report it"
        )
    if counts.measurements != written:
        raise ProbelineError(
            f"{counts.measurements} measurements were grouped, but {written} were written: this "
            "is a fault of Probeline or of the runner, report it"
        )


def check_shards(output: str, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless every shard has the size and checksum that was written.

    No shard is read again: of local ones only the size is compared.
    """
    if not files.is_local(output) and not files.is_gcs(output):
        return  # other filesystems have no such list
    shards = {f"{output}/{shard.path}": shard for split in splits for shard in split.shards}
    for path, found in files.file_infos(shards).items():
        size, checksum = shards[path].num_bytes, shards[path].crc32c
        if found is None or found.num_bytes != size or found.crc32c not in (None, checksum):
            raise ProbelineError(
                f"{path} is not what was written there, {size} bytes of checksum {checksum}: "
                "something else writes to the output; run the command again"
            )


def check_src_ids(folder: str) -> None:
    """Raises ProbelineError if two probes of the dataset have the same src_id.

    The writer of a shard compares neighbours; this compares all probes. Memory: 8 bytes a probe.
    """
    columns = [np.asarray(batch.column("src_id")) for batch in _probes(folder)]
    ids = np.sort(np.concatenate([np.zeros(0, np.int64), *columns]))
    twice = ids[1:][ids[1:] == ids[:-1]]
    if not len(twice):
        return
    probes = sorted(
        (row["src_id"], row["src_addr"])
        for batch in _probes(folder)
        for row in batch.filter(pc.is_in(batch.column("src_id"), pa.array(twice))).to_pylist()
    )
    (src_id, one), (_, other) = probes[:2]
    raise same_src_id(src_id, one, other)


def _probes(folder: str) -> Iterator[pa.RecordBatch]:
    """Yields the first line of every probe in the row indexes of all splits."""
    for split in SPLITS:
        for batch in index_batches(folder, split, ("src_id", "src_addr", "row_index")):
            yield batch.filter(pc.equal(batch.column("row_index"), 0))


def describe_split(folder: str, name: str, shards: Sequence[ShardInfo]) -> Split:
    """Returns the manifest's entry of a split, with measurements counted from its row index."""
    measurements, num_probes = np.zeros(len(shards), np.int64), 0
    for batch in index_batches(folder, name, ("shard", "row_index", "n_measurements")):
        shard, row_index, count = map(np.asarray, batch.columns)
        np.add.at(measurements, shard, count)
        num_probes += int(np.count_nonzero(row_index == 0))
    listed = [
        Shard(
            path=f"{name}/{FileSystems.split(shard.path)[1]}",
            num_records=shard.num_records,
            num_measurements=int(measurements[shard.shard]),
            num_bytes=shard.num_bytes,
            crc32c=files.checksum_text(shard.crc32c),
            sha256=shard.sha256,
        )
        for shard in sorted(shards, key=lambda info: info.shard)
    ]
    index = files.file_digests(FileSystems.join(folder, name, INDEX_NAME))
    return Split(
        num_probes=num_probes,
        num_records=sum(shard.num_records for shard in listed),
        num_measurements=int(measurements.sum()),
        num_bytes=sum(shard.num_bytes for shard in listed),
        shards=listed,
        index_crc32c=files.checksum_text(index.crc32c),
        index_sha256=index.sha256,
    )


def library_versions() -> dict[str, str]:
    """Returns the versions of the libraries that shape the bytes of a shard."""
    names = ("apache-beam", "array-record", "numpy", "pyarrow")
    return {"probeline": __version__, **{name: version(name) for name in names}}
