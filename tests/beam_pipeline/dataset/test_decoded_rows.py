"""Many records decoded together are the rows that each is alone, also beside damaged ones."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.decoded_rows import DecodedRows, decode
from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.row_codec import COMPACT_HEADER, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support.damaged_dataset import one_batch
from tests.support.probe_rows_on_disk import make_measurements

FORMS = [
    RowFormat(encoding, 1 << 20, form)
    for encoding in ("arrow", "compact")
    for form in ("arrow_ipc", "tf_example")
]


def record_of(seed: int, form: int) -> bytes:
    run = make_measurements(1 + seed % 23, seed, ipv6_share=(0, 0.5, 1)[seed % 3])
    key = RowKey(("192.0.2.1", "2001:db8::1")[seed % 2], seed % 5)
    return encode_row(run, key, FORMS[form].encoding, FORMS[form].record_encoding)


def stream_of(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def two_streams_in_one(record: bytes) -> bytes:
    """Returns an Arrow stream of two batches, which is no record."""
    return stream_of(one_batch(record), one_batch(record))


def wrong_families(record: bytes) -> bytes:
    """Returns a compact row whose bits of families have one more IPv6 than its header says."""
    columns = one_batch(record).to_pydict()
    data = bytearray(columns["measurements"][0])
    _, n, num_ipv6, _ = COMPACT_HEADER.unpack_from(data)
    assert 0 < num_ipv6 < n
    bits = COMPACT_HEADER.size + 6 * n
    at = next(i for i in range(n) if not data[bits + i // 8] >> i % 8 & 1)
    data[bits + at // 8] |= 1 << at % 8
    columns["measurements"] = [bytes(data)]
    return stream_of(pa.RecordBatch.from_pydict(columns, one_batch(record).schema))


DAMAGES = [
    lambda record: record[:-9],
    lambda _: b"nonsense",
    lambda _: b"",
    lambda _: two_streams_in_one(record_of(4, 0)),
    lambda _: record_of(4, 0) + record_of(5, 0)[-8:],  # ends twice: readable, but not together
    lambda record: record.replace(b"PLc1", b"PLc2"),
    lambda record: wrong_families(record_of(7, 2)),
]


def rows_of(records: Sequence[bytes]) -> list[tuple | None]:
    """Returns the rows of records decoded together; None for each that is unreadable."""
    rows: list[tuple | None] = []
    for found in decode(records):
        if not isinstance(found, DecodedRows):
            rows.append(None)
            continue
        columns, batch = found.columns.drop_columns(["measurements"]).to_pylist(), found.to_batch()
        for at, row in enumerate(columns):
            begin, end = found.bounds[at : at + 2].tolist()
            kind = found.encoding, found.record_encoding, int(found.num_bytes[at])
            rows.append((*kind, row, batch.slice(begin, end - begin).to_pylist()))
    return rows


def row_of(record: bytes) -> tuple | None:
    """Returns a row decoded alone; None if it is unreadable."""
    try:
        row = decode_record(record)
        measurements = row.to_arrow().to_pylist()
    except (ValueError, OSError):
        return None
    first, last = (
        np.datetime64(us, "us").item() for us in (row.first_timestamp_us, row.last_timestamp_us)
    )
    columns = {
        "src_id": row.src_id,
        "n_measurements": row.n_measurements,
        "time_span_seconds": row.time_span_seconds,
        "first_timestamp": first,
        "last_timestamp": last,
        "src_addr": row.src_addr,
        "row_index": row.row_index,
    }
    return row.encoding, row.record_encoding, row.num_bytes, columns, measurements


RECORDS = st.tuples(st.integers(0, 99), st.sampled_from([0, 0, 0, 1, 2, 2, 3]))  # seed, form


@pytest.mark.property
@given(
    st.lists(RECORDS, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(DAMAGES)), max_size=2),
)
def test_together_as_alone(kinds: list[tuple[int, int]], damages: list) -> None:
    records = [record_of(seed, form) for seed, form in kinds]
    for at, damage in damages:
        records[at % len(records)] = damage(records[at % len(records)])
    assert rows_of(records) == [row_of(record) for record in records]


@pytest.mark.parametrize("form", [0, 2])
def test_a_damaged_record_among_others(form: int) -> None:
    for damage in DAMAGES:
        records = [record_of(seed, form) for seed in range(7)]
        records[3] = damage(records[3])
        found = rows_of(records)
        assert found == [row_of(record) for record in records]
        assert [at for at, row in enumerate(found) if row is None] in ([3], [])
