"""What tests share: transforms run eagerly, random measurements, and the plain answer to them.

`reference_rows` computes, from a table of measurements and with the standard library alone, what
every probe measured, in order: what a dataset made of that table must hold.
"""

import functools
import io
import ipaddress
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from hypothesis import strategies as st

from beam_pipeline.dataset.arrow_record import RECORD_SCHEMA, RowColumns
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.jobs.beam_options import suited

MAPPED_IPV4 = 0xFFFF << 32
YEAR_2024_US = 1_704_067_200_000_000


def quick_and_slow(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Returns parameters of a test, of which those that are not in `quick` are slow ones."""
    slow = pytest.mark.slow
    return [value if value in quick else pytest.param(value, marks=slow) for value in values]


# --- Beam ---------------------------------------------------------------------------------------

NOW = {"timestamp": Timestamp(0), "window": GlobalWindow()}  # of an element of `run_do_fn`
_collected: dict[str, list] = {}


class _Collect(beam.DoFn):
    """Appends elements to a list of this process, which the in-memory runner's workers share."""

    def __init__(self, token: str):
        self._token = token

    def process(self, element: Any) -> None:
        _collected[self._token].append(element)


def eager(elements: Iterable | None, transform: beam.PTransform) -> list:
    """Runs a transform in memory; returns its output, in no fixed order.

    `elements` is the input; None is the beginning of the pipeline, for sources.
    """
    token = uuid.uuid4().hex
    _collected[token] = []
    try:
        options = suited(PipelineOptions([]))  # its views are kept
        with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
            source = pipeline if elements is None else pipeline | beam.Create(list(elements))
            _ = source | "Tested" >> transform | "Collect" >> beam.ParDo(_Collect(token))
        return _collected[token]
    finally:
        del _collected[token]


def run_do_fn(do_fn: beam.DoFn, elements: Iterable, *args: Any, **kwargs: Any) -> list:
    """Runs a DoFn over one bundle, without a runner; returns the values that it yields.

    Further arguments go to `process`: side inputs, states, a timestamp.
    """
    do_fn.setup()
    do_fn.start_bundle()
    out: list = []
    for element in elements:
        out += do_fn.process(element, *args, **kwargs) or ()
    out += do_fn.finish_bundle() or ()
    do_fn.teardown()
    return [value.value if isinstance(value, WindowedValue) else value for value in out]


# --- runs ---------------------------------------------------------------------------------------


def make_run(n: int, seed: int, wide: bool = False, ties: bool = False) -> np.ndarray:
    """Returns a sorted run of n random measurements, a tenth of them failed.

    A wide run has both families. With `ties` times, destinations and RTTs are few, so that every
    column of the order counts and some measurements are equal.
    """
    rng = np.random.default_rng(seed)
    run = np.zeros(n, WIDE if wide else NARROW)
    few = max(2, n // 10)
    run["event_time"] = YEAR_2024_US + np.cumsum(rng.integers(0, 600_000_000, n))
    if ties:
        run["event_time"] = YEAR_2024_US + rng.integers(0, few, n)
    ipv4 = rng.integers(0, 2**32, n, np.uint64)
    if ties:
        ipv4 = ipv4[rng.integers(0, few, n)]
    run["dst_lo"] = ipv4
    if wide:
        run["dst_lo"] |= np.uint64(MAPPED_IPV4)
        ipv6 = rng.random(n) < 0.5
        run["dst_hi"][ipv6] = 0x2001_0DB8_0000_0000 + rng.integers(0, few, int(ipv6.sum()))
        run["dst_lo"][ipv6] = rng.integers(0, 3 if ties else 2**63, int(ipv6.sum()))
    rtt = rng.choice([0.5, 1.0, 2.5], n) if ties else rng.lognormal(3.5, 1, n)
    run["rtt"] = np.where(rng.random(n) < 0.1, -1, rtt)
    sort_groups(run, np.array([0, n]))
    return run


def records_as_tuples(run: np.ndarray) -> list[tuple[int, int, float]]:
    """Returns (event_time, destination as a 128-bit number, rtt) of each record, in order."""
    if run.dtype == WIDE:
        destinations = [
            hi << 64 | lo for hi, lo in zip(run["dst_hi"].tolist(), run["dst_lo"].tolist())
        ]
    else:
        destinations = [MAPPED_IPV4 | lo for lo in run["dst_lo"].tolist()]
    return list(zip(run["event_time"].tolist(), destinations, run["rtt"].tolist(), strict=True))


def is_sorted(run: np.ndarray) -> bool:
    """Tells whether a run is in order, destinations and rtt included."""
    records = records_as_tuples(run)
    return records == sorted(records)


def run_of_tuples(
    records: Iterable[tuple[int, int, float]], wide: bool | None = None
) -> np.ndarray:
    """Inverts `records_as_tuples`, keeping the order; as narrow as can be unless told."""
    records = list(records)
    if wide is None:
        wide = any(destination >> 32 != 0xFFFF for _, destination, _ in records)
    run = np.zeros(len(records), WIDE if wide else NARROW)
    for row, (time, destination, rtt) in zip(run, records, strict=True):
        row["event_time"], row["rtt"] = time, rtt
        row["dst_lo"] = destination & (0xFFFF_FFFF_FFFF_FFFF if wide else 0xFFFF_FFFF)
        if wide:
            row["dst_hi"] = destination >> 64
    return run


_ipv4 = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)).map(lambda n: MAPPED_IPV4 | n)
_ipv6 = st.one_of(
    st.sampled_from([0, 1, 2**64, 2**128 - 1, MAPPED_IPV4 - 1, 0x1_0000 << 32]),
    st.integers(0, 2**128 - 1).filter(lambda n: n >> 32 != 0xFFFF),
)
_times = st.one_of(st.integers(0, 5), st.integers(0, 2**62))
_rtts = st.one_of(st.sampled_from([-1.0, 0.0, 1.5]), st.floats(0, 1e7, width=32))


def records_strategy(wide: bool | None = None) -> st.SearchStrategy:
    """Measurements as `records_as_tuples` gives them; many are equal in some of the columns."""
    destination = _ipv4 if wide is False else st.one_of(_ipv4, _ipv6)
    return st.tuples(_times, destination, _rtts)


@st.composite
def runs_strategy(
    draw: Callable, min_size: int = 1, max_size: int = 40, wide: bool | None = None
) -> np.ndarray:
    """Sorted runs with ties, duplicates and spans from nothing to 2**62 µs."""
    if wide is None:
        wide = draw(st.booleans())
    records = draw(st.lists(records_strategy(wide), min_size=min_size, max_size=max_size))
    return run_of_tuples(sorted(records), wide)


# --- measurements as they come in ---------------------------------------------------------------


@functools.cache
def spellings_of(address: int) -> list[str]:
    """Returns texts that all mean one address, given as a 128-bit number, the canonical first."""
    ipv6 = ipaddress.IPv6Address(address)
    groups = [f"{address >> shift & 0xFFFF:x}" for shift in range(112, -16, -16)]
    dotted = str(ipaddress.IPv4Address(address & 0xFFFF_FFFF))
    spellings = [
        ":".join(groups),
        ":".join(groups).upper(),
        ipv6.exploded,
        ipv6.exploded.upper(),
        ":".join(groups[:6]) + ":" + dotted,
    ]
    if address >> 32 == 0xFFFF:
        return [dotted, f"::ffff:{dotted}", f"::FFFF:{dotted}", *spellings]
    return [canonical(address), canonical(address).upper(), *spellings]


def canonical(address: int) -> str:
    """Returns the text of a 128-bit address, as RFC 5952 wants it; IPv4-mapped is IPv4."""
    if address >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(address & 0xFFFF_FFFF))
    return str(ipaddress.IPv6Address(address))


def as_number(text: str) -> int:
    """Inverts `canonical`, for any spelling."""
    address = ipaddress.ip_address(text)
    return MAPPED_IPV4 | int(address) if address.version == 4 else int(address)


def measurements_table(
    n: int, seed: int, num_probes: int = 5, ipv6_share: float = 0.3, span_us: int = 10**12
) -> pa.Table:
    """Returns n random measurements that keep every rule, in random order.

    Addresses come in several spellings, a tenth of the pings failed (with any negative RTT), and
    about a fifth of the rows repeat the time, the destination or all of an earlier row. Probes
    differ in size: the first, an IPv4 address, has half of all rows, the second is IPv6.
    """
    rng = np.random.default_rng(seed)

    def some_addresses(count: int) -> list[int]:
        ipv4 = MAPPED_IPV4 | rng.integers(0, 2**32, count, np.uint64)
        is_ipv6 = rng.random(count) < ipv6_share
        is_ipv6[:1], is_ipv6[1:2] = False, ipv6_share > 0
        ipv6 = rng.integers(0, 2**63, count)
        return [
            0x2001_0DB8 << 96 | int(low) if wide else int(address)
            for address, low, wide in zip(ipv4, ipv6, is_ipv6, strict=True)
        ]

    probes, destinations = some_addresses(num_probes), some_addresses(max(2, n // 8))
    probe = np.where(rng.random(n) < 0.5, 0, rng.integers(0, num_probes, n))
    destination = rng.integers(0, len(destinations), n)
    times = YEAR_2024_US + rng.integers(0, span_us, n)
    rtt = np.where(rng.random(n) < 0.1, -rng.random(n) * 9 - 0.1, rng.lognormal(3.5, 1, n))
    for row in np.flatnonzero(rng.random(n) < 0.2):
        earlier = rng.integers(0, row + 1)
        probe[row], times[row] = probe[earlier], times[earlier]
        kind = rng.integers(0, 3)
        if kind > 0:
            destination[row] = destination[earlier]
        if kind > 1:
            rtt[row] = rtt[earlier]

    def spelled(address: int) -> str:
        spellings = spellings_of(address)
        return spellings[min(int(rng.geometric(0.6)) - 1, len(spellings) - 1)]

    return pa.table(
        {
            "event_time": pa.array(times, pa.timestamp("us")),
            "src_addr": pa.array([spelled(probes[i]) for i in probe], pa.string()),
            "dst_addr": pa.array([spelled(destinations[i]) for i in destination], pa.string()),
            "ip_version": pa.array(
                [4 if destinations[i] >> 32 == 0xFFFF else 6 for i in destination], pa.int8()
            ),
            "rtt": pa.array(rtt, pa.float32()),
        }
    )


def reference_rows(table: pa.Table) -> dict[str, list[tuple[int, int, float]]]:
    """Returns, by canonical src_addr, each probe's measurements in the order of a probe row.

    A measurement is (µs since 1970, destination as a 128-bit number, RTT in ms as a float32
    holds it, -1.0 if the ping failed). The rows must keep every rule.
    """
    rows = defaultdict(list)
    times = table["event_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    rtts = table["rtt"].cast(pa.float32()).to_pylist()
    sources, destinations = table["src_addr"].to_pylist(), table["dst_addr"].to_pylist()
    for time, source, destination, rtt in zip(times, sources, destinations, rtts, strict=True):
        measurement = (time, as_number(destination), -1.0 if rtt < 0 else rtt)
        rows[canonical(as_number(source))].append(measurement)
    return {source: sorted(measurements) for source, measurements in sorted(rows.items())}


def arrow_record_bytes(row: RowColumns) -> bytes:
    """Returns the record that pyarrow's own writer makes of a row."""
    arrays = [pa.array([value], field.type) for field, value in zip(RECORD_SCHEMA, row)]
    return ipc_stream(pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA))


def ipc_stream(batch: pa.RecordBatch) -> bytes:
    """Returns the batch as pyarrow's own writer puts it into a stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


class _FailingFile(io.FileIO):
    """A file on a storage that fails after some reads, of at most 1,000 bytes."""

    def __init__(self, path: str, num_left: list[int], failure: OSError):
        super().__init__(path)
        self._num_left, self._failure = num_left, failure

    def readinto(self, buffer: Any) -> int | None:
        self._num_left[0] -= 1
        if self._num_left[0] < 0:
            raise self._failure
        return super().readinto(memoryview(buffer)[:1000])


def fail_reads(patch: pytest.MonkeyPatch, number: int, num_left: list[int]) -> None:
    """Lets local files fail with an error number once `num_left[0]` reads are done."""

    def opened(path: str, mode: str) -> io.FileIO:
        return _FailingFile(path, num_left, OSError(number, os.strerror(number)))

    patch.setattr("beam_pipeline.storage.files._NamedFile", opened)
