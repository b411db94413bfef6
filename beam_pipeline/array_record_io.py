"""ArrayRecord for Apache Beam: WriteToArrayRecord, ReadFromArrayRecord, ReadAllFromArrayRecord.

They handle records of any content on any Beam filesystem, in bounded memory and without TensorFlow.
Shards have the same bytes on every run and runner, since a record's key determines its shard and
its place there.

  (pipeline
   | beam.Create([b"alpha", b"beta"])
   | WriteToArrayRecord("gs://bucket/words", num_shards=2))     words-00000-of-00002.arrayrecord

  lines = pipeline | ReadFromArrayRecord("gs://bucket/words-*.arrayrecord")
"""
# Beam is typed in part, ArrayRecord not at all.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportUntypedBaseClass=false
# pyright: reportMissingTypeArgument=false, reportIncompatibleMethodOverride=false
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

import contextlib
import hashlib
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.io.fileio import EmptyMatchTreatment
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.options.value_provider import ValueProvider
from apache_beam.transforms.display import DisplayDataItem
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.staging import Record, StagedRecords, StagedShards, StageRecords
from beam_pipeline.shards.writing import RecordWriter, ShardInfo, ShardTarget, WriteShards
from beam_pipeline.storage import array_record
from beam_pipeline.storage.files import is_gcs, is_local, local_copy, remove_folder
from beam_pipeline.storage.matching import FileVersion, match

DEFAULT_OPTIONS = "group_size:1,zstd:1"
DEFAULT_TEMPLATE = "-SSSSS-of-NNNNN"
SUFFIX = ".arrayrecord"
_INLINE_BYTES = 1 << 10
_DEFAULT_SHARD_BYTES = 256 << 20
_READ_BYTES = 16 << 20
_SPLIT_BYTES = 64 << 20


def content_key(element: bytes) -> bytes:
    """Returns the default key of a record: a hash of its bytes, so equal records are adjacent."""
    return hashlib.blake2b(element, digest_size=16).digest()


class WriteToArrayRecord(beam.PTransform):
    """Writes elements to ArrayRecord shards, with the arguments of `beam.io.WriteToTFRecord`.

    The result is a PCollection of `ShardInfo` (path, shard, num_shards, num_records, num_bytes,
    crc32c, sha256), one per file, once all files have their final names. Memory: one record and
    ArrayRecord's own buffers (about 60 MB at 8 MiB per record); of one shard, the records up to
    1 KiB and 200 bytes per record. Larger records are staged once below `temp_location`, in a
    folder that is removed at the end, together with files of failed attempts. As in Beam,
    a second write with fewer shards leaves the files of the first: remove those before it.

    Args:
      file_path_prefix: path of a shard up to its number; a str, or a ValueProvider that has its
        value when the pipeline is built.
      coder: encodes an element as the bytes of a record; `BytesCoder` by default.
      file_name_suffix: path of a shard after its number; a str or a ValueProvider, as above.
      num_shards: number of files; 0 or None for files of about 256 MiB. That number depends on the
        records, not on bundles, and is at least 1: without records, one empty file is written.
      shard_name_template: S and N stand for the shard and the number of shards. None means
        "-SSSSS-of-NNNNN", "" one file without a number. W and V are refused, since all windows are
        written as one set of files.
      compression_type: None, AUTO or UNCOMPRESSED: ArrayRecord compresses records, see `options`.
      triggering_frequency: must be None: the input is bounded.
      options: of ArrayRecordWriter, such as "group_size:1,zstd:3" or "group_size:1,uncompressed".
      key: returns the bytes that determine a record's shard and its place there; by default a
        hash of the record, which gives a random but fixed order.
      ordered: whether the records of a shard are sorted by key. If False, they are written in the
        order in which the runner delivers them: on each run a shard has the same records, but not
        the same bytes. Records are then not staged, but travel through the runner's shuffle and are
        written to storage once. Set `num_shards` in this case; otherwise the runner keeps all
        records until they are counted.
      temp_location: folder for temporary files on the same filesystem; by default the folder of
        the shards.
      open_writer: creates a local file of another format, given its path, such as
        `dataset.tfrecord.TFRecordWriter`; `options` are then ignored.

    Raises:
      ValueError: an argument has no meaning for ArrayRecord, `num_shards` is negative, or the
        template gives every shard the same name.

    Example:

        words = pipeline | beam.Create([b"alpha", b"beta"])
        words | WriteToArrayRecord("out/words", num_shards=2)

        # out/words-00000-of-00002.arrayrecord, out/words-00001-of-00002.arrayrecord
    """

    def __init__(
        self,
        file_path_prefix: str | ValueProvider,
        coder: coders.Coder | None = None,
        file_name_suffix: str | ValueProvider = SUFFIX,
        num_shards: int | None = 0,
        shard_name_template: str | None = None,
        compression_type: str | None = None,
        triggering_frequency: None = None,
        *,
        options: str = DEFAULT_OPTIONS,
        key: Callable[[Any], bytes] | None = None,
        ordered: bool = True,
        temp_location: str | None = None,
        open_writer: Callable[[str], RecordWriter] | None = None,
    ):
        super().__init__()
        _refuse_compression(compression_type, "options say how records are compressed")
        refuse("triggering_frequency", triggering_frequency, "the input is bounded")
        template = DEFAULT_TEMPLATE if shard_name_template is None else shard_name_template
        self._num_shards = 1 if template == "" else num_shards or 0
        _check_names(self._num_shards, template)
        self._coder = coder or coders.BytesCoder()
        self._key = key
        self._options = None if open_writer else options
        prefix = known_text("file_path_prefix", file_path_prefix)
        parent = temp_location or FileSystems.split(prefix)[0] or "."
        self._target = ShardTarget(
            prefix,
            known_text("file_name_suffix", file_name_suffix),
            template,
            open_writer or partial(array_record.open_writer, options=options),
            FileSystems.join(parent, f".temp-arrayrecord-{uuid.uuid4().hex}"),
        )
        self._ordered = ordered

    def expand(self, elements: beam.PCollection) -> beam.PCollection[ShardInfo]:
        if not elements.is_bounded:
            raise ValueError("WriteToArrayRecord takes a bounded PCollection: its shards must end")
        temp_folder = self._target.temp_folder
        inline_bytes = _INLINE_BYTES if self._ordered else sys.maxsize
        encode = beam.Map(partial(_encode, coder=self._coder, key=self._key))
        staged = (
            elements
            | "Into one window" >> beam.WindowInto(beam.window.GlobalWindows())
            | "Encode" >> encode.with_input_types(element_type(self._coder))
            | "Stage" >> beam.ParDo(StageRecords(temp_folder, inline_bytes))
        )
        write = WriteShards(
            StagedShards(self._ordered), self._target, num_shards=self._counted_shards(staged)
        )
        shards = staged | "Write shards" >> write
        _ = (
            elements.pipeline
            | "Last" >> beam.Create([temp_folder])
            | "Remove temporary files"
            >> beam.Map(lambda folder, _: remove_folder(folder), beam.pvalue.AsIter(shards))
        )
        return shards

    def _counted_shards(self, staged: beam.PCollection) -> Any:
        if self._num_shards:
            return staged.pipeline | "Number of shards" >> beam.Create([[self._num_shards]])
        return (
            staged
            | "Size of each" >> beam.Map(StagedRecords.payload_bytes)
            | "Size of all" >> beam.CombineGlobally(sum)
            | "Number of shards"
            >> beam.Map(lambda total: [max(1, -(-total // _DEFAULT_SHARD_BYTES))])
        )

    def display_data(self) -> dict[str, Any]:
        target = self._target
        pattern = f"{target.prefix}{target.shard_name_template}{target.suffix}"
        return {
            "file_pattern": DisplayDataItem(pattern, label="File Pattern"),
            "shards": DisplayDataItem(self._num_shards, "", "Number of Shards").drop_if_default(0),
            "ordered": DisplayDataItem(self._ordered, label="Ordered").drop_if_default(True),
            "options": DisplayDataItem(self._options, label="Writer Options").drop_if_none(),
        }


def _check_names(num_shards: int, template: str) -> None:
    if num_shards < 0:
        raise ValueError(f"num_shards is {num_shards}; it must be 0 (automatic) or more")
    if set(template) & set("UVW"):
        raise ValueError(
            f"shard_name_template {template!r} asks for windows (W, V) or random names (U): all "
            "windows are written as one set of files with fixed names; use S and N alone"
        )
    if "S" not in template and num_shards != 1:
        raise ValueError(
            f"shard_name_template {template!r} names every shard alike: "
            "put SSSSS in it or write num_shards=1"
        )


def _encode(element: Any, coder: coders.Coder, key: Callable[[Any], bytes] | None) -> Record:
    payload = coder.encode(element)
    return Record(key(element) if key else content_key(payload), payload)


class ReadFromArrayRecord(beam.PTransform):
    """Reads all records of the ArrayRecord files that match a pattern, in no fixed order.

    Files are split by ranges of records, also while they are read if the runner supports it.
    Memory: 16 MiB of records, or one record if it is larger.

    Args:
      file_pattern: path or glob on any Beam filesystem; a str, or a ValueProvider that has its
        value when the pipeline is built. Local files and `gs://` are read in place; a file on
        another filesystem is copied to the worker once and not split.
      coder: decodes the bytes of a record; `BytesCoder` by default.
      compression_type: None, AUTO or UNCOMPRESSED: ArrayRecord files record their compression.
      validate: whether a pattern without a match is an error when the pipeline is built.
      empty_match_treatment: whether it is one at run time, as in `beam.io.fileio`.
      with_filename: whether elements are (path, record).

    Raises:
      ProbelineError: no file matches, or, at run time, a file is damaged.
    Example:

        pipeline | ReadFromArrayRecord("out/words-*.arrayrecord") | beam.Map(len)
    """

    def __init__(
        self,
        file_pattern: str | ValueProvider,
        coder: coders.Coder | None = None,
        compression_type: str | None = None,
        validate: bool = True,
        *,
        empty_match_treatment: str = EmptyMatchTreatment.ALLOW_IF_WILDCARD,
        with_filename: bool = False,
    ):
        super().__init__()
        self._pattern = known_text("file_pattern", file_pattern)
        self._read_all = ReadAllFromArrayRecord(
            coder, compression_type, with_filename, empty_match_treatment=empty_match_treatment
        )
        if validate:
            list(_match(self._pattern, EmptyMatchTreatment.DISALLOW))

    def expand(self, pbegin: beam.pvalue.PBegin) -> Any:
        return pbegin | "Pattern" >> beam.Create([self._pattern]) | "Read all" >> self._read_all

    def display_data(self) -> dict[str, Any]:
        return {"file_pattern": DisplayDataItem(self._pattern, label="File Pattern")}


class ReadAllFromArrayRecord(beam.PTransform):
    """Reads all records of the files that match the patterns of a PCollection, in no fixed order.

    Args:
      coder: decodes the bytes of a record; `BytesCoder` by default.
      compression_type: see `ReadFromArrayRecord`.
      with_filename: whether elements are (path, record).
      empty_match_treatment: whether a pattern without a match is an error, as in `beam.io.fileio`.

    Example:

        patterns = pipeline | beam.Create(["out/words-*.arrayrecord"])
        patterns | ReadAllFromArrayRecord(with_filename=True)
    """

    def __init__(
        self,
        coder: coders.Coder | None = None,
        compression_type: str | None = None,
        with_filename: bool = False,
        *,
        empty_match_treatment: str = EmptyMatchTreatment.ALLOW,
    ):
        super().__init__()
        _refuse_compression(compression_type, "ArrayRecord files say themselves which it is")
        if empty_match_treatment not in _TREATMENTS:
            raise ValueError(
                f"empty_match_treatment is {empty_match_treatment!r}, not {_TREATMENTS}"
            )
        self._coder = coder or coders.BytesCoder()
        self._with_filename = with_filename
        self._empty_match_treatment = empty_match_treatment

    def expand(self, patterns: beam.PCollection) -> Any:
        record_type = element_type(self._coder)
        read = beam.ParDo(_ReadRecords(self._coder, self._with_filename))
        return (
            patterns
            | "Match" >> beam.FlatMap(_match, self._empty_match_treatment)
            | "Spread files" >> beam.Reshuffle()
            | "Count records" >> beam.Map(_count_records)
            | "Read records"
            >> read.with_output_types(
                tuple[str, record_type] if self._with_filename else record_type
            )
        )

    def display_data(self) -> dict[str, Any]:
        return {"empty_match_treatment": DisplayDataItem(self._empty_match_treatment)}


class _File(Message, frozen=True):
    path: str
    num_bytes: int
    num_parts: int  # records if it can be split, or 1 if it must be copied


_ALLOW, _ALLOW_IF_WILDCARD = EmptyMatchTreatment.ALLOW, EmptyMatchTreatment.ALLOW_IF_WILDCARD
_TREATMENTS = (_ALLOW, _ALLOW_IF_WILDCARD, EmptyMatchTreatment.DISALLOW)


def _match(pattern: str, empty_match_treatment: str) -> Iterator[FileVersion]:
    """Yields the files that match; unlike Beam's MatchAll, with the same access as reading."""
    is_glob = bool(set("*?[") & set(pattern))
    allowed = empty_match_treatment in ((_ALLOW, _ALLOW_IF_WILDCARD) if is_glob else (_ALLOW,))
    files = match(pattern)
    if not files and not allowed:
        raise ProbelineError(f"{pattern} matches no ArrayRecord file: check the pattern")
    yield from files


def _count_records(file: FileVersion) -> _File:
    if not _is_read_in_place(file.path):
        return _File(file.path, file.num_bytes, 1)
    with _open_reader(file.path) as reader:
        return _File(file.path, file.num_bytes, reader.num_records())


class _RecordRanges(beam.transforms.core.RestrictionProvider):
    """The restriction of a file is the range of its parts, with a size in bytes."""

    def initial_restriction(self, element: _File) -> OffsetRange:
        return OffsetRange(0, element.num_parts)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def split(self, element: _File, restriction: OffsetRange) -> Iterator[OffsetRange]:
        num_splits = max(1, element.num_bytes // _SPLIT_BYTES)
        step = max(1, -(-restriction.size() // num_splits))
        yield from restriction.split(step, step)

    def restriction_size(self, element: _File, restriction: OffsetRange) -> int:
        return element.num_bytes * restriction.size() // max(1, element.num_parts)


class _ReadRecords(beam.DoFn):
    """_File → each record of the file, decoded, or (path, record)."""

    def __init__(self, coder: coders.Coder, with_filename: bool):
        self._coder = coder
        self._with_filename = with_filename

    def process(
        self,
        element: _File,
        tracker: Any = beam.DoFn.RestrictionParam(_RecordRanges()),  # noqa: B008
    ) -> Iterator[Any]:
        for record in _records(element, tracker):
            decoded = self._coder.decode(record)
            yield (element.path, decoded) if self._with_filename else decoded


def _records(file: _File, tracker: OffsetRestrictionTracker) -> Iterator[bytes]:
    """Yields the records that the tracker can claim; a copied file is claimed as a whole."""
    parts = tracker.current_restriction()
    in_place = _is_read_in_place(file.path)
    if not in_place and not (parts.size() and tracker.try_claim(parts.start)):
        return
    with _open_reader(file.path) as reader:
        num_records = reader.num_records()
        at, stop = (parts.start, parts.stop) if in_place else (0, num_records)
        # File sizes are compressed sizes; records may take several times as much memory.
        step = max(1, _READ_BYTES // 4 // max(1, file.num_bytes // max(1, num_records)))
        while at < stop:
            for record in reader.read(at, min(stop, at + step)):
                if in_place and not tracker.try_claim(at):
                    return
                yield record
                at += 1


def _is_read_in_place(path: str) -> bool:
    """Returns whether ArrayRecord itself reads a path."""
    return is_local(path) or is_gcs(path)


@contextlib.contextmanager
def _open_reader(path: str) -> Generator[ArrayRecordReader]:
    """Yields a reader for a file on any Beam filesystem; ProbelineError if it is damaged."""
    with contextlib.nullcontext(path) if _is_read_in_place(path) else local_copy(path) as readable:
        reader = array_record.open_reader(readable)
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


def _refuse_compression(compression_type: str | None, reason: str) -> None:
    """Raises ValueError for a compression of files; AUTO, the default in Beam, is none."""
    if compression_type not in (CompressionTypes.AUTO, CompressionTypes.UNCOMPRESSED):
        refuse("compression_type", compression_type, reason)


def refuse(name: str, value: Any, reason: str) -> None:
    """Raises ValueError for an argument of Beam's transforms that ours do not support."""
    if value is not None:
        raise ValueError(f"{name} is {value!r}; leave it out, since {reason}")


def known_text(name: str, value: str | ValueProvider) -> str:
    """Returns the text of an argument; ValueError if it is known only when the job runs."""
    if isinstance(value, ValueProvider):
        if not value.is_accessible():
            raise ValueError(
                f"{name} is known only when the job runs: give a text, or start the job from a "
                "Flex Template, where options are known when the pipeline is built"
            )
        value = value.get()
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str or a ValueProvider of one, not {value!r}")
    return value


def element_type(coder: coders.Coder) -> Any:
    """Returns the type of a coder's elements, Any if it has no type hint."""
    try:
        return coder.to_type_hint()
    except NotImplementedError:  # of Beam's base class: type hints are optional
        return Any
