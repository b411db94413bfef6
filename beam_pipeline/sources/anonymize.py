"""Prefix-preserving anonymisation: addresses are replaced before anything is written.

Two addresses that share exactly their first k bits still do afterwards; nothing else of an address
is preserved. This is CryptoPAn (Xu, Fan, Ammar and Moon, 2002): bit p is flipped by one bit of AES
over the p bits before it, padded with secret bits. Existing packages process one address at a time,
so it is implemented here with the AES of `cryptography`.
"""

import functools
import threading
from dataclasses import replace
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numba import njit

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from beam_pipeline.sources.anonymize_key import KeyReference, described, fingerprint, read_key
from beam_pipeline.sources.measurements import AddressColumn, Block

# Replaces the values of a row in its dead letter.
WITHHELD = "withheld by --anonymize"

_CHUNK_BLOCKS = 1 << 15  # half a MiB, which fits the processor's cache
_CACHE_SLOTS = 1 << 17  # 4 MiB; twice the usual dictionary of a Parquet column chunk
# uint64 [128, 2]: for each bit, the bits before it, as the halves of a number.
_MASKS = np.array(
    [divmod((1 << 128) - (1 << (128 - num_bits)), 1 << 64) for num_bits in range(128)], np.uint64
)


@functools.cache
def anonymizer_of(reference: KeyReference) -> "Anonymizer":
    """Returns this process's anonymizer; ProbelineError if the key is not that of the job."""
    key = read_key(reference.source)
    if fingerprint(key) != reference.fingerprint:
        raise ProbelineError(
            f"{described(reference.source)} has a key with fingerprint {fingerprint(key)}, the run "
            f"started with {reference.fingerprint}: do not change the key before the run has ended"
        )
    return Anonymizer(key)


class Anonymizer:
    """CryptoPAn with one key; safe to share between threads.

    IPv4 addresses, ::ffff:0:0/96 here, remain IPv4. IPv6 addresses remain IPv6: CryptoPAn maps
    one into that range with a probability of 2**-96. The first 32 bits of both families are
    replaced in the same way.
    """

    def __init__(self, key: bytes):
        self._cipher = Cipher(algorithms.AES(key[:16]), modes.ECB())
        pad = np.frombuffer(self._cipher.encryptor().update(key[16:]), ">u8").astype(np.uint64)
        self._pads = pad & ~_MASKS  # for each bit, the pad from it on
        self._cache = _Cache()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Anonymizer has the key, which must not be sent; send a KeyReference")

    def block(self, block: Block) -> Block:
        """Returns the measurements with all addresses replaced."""
        src, dst = (
            AddressColumn(column.codes, *self.addresses(column.hi, column.lo))
            for column in (block.src, block.dst)
        )
        return replace(block, src=src, dst=dst)

    def addresses(self, hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Replaces addresses, which are given and returned as halves, uint64 [n] each."""
        new_hi, new_lo, missing = self._cache.look_up(hi, lo)
        if len(missing):
            new_hi[missing], new_lo[missing] = self._compute(hi[missing], lo[missing])
            self._cache.keep(hi[missing], lo[missing], new_hi[missing], new_lo[missing])
        return new_hi, new_lo

    def _compute(self, hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new_hi, new_lo = hi.copy(), lo.copy()
        is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == np.uint64(0xFFFF))
        low = lo[is_ipv4] << np.uint64(32)  # an IPv4 address is the first 32 of 128 bits
        flips = self._flips(low, np.zeros_like(low), 32)
        new_lo[is_ipv4] ^= flips.view(">u4")[:, 0]
        flips = self._flips(hi[~is_ipv4], lo[~is_ipv4], 128).view(">u8")
        new_hi[~is_ipv4] ^= flips[:, 0]
        new_lo[~is_ipv4] ^= flips[:, 1]
        return new_hi, new_lo

    def _flips(self, hi: np.ndarray, lo: np.ndarray, num_bits: int) -> np.ndarray:
        """Returns which of the first bits are flipped, packed as uint8 [n, num_bits / 8]."""
        out = np.empty((len(hi), num_bits // 8), np.uint8)
        masks, pads = _MASKS[:num_bits], self._pads[:num_bits]
        step = _CHUNK_BLOCKS // num_bits
        for start in range(0, len(hi), step):
            end = min(start + step, len(hi))
            blocks = np.empty((end - start, num_bits, 2), np.uint64)
            _fill(hi[start:end], lo[start:end], masks, pads, blocks)
            blocks.byteswap(inplace=True)  # the first bit of a block is the address's first
            encrypted = self._cipher.encryptor().update(blocks.data.cast("B"))
            blocks = np.frombuffer(encrypted, np.uint8).reshape((*blocks.shape[:2], 16))
            out[start:end] = np.packbits(blocks[:, :, 0] >> 7, axis=1)
        return out


@kernel
def _fill(hi, lo, masks, pads, blocks):
    for row in range(len(hi)):
        for bit in range(len(masks)):
            blocks[row, bit, 0] = (hi[row] & masks[bit, 0]) | pads[bit, 0]
            blocks[row, bit, 1] = (lo[row] & masks[bit, 1]) | pads[bit, 1]


class _Cache:
    """Replacements of recent addresses, in a hash table of fixed size without collision lists.

    The batches of a file repeat addresses, and an IPv6 address costs 128 blocks of AES.
    """

    def __init__(self) -> None:
        self._slots = np.zeros((_CACHE_SLOTS, 4), np.uint64)  # halves: address, replacement
        self._is_used = np.zeros(_CACHE_SLOTS, np.bool_)
        self._lock = threading.Lock()  # kernels run without the interpreter's lock

    def look_up(self, hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the replacements, uint64 [n] twice, and the positions of misses, int64 [k]."""
        new_hi, new_lo = np.empty_like(hi), np.empty_like(lo)
        is_known = np.empty(len(hi), np.bool_)
        with self._lock:
            _look_up(hi, lo, self._slots, self._is_used, new_hi, new_lo, is_known)
        return new_hi, new_lo, np.flatnonzero(~is_known)

    def keep(self, hi: np.ndarray, lo: np.ndarray, new_hi: np.ndarray, new_lo: np.ndarray) -> None:
        with self._lock:
            _keep(hi, lo, new_hi, new_lo, self._slots, self._is_used)


@njit(inline="always")
def _slot(hi, lo):
    mixed = (hi ^ (lo * np.uint64(0x9E37_79B9_7F4A_7C15))) * np.uint64(0xD6E8_FEB8_6659_FD93)
    return np.int64(mixed >> np.uint64(47))  # 17 bits: _CACHE_SLOTS


@kernel
def _look_up(hi, lo, slots, is_used, new_hi, new_lo, is_known):
    for row in range(len(hi)):
        slot = _slot(hi[row], lo[row])
        is_known[row] = is_used[slot] and slots[slot, 0] == hi[row] and slots[slot, 1] == lo[row]
        if is_known[row]:
            new_hi[row], new_lo[row] = slots[slot, 2], slots[slot, 3]


@kernel
def _keep(hi, lo, new_hi, new_lo, slots, is_used):
    for row in range(len(hi)):
        slot = _slot(hi[row], lo[row])
        is_used[slot] = True
        slots[slot, 0], slots[slot, 1] = hi[row], lo[row]
        slots[slot, 2], slots[slot, 3] = new_hi[row], new_lo[row]
