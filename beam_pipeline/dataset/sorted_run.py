"""Sorted runs: measurements of one probe as packed records, in the order of a probe row.

A run is a numpy array of NARROW (16 bytes, all destinations IPv4) or WIDE (28 bytes) records. The
order is (event_time, destination as a 128-bit number, rtt). Ties are equal bytes, so results do not
depend on the order of arrival. Runs are cut, joined and stored as contiguous bytes.
"""

from collections.abc import Sequence

import numpy as np

from beam_pipeline.kernels import kernel, subkernel

NARROW = np.dtype([("event_time", "<i8"), ("dst_lo", "<u4"), ("rtt", "<f4")])
WIDE = np.dtype([("event_time", "<i8"), ("dst_hi", "<u8"), ("dst_lo", "<u8"), ("rtt", "<f4")])
_INSERTION_SORT_UP_TO = 48


@subkernel
def _insertion_sort(records, start, end):
    for i in range(start + 1, end):
        time = records[i].event_time
        j = i
        while j > start and records[j - 1].event_time > time:
            j -= 1
        if j < i:
            moved = records[i : i + 1].copy()
            for k in range(i, j, -1):
                records[k] = records[k - 1]
            records[j] = moved[0]


@subkernel
def _radix_sort(records, start, end, scratch, earliest, span):
    """Sorts stably by event_time, least significant digit first, 8 bits of `span` per pass."""
    counts = np.zeros(256, np.int64)
    in_scratch = False
    shift = 0
    while shift < 64 and span >> shift > 0:
        counts[:] = 0
        for i in range(start, end):
            time = scratch[i - start].event_time if in_scratch else records[i].event_time
            counts[((time - earliest) >> shift) & 255] += 1
        total = 0
        for digit in range(256):
            counts[digit], total = total, total + counts[digit]
        for i in range(start, end):
            if in_scratch:
                digit = ((scratch[i - start].event_time - earliest) >> shift) & 255
                records[start + counts[digit]] = scratch[i - start]
            else:
                digit = ((records[i].event_time - earliest) >> shift) & 255
                scratch[counts[digit]] = records[i]
            counts[digit] += 1
        in_scratch = not in_scratch
        shift += 8
    if in_scratch:
        for i in range(start, end):
            records[i] = scratch[i - start]


@kernel
def _sort_groups_by_time(records, bounds, scratch):
    """Sorts each records[bounds[g]:bounds[g + 1]] by event_time; returns the number of ties."""
    ties = 0
    for group in range(len(bounds) - 1):
        start, end = bounds[group], bounds[group + 1]
        if end - start < 2:
            continue
        earliest = latest = records[start].event_time
        in_order = True
        for i in range(start + 1, end):
            time = records[i].event_time
            if time < latest:
                in_order = False
            earliest = min(earliest, time)
            latest = max(latest, time)
        if not in_order:
            if end - start <= _INSERTION_SORT_UP_TO:
                _insertion_sort(records, start, end)
            else:
                _radix_sort(records, start, end, scratch, earliest, latest - earliest)
        for i in range(start + 1, end):
            ties += records[i].event_time == records[i - 1].event_time
    return ties


@kernel
def _order_short_ties(records, bounds, dst_hi, dst_lo, rtt):
    """Orders short ties in each group by the other columns; returns the number of long ties."""
    num_long = 0
    for group in range(len(bounds) - 1):
        start, end = bounds[group], bounds[group + 1]
        while start < end:
            after = start + 1
            while after < end and records[after].event_time == records[start].event_time:
                after += 1
            num_long += after - start > _INSERTION_SORT_UP_TO
            for i in range(start + 1, after if after - start <= _INSERTION_SORT_UP_TO else start):
                hi, lo, value = dst_hi[i], dst_lo[i], rtt[i]
                to = i
                while to > start and (
                    hi < dst_hi[to - 1]
                    or (
                        hi == dst_hi[to - 1]
                        and (lo < dst_lo[to - 1] or (lo == dst_lo[to - 1] and value < rtt[to - 1]))
                    )
                ):
                    to -= 1
                if to < i:
                    moved = records[i : i + 1].copy()
                    for k in range(i, to, -1):
                        records[k] = records[k - 1]
                    records[to] = moved[0]
            start = after
    return num_long


def sort_groups(records: np.ndarray, bounds: np.ndarray) -> None:
    """Sorts each group records[bounds[g]:bounds[g + 1]] of a NARROW or WIDE array in place."""
    largest = int(np.diff(bounds).max(initial=0))
    scratch = np.empty(largest if largest > _INSERTION_SORT_UP_TO else 0, records.dtype)
    if not _sort_groups_by_time(records, bounds, scratch):
        return
    no_hi = np.broadcast_to(np.zeros(1, np.uint64), len(records))
    dst_hi = records["dst_hi"] if records.dtype == WIDE else no_hi
    if _order_short_ties(records, bounds, dst_hi, records["dst_lo"], records["rtt"]):
        _break_ties(records, bounds)


def _break_ties(records: np.ndarray, bounds: np.ndarray) -> None:
    """Orders records of equal time within a group by destination and rtt."""
    time = records["event_time"]
    equal = time[1:] == time[:-1]
    group_starts = bounds[1:-1]
    equal[group_starts[(group_starts > 0) & (group_starts < len(records))] - 1] = False
    tied = np.zeros(len(records), bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    rows = np.flatnonzero(tied)
    run_number = np.cumsum(np.concatenate([[True], ~equal]))[rows]
    some = records[rows]
    halves = [some["dst_hi"]] if "dst_hi" in (some.dtype.names or ()) else []
    # lexsort takes the least significant key first.
    order = np.lexsort([some["rtt"], some["dst_lo"], *halves, run_number])
    records[rows] = some[order]


@kernel
def _move_distinct_up(words, bounds, distinct_bounds):
    """Moves the records that differ from the one before to the front of `words`, in order."""
    to = 0
    for group in range(len(bounds) - 1):
        distinct_bounds[group] = to
        for i in range(bounds[group], bounds[group + 1]):
            differs = to == distinct_bounds[group]
            for word in range(words.shape[1]):
                differs |= words[i, word] != words[to - 1, word]
            if differs:
                for word in range(words.shape[1]):
                    words[to, word] = words[i, word]
                to += 1
    distinct_bounds[-1] = to


def distinct(records: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns sorted groups and their bounds without duplicates; overwrites `records`."""
    distinct_bounds = np.empty_like(bounds)
    words = records.view(np.uint32).reshape(len(records), records.itemsize // 4)
    _move_distinct_up(words, bounds, distinct_bounds)
    return records[: distinct_bounds[-1]], distinct_bounds


def widen(run: np.ndarray) -> np.ndarray:
    """Returns a run as WIDE records; IPv4 destinations become ::ffff:a.b.c.d."""
    if run.dtype == WIDE:
        return run
    wide = np.zeros(len(run), WIDE)
    wide["event_time"], wide["rtt"] = run["event_time"], run["rtt"]
    wide["dst_lo"] = run["dst_lo"].astype(np.uint64) | np.uint64(0xFFFF << 32)
    return wide


def join(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates runs of one probe, widened if any of them is WIDE."""
    if any(run.dtype != runs[0].dtype for run in runs):
        runs = [widen(run) for run in runs]
    # As bytes: numpy compares record types slowly.
    joined = np.concatenate([np.ascontiguousarray(run).view(np.uint8) for run in runs])
    return joined.view(runs[0].dtype)


def merge(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Merges sorted runs in memory; sorts only where they overlap, such as between input files."""
    runs = sorted(runs, key=lambda run: int(run["event_time"][0]))
    merged = join(runs)
    borders = np.cumsum([len(run) for run in runs])[:-1]
    if len(borders):
        times = merged["event_time"]
        latest = np.maximum.accumulate(times)[:-1]
        earliest = np.minimum.accumulate(times[:0:-1])[::-1]
        # All times before a cut are earlier than those after it.
        cuts = np.concatenate([[0], np.flatnonzero(latest < earliest) + 1, [len(merged)]])
        starts = cuts[np.searchsorted(cuts, borders, "right") - 1]
        ends = cuts[np.searchsorted(cuts, borders, "left")]
        for start, end in {*zip(starts.tolist(), ends.tolist(), strict=True)}:
            sort_groups(merged[start:end], np.array([0, end - start]))
    return merged


def count_up_to(run: np.ndarray, last: np.void) -> int:
    """Returns the number of records of a sorted run up to `last`, of its dtype."""
    time = run["event_time"]
    start = int(np.searchsorted(time, last["event_time"], "left"))
    end = int(np.searchsorted(time, last["event_time"], "right"))
    tied = run[start:end]
    before = (tied["dst_lo"] < last["dst_lo"]) | (
        (tied["dst_lo"] == last["dst_lo"]) & (tied["rtt"] <= last["rtt"])
    )
    if "dst_hi" in (run.dtype.names or ()):
        before = (tied["dst_hi"] < last["dst_hi"]) | ((tied["dst_hi"] == last["dst_hi"]) & before)
    return start + int(np.count_nonzero(before))
