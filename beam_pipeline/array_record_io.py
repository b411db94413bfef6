"""ArrayRecord for Apache Beam: WriteToArrayRecord and ReadFromArrayRecord.

Both work with records of any content on any filesystem of Beam, in bounded memory, without
TensorFlow. Shards have the same bytes on every run and runner: a record's key determines its
shard and its place there.

  (pipeline
   | beam.Create([b"alpha", b"beta"])
   | WriteToArrayRecord("gs://bucket/words", num_shards=2))     words-00000-of-00002.arrayrecord

  lines = pipeline | ReadFromArrayRecord("gs://bucket/words-*.arrayrecord")
"""
# Beam is typed in part, ArrayRecord not at all.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# pyright: reportUntypedBaseClass=false

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline.dataset.row_reader import READER_OPTIONS
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.shards.staging import Records, StageRecords
from beam_pipeline.shards.writing import RecordWriter, ShardTarget, WriteShards
from beam_pipeline.storage.files import local_copy, remove_folder
from beam_pipeline.storage.gcs import prepare_native_reader
from beam_pipeline.storage.matching import FileVersion, match

DEFAULT_OPTIONS = "group_size:1,zstd:1"
SUFFIX = ".arrayrecord"
_READ_BYTES = 16 << 20
_SPLIT_BYTES = 64 << 20


def content_key(element: bytes) -> bytes:
    """Returns the default key of a record: a hash of its bytes, so equal records are adjacent."""
    return hashlib.blake2b(element, digest_size=16).digest()


class WriteToArrayRecord(beam.PTransform):
    """Writes elements to ArrayRecord shards, with the arguments of `beam.io.WriteToTFRecord`.

    The result is a PCollection of `ShardInfo` (path, shard, num_shards, num_records, num_bytes,
    crc32c), one per file, once all files have their final names. Memory: one record and
    ArrayRecord's own buffers (about 60 MB at 8 MiB a record), and 200 bytes for each record of
    one shard. Records are staged once below `temp_location`, which is removed at the end,
    together with files of failed attempts.

    Args:
      file_path_prefix: a shard's path up to its number.
      coder: encodes an element as the bytes of a record.
      file_name_suffix: a shard's path after its number.
      num_shards: the number of files, or 0 for files of about 256 MiB. Their number then follows
        from the records, not from bundles, and is at least 1: without records, one file is empty.
      shard_name_template: S's and N's stand for the shard and the number of shards.
      options: of ArrayRecordWriter, such as "group_size:1,zstd:3" or "uncompressed".
      key: returns the bytes that determine a record's shard and its place there; by default a
        hash of the record, so that the order is random but fixed.
      temp_location: a folder for temporary files on the same filesystem; by default the folder
        of the shards.
      open_writer: creates a local file of another format, given its path, such as
        `dataset.tfrecord.TFRecordWriter`.

    Raises:
      ValueError: `num_shards` is negative, or the template names every shard alike.

    Example:

        words = pipeline | beam.Create([b"alpha", b"beta"])
        words | WriteToArrayRecord("out/words", num_shards=2)

        # out/words-00000-of-00002.arrayrecord, out/words-00001-of-00002.arrayrecord
    """

    def __init__(
        self,
        file_path_prefix: str,
        coder: coders.Coder | None = None,
        file_name_suffix: str = SUFFIX,
        num_shards: int = 0,
        shard_name_template: str = "-SSSSS-of-NNNNN",
        options: str = DEFAULT_OPTIONS,
        key: Callable[[Any], bytes] | None = None,
        temp_location: str | None = None,
        open_writer: Callable[[str], RecordWriter] | None = None,
    ):
        super().__init__()
        if num_shards < 0:
            raise ValueError(f"num_shards is {num_shards}; it must be 0 (automatic) or more")
        if "S" not in shard_name_template and num_shards != 1:
            raise ValueError(
                f"shard_name_template {shard_name_template!r} names every shard alike: "
                "put SSSSS in it or write num_shards=1"
            )
        self._coder = coder or coders.BytesCoder()
        self._key = key
        self._num_shards = num_shards
        parent = temp_location or FileSystems.split(file_path_prefix)[0] or "."
        self._temp_folder = FileSystems.join(parent, f".temp-arrayrecord-{uuid.uuid4().hex}")
        self._target = ShardTarget(
            file_path_prefix,
            file_name_suffix,
            shard_name_template,
            open_writer or partial(ArrayRecordWriter, options=options),
            self._temp_folder,
        )

    def expand(self, elements: beam.PCollection) -> Any:
        if not elements.is_bounded:
            raise ValueError("WriteToArrayRecord takes a bounded PCollection: its shards must end")
        shards = (
            elements
            | "Into one window" >> beam.WindowInto(beam.window.GlobalWindows())
            | "Encode" >> beam.Map(_encode, self._coder, self._key)
            | "Stage" >> beam.ParDo(StageRecords(self._temp_folder, inline_bytes=1024))
            | "Write shards" >> WriteShards(self._target, self._num_shards)
        )
        _ = (
            elements.pipeline
            | "Last" >> beam.Create([self._temp_folder])
            | "Remove temporary files"
            >> beam.Map(lambda folder, _: remove_folder(folder), beam.pvalue.AsIter(shards))
        )
        return shards


def _encode(element: Any, coder: coders.Coder, key: Callable[[Any], bytes] | None) -> Records:
    payload = coder.encode(element)
    return Records([key(element) if key else content_key(payload)], [payload])


class ReadFromArrayRecord(beam.PTransform):
    """Reads all records of the ArrayRecord files that match a pattern, in no fixed order.

    Files are split by ranges of records, also while they are read if the runner supports it.
    Memory: 16 MiB of records, or one record if it is larger.

    Args:
      file_pattern: a path or glob on any Beam filesystem. `gs://` is read in place; files of
        other remote filesystems are first copied to a local temporary file.
      coder: decodes the bytes of a record.
      validate: whether a pattern without a match is an error when the pipeline is built.

    Raises:
      ProbelineError: no file matches. A file that is damaged raises it when the pipeline runs.

    Example:

        pipeline | ReadFromArrayRecord("out/words-*.arrayrecord") | beam.Map(len)
    """

    def __init__(self, file_pattern: str, coder: coders.Coder | None = None, validate: bool = True):
        super().__init__()
        self._pattern = file_pattern
        self._coder = coder or coders.BytesCoder()
        if validate and not match(file_pattern):
            raise ProbelineError(f"{file_pattern} matches no ArrayRecord file: check the pattern")

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection:
        return (
            pbegin
            | "Pattern" >> beam.Create([self._pattern])
            | "Match" >> beam.FlatMap(match).with_output_types(FileVersion)
            | "Spread files" >> beam.Reshuffle()
            | "Read records" >> beam.ParDo(_ReadRecords())
            | "Decode" >> beam.Map(self._coder.decode)
        )


class _RecordRanges(beam.transforms.core.RestrictionProvider):
    """The restriction of a file is the range of its records."""

    def initial_restriction(self, element: FileVersion) -> OffsetRange:
        with _open_reader(element.path) as reader:
            return OffsetRange(0, reader.num_records())

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def split(self, element: FileVersion, restriction: OffsetRange) -> Iterator[OffsetRange]:
        num_parts = max(1, element.num_bytes // _SPLIT_BYTES)
        step = max(1, -(-restriction.size() // num_parts))
        yield from restriction.split(step, step)

    def restriction_size(self, element: FileVersion, restriction: OffsetRange) -> int:
        return restriction.size()


class _ReadRecords(beam.DoFn):
    """FileVersion → each record of the file, as bytes."""

    def process(
        self,
        element: FileVersion,
        tracker: Any = beam.DoFn.RestrictionParam(_RecordRanges()),  # noqa: B008
    ) -> Iterator[bytes]:
        with _open_reader(element.path) as reader:
            average = max(1, element.num_bytes // max(1, reader.num_records()))
            at, stop = tracker.current_restriction().start, tracker.current_restriction().stop
            while at < stop:
                # Sizes are compressed: records may take several times as much memory.
                end = min(stop, at + max(1, _READ_BYTES // 4 // average))
                for record in reader.read(at, end):
                    if not tracker.try_claim(at):
                        return
                    yield record
                    at += 1


@contextlib.contextmanager
def _open_reader(path: str) -> Generator[ArrayRecordReader]:
    """Yields a reader for a file on any Beam filesystem; ProbelineError if it is damaged."""
    in_place = path.startswith("gs://")  # ArrayRecord reads it itself
    if in_place:
        prepare_native_reader(path)
    with contextlib.nullcontext(path) if in_place else local_copy(path) as readable:
        reader = ArrayRecordReader(readable, options=READER_OPTIONS)
        try:
            # A damaged file opens without records; only close() reports the reason.
            if reader.ok():
                yield reader
                reader.close()
                return
            reader.close()
            raise ValueError("it cannot be opened")
        except (RuntimeError, ValueError, IndexError) as error:
            raise ProbelineError(
                f"{path} is not a readable ArrayRecord file: {one_line(error)}"
            ) from error
