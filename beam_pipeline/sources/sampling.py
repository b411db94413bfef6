"""Sampling: selects the measurements of the input that go into the dataset.

  since <= event_time < until
  hash(src_addr)                           <  sample_probes * 2**64
  hash(src_addr, dst_addr, event_time, rtt)  <  sample_measurements * 2**64

The hashes depend on nothing else, so a smaller sample is a subset of a larger one, and a sampled
probe stays in the sample when data grow. They are independent of each other and of the hashes for
splits, shards and buckets.
"""

import numpy as np
from numba import njit

from beam_pipeline.kernels import kernel
from beam_pipeline.sources.measurements import AddressColumn, Block
from beam_pipeline.sources.options import Sample

_PROBE_SALT = np.uint64(0x70726F62655F6964)
_MEASUREMENT_SALT = np.uint64(0x6D6561737572656D)


def in_window(event_time: np.ndarray, sample: Sample) -> np.ndarray:
    """Returns which times, int64 [n] in µs since 1970, are in a sample's window, bool [n]."""
    is_in = event_time >= sample.since_us
    return is_in if sample.until_us is None else is_in & (event_time < sample.until_us)


def sampled(block: Block, sample: Sample) -> Block:
    """Returns the measurements of a block that are in the sample."""
    kept = in_window(block.event_time, sample)
    if sample.probes < 1:
        kept &= sampled_probes(block.src.hi, block.src.lo, sample.probes)[block.src.codes]
    if sample.measurements < 1:
        src, dst = (
            _hash_addresses(column.hi, column.lo, _MEASUREMENT_SALT)
            for column in (block.src, block.dst)
        )
        hashes = _hash_measurements(
            src, block.src.codes, dst, block.dst.codes, block.event_time, block.rtt.view(np.uint32)
        )
        kept &= hashes < _threshold(sample.measurements)
    if kept.all():
        return block
    src, dst = _taken(block.src, kept), _taken(block.dst, kept)
    return Block(block.event_time[kept], src, dst, block.rtt[kept])


def sampled_probes(hi: np.ndarray, lo: np.ndarray, share: float) -> np.ndarray:
    """Returns which addresses, halves of uint64 [n], are in a sample of the probes: bool [n]."""
    return _hash_addresses(hi, lo, _PROBE_SALT) < _threshold(share)


def _threshold(share: float) -> np.uint64:
    return np.uint64(int(share * 2.0**64))


def _taken(column: AddressColumn, kept: np.ndarray) -> AddressColumn:
    """Returns the kept addresses of a column, with only their entries of its table."""
    used, codes = np.unique(column.codes[kept], return_inverse=True)
    return AddressColumn(codes.astype(np.int32), column.hi[used], column.lo[used])


@njit(inline="always")
def _mix(hashed, word):
    """Adds a word to a hash; the steps are those of splitmix64."""
    mixed = (hashed ^ word) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def _hash_addresses(hi, lo, salt):
    """Returns the hash of each address, given as halves: uint64 [n]."""
    hashes = np.empty(len(hi), np.uint64)
    for at in range(len(hi)):
        hashes[at] = _mix(_mix(_mix(np.uint64(0), salt), hi[at]), lo[at])
    return hashes


@kernel
def _hash_measurements(src_hashes, src_codes, dst_hashes, dst_codes, times, rtts):
    """Returns the hash of each measurement, uint64 [n]; `rtts` are the bits of float32."""
    hashes = np.empty(len(times), np.uint64)
    for at in range(len(times)):
        hashed = _mix(src_hashes[src_codes[at]], dst_hashes[dst_codes[at]])
        hashes[at] = _mix(_mix(hashed, np.uint64(times[at])), np.uint64(rtts[at]))
    return hashes
