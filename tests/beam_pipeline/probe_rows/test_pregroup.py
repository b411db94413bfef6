"""Pre-grouping against the plain answer: one sorted run a probe, whatever came in which order."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.probe_rows.pregroup import Grouped, pregroup, rank_sources
from beam_pipeline.sources.measurements import Block, check
from tests.support.helpers import (
    MAPPED_IPV4,
    as_number,
    is_sorted,
    measurements_table,
    records_as_tuples,
    reference_rows,
    spellings_of,
)
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


def runs_of(grouped: Grouped) -> dict[str, list[np.ndarray]]:
    """Returns the narrow and the wide run of each probe, those that hold anything."""
    runs: dict[str, list[np.ndarray]] = {}
    for records, bounds in (
        (grouped.narrow, grouped.narrow_bounds),
        (grouped.wide, grouped.wide_bounds),
    ):
        assert len(bounds) == len(grouped.src_addrs) + 1
        assert bounds[0] == 0
        assert bounds[-1] == len(records)
        for at, src_addr in enumerate(grouped.src_addrs):
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


@pytest.mark.parametrize("as_dictionary", [False, True])
@pytest.mark.parametrize("batch_rows", [1, 7, 100, 1000])
@pytest.mark.parametrize("ipv6_share", [0.0, 0.4, 1.0])
def test_every_probe_gets_all_of_its_measurements(batch_rows, ipv6_share, as_dictionary):
    num_rows = 60 if batch_rows == 1 else 400
    table = measurements_table(num_rows, seed=batch_rows, ipv6_share=ipv6_share)
    grouped = pregroup(blocks_of(table, batch_rows, as_dictionary))
    assert rows_of(grouped) == reference_rows(table)


def test_each_run_is_sorted_and_as_narrow_as_its_destinations():
    grouped = pregroup(blocks_of(measurements_table(2000, seed=1, ipv6_share=0.5)))
    assert grouped.narrow.dtype == NARROW
    assert grouped.wide.dtype == WIDE
    assert len(grouped.narrow) > 100
    assert len(grouped.wide) > 100
    assert all(is_sorted(run) for runs in runs_of(grouped).values() for run in runs)
    mapped = (grouped.wide["dst_hi"] == 0) & (grouped.wide["dst_lo"] >> np.uint64(32) == 0xFFFF)
    assert not mapped.any()


def test_probes_come_in_the_order_of_their_addresses():
    grouped = pregroup(blocks_of(measurements_table(300, seed=2, num_probes=40, ipv6_share=0.5)))
    numbers = [as_number(src_addr) for src_addr in grouped.src_addrs]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 30


@settings(max_examples=num_examples(40))
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_order_of_rows_and_blocks_changes_no_byte(random, batch_rows):
    table = measurements_table(100, seed=3, ipv6_share=0.4, span_us=50)
    rows = list(range(table.num_rows))
    random.shuffle(rows)
    blocks = blocks_of(table.take(rows), batch_rows)
    random.shuffle(blocks)
    assert bytes_of(pregroup(blocks)) == bytes_of(pregroup(blocks_of(table)))


def test_all_spellings_of_a_source_are_one_probe_also_across_blocks():
    ipv4, ipv6 = MAPPED_IPV4 | 0xC0000201, 0x2001_0DB8 << 96 | 0xABC
    texts = spellings_of(ipv4) + spellings_of(ipv6)
    columns = {
        "event_time": pa.array(range(len(texts)), pa.timestamp("us")),
        "src_addr": texts,
        "dst_addr": ["192.0.2.1"] * len(texts),
        "ip_version": [4] * len(texts),
        "rtt": pa.array([1.0] * len(texts)),
    }
    table = pa.table(columns)
    for batch_rows in (1, 1000):
        grouped = pregroup(blocks_of(table, batch_rows))
        assert grouped.src_addrs == ["192.0.2.1", "2001:db8::abc"]
        assert np.diff(grouped.narrow_bounds).tolist() == [
            len(spellings_of(ipv4)),
            len(spellings_of(ipv6)),
        ]


def test_an_address_that_no_measurement_uses_makes_no_run():
    """Dictionaries may hold entries that only dropped rows used, or none."""
    table = measurements_table(50, seed=4, num_probes=2)
    (block,) = blocks_of(table, as_dictionary=True)
    unused = block.src._replace(
        hi=np.append(block.src.hi, np.uint64(0)), lo=np.append(block.src.lo, np.uint64(7))
    )
    assert bytes_of(pregroup([Block(block.event_time, unused, block.dst, block.rtt)])) == bytes_of(
        pregroup([block])
    )


def test_rank_sources_numbers_addresses_in_order_and_equal_ones_alike():
    def block(numbers: list[int]) -> Block:
        hi = np.array([number >> 64 for number in numbers], np.uint64)
        lo = np.array([number & (2**64 - 1) for number in numbers], np.uint64)
        (like,) = blocks_of(measurements_table(1, seed=5))
        return Block(like.event_time, like.src._replace(hi=hi, lo=lo), like.dst, like.rtt)

    low, ipv4, high, higher = 1, MAPPED_IPV4 | 1, 1 << 64 | 5, 2 << 64 | 5
    blocks = [block([high, low, high]), block([]), block([ipv4, higher, high])]
    hi, lo, ranks = rank_sources(blocks)
    numbers = [int(h) << 64 | int(number) for h, number in zip(hi, lo, strict=True)]
    assert numbers == [low, ipv4, high, higher]
    assert [rank.tolist() for rank in ranks] == [[2, 0, 2], [], [1, 3, 2]]


@pytest.mark.parametrize("num_empty", [0, 1, 3])
def test_nothing_in_is_nothing_out(num_empty):
    empty = check(measurements_table(1, seed=6).to_batches()[0].slice(0, 0))[0]
    grouped = pregroup([empty] * num_empty)
    assert runs_of(grouped) == {}
    assert grouped.src_addrs == []


def test_empty_blocks_between_others_do_not_matter():
    table = measurements_table(30, seed=7)
    empty = check(table.to_batches()[0].slice(0, 0))[0]
    first, second = blocks_of(table, 15)
    assert bytes_of(pregroup([empty, first, empty, second])) == bytes_of(pregroup([first, second]))
