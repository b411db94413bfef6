"""Staging: many records at a time, in columns that survive the trip, in bounded memory."""

from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.shards import staging
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import Record, StagedPayloads, StagedRecords, StageRecords
from beam_pipeline.storage.files import crc32c
from tests.support.helpers import NOW, run_do_fn


def staged_values(staged: list[StagedRecords]) -> list[tuple]:
    """Returns key and payload of staged records."""
    reader = ClaimReader()
    values = []
    for part in staged:
        batch = StagedRecords.decode(part.encode()).batch()
        payloads = StagedPayloads(part.path, batch, reader).prefetch(np.arange(batch.num_rows))()
        for payload, line in zip(payloads, batch.to_pylist(), strict=True):
            assert (line["length"], line["crc32c"]) == (len(payload), crc32c(payload))
            values.append((line["key"], payload))
    reader.close()
    return values


PAYLOADS = [bytes([number % 7]) * (number * 37 % 200) for number in range(60)]
RECORDS = [Record(b"%05d" % number, payload) for number, payload in enumerate(PAYLOADS)]


@pytest.mark.parametrize("inline_bytes", [0, 100, 1 << 20])
def test_a_bundle_is_staged_as_a_whole(tmp_path, inline_bytes):
    (staged,) = run_do_fn(StageRecords(str(tmp_path), inline_bytes), RECORDS, **NOW)
    assert staged_values([staged]) == [(record.key, record.payload) for record in RECORDS]
    stored = [payload for payload in PAYLOADS if len(payload) > inline_bytes]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == sum(map(len, stored))


def inline_sizes(staged: StagedRecords) -> int:
    return sum(len(payload or b"") for payload in staged.batch()["inline"].to_pylist())


def test_inline_payloads_leave_before_they_fill_the_memory(tmp_path):
    """Else a bundle of records just below `inline_bytes` would be in memory as a whole."""
    do_fn = StageRecords(str(tmp_path), 64 << 10)
    do_fn.start_bundle()
    payload, limit = b"x" * (56 << 10), 8 << 20
    held = largest = 0
    for _ in range(600):
        held += len(payload)
        for staged in do_fn.process(Record(b"k", payload), **NOW):
            held -= inline_sizes(staged)
        largest = max(largest, held)
    left = sum(inline_sizes(staged.value) for staged in do_fn.finish_bundle())
    assert held == left
    assert largest <= limit + len(payload)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_staged_records_is_no_larger_than_the_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_INLINE_BYTES", 500)
    monkeypatch.setattr(staging, "_MAX_STAGED_IN_MEMORY", 9)
    staged = run_do_fn(StageRecords(str(tmp_path), 100), RECORDS, **NOW)
    assert [key for key, _ in staged_values(staged)] == [record.key for record in RECORDS]
    assert all(inline_sizes(part) < 500 + 100 for part in staged)
    assert max(part.batch().num_rows for part in staged) == 9
    assert {Path(part.path) for part in staged} >= set(tmp_path.iterdir())
