"""Pre-grouping: the measurements of one work unit, as one sorted run per probe.

The probes are in the order of their buckets, so that the runs of a bucket lie side by side. Linear
time and about 40 bytes a measurement.

  blocks of a work unit       records                              chunks
  t  src  dst  rtt    rank    probe A | probe B | probe C |  ...   (bucket 0, A B) (bucket 1, C ...)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.kernels import kernel
from beam_pipeline.sources.measurements import Block

_PER_UPPER_BITS = 16  # hashes that are sorted by insertion, on average


class Grouped(NamedTuple):
    """The measurements of a work unit by probe: p probes, n narrow and m wide records."""

    buckets: np.ndarray  # int64 [p], ascending; within a bucket, probes are in order of hashes
    src_hi: np.ndarray  # uint64 [p]
    src_lo: np.ndarray  # uint64 [p]
    narrow: np.ndarray  # NARROW [n], one sorted run per probe
    narrow_bounds: np.ndarray  # int64 [p + 1], where each probe's run begins and ends
    wide: np.ndarray  # WIDE [m]
    wide_bounds: np.ndarray  # int64 [p + 1]

    def table(self) -> np.ndarray:
        """Returns a table of the probes, uint64 [NUM_COLUMNS, p]."""
        counts = np.diff(self.narrow_bounds), np.diff(self.wide_bounds)
        return np.stack([self.src_hi, self.src_lo, *(kind.view(np.uint64) for kind in counts)])


@kernel
def _place(
    times, src_ranks, dst_codes, dst_hi, dst_lo, is_ipv4, rtts, narrow, narrow_at, wide, wide_at
):
    """Appends each measurement to those of its probe."""
    for row in range(len(times)):
        rank, dst = src_ranks[row], dst_codes[row]
        if is_ipv4[dst]:
            at = narrow_at[rank]
            narrow_at[rank] = at + 1
            narrow[at].event_time = times[row]
            narrow[at].dst_lo = dst_lo[dst]
            narrow[at].rtt = rtts[row]
        else:
            at = wide_at[rank]
            wide_at[rank] = at + 1
            wide[at].event_time = times[row]
            wide[at].dst_hi = dst_hi[dst]
            wide[at].dst_lo = dst_lo[dst]
            wide[at].rtt = rtts[row]


def _hash(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns a hash of each address, uint64 [n], given its halves, uint64 [n] each."""
    mixed = hi * np.uint64(0x9E3779B97F4A7C15) + lo
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def bucket_of(hi: np.ndarray, lo: np.ndarray, num_buckets: int) -> np.ndarray:
    """Returns the bucket of each address, int64 [n]: an even share of all hashes."""
    return (((_hash(hi, lo) >> np.uint64(32)) * np.uint64(num_buckets)) >> np.uint64(32)).view(
        np.int64
    )


def rank(hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers distinct addresses, uint64 halves [n], by their hashes: in the order of any buckets.

    Returns:
      firsts: int64 [p], where each distinct address is found, in order.
      ranks: int32 [n], the number of each address.
    """
    hashes = _hash(hi, lo)
    upper_bits = max(1, len(hashes) // _PER_UPPER_BITS).bit_length()
    ordered, order = np.empty_like(hashes), np.empty(len(hashes), np.int64)
    counts = np.zeros(1 << upper_bits, np.int64)
    _order(hashes, hi, lo, np.uint64(64 - upper_bits), counts, ordered, order)
    firsts, ranks = np.empty(len(order), np.int64), np.empty(len(order), np.int32)
    num_distinct = _number(ordered, order, hi, lo, firsts, ranks)
    return firsts[:num_distinct], ranks


@kernel
def _order(hashes, hi, lo, shift, counts, ordered, order):
    """Orders addresses by hash, those of one hash by address: by upper bits, then by insertion."""
    for value in hashes:
        counts[value >> shift] += 1
    end = 0
    for upper in range(len(counts)):
        counts[upper], end = end, end + counts[upper]
    for i in range(len(hashes)):
        value = hashes[i]
        at = counts[value >> shift]
        ordered[at], order[at] = value, i
        counts[value >> shift] += 1
    for i in range(1, len(order)):
        value, at = ordered[i], order[i]
        to = i
        while to > 0 and (
            ordered[to - 1] > value
            or (ordered[to - 1] == value and _is_before(hi, lo, at, order[to - 1]))
        ):
            ordered[to], order[to] = ordered[to - 1], order[to - 1]
            to -= 1
        ordered[to], order[to] = value, at


@kernel
def _is_before(hi, lo, one, other):
    return hi[one] < hi[other] or (hi[one] == hi[other] and lo[one] < lo[other])


@kernel
def _number(ordered, order, hi, lo, firsts, ranks):
    """Numbers addresses that come in order, given their hashes; returns how many are distinct."""
    num_distinct = 0
    for i in range(len(order)):
        at, before = order[i], order[i - 1]
        if i == 0 or ordered[i] != ordered[i - 1] or hi[at] != hi[before] or lo[at] != lo[before]:
            firsts[num_distinct] = at
            num_distinct += 1
        ranks[at] = num_distinct - 1
    return num_distinct


def pregroup(blocks: Sequence[Block], num_buckets: int) -> Grouped:
    """Sorts the measurements of a work unit by probe, and each probe's in the order of a row."""
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        none, no_halves = np.zeros(1, np.int64), np.zeros(0, np.uint64)
        empty = np.empty(0, NARROW), none, np.empty(0, WIDE), none
        return Grouped(none[:0], no_halves, no_halves, *empty)
    hi = np.concatenate([block.src.hi for block in blocks])
    lo = np.concatenate([block.src.lo for block in blocks])
    firsts, ranks = rank(hi, lo)
    src_hi, src_lo = hi[firsts], lo[firsts]
    tables = np.split(ranks, np.cumsum([len(block.src.hi) for block in blocks])[:-1])
    ranked = [table[block.src.codes] for table, block in zip(tables, blocks, strict=True)]
    is_ipv4 = [(block.dst.hi == 0) & (block.dst.lo >> np.uint64(32) == 0xFFFF) for block in blocks]
    narrow_bounds, wide_bounds = _bounds(len(src_hi), blocks, ranked, is_ipv4)
    narrow, wide = np.empty(narrow_bounds[-1], NARROW), np.empty(wide_bounds[-1], WIDE)
    narrow_at, wide_at = narrow_bounds[:-1].copy(), wide_bounds[:-1].copy()
    for block, ranks, ipv4 in zip(blocks, ranked, is_ipv4, strict=True):
        dst = block.dst
        _place(
            block.event_time, ranks, dst.codes, dst.hi, dst.lo, ipv4, block.rtt,
            narrow, narrow_at, wide, wide_at,
        )  # fmt: skip
    sort_groups(narrow, narrow_bounds)
    sort_groups(wide, wide_bounds)
    # Tables may list addresses that only dropped rows use.
    is_used = np.diff(narrow_bounds) + np.diff(wide_bounds) > 0
    src_hi, src_lo = src_hi[is_used], src_lo[is_used]
    narrow_bounds, wide_bounds = (
        bounds[np.append(is_used, True)] for bounds in (narrow_bounds, wide_bounds)
    )
    buckets = bucket_of(src_hi, src_lo, num_buckets)
    return Grouped(buckets, src_hi, src_lo, narrow, narrow_bounds, wide, wide_bounds)


def _bounds(
    num_probes: int,
    blocks: Sequence[Block],
    ranked: Sequence[np.ndarray],
    is_ipv4: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each probe's narrow and wide records begin and end, int64 [p + 1] each."""
    narrow, wide = np.zeros(num_probes + 1, np.int64), np.zeros(num_probes + 1, np.int64)
    for block, ranks, ipv4 in zip(blocks, ranked, is_ipv4, strict=True):
        narrow[1:] += np.bincount(ranks, minlength=num_probes)
        if not ipv4.all():
            in_wide = np.bincount(ranks[~ipv4[block.dst.codes]], minlength=num_probes)
            wide[1:] += in_wide
            narrow[1:] -= in_wide
    return np.cumsum(narrow), np.cumsum(wide)
