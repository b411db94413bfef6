"""Pre-grouping: the measurements of one work unit, as one sorted run per probe.

Each probe in a work unit gets one chunk, so that the shuffle moves few large references instead of
measurements. Linear time and about 40 bytes a measurement.

  blocks of a work unit       records                      chunks
  t  src  dst  rtt    rank    probe A | probe B | probe C   (A, bytes) (B, bytes) (C, bytes)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.kernels import kernel
from beam_pipeline.sources.measurements import Block


class Grouped(NamedTuple):
    """The measurements of a work unit by probe: p probes, n narrow and m wide records."""

    src_addrs: list[str]  # [p], canonical
    narrow: np.ndarray  # NARROW [n], one sorted run per probe
    narrow_bounds: np.ndarray  # int64 [p + 1], where each probe's run begins and ends
    wide: np.ndarray  # WIDE [m]
    wide_bounds: np.ndarray  # int64 [p + 1]


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


def rank_sources(blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Numbers the probes of all blocks, regardless of their spelling and table.

    Returns:
      hi, lo: uint64 [p], the distinct addresses in order.
      ranks: for each block, int32 [m]: the number of each entry of its source table.
    """
    hi = np.concatenate([block.src.hi for block in blocks])
    lo = np.concatenate([block.src.lo for block in blocks])
    order = np.lexsort((lo, hi))
    hi, lo = hi[order], lo[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.cumsum(is_new) - 1
    ends = np.cumsum([len(block.src.hi) for block in blocks])
    return hi[is_new], lo[is_new], np.split(ranks, ends[:-1])


def pregroup(blocks: Sequence[Block]) -> Grouped:
    """Sorts the measurements of a work unit by probe, and each probe's in the order of a row."""
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        none = np.zeros(1, np.int64)
        return Grouped([], np.empty(0, NARROW), none, np.empty(0, WIDE), none)
    src_hi, src_lo, tables = rank_sources(blocks)
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
    names = addresses.format_any(src_hi, src_lo).to_pylist()
    return Grouped(names, narrow, narrow_bounds, wide, wide_bounds)


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
