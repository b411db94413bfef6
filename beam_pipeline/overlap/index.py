"""The index of the evaluation side: which n-grams it has, and where, in one memory-mapped file.

  keys      hash of each n-gram, once, sorted          bounds   where a key's places begin
  rows      of each place: the evaluation row, `tokens` the number of its first token there, and
            `place_lengths` its n, since n-grams of two lengths may share a hash
  slots     open-addressed table: part of a hash → the key's number
  bloom     three bits a key, in one word: almost all that is not there ends here
  anchors   hash of two tokens in a row → which lengths have an n-gram that ends with them

Hashes only filter: whoever finds one looks at the texts (`matching`). An index larger than memory
is made in parts, each with the keys of one range of hashes, and the training text is read once for
each.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import BinaryIO, NamedTuple

import numpy as np
import orjson

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel, kernel_part
from beam_pipeline.overlap.token_kernels import BASE, ngram_hashes, tokens_of
from beam_pipeline.overlap.tokenizers import Tokenizer, effective_lengths

MAGIC = b"probeline overlap index 1\n"
NO_KEY = np.uint32(0xFFFF_FFFF)
BYTES_PER_PLACE = 56  # of memory while an index is made, about; half of it later
_ALIGNMENT = 64
_BLOOM_BITS_PER_KEY = 16
_MIN_ANCHOR_BITS, _MAX_ANCHOR_BITS = 12, 20
_MAX_MASKED_LENGTHS = 63  # bit 63 stands for all others
_1, _6, _12, _32, _63 = (np.uint64(n) for n in (1, 6, 12, 32, 63))


class HashRange(NamedTuple):
    """One of several parts of all hashes: those that begin with `part` of `num_parts`."""

    part: int = 0
    num_parts: int = 1

    @property
    def first(self) -> int:
        """The lowest hash of the range."""
        return -((-self.part << 64) // self.num_parts)

    @property
    def last(self) -> int:
        """The highest hash of the range."""
        return HashRange(self.part + 1, self.num_parts).first - 1


@dataclass(frozen=True)
class Index:
    """The arrays of one part; `lengths` are the effective n in use."""

    keys: np.ndarray  # uint64 [m]
    bounds: np.ndarray  # int64 [m + 1]
    rows: np.ndarray  # uint32 [p]
    tokens: np.ndarray  # uint32 [p]
    place_lengths: np.ndarray  # uint32 [p]
    slots: np.ndarray  # uint32 [a power of two]
    bloom: np.ndarray  # uint64 [a power of two]
    pair_anchors: np.ndarray  # uint64 [a power of two]
    single_anchors: np.ndarray  # uint64 [the same]
    lengths: np.ndarray  # int64 [l], ascending
    powers: np.ndarray  # uint64 [l], BASE to the power of each length

    @property
    def num_bytes(self) -> int:
        return sum(getattr(self, item.name).nbytes for item in fields(self))

    def places(self, key: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the evaluation rows that have an n-gram, and the numbers of its first tokens."""
        place = slice(self.bounds[key], self.bounds[key + 1])
        is_it = self.place_lengths[place] == n
        return self.rows[place][is_it], self.tokens[place][is_it]


def count_places(num_tokens: Sequence[int], lengths: tuple[int, ...]) -> int:
    """Returns how many n-grams texts of so many tokens have."""
    return sum(count - n + 1 for count in num_tokens for n in effective_lengths(lengths, count))


def num_parts_for(num_places: int, memory_bytes: int) -> int:
    """Returns in how many parts an index is made so that each fits."""
    return max(1, math.ceil(num_places * BYTES_PER_PLACE / memory_bytes))


def build_index(
    texts: Sequence[str],
    lengths: tuple[int, ...],
    tokenizer: Tokenizer,
    hash_range: HashRange = HashRange(),  # noqa: B008
) -> Index:
    """Returns the index of the evaluation rows' texts, of one range of hashes."""
    hashes, rows, tokens, place_lengths, in_use = [], [], [], [], set()
    anchored: list[tuple[np.ndarray, int]] = []
    first, last = np.uint64(hash_range.first), np.uint64(hash_range.last)
    for row, text in enumerate(texts):
        token_hashes = tokens_of(text, tokenizer).hashes
        for n in effective_lengths(lengths, len(token_hashes)):
            in_use.add(n)
            found = ngram_hashes(token_hashes, n)
            kept = np.flatnonzero((first <= found) & (found <= last))
            if len(kept) == 0:
                continue
            hashes.append(found[kept])
            rows.append(np.full(len(kept), row, np.uint32))
            tokens.append(kept.astype(np.uint32))
            place_lengths.append(np.full(len(kept), n, np.uint32))
            ends = kept + n - 1
            pairs = token_hashes[ends]
            if n > 1:
                pairs = pairs + token_hashes[ends - 1] * BASE
            anchored.append((pairs, n))
    used = np.array(sorted(in_use), np.int64)
    all_hashes = _joined(hashes, np.uint64)
    order = np.argsort(all_hashes, kind="stable")
    keys, starts = np.unique(all_hashes[order], return_index=True)
    slots, bloom = _tables(keys)
    pair_anchors, single_anchors = _anchors(anchored, used, len(keys))
    return Index(
        keys,
        np.append(starts, len(order)).astype(np.int64),
        _joined(rows, np.uint32)[order],
        _joined(tokens, np.uint32)[order],
        _joined(place_lengths, np.uint32)[order],
        slots,
        bloom,
        pair_anchors,
        single_anchors,
        used,
        np.array([pow(int(BASE), int(n), 1 << 64) for n in used], np.uint64),
    )


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _power_of_two(at_least: float) -> int:
    return 1 << max(1, math.ceil(math.log2(max(1.0, at_least))))


def _tables(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    slots = np.full(_power_of_two(len(keys) * 1.6), NO_KEY, np.uint32)
    bloom = np.zeros(_power_of_two(len(keys) * _BLOOM_BITS_PER_KEY / 64), np.uint64)
    _fill_tables(keys, slots, bloom)
    return slots, bloom


@kernel_part
def bloom_bits(value):
    """Returns the bits of a hash in its word of the bloom filter."""
    return _1 << (value & _63) | _1 << (value >> _6 & _63) | _1 << (value >> _12 & _63)


@kernel
def _fill_tables(keys, slots, bloom):
    slot_mask, bloom_mask = np.uint64(slots.size - 1), np.uint64(bloom.size - 1)
    for key in range(keys.size):
        value = keys[key]
        bloom[value >> _32 & bloom_mask] |= bloom_bits(value)
        slot = value & slot_mask
        while slots[slot] != NO_KEY:
            slot = slot + _1 & slot_mask
        slots[slot] = np.uint32(key)


def _anchors(
    anchored: list[tuple[np.ndarray, int]], used: np.ndarray, num_keys: int
) -> tuple[np.ndarray, np.ndarray]:
    bits = min(max(num_keys.bit_length() + 3, _MIN_ANCHOR_BITS), _MAX_ANCHOR_BITS)
    pair_anchors, single_anchors = np.zeros(1 << bits, np.uint64), np.zeros(1 << bits, np.uint64)
    for values, n in anchored:
        bit = np.uint64(1 << min(int(np.searchsorted(used, n)), _MAX_MASKED_LENGTHS))
        target = single_anchors if n == 1 else pair_anchors
        target[np.unique(values >> np.uint64(64 - bits))] |= bit
    return pair_anchors, single_anchors


# --- the file -----------------------------------------------------------------------------------


def write_index(index: Index, file: BinaryIO, fingerprint: str) -> None:
    """Writes an index; `fingerprint` says of what it was made, and how."""
    layout, at = {}, 0
    arrays = {item.name: getattr(index, item.name) for item in fields(index)}
    for name, array in arrays.items():
        layout[name] = {"dtype": array.dtype.str, "count": len(array), "offset": at}
        at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    header = orjson.dumps({"fingerprint": fingerprint, "arrays": layout}) + b"\n"
    file.write(MAGIC + header)
    file.write(bytes(-(len(MAGIC) + len(header)) % _ALIGNMENT))
    for array in arrays.values():
        file.write(memoryview(array).cast("B") if len(array) else b"")
        file.write(bytes(-array.nbytes % _ALIGNMENT))


def open_index(path: str, fingerprint: str) -> Index:
    """Maps the file of an index into memory.

    Raises:
      ProbelineError: it is none, is cut off, or was made of something else.
    """
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise ProbelineError(
            f"cannot read the index {path}: {error}; remove it and run again"
        ) from error
    head = data[: 1 << 16].tobytes()
    line = head[len(MAGIC) :].partition(b"\n")[0]
    if not head.startswith(MAGIC):
        raise ProbelineError(f"{path} is not an index of this version: remove it and run again")
    header = orjson.loads(line)
    if header["fingerprint"] != fingerprint:
        raise ProbelineError(f"{path} was made of other inputs or options: remove it and run again")
    start = -(-(len(MAGIC) + len(line) + 1) // _ALIGNMENT) * _ALIGNMENT
    return Index(**dict(_arrays(data[start:], header["arrays"], path)))


def _arrays(data: np.ndarray, layout: dict, path: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, place in layout.items():
        dtype = np.dtype(place["dtype"])
        stop = place["offset"] + place["count"] * dtype.itemsize
        if stop > len(data):
            raise ProbelineError(f"{path} is cut off: remove it and run again")
        yield name, data[place["offset"] : stop].view(dtype)
