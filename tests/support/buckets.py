"""Work units as chunks of buckets, and the plain answer: a dict of sorted lists."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from beam_pipeline.probe_rows.chunks import Chunk, store_chunks
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.shards.claim_checks import ClaimWriter
from beam_pipeline.sources.measurements import AddressColumn, Block
from tests.support.helpers import (
    MAPPED_IPV4,
    canonical,
    make_run,
    records_as_tuples,
    records_strategy,
)

Record = tuple[int, int, float]  # time, destination as a 128-bit number, rtt
Measurement = tuple[int, Record]  # of a source, a 128-bit number
LOW = 0xFFFF_FFFF_FFFF_FFFF


def addresses_of(numbers: Iterable[int]) -> AddressColumn:
    """Returns addresses with a table of each one once, in the order of their arrival."""
    numbers = list(numbers)
    places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
    return AddressColumn(
        np.array([places[number] for number in numbers], np.int32),
        np.array([number >> 64 for number in places], np.uint64),
        np.array([number & LOW for number in places], np.uint64),
    )


def block_of(measurements: Sequence[Measurement]) -> Block:
    return Block(
        np.array([time for _, (time, _, _) in measurements], np.int64),
        addresses_of(source for source, _ in measurements),
        addresses_of(destination for _, (_, destination, _) in measurements),
        np.array([rtt for _, (_, _, rtt) in measurements], np.float32),
    )


def store(
    folder: Path, units: Sequence[Sequence[Measurement]], buckets: int = 1, inline_bytes: int = 0
) -> dict[int, list[Chunk]]:
    """Returns the chunks of work units by bucket, as they come out of a GroupByKey."""
    chunks = defaultdict(list)
    for number, measurements in enumerate(units):
        name = f"unit-{number:06d}"
        writer = ClaimWriter(f"{folder}/chunks", name, inline_bytes, root=str(folder))
        for key, chunk in store_chunks(pregroup([block_of(measurements)], buckets), writer):
            chunks[key].append(Chunk.decode(chunk.encode()))
        writer.close()
    return chunks


def reference(units: Iterable[Iterable[Measurement]]) -> dict[str, list[Record]]:
    histories = defaultdict(list)
    for measurements in units:
        for source, record in measurements:
            histories[canonical(source)].append(record)
    return {source: sorted(records) for source, records in histories.items()}


SOURCES = [
    0,
    1,
    MAPPED_IPV4,
    MAPPED_IPV4 | 1,
    MAPPED_IPV4 | 0xFFFF_FFFF,
    0x2001_0DB8 << 96,
    0x2001_0DB8 << 96 | 1,
    0x2001_0DB9 << 96 | 1,
    2**128 - 1,
]
MEASUREMENTS = st.lists(st.tuples(st.sampled_from(SOURCES), records_strategy()), max_size=80)


def some_units(
    num_units: int,
    num_probes: int,
    per_probe: int,
    wide_share: float = 0.5,
    ties: bool = True,
) -> list[list[Measurement]]:
    """Returns work units: every second probe is IPv6, as are destinations of `wide_share`."""
    units = []
    for number in range(num_units):
        measurements = []
        for probe in range(num_probes):
            source = MAPPED_IPV4 + probe if probe % 2 else (0x2001_0DB8 << 96) + probe
            wide = probe < wide_share * num_probes
            run = make_run(per_probe, seed=number * num_probes + probe, wide=wide, ties=ties)
            measurements += [(source, record) for record in records_as_tuples(run)]
        units.append(measurements)
    return units
