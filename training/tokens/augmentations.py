"""Changes to contexts that teach a model to read them, instead of learning addresses by heart.

  shown_source  the source gets a random end, so that a probe is known by its prefix at most
  relabelled    all addresses get other bytes, under a map that keeps common prefixes
  steady_item   a destination keeps the first RTT that the context shows

Three in ten contexts with few destinations are relabelled, and most of these are steady: there an
RTT follows from the context or not at all. They teach to find the earlier measurement by its
destination, which noise hides, and which a network of few addresses leaves no need for. The others
keep their addresses: with all relabelled, a model learned too little of what addresses tell.
"""

from numba import uint64

from beam_pipeline.dataset.rtt import FAILED_RTT
from beam_pipeline.kernels import subkernel
from training.rows.keyed_random import combine, uniform
from training.rows.measurement_at import dst_at, rtt_code_at

_RANDOM_SOURCE, _RELABELLED, _STEADY = 0x736F_7572_6365, 0x6C61_6265_6C, 0x7374_6561_6479
_IS_RELABELLED = 0x7265_6C
_RELABELLED_SHARE = 0.3  # of the contexts with few destinations
_STEADY_SHARE = 0.7  # of the relabelled ones
_ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF


@subkernel
def shown_source(key, src, share):
    """Returns the source shown in the context with this key: `src`, or one with a random end.

    One byte of an IPv4 address is random, or eight of an IPv6 address, and one more half as often
    as not, up to all.
    """
    if share == 0.0 or uniform(combine(key, _RANDOM_SOURCE)) >= share:
        return src
    key = combine(key, _RANDOM_SOURCE)
    num_bytes = uint64(16 if src[2] else 4)
    num_random, coins = uint64(8 if src[2] else 1), combine(key, 0)
    while num_random < num_bytes and coins & uint64(1):
        num_random += uint64(1)
        coins >>= uint64(1)
    ones, hi_mask = uint64(_ALL_BITS), uint64(0)
    lo_mask = ones >> uint64(8) * (uint64(8) - min(num_random, uint64(8)))
    if num_random > uint64(8):
        hi_mask = ones >> uint64(8) * (uint64(16) - num_random)
    return src[0] ^ combine(key, 1) & hi_mask, src[1] ^ combine(key, 2) & lo_mask, src[2]


@subkernel
def draws_relabelled(key):
    """Returns whether the addresses of the context of few destinations with this key change."""
    return uniform(combine(key, _IS_RELABELLED)) < _RELABELLED_SHARE


@subkernel
def relabelled(key, address):
    """Returns (hi, lo, is_ipv6) under the map of this key, which keeps common prefixes of bytes."""
    hi, lo, is_ipv6 = address
    state = combine(key, _RELABELLED)
    if is_ipv6:
        hi, state = _relabel(hi, state, 56)
        lo, state = _relabel(lo, state, 56)
    else:
        lo, state = _relabel(lo, state, 24)
    return hi, lo, is_ipv6


@subkernel
def _relabel(word, state, first_shift):
    """Relabels the bytes of a uint64 from a shift down; returns it and the state for the next."""
    result = word
    for shift in range(first_shift, -1, -8):
        result ^= (state & uint64(0xFF)) << uint64(shift)
        state = combine(state, (word >> uint64(shift)) & uint64(0xFF))
    return result, state


@subkernel
def draws_steady(key):
    """Returns whether destinations keep their RTTs in the relabelled context with this key."""
    return uniform(combine(key, _STEADY)) < _STEADY_SHARE


@subkernel
def steady_item(raw, layout, ranks, firsts, item):
    """Returns the first answered item with the destination of `item`, if that is answered too.

    `firsts`, int64 [power of two] of -1, is a hash table of such items, and gets new ones.
    """
    if rtt_code_at(raw, layout, item) == FAILED_RTT:
        return item
    dst = dst_at(raw, layout, item, ranks)
    mask = uint64(len(firsts) - 1)
    at = combine(dst[0], dst[1]) & mask
    while firsts[at] >= 0:
        first = dst_at(raw, layout, firsts[at], ranks)
        if first[0] == dst[0] and first[1] == dst[1]:
            return firsts[at]
        at = (at + uint64(1)) & mask
    firsts[at] = item
    return item
