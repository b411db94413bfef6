"""Pre-grouping: the measurements of one work unit as one sorted run per probe.

Probes are ordered by bucket, so the runs of a bucket are adjacent. Linear time, about 40 bytes per
measurement.

  blocks of a work unit       records                              chunks
  t  src  dst  rtt    rank    probe A | probe B | probe C |  ...   (bucket 0, A B) (bucket 1, C ...)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import uint64

from beam_pipeline.dataset.placement import probe_hashes, range_of
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.kernels import kernel
from beam_pipeline.sources.measurements import Block

_PER_UPPER_BITS = 16  # mean number of hashes per insertion sort


class Grouped(NamedTuple):
    """The measurements of a work unit by probe: p probes, n narrow and m wide records."""

    buckets: np.ndarray  # int64 [p], ascending; within a bucket, probes are ordered by hash
    src_hi: np.ndarray  # uint64 [p]
    src_lo: np.ndarray  # uint64 [p]
    narrow: np.ndarray  # NARROW [n], one sorted run per probe
    narrow_bounds: np.ndarray  # int64 [p + 1], of each probe's run
    wide: np.ndarray  # WIDE [m]
    wide_bounds: np.ndarray  # int64 [p + 1]

    def table(self) -> np.ndarray:
        """Returns the table of probes, uint64 [NUM_COLUMNS, p]."""
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


def rank(hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks distinct addresses, uint64 halves [n], by hash: in bucket order for any bucket count.

    Returns:
      firsts: int32 [p], the first index of each distinct address, in order.
      ranks: int32 [n], the rank of each address.
    """
    hashes = probe_hashes(hi, lo)
    upper_bits = max(1, len(hashes) // _PER_UPPER_BITS).bit_length()
    order, ordered = np.empty(len(hashes), np.int32), np.empty((len(hashes), 2), np.uint64)
    _order(hashes, lo, uint64(64 - upper_bits), np.zeros(1 << upper_bits, np.int32), order, ordered)
    ranks = np.empty(len(order), np.int32)
    num_distinct = _number(order, ordered, ranks)
    return order[:num_distinct], ranks


@kernel
def _order(hashes, lo, shift, counts, order, ordered):
    """Sorts addresses by hash and lower half: by upper bits of the hash, then by insertion.

    Args:
      counts: zeros, int32 [2 ** upper bits].
      order: output, int32 [n]: the indices of the addresses in order.
      ordered: output, uint64 [n, 2]: their hashes and lower halves.
    """
    for value in hashes:
        counts[value >> shift] += 1
    end = 0
    for upper in range(len(counts)):
        counts[upper], end = end, end + counts[upper]
    for i in range(len(hashes)):
        value = hashes[i]
        to = counts[value >> shift]
        counts[value >> shift] = to + 1
        order[to], ordered[to, 0], ordered[to, 1] = i, value, lo[i]
    for i in range(1, len(order)):
        at, value, low = order[i], ordered[i, 0], ordered[i, 1]
        to = i
        while to > 0 and (
            ordered[to - 1, 0] > value or (ordered[to - 1, 0] == value and ordered[to - 1, 1] > low)
        ):
            order[to] = order[to - 1]
            ordered[to, 0], ordered[to, 1] = ordered[to - 1, 0], ordered[to - 1, 1]
            to -= 1
        order[to], ordered[to, 0], ordered[to, 1] = at, value, low


@kernel
def _number(order, ordered, ranks):
    """Ranks sorted addresses and counts distinct ones; moves the first of each to the front."""
    num_distinct = 0
    for i in range(len(order)):
        at = order[i]
        is_new = i == 0 or ordered[i, 0] != ordered[i - 1, 0] or ordered[i, 1] != ordered[i - 1, 1]
        if is_new:
            order[num_distinct] = at
            num_distinct += 1
        ranks[at] = num_distinct - 1
    return num_distinct


def pregroup(blocks: Sequence[Block], num_buckets: int) -> Grouped:
    """Sorts the measurements of a work unit by probe, and those of a probe in row order."""
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
    buckets = range_of(probe_hashes(src_hi, src_lo), num_buckets)
    return Grouped(buckets, src_hi, src_lo, narrow, narrow_bounds, wide, wide_bounds)


def _bounds(
    num_probes: int,
    blocks: Sequence[Block],
    ranked: Sequence[np.ndarray],
    is_ipv4: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of each probe's narrow and wide records, int64 [p + 1] each."""
    narrow, wide = np.zeros(num_probes + 1, np.int64), np.zeros(num_probes + 1, np.int64)
    for block, ranks, ipv4 in zip(blocks, ranked, is_ipv4, strict=True):
        _count(ranks, block.dst.codes, ipv4, narrow[1:], wide[1:])
    return np.cumsum(narrow), np.cumsum(wide)


@kernel
def _count(src_ranks, dst_codes, is_ipv4, narrow, wide):
    """Adds the narrow and the wide records of each probe."""
    for row in range(len(src_ranks)):
        if is_ipv4[dst_codes[row]]:
            narrow[src_ranks[row]] += 1
        else:
            wide[src_ranks[row]] += 1
