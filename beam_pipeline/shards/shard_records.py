"""The staged records of one shard, read a few megabytes at a time: in order, or as they arrive.

What describes the records of a shard is in memory; their payloads are read from where they were
staged.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import StagedPayloads, StagedRecords, staged_schema

_BATCH_BYTES = 4 << 20  # of payloads that are read and encoded together
_FRAMING_BYTES = 1 << 10  # what a record may have around its payload


class ShardRecords:
    """The staged records of a shard, in order: by key, equal keys by size and checksum."""

    def __init__(self, staged: Iterable[StagedRecords], attributes: pa.Schema, reader: ClaimReader):
        parts = [(part.path, part.batch(attributes)) for part in staged if part.columns]
        batches = [batch for _, batch in parts]
        columns = pa.Table.from_batches(batches, schema=staged_schema(attributes))
        # The inline payloads stay where they are, so that they are in memory once.
        small = columns.drop_columns(["inline", "offset"]).combine_chunks()
        sort_keys = [(name, "ascending") for name in ("key", "length", "crc32c")]
        self._order = pc.sort_indices(small, sort_keys).to_numpy().astype(np.int64)
        small = small.take(pa.array(self._order))
        self.lengths: list[int] = small["length"].to_pylist()
        self.attributes = small.select(attributes.names)
        self._parts = [StagedPayloads(path, batch, reader) for path, batch in parts]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def __len__(self) -> int:
        return len(self._order)

    def payloads(self, start: int, end: int) -> list[bytes]:
        """Reads some payloads; ProbelineError if they are not what was staged."""
        rows = self._order[start:end]
        parts = np.searchsorted(self._starts, rows, "right") - 1
        by_part = np.argsort(parts, kind="stable")
        borders = np.flatnonzero(np.diff(parts[by_part])) + 1
        waits = []
        for at in np.split(by_part, borders):
            part = parts[at[0]]
            waits.append((at.tolist(), self._parts[part].ahead(rows[at] - self._starts[part])))
        payloads = [b""] * len(rows)
        for at, wait in waits:
            for place, payload in zip(at, wait(), strict=True):
                payloads[place] = payload
        return payloads

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yields where some consecutive records begin and end, about _BATCH_BYTES of them."""
        ends = np.cumsum(np.array(self.lengths, np.int64) + _FRAMING_BYTES)
        start = 0
        while start < len(self):
            limit = _BATCH_BYTES + (int(ends[start - 1]) if start else 0)
            end = max(start + 1, int(np.searchsorted(ends, limit, "right")))
            yield start, end
            start = end

    def payload_batches(self) -> Iterator[tuple[list[bytes], pa.Table]]:
        """Yields all payloads in order with their attributes, about _BATCH_BYTES at a time."""
        for start, end in self.batches():
            yield self.payloads(start, end), self.attributes.slice(start, end - start)


class ArrivingRecords:
    """The staged records of a shard as they arrive, read once."""

    def __init__(self, staged: Iterable[StagedRecords], attributes: pa.Schema, reader: ClaimReader):
        self._staged = staged
        self._attributes = attributes
        self._reader = reader

    def payload_batches(self) -> Iterator[tuple[list[bytes], pa.Table]]:
        """Yields the payloads of each batch with their attributes."""
        for part in self._staged:
            if part.columns:
                batch = part.batch(self._attributes)
                payloads = StagedPayloads(part.path, batch, self._reader)
                attributes = pa.Table.from_batches([batch]).select(self._attributes.names)
                yield payloads.ahead(np.arange(batch.num_rows))(), attributes
