"""SortEachGroup: sorts the values of every key in bounded memory, however large a group is.

  | (key, (sort key, value))
  v  GroupByKey
  | (key, [(sort key, value)])
  v  sort_pairs              a group that fits stays in memory, a larger one becomes sorted files
  | (key, SortedGroup)       iterating merges the files, with one block of each in memory

Each attempt writes its own files, and a group refers to closed files only, so bundles may be
retried or run twice.
"""
# Beam is typed in part.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false
# pyright: reportAttributeAccessIssue=false, reportUntypedBaseClass=false

import heapq
import struct
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.typehints.typehints import coerce_to_kv_type

from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, StoredPayload
from beam_pipeline.storage.files import crc32c, delete_files, remove_folder

Pair = tuple[bytes, bytes]  # (sort key, value)

DEFAULT_MEMORY_BYTES = 64 << 20
MAX_FAN_IN = 64
_PAIR_BYTES = 160  # Python's overhead per pair
_HEAD = struct.Struct("<QI")  # a block's length and CRC-32C
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Pair])


class SortedFile(Message, frozen=True):
    """Sorted pairs in a file: blocks, each with its length and checksum."""

    path: str
    num_bytes: int
    block_memory_bytes: int  # of the largest block


class SortedGroup(Message, frozen=True):
    """The pairs (sort key, value) of one key in order; can be iterated more than once.

    Pairs are ordered by their sort keys as bytes, those with equal sort keys by their values.

    Attributes:
      num_values: number of pairs, which `len` returns.
      pairs: all pairs; empty if they are in files.
      files: sorted files, which iteration merges.

    Example:

        def first(element: tuple[str, SortedGroup]) -> tuple[str, bytes]:
            key, group = element
            return key, next(value for _, value in group)
    """

    num_values: int
    pairs: list[Pair]
    files: list[SortedFile]

    def __len__(self) -> int:
        return self.num_values

    def __iter__(self) -> Iterator[Pair]:
        return _merged(self.files) if self.files else iter(self.pairs)


def sort_pairs(
    pairs: Iterable[Pair], folder: str, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> SortedGroup:
    """Sorts pairs (sort key, value), in memory or by merging files in `folder`.

    At most `memory_bytes` of pairs, but at least two pairs, are in memory, both here and while the
    result is iterated. Files are written only if the pairs take more.
    """
    block_bytes = memory_bytes // MAX_FAN_IN
    files: list[SortedFile] = []
    held: list[Pair] = []
    held_bytes = num_values = 0
    for pair in pairs:
        held.append(pair)
        held_bytes += _memory_bytes(pair)
        num_values += 1
        if held_bytes > memory_bytes:
            held.sort()
            files.append(_store(held, folder, block_bytes))
            held, held_bytes = [], 0
    held.sort()
    if not files:
        return SortedGroup(num_values, held, [])
    if held:
        files.append(_store(held, folder, block_bytes))
    while len(files) > (fan_in := _fan_in(files, memory_bytes)):
        # Merging the shortest files rewrites the fewest bytes.
        files.sort(key=lambda file: file.num_bytes)
        num_merged = min(fan_in, len(files) - fan_in + 1)
        merged, files = files[:num_merged], files[num_merged:]
        files.append(_store(_merged(merged), folder, block_bytes))
        delete_files([file.path for file in merged])
    return SortedGroup(num_values, [], files)


def _memory_bytes(pair: Pair) -> int:
    return len(pair[0]) + len(pair[1]) + _PAIR_BYTES


def _fan_in(files: Iterable[SortedFile], memory_bytes: int) -> int:
    """Returns how many files may have a block in memory."""
    largest = max(file.block_memory_bytes for file in files)
    return min(max(2, memory_bytes // largest), MAX_FAN_IN)


def _store(pairs: Iterable[Pair], folder: str, block_bytes: int) -> SortedFile:
    """Writes sorted pairs to a file."""
    writer = ClaimWriter(folder, "sorted")
    largest = 0
    for block, memory_bytes in _blocks(pairs, block_bytes):
        data = _encoder.encode(block)
        writer.append(_HEAD.pack(len(data), crc32c(data)) + data)
        largest = max(largest, memory_bytes)
    writer.close()
    return SortedFile(writer.path, writer.num_bytes, largest)


def _blocks(pairs: Iterable[Pair], block_bytes: int) -> Iterator[tuple[list[Pair], int]]:
    """Yields blocks of consecutive pairs, about `block_bytes` each, and the memory of each."""
    block: list[Pair] = []
    memory_bytes = 0
    for pair in pairs:
        if block and memory_bytes + _memory_bytes(pair) > block_bytes:
            yield block, memory_bytes
            block, memory_bytes = [], 0
        block.append(pair)
        memory_bytes += _memory_bytes(pair)
    if block:
        yield block, memory_bytes


def _merged(files: Iterable[SortedFile]) -> Iterator[Pair]:
    """Merges sorted files; ProbelineError if a file is not as it was written."""
    reader = ClaimReader()
    try:
        yield from heapq.merge(*(_read(file, reader) for file in files))
    finally:
        reader.close()


def _read(file: SortedFile, reader: ClaimReader) -> Iterator[Pair]:
    at = 0
    while at < file.num_bytes:
        head = reader.read(StoredPayload(file.path, at, _HEAD.size, None))
        length, checksum = _HEAD.unpack(head)
        at += _HEAD.size
        block = StoredPayload(file.path, at, length, checksum)
        if at + length > file.num_bytes:
            raise reader.changed(block)
        yield from _decoder.decode(reader.read(block))
        at += length


class SortEachGroup(beam.PTransform):
    """Groups (key, (sort key, value)) by key and sorts each group in bounded memory.

    The result has one (key, `SortedGroup`) per key and window. A group can be iterated repeatedly
    and yields pairs (sort key, value), ordered by the sort keys as bytes and equal ones by their
    values, so the order does not depend on the runner. A group that fits in `memory_bytes` uses no
    storage. Each pair of a larger group is written once, and again only if there are more files
    than can be merged at a time.

    The files of large groups stay below `temp_location` until `remove_temporary_files` is called
    or the storage expires them, since a step may read a group much later.

    Args:
      temp_location: folder for the files of large groups, which all workers can read.
      memory_bytes: max bytes of pairs in memory, both while sorting and per group being iterated;
        a large group takes at least one pair from each of two files.

    Raises:
      ValueError: `memory_bytes` is not positive. Beam rejects keys without a deterministic coder.
      TypeError: at run time, a sort key or value is not `bytes`.

    Example:

        def names(group):
            user, events = group
            return user, [name for _, name in events]

        events = [("ann", (b"2026-01-02", b"out")), ("ann", (b"2026-01-01", b"in"))]
        sort = SortEachGroup("temp")
        pipeline | beam.Create(events) | sort | beam.Map(names)  # ("ann", [b"in", b"out"])

        sort.remove_temporary_files()  # when the pipeline has ended
    """

    def __init__(self, temp_location: str, memory_bytes: int = DEFAULT_MEMORY_BYTES):
        super().__init__()
        if memory_bytes <= 0:
            raise ValueError(f"memory_bytes is {memory_bytes}; it must be positive")
        self._memory_bytes = memory_bytes
        self._temp_folder = FileSystems.join(temp_location, f".temp-sort-{uuid.uuid4().hex}")

    def expand(self, pairs: beam.PCollection) -> Any:
        key_type: Any = coerce_to_kv_type(pairs.element_type).tuple_types[0]
        return (
            pairs
            | "Check types" >> beam.Map(_checked).with_output_types(tuple[key_type, Pair])
            | "Group by key" >> beam.GroupByKey()
            | "Sort"
            >> beam.Map(_sort_group, self._temp_folder, self._memory_bytes).with_output_types(
                tuple[key_type, SortedGroup]
            )
        )

    def remove_temporary_files(self) -> None:
        """Removes all files; groups that are in files can no longer be iterated."""
        remove_folder(self._temp_folder)

    def display_data(self) -> dict[str, Any]:
        return {
            "memory_bytes": DisplayDataItem(self._memory_bytes, label="Memory Bytes"),
            "temp_folder": DisplayDataItem(self._temp_folder, label="Temporary Folder"),
        }


def _checked(element: tuple[Any, Pair]) -> tuple[Any, Pair]:
    _, (sort_key, value) = element
    for part in (sort_key, value):
        if not isinstance(part, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"SortEachGroup sorts values of bytes by keys of bytes, not {part!r}")
    return element


def _sort_group(
    element: tuple[Any, Iterable[Pair]], folder: str, memory_bytes: int
) -> tuple[Any, SortedGroup]:
    key, pairs = element
    return key, sort_pairs(pairs, folder, memory_bytes)
