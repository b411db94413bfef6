"""Identity, split and place of many probes at a time, as columns; `layout` has each for one.

A probe's hash is one number of 64 bits, derived from the halves of its address. Buckets and shards
are equal ranges of hashes. The place of a probe's first row is the probe's hash, that of a later
row a hash of the probe's and the row's number, so the rows of a long history spread over all
shards. Within a shard, rows ascend by (place, src_id, row_index).

`src_ids` and `splits` are BLAKE2b (RFC 7693), a quarter of a microsecond each.
"""
# Kernels are untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false

import math

import numpy as np
from numba import uint64

from beam_pipeline.dataset.layout import HASH_FACTORS, SPLIT_SALT
from beam_pipeline.kernels import kernel, subkernel

_FACTORS = np.array(HASH_FACTORS, np.uint64)
_DIGEST_BYTES = 8
_BLOCK_BYTES = 128
_START = np.array(
    [
        *(0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1),
        *(0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179),
    ],
    np.uint64,
)
# The order of a block's words in each round, and the words of the state that each step mixes.
_WORDS = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    np.int64,
)
_MIXED = np.array(
    [[i, 4 + i, 8 + i, 12 + i] for i in range(4)]
    + [[i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4] for i in range(4)],
    np.int64,
)


@kernel
def probe_hashes(hi, lo):
    """Returns the hash of each address, uint64 [n], given its halves.

    Two addresses never share both the hash and the lower half: each step is invertible, the first
    given the lower half, since its factor is odd.
    """
    hashes = np.empty_like(lo)
    for i in range(len(lo)):
        mixed = hi[i] * _FACTORS[0] + lo[i]
        mixed = (mixed ^ (mixed >> uint64(30))) * _FACTORS[1]
        mixed = (mixed ^ (mixed >> uint64(27))) * _FACTORS[2]
        hashes[i] = mixed ^ (mixed >> uint64(31))
    return hashes


def places(hashes: np.ndarray, row_indexes: np.ndarray) -> np.ndarray:
    """Returns the place of each row, uint64 [n], given its probe's hash and its number."""
    later = row_indexes.astype(np.uint64)
    return np.where(later == 0, hashes, probe_hashes(later, hashes))


def range_of(hashes: np.ndarray, num_ranges: int) -> np.ndarray:
    """Returns in which of `num_ranges` equal ranges each hash is, int64 [n]."""
    return (((hashes >> np.uint64(32)) * np.uint64(num_ranges)) >> np.uint64(32)).view(np.int64)


def src_ids(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns the src_id of each address, int64 [n]."""
    digests = np.empty(len(lo), np.uint64)
    _digest(hi, lo, _begun(), 0, digests)
    return (digests >> np.uint64(1)).view(np.int64)


def splits(hi: np.ndarray, lo: np.ndarray, train_ratio: float, split_seed: int) -> np.ndarray:
    """Returns the split of each address, int8 [n], as indexes into manifest.SPLITS."""
    limit = math.ceil(train_ratio * 2.0**64)
    if limit >> 64:
        return np.zeros(len(lo), np.int8)
    key = str(split_seed).encode()
    block = np.frombuffer(key.ljust(_BLOCK_BYTES, b"\0"), np.uint64).copy()
    state = _begun(len(key), SPLIT_SALT)
    _compress(state, block, np.empty(16, np.uint64), _BLOCK_BYTES, False)
    digests = np.empty(len(lo), np.uint64)
    _digest(hi, lo, state, _BLOCK_BYTES, digests)
    return (digests >= np.uint64(limit)).astype(np.int8)


def _begun(key_bytes: int = 0, person: bytes = b"") -> np.ndarray:
    """Returns the state before the first block, uint64 [8]."""
    state = _START.copy()
    state[0] ^= np.uint64(0x01010000 | key_bytes << 8 | _DIGEST_BYTES)
    state[6:] ^= np.frombuffer(person.ljust(16, b"\0"), np.uint64)
    return state


@kernel
def _digest(hi, lo, start, bytes_before, digests):
    """Sets the digest of each address, 4 or 16 bytes in network order, as a big-endian number."""
    state, block, work = np.empty(8, np.uint64), np.zeros(16, np.uint64), np.empty(16, np.uint64)
    for i in range(len(lo)):
        num_bytes = 16
        if hi[i] == 0 and lo[i] >> uint64(32) == uint64(0xFFFF):
            num_bytes = 4
            block[0], block[1] = _reversed(lo[i] << uint64(32)), uint64(0)
        else:
            block[0], block[1] = _reversed(hi[i]), _reversed(lo[i])
        for word in range(8):
            state[word] = start[word]
        _compress(state, block, work, bytes_before + num_bytes, True)
        digests[i] = _reversed(state[0])


@subkernel
def _reversed(word):
    """Returns a word with its eight bytes in reverse order."""
    out = uint64(0)
    for i in range(8):
        out = (out << uint64(8)) | ((word >> uint64(8 * i)) & uint64(255))
    return out


@kernel
def _compress(state, block, work, num_bytes, is_last):
    """Mixes a block of 16 words into the state; `num_bytes` counts the bytes up to its end."""
    for i in range(8):
        work[i], work[8 + i] = state[i], _START[i]
    work[12] ^= uint64(num_bytes)
    if is_last:
        work[14] = ~work[14]
    for turn in range(12):
        words = _WORDS[turn % 10]
        for step in range(8):
            i, j, k, m = _MIXED[step]
            a, b, c, d = work[i], work[j], work[k], work[m]
            a += b + block[words[2 * step]]
            d ^= a
            d = (d >> uint64(32)) | (d << uint64(32))
            c += d
            b ^= c
            b = (b >> uint64(24)) | (b << uint64(40))
            a += b + block[words[2 * step + 1]]
            d ^= a
            d = (d >> uint64(16)) | (d << uint64(48))
            c += d
            b ^= c
            b = (b >> uint64(63)) | (b << uint64(1))
            work[i], work[j], work[k], work[m] = a, b, c, d
    for i in range(8):
        state[i] ^= work[i] ^ work[8 + i]
