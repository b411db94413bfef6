"""The last step: dead letters, the check of the counts, data card, manifest and `_SUCCESS`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import __version__
from beam_pipeline.dataset.data_card import (
    CARD_COLUMNS,
    CARD_NAME,
    FIRST_LINE,
    data_card,
    totals_of,
)
from beam_pipeline.dataset.manifest import (
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
from beam_pipeline.errors import ProbelineError, same_src_id
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.jobs.output_folder import OutputFiles
from beam_pipeline.probe_rows.grouping import UnitSummary
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage.files import (
    begins_with,
    checksum_text,
    exists,
    file_infos,
    is_gcs,
    is_local,
    move,
    remove_folder,
    size_and_checksum,
    write_file,
)
from beam_pipeline.storage.parquet import open_parquet

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
        self, _: bytes, summaries: Iterable[UnitSummary], *splits: Iterable[ShardInfo]
    ) -> None:
        with logged("Commit the dataset", output=self._job.output):
            self._commit(sorted(summaries), splits)

    def _commit(
        self, summaries: Sequence[UnitSummary], splits: Sequence[Iterable[ShardInfo]]
    ) -> None:
        output, marker = self._job.output, self._job.marker
        # An earlier attempt that finished, but whose result was lost, has released the lease.
        if marker is not None and not exists(FileSystems.join(output, SUCCESS_NAME)):
            marker.check()
        described = {
            name: describe_split(output, name, list(shards))
            for name, shards in zip(SPLITS, splits, strict=True)
        }
        check_shards(output, described.values())
        check_src_ids(output)
        counts = _count(summaries, self._num_files)
        check_counts(counts, described.values())
        _move_dead_letters(output, summaries)
        for name, split in described.items():
            self._probes[name].inc(split.num_probes)
        manifest = Manifest(
            FORMAT_VERSION, self._job.manifest_options(), library_versions(), counts, described
        )
        write_card(output, manifest, self._job.command)
        write_success(output, manifest.to_json())
        remove_folder(self._job.workspace.folder)
        if marker is not None:
            marker.release()


def _move_dead_letters(output: str, summaries: Sequence[UnitSummary]) -> None:
    files = [path for summary in summaries for path in summary.dead_letter_files]
    for number, path in enumerate(files):
        name = f"dead_letter_{number:05d}-of-{len(files):05d}.parquet"
        target = FileSystems.join(output, DEAD_LETTER_FOLDER, name)
        move(path, target, *size_and_checksum(path if exists(path) else target))


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


def check_shards(output: str, splits: Iterable[Split]) -> None:
    """Raises ProbelineError unless every shard has the size and checksum that was written.

    Costs one `stat` per local shard. On `gs://` it costs one listing per split, which has the
    checksums, too; a local file is not read again.
    """
    if not is_local(output) and not is_gcs(output):
        return  # other filesystems have no such list
    shards = {f"{output}/{shard.path}": shard for split in splits for shard in split.shards}
    for path, found in file_infos(shards).items():
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
        for batch in _index_batches(output, split, ("src_id", "src_addr", "row_index")):
            yield batch.filter(pc.equal(batch.column("row_index"), 0))


def _index_batches(output: str, split: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with open_parquet(FileSystems.join(output, split, INDEX_NAME)) as file:
        yield from file.iter_batches(columns=list(columns))


def describe_split(output: str, name: str, shards: Sequence[ShardInfo]) -> Split:
    """Returns the manifest's entry of a split, with measurements counted from its row index."""
    index_path = FileSystems.join(output, name, INDEX_NAME)
    measurements, num_probes = np.zeros(len(shards), np.int64), 0
    for batch in _index_batches(output, name, ("shard", "row_index", "n_measurements")):
        shard, row_index, count = map(np.asarray, batch.columns)
        np.add.at(measurements, shard, count)
        num_probes += int(np.count_nonzero(row_index == 0))
    listed = [
        Shard(
            path=f"{name}/{FileSystems.split(shard.path)[1]}",
            num_records=shard.num_records,
            num_measurements=int(measurements[shard.shard]),
            num_bytes=shard.num_bytes,
            crc32c=checksum_text(shard.crc32c),
        )
        for shard in sorted(shards, key=lambda info: info.shard)
    ]
    return Split(
        num_probes=num_probes,
        num_records=sum(shard.num_records for shard in listed),
        num_measurements=int(measurements.sum()),
        num_bytes=sum(shard.num_bytes for shard in listed),
        shards=listed,
        index_crc32c=checksum_text(size_and_checksum(index_path)[1]),
    )


def library_versions() -> dict[str, str]:
    """Returns the versions of the libraries that shape the bytes of a shard."""
    names = ("apache-beam", "array-record", "numpy", "pyarrow")
    return {"probeline": __version__, **{name: version(name) for name in names}}


def write_card(output: str, manifest: Manifest, command: str) -> None:
    """Writes the data card, unless the output has a README.md that is not a data card."""
    path = FileSystems.join(output, CARD_NAME)
    if exists(path) and not begins_with(path, FIRST_LINE):
        return
    totals = {split: totals_of(_index_batches(output, split, CARD_COLUMNS)) for split in SPLITS}
    write_file(path, data_card(manifest, totals, command).encode(), durable=True)


def write_success(output: str, manifest: bytes) -> None:
    """Commits the dataset: the manifest first, `_SUCCESS` last, each whole or not at all."""
    write_file(FileSystems.join(output, MANIFEST_NAME), manifest, durable=True)
    write_file(FileSystems.join(output, SUCCESS_NAME), success_stamp(manifest), durable=True)
