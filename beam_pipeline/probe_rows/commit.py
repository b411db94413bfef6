"""The last step: checks the counts, moves the dead letters, writes manifest and `_SUCCESS`."""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset.croissant import CROISSANT_NAME, croissant
from beam_pipeline.dataset.data_card import read_totals, write_card
from beam_pipeline.dataset.end_names import Names, as_file
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    FORMAT_VERSION,
    INDEX_NAME,
    NAMES_NAME,
    SPLITS,
    Counts,
    Generation,
    LetterFile,
    Manifest,
    NamesFile,
    Shard,
    Split,
    write_success,
)
from beam_pipeline.dataset.row_index import index_batches
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError, same_src_id
from beam_pipeline.jobs.frame import FAULT, check_read, versions
from beam_pipeline.jobs.monitoring import counter
from beam_pipeline.probe_rows import outcome
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.outcome import FileOutcome, SpanLines, UnitSummary
from beam_pipeline.probe_rows.switch import switch
from beam_pipeline.shards.letters import LetterPart, dead_letter_names, numbered
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage import files
from beam_pipeline.storage.many_files import Move, copy_files


def write_dataset(
    job: Job,
    num_files: int,
    planned: Iterable[tuple[int, int]],
    summaries: Iterable[UnitSummary],
    dropped: Iterable[int],
    shards: Iterable[ShardInfo],
    names: Iterable[Iterable[str]] = (),
) -> None:
    """Checks the counts, moves the dead letters, describes and commits the dataset.

    An earlier attempt may have done any of these steps. `planned` has the number and rows of every
    work unit, `dropped` the counts of dropped duplicates, `names` those of ends.
    """
    summaries, shards = sorted(summaries), list(shards)
    check_read(planned, ((summary.unit, summary.planned_rows) for summary in summaries))
    with _local_indexes(job.folder) as indexes:
        splits = {}
        for split in SPLITS:
            folder = FileSystems.join(job.folder, split, "")
            own = [shard for shard in shards if shard.path.startswith(folder)]
            splits[split] = describe_split(indexes, split, own)
        check_shards(job.folder, splits.values())
        check_src_ids(indexes)
        added = _count(summaries, num_files, sum(dropped))
        dead = outcome.dead_files(file for each in summaries for file in each.files)
        outcome.check_kept(added, dead, appends=job.base is not None)
        counts = job.base.counts.plus(added) if job.base else added
        if job.base:
            check_kept(job.base, added, summaries)
        check_counts(counts, splits.values())
        letters = _move_dead_letters(job, summaries)
        for name, split in splits.items():
            counter(f"{name}_probes").inc(split.num_probes)
        manifest = Manifest(
            FORMAT_VERSION,
            job.manifest_options(),
            library_versions(),
            counts,
            splits,
            letters,
            _generations(job, splits, added, summaries, dead),
            _write_names(job, names),
        )
        data, totals = manifest.to_json(), read_totals(indexes)
        write_card(job.folder, manifest, totals, job.command, job.run.write)
        job.run.write(f"{job.folder}/{CROISSANT_NAME}", croissant(manifest, totals, data))
        write_success(job.folder, data, job.run.write)
    if job.base:
        switch(job.run.output, job.run.below("commit"), job.run.guard)


def _move_dead_letters(job: Job, summaries: Sequence[UnitSummary]) -> list[LetterFile]:
    """Moves the dead letters to their final names, those of earlier generations first."""
    kept = job.base.dead_letter_files if job.base else []
    found = [replace(file, path=job.run.path(file.path)) for file in kept]
    for part in _numbered_letters(summaries):
        checksum = files.checksum_text(part.crc32c)
        found.append(LetterFile(part.path, part.num_bytes, checksum, part.sha256))
    names = dead_letter_names(len(found))
    named = [
        replace(file, path=f"{DEAD_LETTER_FOLDER}/{name}")
        for file, name in zip(found, names, strict=True)
    ]
    moves = [
        Move(old.path, f"{job.folder}/{new.path}", old.num_bytes, int(old.crc32c, 16))
        for old, new in zip(found, named, strict=True)
    ]
    copy_files(moves[: len(kept)], job.run.below("commit"))
    job.run.move(moves[len(kept) :])
    return named


def _write_names(job: Job, names: Iterable[Iterable[str]]) -> NamesFile | None:
    """Writes the names of the new input and of the datasets among it, if there are any."""
    known = set(chain.from_iterable(names))
    for path in job.named_datasets:
        known.update(Names.read(open_dataset(path)))
    if not known:
        return None
    data, entry = as_file(known)
    job.run.write(f"{job.folder}/{NAMES_NAME}", data)
    return entry


def _numbered_letters(summaries: Sequence[UnitSummary]) -> Iterator[LetterPart]:
    """Yields the files of dead letters; those of spans get the row numbers of their files."""
    first: dict[SpanLines, int] = {}
    num_lines: Counter[str] = Counter()
    for span in sorted(span for each in summaries for span in each.spans):
        first[span] = num_lines[span.path]
        num_lines[span.path] += span.num_lines
    for summary in summaries:
        first_rows = {span.path: first[span] for span in summary.spans}
        for part in summary.dead_letter_files:
            yield numbered(part, first_rows) if any(first_rows.values()) else part


def _generations(
    job: Job,
    splits: Mapping[str, Split],
    added: Counts,
    summaries: Sequence[UnitSummary],
    dead: list[FileOutcome],
) -> list[Generation]:
    if job.planned is None:
        return []
    firsts = [each.first_us for each in summaries if each.first_us is not None]
    lasts = [each.last_us for each in summaries if each.last_us is not None]
    generation = replace(
        job.planned,
        versions=library_versions(),
        counts=added,
        num_probes=sum(split.num_probes for split in splits.values()),
        num_records=sum(split.num_records for split in splits.values()),
        first_us=min(firsts, default=None),
        last_us=max(lasts, default=None),
        warnings=list(outcome.warnings(dead, summaries, job.planned.started)),
    )
    return [*(job.base.generations if job.base else []), generation]


@contextlib.contextmanager
def _local_indexes(output: str) -> Iterator[str]:
    """Yields a local folder with the row index of each split, since each is read several times."""
    if files.is_local(output):
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        for split in SPLITS:
            os.mkdir(os.path.join(folder, split))
            with files.local_copy(FileSystems.join(output, split, INDEX_NAME)) as copy:
                shutil.move(copy, os.path.join(folder, split, INDEX_NAME))
        yield folder


def _count(summaries: Sequence[UnitSummary], num_files: int, num_dropped: int) -> Counts:
    """Counts the new input, without the measurements of the dataset appended to.

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


def check_kept(base: Manifest, added: Counts, summaries: Iterable[UnitSummary]) -> None:
    """Raises ProbelineError unless all of the dataset appended to was read and remains."""
    kept, said = sum(summary.num_kept for summary in summaries), base.counts.measurements
    if kept != said:
        raise ProbelineError(f"{kept} of the dataset's {said} measurements were read: {FAULT}")
    if added.measurements < 0:
        raise ProbelineError(
            f"the dataset has {-added.measurements} duplicates or more, though its option "
            "duplicates is drop: it was modified; rebuild it with --input=PATH"
        )


def check_counts(counts: Counts, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless every row read is written, dead-lettered or left out."""
    written = sum(split.num_measurements for split in splits)
    if counts.rows_read != counts.accounted:
        raise ProbelineError(
            f"{counts.rows_read} rows were read, but {counts.measurements} were grouped, "
            f"{counts.num_dead_letters} are dead letters, {counts.rows_left_out} not in the "
            f"sample and {counts.duplicates_dropped} duplicates: {FAULT}"
        )
    if counts.measurements != written:
        raise ProbelineError(
            f"{counts.measurements} measurements were grouped, but {written} were written: {FAULT}"
        )


def check_shards(output: str, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless shards have the size and, if remote, the checksum written."""
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

    Shard writers compare neighbours; this compares all probes. Memory: 8 bytes per probe.
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
    """Returns a split's manifest entry; measurements are counted from its row index."""
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
    return versions("apache-beam", "array-record", "numpy", "pyarrow")
