"""Records on their way to a shard: their payloads wait in files, what travels is a reference.

  | Record(key, payload, attributes)
  v  StageRecords   payloads go to attempt-unique files, small ones travel along
  | StagedRecord

No reference leaves before its file is closed, so that a retried bundle writes another file and
the first one is never read.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline.jobs.monitoring import counter
from beam_pipeline.shards.claim_checks import (
    ClaimWriter,
    Payload,
    decode_claim,
    encode_claim,
    payload_bytes,
)
from beam_pipeline.storage.checksum import crc32c

STAGING_FILE_BYTES = 128 << 20
_MAX_STAGED_IN_MEMORY = 10_000
_STAGED = struct.Struct("<HH")


class Record(NamedTuple):
    """What is written: `key` orders and places it, `attributes` go to the index only."""

    key: bytes
    payload: bytes
    attributes: bytes = b""


class StagedRecord(NamedTuple):
    """A record whose payload may lie on storage."""

    key: bytes
    payload: Payload
    attributes: bytes

    @property
    def num_bytes(self) -> int:
        return payload_bytes(self.payload)

    def encode(self) -> bytes:
        """Returns the record as an element."""
        head = _STAGED.pack(len(self.key), len(self.attributes))
        return head + self.key + self.attributes + encode_claim(self.payload)

    @staticmethod
    def decode(value: bytes) -> "StagedRecord":
        """Inverts `encode`."""
        key_length, attributes_length = _STAGED.unpack_from(value)
        attributes_at = _STAGED.size + key_length
        claim_at = attributes_at + attributes_length
        key, attributes = value[_STAGED.size : attributes_at], value[attributes_at:claim_at]
        return StagedRecord(key, decode_claim(value[claim_at:]), attributes)

    def order(self) -> tuple:
        """Orders the records of a shard: by key, equal keys by what is known of the payload."""
        if isinstance(self.payload, bytes):
            return (self.key, self.attributes, len(self.payload), crc32c(self.payload))
        return (self.key, self.attributes, self.payload.length, self.payload.crc32c)


class StageRecords(beam.DoFn):
    """Record → StagedRecord, encoded."""

    def __init__(self, folder: str, inline_bytes: int):
        self._folder = folder
        self._inline_bytes = inline_bytes
        self._grouped_bytes = counter("grouped_by_shard_bytes")

    def start_bundle(self) -> None:
        self._open()

    def _open(self) -> None:
        self._writer = ClaimWriter(self._folder, "records", self._inline_bytes)
        self._staged: list[StagedRecord] = []

    def process(
        self,
        record: Record,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[bytes]:
        key, payload, attributes = record
        self._staged.append(StagedRecord(key, self._writer.put(payload), attributes))
        self._where = (timestamp, window)
        is_large = self._writer.num_bytes >= STAGING_FILE_BYTES
        if is_large or len(self._staged) >= _MAX_STAGED_IN_MEMORY:
            yield from self._close()
            self._open()

    def _close(self) -> Iterator[bytes]:
        self._writer.close()
        for staged in self._staged:
            value = staged.encode()
            self._grouped_bytes.inc(len(value))
            yield value

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for value in self._close():
            timestamp, window = self._where
            yield WindowedValue(value, timestamp, (window,))
