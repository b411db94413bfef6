"""The scan: n-grams of training texts whose hashes are in the index, in one pass over UTF-8.

  bytes → code points → tokens' hashes → for each length that the last two tokens can end: the
  n-gram's hash out of a ring of prefix hashes → bloom → slots → candidate

A candidate is a document, the number of its first token, a length and a key. No token is stored,
no string made: that is for the few documents with candidates.
"""

from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel, kernel_part
from beam_pipeline.overlap.index import NO_KEY, Index, bloom_bits
from beam_pipeline.overlap.token_kernels import (
    BASE,
    UNFINISHED,
    add_to_hash,
    encode,
    mix,
    next_code_point,
    salt_of,
    table_of,
    tokens_of,
)
from beam_pipeline.overlap.tokenizers import Tokenizer

_FNV_START = np.uint64(0xCBF29CE484222325)
_SEPARATOR, _NEEDS_PYTHON = np.uint32(0xFFFF_FFFF), np.uint32(0xFFFF_FFFE)
_0, _1, _32, _63 = (np.uint64(n) for n in (0, 1, 32, 63))
_FIRST_ROOM = 1 << 14
_FULL = -2


class Candidates(NamedTuple):
    """What may be an n-gram of the index, in the order of the documents and of the tokens."""

    documents: np.ndarray  # int64 [c], numbers within the batch
    tokens: np.ndarray  # int64 [c], of the first token of each
    lengths: np.ndarray  # int64 [c], n
    keys: np.ndarray  # int64 [c], numbers of keys of the index


@kernel_part
def _probe(
    token, count, previous, prefix, ring, lengths, powers, pair_anchors, single_anchors, shift,
    bloom, slots, keys, document, found, num_found,
):  # fmt: skip
    """Looks for the n-grams that end with a token; returns the number found by now, or _FULL.

    ring[i & mask] is the prefix hash of the first i tokens; `prefix` that of `count` + 1.
    """
    ring_mask = ring.size - 1
    mask = pair_anchors[(token + previous * BASE) >> shift] if count else _0
    mask |= single_anchors[token >> shift]
    which = 0
    while mask:
        while mask & _1 == _0:
            mask >>= _1
            which += 1
        stop = lengths.size if which == 63 else which + 1
        for at in range(which, stop):
            n = lengths[at]
            if count + 1 < n:
                continue
            value = mix(prefix - ring[(count + 1 - n) & ring_mask] * powers[at] + salt_of(n))
            bits = bloom_bits(value)
            if bloom[value >> _32 & np.uint64(bloom.size - 1)] & bits != bits:
                continue
            slot = value & np.uint64(slots.size - 1)
            while slots[slot] != NO_KEY:
                if keys[slots[slot]] == value:
                    if num_found == found.shape[1]:
                        return _FULL
                    found[0, num_found], found[1, num_found] = document, count + 1 - n
                    found[2, num_found], found[3, num_found] = n, slots[slot]
                    num_found += 1
                    break
                slot = slot + _1 & np.uint64(slots.size - 1)
        mask >>= _1
        which += 1
    return num_found


@kernel
def _scan_text(
    utf8, table, lowercase, keep_empty, ring, lengths, powers, pair_anchors, single_anchors,
    shift, bloom, slots, keys, document, found, num_found,
):  # fmt: skip
    """Scans one document; returns as `_probe`, or UNFINISHED if Python has to lower-case it."""
    ring_mask = ring.size - 1
    at = count = length = 0
    value = _FNV_START
    prefix = previous = _0
    ring[0] = _0
    in_separator = is_done = False
    while not is_done:
        is_end = False
        if at < utf8.size:
            code, at = next_code_point(utf8, at)
            lowered = table[code]
            if lowered == _NEEDS_PYTHON:
                return UNFINISHED
            if lowered != _SEPARATOR:
                if in_separator:
                    in_separator, length, value = False, 0, _FNV_START
                value = add_to_hash(value, lowered, lowercase)
                length += 1
            elif not in_separator:
                is_end = in_separator = True
        else:
            if in_separator:
                length, value = 0, _FNV_START
            is_end = is_done = True
        if is_end and (keep_empty or length > 0):
            token = mix(value)
            prefix = prefix * BASE + token
            num_found = _probe(
                token, count, previous, prefix, ring, lengths, powers, pair_anchors,
                single_anchors, shift, bloom, slots, keys, document, found, num_found,
            )  # fmt: skip
            if num_found == _FULL:
                return _FULL
            ring[(count + 1) & ring_mask] = prefix
            previous = token
            count += 1
    return num_found


@kernel
def _scan_hashes(
    hashes, ring, lengths, powers, pair_anchors, single_anchors, shift, bloom, slots, keys,
    document, found, num_found,
):  # fmt: skip
    """Scans a document whose tokens' hashes are known; returns as `_probe`."""
    ring_mask = ring.size - 1
    prefix = previous = ring[0] = _0
    for count in range(hashes.size):
        token = hashes[count]
        prefix = prefix * BASE + token
        num_found = _probe(
            token, count, previous, prefix, ring, lengths, powers, pair_anchors, single_anchors,
            shift, bloom, slots, keys, document, found, num_found,
        )  # fmt: skip
        if num_found == _FULL:
            return _FULL
        ring[(count + 1) & ring_mask] = prefix
        previous = token
    return num_found


@kernel
def _scan_batch(
    utf8, bounds, first, table, lowercase, keep_empty, ring, lengths, powers, pair_anchors,
    single_anchors, shift, bloom, slots, keys, found, unfinished,
):  # fmt: skip
    """Scans the documents utf8[bounds[i]:bounds[i + 1]] from `first` on.

    Returns the number of candidates, and the first document that they had no room for.
    """
    num_found = 0
    for document in range(first, bounds.size - 1):
        result = _scan_text(
            utf8[bounds[document] : bounds[document + 1]], table, lowercase, keep_empty, ring,
            lengths, powers, pair_anchors, single_anchors, shift, bloom, slots, keys, document,
            found, num_found,
        )  # fmt: skip
        if result == _FULL:
            return num_found, document
        if result == UNFINISHED:
            unfinished[document] = True
        else:
            num_found = result
    return num_found, bounds.size - 1


class Scanner:
    """Scans batches of documents for the n-grams of one index."""

    def __init__(self, index: Index, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        longest = int(index.lengths[-1]) if len(index.lengths) else 1
        ring = np.zeros(1 << (longest + 1).bit_length(), np.uint64)
        shift = np.uint64(64 - (len(index.pair_anchors).bit_length() - 1))
        self._tables = (
            ring, index.lengths, index.powers, index.pair_anchors, index.single_anchors, shift,
            index.bloom, index.slots, index.keys,
        )  # fmt: skip
        self._found = np.empty((4, _FIRST_ROOM), np.int64)
        self._is_empty = len(index.keys) == 0

    def scan(self, utf8: np.ndarray, bounds: np.ndarray) -> Candidates:
        """Returns the candidates of the documents utf8[bounds[i]:bounds[i + 1]].

        Args:
          utf8: uint8, lone surrogates as their three bytes.
          bounds: int64 [documents + 1], ascending.
        """
        parts: list[np.ndarray] = []
        if not self._is_empty and self._tokenizer.function is None:
            parts = self._scan_compiled(utf8, bounds)
        elif not self._is_empty:
            parts = [
                self._scan_in_python(utf8[bounds[at] : bounds[at + 1]], at)
                for at in range(len(bounds) - 1)
            ]
        found = np.concatenate(parts, axis=1) if parts else np.empty((4, 0), np.int64)
        if len(parts) > 1:
            found = found[:, np.argsort(found[0], kind="stable")]
        return Candidates(*found)

    def _scan_compiled(self, utf8: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
        tokenizer = self._tokenizer
        unfinished = np.zeros(len(bounds) - 1, np.bool_)
        parts, first = [], 0
        while first < len(bounds) - 1:
            num_found, stop = _scan_batch(
                utf8, bounds, first, table_of(tokenizer), tokenizer.lowercase,
                tokenizer.keep_empty, *self._tables, self._found, unfinished,
            )  # fmt: skip
            parts.append(self._found[:, :num_found].copy())
            if stop == first:
                self._make_room()
            first = stop
        for document in np.flatnonzero(unfinished).tolist():
            parts.append(
                self._scan_in_python(utf8[bounds[document] : bounds[document + 1]], document)
            )
        return parts

    def _scan_in_python(self, utf8: np.ndarray, document: int) -> np.ndarray:
        """Scans a document that has a capital sigma, or has a tokeniser without a table."""
        text = utf8.tobytes().decode("utf-8", "surrogatepass")
        hashes = tokens_of(text, self._tokenizer).hashes
        while True:
            num_found = _scan_hashes(hashes, *self._tables, document, self._found, 0)
            if num_found != _FULL:
                return self._found[:, :num_found].copy()
            self._make_room()

    def _make_room(self) -> None:
        self._found = np.empty((4, 2 * self._found.shape[1]), np.int64)


def batch_of(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns texts as `Scanner.scan` takes them."""
    encoded = [encode(text) for text in texts]
    bounds = np.concatenate([[0], np.cumsum([len(data) for data in encoded])]).astype(np.int64)
    return np.concatenate([*encoded, np.zeros(0, np.uint8)]), bounds
