"""The last step: dead letters, the check of the counts, data card, manifest and `_SUCCESS`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import zip_longest

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import __version__
from beam_pipeline.dataset.data_card import CARD_NAME, FIRST_LINE, write_card
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    FORMAT_VERSION,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    SUCCESS_NAME,
    Counts,
    LetterFile,
    Manifest,
    Shard,
    Split,
    write_success,
)
from beam_pipeline.dataset.row_index import index_batches
from beam_pipeline.errors import ProbelineError, same_src_id
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.jobs.output_folder import OutputFiles
from beam_pipeline.probe_rows.grouping import UnitSummary
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage import files

DATASET_FILES = OutputFiles(
    flag="output",
    name="dataset",
    success=SUCCESS_NAME,
    patterns={
        "": rf"{MANIFEST_NAME}|({SUCCESS_NAME}|{MANIFEST_NAME}|{CARD_NAME})\.\d+\.tmp",
        **{
            split: rf"({split}_shard_\d+-of-\d+\.(arrayrecord|tfrecord)|{INDEX_NAME})"
            for split in SPLITS
        },
        DEAD_LETTER_FOLDER: r"dead_letter_\d+-of-\d+\.parquet",
    },
    marked={CARD_NAME: FIRST_LINE},
)


class Commit(beam.DoFn):
    """Moves the dead letters, checks the counts, writes card, manifest and `_SUCCESS`, tidies up.

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
        *splits: Iterable[ShardInfo],
    ) -> None:
        with logged("Commit the dataset", output=self._job.output):
            read = sorted(summaries)
            check_plan(sorted(planned), read)
            self._commit(read, splits)

    def _commit(
        self, summaries: Sequence[UnitSummary], splits: Sequence[Iterable[ShardInfo]]
    ) -> None:
        output, marker = self._job.output.rstrip("/"), self._job.marker
        # An earlier attempt that finished, but whose result was lost, has released the lease.
        if marker is not None and not files.exists(FileSystems.join(output, SUCCESS_NAME)):
            marker.check()
        described = {
            name: describe_split(output, name, list(shards))
            for name, shards in zip(SPLITS, splits, strict=True)
        }
        check_shards(output, described.values())
        check_src_ids(output)
        counts = _count(summaries, self._num_files)
        check_counts(counts, described.values())
        letter_files = _move_dead_letters(output, summaries)
        for name, split in described.items():
            self._probes[name].inc(split.num_probes)
        options, versions = self._job.manifest_options(), library_versions()
        manifest = Manifest(FORMAT_VERSION, options, versions, counts, described, letter_files)
        write_card(output, manifest, self._job.command)
        write_success(output, manifest.to_json())
        files.remove_folder(self._job.workspace.folder)
        if marker is not None:
            marker.release()


def _move_dead_letters(output: str, summaries: Sequence[UnitSummary]) -> list[LetterFile]:
    moved_files = []
    paths = [path for summary in summaries for path in summary.dead_letter_files]
    for number, path in enumerate(paths):
        name = f"dead_letter_{number:05d}-of-{len(paths):05d}.parquet"
        target = FileSystems.join(output, DEAD_LETTER_FOLDER, name)
        moved = path if files.exists(path) else target
        size, checksum = files.size_and_checksum(moved)
        files.move(path, target, size, checksum)
        text = files.checksum_text(checksum)
        moved_files.append(LetterFile(f"{DEAD_LETTER_FOLDER}/{name}", size, text))
    return moved_files


def _count(summaries: Sequence[UnitSummary], num_files: int) -> Counts:
    dead_letters: Counter[str] = Counter()
    for summary in summaries:
        dead_letters.update(summary.dead_letters)
    rows_read = sum(summary.num_rows for summary in summaries)
    measurements = sum(summary.num_measurements for summary in summaries)
    return Counts(num_files, rows_read, measurements, dict(sorted(dead_letters.items())))


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


def check_src_ids(output: str) -> None:
    """Raises ProbelineError if two probes of the dataset have the same src_id.

    The writer of a shard compares neighbours; this compares all probes. Memory: 8 bytes a probe.
    """
    columns = [np.asarray(batch.column("src_id")) for batch in _probes(output)]
    ids = np.sort(np.concatenate([np.zeros(0, np.int64), *columns]))
    twice = ids[1:][ids[1:] == ids[:-1]]
    if not len(twice):
        return
    probes = sorted(
        (row["src_id"], row["src_addr"])
        for batch in _probes(output)
        for row in batch.filter(pc.is_in(batch.column("src_id"), pa.array(twice))).to_pylist()
    )
    (src_id, one), (_, other) = probes[:2]
    raise same_src_id(src_id, one, other)


def _probes(output: str) -> Iterator[pa.RecordBatch]:
    """Yields the first line of every probe in the row indexes of all splits."""
    for split in SPLITS:
        for batch in index_batches(output, split, ("src_id", "src_addr", "row_index")):
            yield batch.filter(pc.equal(batch.column("row_index"), 0))


def describe_split(output: str, name: str, shards: Sequence[ShardInfo]) -> Split:
    """Returns the manifest's entry of a split, with measurements counted from its row index."""
    measurements, num_probes = np.zeros(len(shards), np.int64), 0
    for batch in index_batches(output, name, ("shard", "row_index", "n_measurements")):
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
        )
        for shard in sorted(shards, key=lambda info: info.shard)
    ]
    _, index_crc32c = files.size_and_checksum(FileSystems.join(output, name, INDEX_NAME))
    return Split(
        num_probes=num_probes,
        num_records=sum(shard.num_records for shard in listed),
        num_measurements=int(measurements.sum()),
        num_bytes=sum(shard.num_bytes for shard in listed),
        shards=listed,
        index_crc32c=files.checksum_text(index_crc32c),
    )


def library_versions() -> dict[str, str]:
    """Returns the versions of the libraries that shape the bytes of a shard."""
    names = ("apache-beam", "array-record", "numpy", "pyarrow")
    return {"probeline": __version__, **{name: version(name) for name in names}}
