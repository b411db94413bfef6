"""The row index of a set of shards as arrays, for planning an epoch without reading a row."""

import contextlib
import errno
import fnmatch
import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.manifest import SPLITS, Shard
from beam_pipeline.dataset.row_index import numbers
from beam_pipeline.dataset.rows import Dataset, open_dataset
from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.kernels import kernel, subkernel
from training.rows.keyed_random import combine
from training.rows.row_layout import cached_bytes

_US_PER_SECOND = 1_000_000


def _no_array() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RowTable:
    """The row index of a set of shards: arrays [rows] in order of shard and position.

    Arrays from `src_id` on are optional, see `MappedRows`; absent ones are empty.
    """

    shard_begins: np.ndarray  # number of rows before each shard of the split, and in total
    num_bytes: np.ndarray
    n_measurements: np.ndarray
    num_ipv6: np.ndarray
    untimed_tokens: np.ndarray  # tokens without timestamps, at most 2**31 - 1
    identity: np.ndarray  # key of (src_id, row_index)
    src_hi: np.ndarray  # as in `beam_pipeline.dataset.addresses`; empty if it is always 0
    src_lo: np.ndarray
    src_id: np.ndarray = field(default_factory=_no_array)
    row_index: np.ndarray = field(default_factory=_no_array)
    first_second: np.ndarray = field(default_factory=_no_array)  # since 1970
    last_second: np.ndarray = field(default_factory=_no_array)
    cache_offset: np.ndarray = field(default_factory=_no_array)  # in the column cache

    def __len__(self) -> int:
        return int(self.shard_begins[-1])

    @property
    def src_is_ipv6(self) -> np.ndarray:
        """Whether each source is IPv6: bool [rows]."""
        hi = self.src_hi if len(self.src_hi) else np.uint64(0)
        return (hi != 0) | (self.src_lo >> np.uint64(32) != np.uint64(0xFFFF))

    def source(self, row: int) -> tuple[np.uint64, np.uint64, np.bool_]:
        """Returns the address of a row's probe: (hi, lo, is_ipv6)."""
        hi = self.src_hi[row] if len(self.src_hi) else np.uint64(0)
        lo = self.src_lo[row]
        return hi, lo, np.bool_(hi != 0 or lo >> np.uint64(32) != np.uint64(0xFFFF))

    def place(self, row: int) -> tuple[int, int]:
        """Returns the shard of a row and its position in it."""
        shard = int(self.shards_of(np.array(row)))
        return shard, row - int(self.shard_begins[shard])

    def shards_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the shard of each row."""
        return np.searchsorted(self.shard_begins, rows, "right") - 1

    def of_shard(self, shard: int) -> slice:
        """Returns the rows of a shard."""
        return slice(*self.shard_begins[shard : shard + 2].tolist())


@dataclass(frozen=True)
class ShardSet:
    """A split, or some of its shards."""

    dataset: Dataset
    split: str
    shards: list[Shard]  # all shards of the split, by number
    chosen: list[int]  # numbers of those in use

    def path(self, shard: int) -> str:
        """Returns the path of a shard."""
        return self.dataset.file(self.shards[shard].path)

    @property
    def row_begins(self) -> np.ndarray:
        """The number of chosen rows before each shard of the split, and in total."""
        counts = np.zeros(len(self.shards) + 1, np.int64)
        for number in self.chosen:
            counts[number + 1] = self.shards[number].num_records
        return np.cumsum(counts)

    @property
    def index_crc32c(self) -> str:
        """The checksum of the split's rows.parquet: equal for copies of a dataset."""
        return self.dataset.manifest.splits[self.split].index_crc32c

    @property
    def fingerprint(self) -> str:
        """A digest of the files' checksums: equal for the same rows, wherever they are."""
        shards = [(number, self.shards[number].crc32c) for number in self.chosen]
        data = orjson.dumps([self.split, self.index_crc32c, shards])
        return hashlib.blake2b(data, digest_size=8).hexdigest()


def find_shards(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> ShardSet:
    """Finds shards of one split of one finished dataset.

    Args:
      files: a dataset's folder (its train split), a split's folder, a shard, a glob of shards, or
        several of the last two; local or gs://.

    Raises:
      ProbelineError: no such finished dataset or shard exists, the files belong to several splits
        or datasets, or the dataset is TFRecord, which has no access by number.
    """
    given: Any = [files] if isinstance(files, str | os.PathLike) else files
    try:
        patterns = [os.path.join("", os.fspath(path)) for path in given]  # no bytes
    except TypeError:
        raise UsageError(f"files is {files!r}: give a path, or a list of paths") from None
    if not patterns:
        raise ProbelineError("files is empty: name a dataset, a split of it or its shards")
    dataset = open_dataset(patterns[0])
    output_format = dataset.manifest.output_format
    if output_format != "arrayrecord":
        raise ProbelineError(
            f"{dataset.path} has --output_format={output_format}, but training reads arrayrecord "
            "only: rebuild the dataset with --output_format=arrayrecord"
        )
    chosen: set[tuple[str, int]] = set()
    for pattern in patterns:
        if not (found := _match(dataset, pattern)):
            names = f"{dataset.path}/train or {dataset.path}/test"
            raise ProbelineError(f"{pattern} names no shard of {dataset.path}: use {names}")
        chosen |= found
    splits = sorted({split for split, _ in chosen})
    if len(splits) > 1:
        raise ProbelineError(
            f"{', '.join(patterns)} name shards of {' and '.join(splits)}: use one split"
        )
    numbers = sorted(number for _, number in chosen)
    return ShardSet(dataset, splits[0], dataset.manifest.splits[splits[0]].shards, numbers)


def _match(dataset: Dataset, pattern: str) -> set[tuple[str, int]]:
    """Returns (split, number) of each shard that a path or glob matches."""
    pattern = _plain(pattern)
    if pattern == _plain(dataset.path):
        pattern = _plain(dataset.file("train"))
    return {
        (split, number)
        for split in SPLITS
        for number, shard in enumerate(dataset.manifest.splits[split].shards)
        if pattern == _plain(dataset.file(split))
        or fnmatch.fnmatchcase(_plain(dataset.file(shard.path)), pattern)
    }


def _plain(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.normpath(path)


# The columns of rows.parquet that the arrays come from.
_LINES = (
    "num_bytes",
    "src_id",
    "src_addr",
    "row_index",
    "n_measurements",
    "num_ipv6",
    "num_failed",
)
_TIMES = {"first_second": "first_timestamp", "last_second": "last_timestamp"}
# The arrays that every table has, then the optional ones.
_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("num_bytes", "n_measurements", "num_ipv6", "untimed_tokens"), np.int32),
    **dict.fromkeys(("identity", "src_hi", "src_lo"), np.uint64),
}
_MORE_DTYPES: dict[str, Any] = {
    "src_id": np.int64,
    "row_index": np.int32,
    "first_second": np.int64,
    "last_second": np.int64,
    "cache_offset": np.int64,
}


def load_rows(shards: ShardSet) -> RowTable:
    """Reads the chosen shards' lines of rows.parquet, with all arrays of a table."""
    begins, names = shards.row_begins, {**_DTYPES, **_MORE_DTYPES}
    arrays = {name: np.zeros(begins[-1], dtype) for name, dtype in names.items()}
    for begin, values in _parts_of(shards, set(_MORE_DTYPES)):
        for name, part in values.items():
            arrays[name][begin : begin + len(part)] = part
    return RowTable(begins, **arrays)


_PREFIX = "probeline-rows-"
# Name to (dtype, length).
type Sizes = Mapping[str, tuple[Any, int]]


class MappedArrays:
    """Arrays that a process writes once, part by part, and then maps; zeros where not written.

    On Linux the file has no name, so that no end of its creator leaves it behind; elsewhere it is
    removed when its creator ends or drops it. A pickled copy opens it through its creator's handle,
    or by its name. One loaded before then keeps the arrays; loading it later raises
    FileNotFoundError.
    """

    def __init__(self, sizes: Sizes):
        self._sizes = {name: (np.dtype(dtype), length) for name, (dtype, length) in sizes.items()}
        self._begins: dict[str, int] = {}
        num_bytes = 0
        for name, (dtype, length) in self._sizes.items():
            self._begins[name] = num_bytes
            num_bytes += -(-dtype.itemsize * length // 64) * 64
        with explained_os_errors("write", tempfile.gettempdir()):
            file, self._path = _without_name() or tempfile.mkstemp(prefix=_PREFIX)
            if not self._path.startswith("/proc/"):
                weakref.finalize(self, _remove, self._path, os.getpid())
            self._identity = os.fstat(file)[1:3]  # inode and device
            self._keep_open(file)
            os.truncate(file, max(1, num_bytes))

    def _keep_open(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        if os.fstat(file)[1:3] != self._identity:  # the handle is another file's by now
            raise FileNotFoundError(errno.ENOENT, "the process that made it has dropped it")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._keep_open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))  # it may be a pipe by now

    def write(self, name: str, begin: int, values: np.ndarray) -> None:
        """Writes values to an array from index `begin` on."""
        dtype, _ = self._sizes[name]
        with explained_os_errors("write", tempfile.gettempdir()), open(self._path, "r+b") as file:
            file.seek(self._begins[name] + begin * dtype.itemsize)
            file.write(np.ascontiguousarray(values, dtype).data)

    def arrays(self) -> dict[str, np.ndarray]:
        """Maps the arrays."""
        # Kernels are compiled for writable arrays; a page is copied if one writes to it.
        mapped = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY)
        return {
            name: np.frombuffer(mapped, dtype, length, self._begins[name])
            if length
            else np.zeros(0, dtype)
            for name, (dtype, length) in self._sizes.items()
        }


def _without_name() -> tuple[int, str] | None:
    """Returns a new file without a name, and the path that opens it again; None if none does."""
    file, name = tempfile.mkstemp(prefix=_PREFIX)
    os.unlink(name)
    path = f"/proc/{os.getpid()}/fd/{file}"
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:  # not on macOS, nor on NFS
        os.close(file)
        return None
    return file, path


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class MappedRows:
    """A row table in a temporary file, for a process and its workers, see `MappedArrays`.

    `names` are the optional arrays of the table.
    """

    def __init__(self, shards: ShardSet, names: Collection[str]):
        self._begins = shards.row_begins
        dtypes = {**_DTYPES, **{name: _MORE_DTYPES[name] for name in names}}
        sizes = {name: (dtype, int(self._begins[-1])) for name, dtype in dtypes.items()}
        self._mapped, self._has_hi = MappedArrays(sizes), False
        for begin, values in _parts_of(shards, names):
            if not self._has_hi and not values["src_hi"].any():
                del values["src_hi"]
            self._has_hi |= "src_hi" in values
            for name, part in values.items():
                self._mapped.write(name, begin, part)
        pa.default_memory_pool().release_unused()  # a few hundred MiB of row groups

    def table(self) -> RowTable:
        """Returns the table."""
        arrays = self._mapped.arrays()
        if not self._has_hi:
            arrays["src_hi"] = np.zeros(0, np.uint64)
        return RowTable(self._begins, **arrays)


def _parts_of(
    shards: ShardSet, names: Collection[str]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields arrays of consecutive rows, and the number of rows before them."""
    columns = [*_LINES, *(_TIMES[name] for name in names if name in _TIMES)]
    counts = [shard.num_records for shard in shards.shards]
    ends, is_chosen = np.cumsum(counts), np.isin(np.arange(len(counts)), shards.chosen)
    line = begin = cache_offset = 0
    for lines in shards.dataset.index_lines(shards.split, columns):
        chosen = is_chosen[np.searchsorted(ends, np.arange(line, line + len(lines)), "right")]
        line += len(lines)
        if not chosen.all():
            lines = lines.filter(pa.array(chosen)).combine_chunks()
        values = _arrays_of(lines, names)
        if "cache_offset" in names:
            sizes = cached_bytes(values["n_measurements"], values["num_ipv6"])
            ends_in_cache = cache_offset + np.cumsum(sizes)
            values["cache_offset"] = ends_in_cache - sizes
            cache_offset = int(ends_in_cache[-1]) if len(sizes) else cache_offset
        yield begin, values
        begin += len(lines)


def _arrays_of(lines: pa.Table, names: Collection[str]) -> dict[str, np.ndarray]:
    src_id, row_index, n, num_ipv6, num_failed = (
        numbers(lines, name)
        for name in ("src_id", "row_index", "n_measurements", "num_ipv6", "num_failed")
    )
    hi, lo, family = addresses.parse(lines.column("src_addr").combine_chunks())
    # IPv4 to IPv4 takes 14 tokens; IPv6 adds 12 at either end, a failed ping has 2 fewer.
    tokens = n * (14 + 12 * (family == addresses.FAMILY_IPV6).astype(np.int64))
    tokens += 12 * num_ipv6.astype(np.int64) - 2 * num_failed
    return {
        "num_bytes": numbers(lines, "num_bytes"),
        "n_measurements": n,
        "num_ipv6": num_ipv6,
        "untimed_tokens": np.minimum(tokens, np.iinfo(np.int32).max),
        "identity": _identities(src_id, row_index),
        "src_hi": hi,
        "src_lo": lo,
        **({"src_id": src_id} if "src_id" in names else {}),
        **({"row_index": row_index} if "row_index" in names else {}),
        **{
            name: numbers(lines, column) // _US_PER_SECOND
            for name, column in _TIMES.items()
            if name in names
        },
    }


@subkernel
def row_key(src_id, row_index):
    """Returns the identity of a row."""
    return combine(combine(0, src_id), row_index)


@kernel
def _identities(src_id, row_index):
    keys = np.empty(len(src_id), np.uint64)
    for row in range(len(src_id)):
        keys[row] = row_key(src_id[row], row_index[row])
    return keys
