"""Staging: the payloads of records wait in files, only references to them travel to the writers.

  | Record(key, payload, attributes)
  v  StageRecords   writes payloads to files of this attempt; small ones travel inline
  | StagedRecord

No reference leaves before its file is closed.
"""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import counter
from beam_pipeline.shards.claim_checks import ClaimWriter, Payload, payload_bytes
from beam_pipeline.storage.files import crc32c

STAGING_FILE_BYTES = 128 << 20
_MAX_STAGED_IN_MEMORY = 10_000


class Record(Message, frozen=True):
    """A record to write: `key` orders and places it, `attributes` go to the index only."""

    key: bytes
    payload: bytes
    attributes: bytes = b""


class StagedRecord(Message, frozen=True):
    """A record whose payload may be stored in a file."""

    key: bytes
    payload: Payload
    attributes: bytes

    @property
    def num_bytes(self) -> int:
        return payload_bytes(self.payload)

    def order(self) -> tuple:
        """Orders the records of a shard: by key, equal keys by attributes, size and checksum."""
        if isinstance(self.payload, bytes):
            return (self.key, self.attributes, len(self.payload), crc32c(self.payload))
        return (self.key, self.attributes, self.payload.length, self.payload.crc32c)


class StageRecords(beam.DoFn):
    """Record → StagedRecord; payloads of up to `inline_bytes` travel with their record."""

    def __init__(self, folder: str, inline_bytes: int):
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._grouped_bytes = counter("grouped_by_shard_bytes")

    def start_bundle(self) -> None:
        self._writer = ClaimWriter(self._folder, "records", self._inline_bytes)
        self._staged: list[StagedRecord] = []

    def process(
        self,
        record: Record,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[StagedRecord]:
        payload = self._writer.put(record.payload)
        self._staged.append(StagedRecord(record.key, payload, record.attributes))
        self._where = (timestamp, window)
        is_large = self._writer.num_bytes >= STAGING_FILE_BYTES
        if is_large or len(self._staged) >= _MAX_STAGED_IN_MEMORY:
            yield from self._close()
            self.start_bundle()

    def _close(self) -> list[StagedRecord]:
        self._writer.close()
        self._grouped_bytes.inc(sum(len(staged.encode()) for staged in self._staged))
        return self._staged

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for staged in self._close():
            timestamp, window = self._where
            yield WindowedValue(staged, timestamp, (window,))
