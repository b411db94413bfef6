"""Pre-grouping against the plain answer: one sorted run a probe, whatever came in which order."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.placement import probe_hashes, range_of
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.probe_rows.pregroup import Grouped, pregroup, rank
from beam_pipeline.sources.measurements import Block, check
from tests.support.helpers import is_sorted, measurements_table, records_as_tuples, reference_rows
from tests.support.properties import num_examples


def blocks_of(table: pa.Table, batch_rows: int = 1 << 20, as_dictionary: bool = False):
    """Returns the checked batches of a table that keeps every rule."""
    blocks = []
    for batch in table.combine_chunks().to_batches(batch_rows):
        if as_dictionary:
            columns = [
                column.dictionary_encode() if pa.types.is_string(column.type) else column
                for column in batch.columns
            ]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        block, faults = check(batch)
        assert faults.reasons == []
        blocks.append(block)
    return blocks


def names_of(grouped: Grouped) -> list[str]:
    return format_any(grouped.src_hi, grouped.src_lo).to_pylist()


def runs_of(grouped: Grouped) -> dict[str, list[np.ndarray]]:
    """Returns the narrow and the wide run of each probe, those that hold anything."""
    runs: dict[str, list[np.ndarray]] = {}
    names = names_of(grouped)
    assert len(names) == len(set(names)) == len(grouped.buckets)
    for records, bounds in (
        (grouped.narrow, grouped.narrow_bounds),
        (grouped.wide, grouped.wide_bounds),
    ):
        assert len(bounds) == len(names) + 1
        assert bounds[0] == 0
        assert bounds[-1] == len(records)
        for at, src_addr in enumerate(names):
            if bounds[at] < bounds[at + 1]:
                runs.setdefault(src_addr, []).append(records[bounds[at] : bounds[at + 1]])
    return runs


def rows_of(grouped: Grouped) -> dict[str, list[tuple]]:
    return {
        src_addr: sorted(record for run in runs for record in records_as_tuples(run))
        for src_addr, runs in runs_of(grouped).items()
    }


def bytes_of(grouped: Grouped) -> dict[str, list[bytes]]:
    return {name: [run.tobytes() for run in runs] for name, runs in runs_of(grouped).items()}


@settings(max_examples=num_examples(100, quick=20))
@given(
    random=st.randoms(use_true_random=False),
    num_rows=st.integers(1, 200),
    batch_rows=st.integers(1, 60),
    num_buckets=st.sampled_from([1, 3, 1000]),
    ipv6_share=st.sampled_from([0.0, 0.4, 1.0]),
    as_dictionary=st.booleans(),
)
def test_sorted_runs_of_every_probe_whatever_the_order_of_rows_and_blocks(
    random, num_rows, batch_rows, num_buckets, ipv6_share, as_dictionary
):
    table = measurements_table(num_rows, seed=3, num_probes=9, ipv6_share=ipv6_share, span_us=50)
    rows = list(range(table.num_rows))
    random.shuffle(rows)
    blocks = blocks_of(table.take(rows), batch_rows, as_dictionary)
    random.shuffle(blocks)
    grouped = pregroup(blocks, num_buckets)
    assert rows_of(grouped) == reference_rows(table)
    whole = pregroup(blocks_of(table), num_buckets)
    assert bytes_of(grouped) == bytes_of(whole) and names_of(grouped) == names_of(whole)
    assert names_of(grouped) == names_of(pregroup(blocks, 1))
    assert grouped.buckets.tolist() == sorted(grouped.buckets.tolist())
    assert set(grouped.buckets.tolist()) <= set(range(num_buckets))
    assert all(is_sorted(run) for runs in runs_of(grouped).values() for run in runs)
    wide = grouped.wide
    assert (grouped.narrow.dtype, wide.dtype) == (NARROW, WIDE)
    assert not ((wide["dst_hi"] == 0) & (wide["dst_lo"] >> np.uint64(32) == 0xFFFF)).any()


def test_an_address_that_no_measurement_uses_is_no_probe():
    """Dictionaries may hold entries that only dropped rows used, or none."""
    table = measurements_table(50, seed=4, num_probes=2)
    (block,) = blocks_of(table, as_dictionary=True)
    unused = block.src._replace(
        hi=np.append(block.src.hi, np.uint64(0)), lo=np.append(block.src.lo, np.uint64(7))
    )
    grouped = pregroup([Block(block.event_time, unused, block.dst, block.rtt)], 3)
    assert len(names_of(grouped)) == 2
    assert bytes_of(grouped) == bytes_of(pregroup([block], 3))


def halves_of(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    hi = np.array([number >> 64 for number in numbers], np.uint64)
    return hi, np.array([number & (2**64 - 1) for number in numbers], np.uint64)


def test_addresses_of_one_hash_stay_apart():
    """Two halves make one hash: another first half can be made up for by the second."""
    factor = 0x9E3779B97F4A7C15
    one, other = 5 << 64 | factor, 6 << 64
    numbers = [one, other, one, 7, other, one] * 50
    hi, lo = halves_of(numbers)
    assert len(set(range_of(probe_hashes(hi, lo), 1 << 32).tolist())) == 2
    firsts, ranks = rank(hi, lo)
    distinct = [numbers[first] for first in firsts]
    assert sorted(distinct) == [7, one, other]
    assert [distinct[rank] for rank in ranks] == numbers
    again, _ = rank(hi[::-1], lo[::-1])
    assert [numbers[::-1][first] for first in again] == distinct
