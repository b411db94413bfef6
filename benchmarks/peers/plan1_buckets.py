"""Peer: fixed time buckets, tokenised ahead of time and padded; for padding, storage and reading.

The measurements of a probe are cut at every full five minutes; a bucket becomes chunks of whole
measurements, at most 1,024 tokens each, fields in random order, every measurement with its time:
absolute in the first of a chunk, then deltas. A record is a chunk padded to uint16 [1024], half of
int32's bytes for the same tokens, which favours the peer. So does bucketing each row by itself:
nothing is sorted again. No measurement ends on token 0, so zeros at a chunk's end are padding.
Reading takes the records of a batch in one call, from a shuffled order; numpy does the rest.
"""

import glob
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from benchmarks.peers.common import read_records
from benchmarks.peers.seed_sampler import SRC_IPV4, SRC_IPV6, address_tokens, encode_measurement

CHUNK_TOKENS = 1024
_BUCKET_US = 300 * 1_000_000
_FILE_NAME, COUNTS_NAME = "chunks.arrayrecord", "counts.json"


def convert(
    rows: str, folder: str | Path, array_record_options: str, max_measurements: int, seed: int = 0
) -> dict[str, int]:
    """Writes the chunks of probe rows, a glob, until they hold `max_measurements`.

    Returns:
      {"measurements", "records", "file_bytes", "tokens"}, padding not among the tokens; it is
      also left as counts.json beside the chunks.
    """
    from beam_pipeline.dataset.row_codec import decode_record  # loads numba, reading needs none

    rng = random.Random(seed)
    output = Path(folder)
    output.mkdir(parents=True, exist_ok=True)
    path = output / _FILE_NAME
    writer = ArrayRecordWriter(str(path), array_record_options)
    num_measurements = num_chunks = num_tokens = 0
    for record in read_records(sorted(glob.glob(rows))):
        if num_measurements >= max_measurements:
            break
        row = decode_record(record)
        num_measurements += row.n_measurements
        for tokens in _chunks(row, rng):
            padded = np.zeros(CHUNK_TOKENS, np.uint16)
            padded[: len(tokens)] = tokens
            writer.write(padded.tobytes())
            num_chunks += 1
            num_tokens += len(tokens)
    writer.close()
    counts = {
        "measurements": num_measurements,
        "records": num_chunks,
        "file_bytes": path.stat().st_size,
        "tokens": num_tokens,
    }
    (output / COUNTS_NAME).write_text(json.dumps(counts))
    return counts


def _chunks(row, rng: random.Random) -> Iterator[list[int]]:
    """Yields the tokens of each chunk of a row."""
    source = address_tokens(row.src_addr, SRC_IPV4, SRC_IPV6)
    buckets = (row.run["event_time"] // _BUCKET_US).tolist()
    chunk: list[int] = []
    previous, previous_bucket = None, None
    for bucket, meas in zip(buckets, row.to_arrow().to_pylist(), strict=True):
        if bucket != previous_bucket and chunk:
            yield chunk
            chunk, previous = [], None
        tokens = encode_measurement(source, meas, previous, True, rng)
        if len(chunk) + len(tokens) > CHUNK_TOKENS:
            yield chunk
            chunk, tokens = [], encode_measurement(source, meas, None, True, rng)
        chunk += tokens
        previous, previous_bucket = meas["event_time"], bucket
    yield chunk


def batches(
    folder: Path, batch_size: int, seed: int = 0, num_epochs: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of int32 [batch_size, 1024]; an epoch's incomplete last one is dropped.

    Raises:
      ValueError: there are fewer chunks than a batch needs.
    """
    reader = ArrayRecordReader(str(folder / _FILE_NAME))
    num_chunks = reader.num_records()
    if num_chunks < batch_size:
        raise ValueError(f"{num_chunks} chunks do not fill a batch of {batch_size}")
    rng = np.random.default_rng(seed)
    for _ in itertools.count() if num_epochs is None else range(num_epochs):
        order = rng.permutation(num_chunks)
        for start in range(0, num_chunks - batch_size + 1, batch_size):
            records = reader.read(order[start : start + batch_size].tolist())
            yield _batch(np.frombuffer(b"".join(records), np.uint16).reshape(batch_size, -1))


def _batch(stored: np.ndarray) -> dict[str, np.ndarray]:
    """Returns chunks, uint16 [batch, 1024], as arrays for training."""
    tokens = stored.astype(np.int32)
    padding = np.argmax(stored[:, ::-1] != 0, axis=1)
    positions = np.arange(CHUNK_TOKENS, dtype=np.int32)
    segmentation = (positions < CHUNK_TOKENS - padding[:, None]).astype(np.int32)
    positions = np.tile(positions, (len(stored), 1))
    return {
        "inputs": tokens,
        "inputs_segmentation": segmentation,
        "inputs_position": positions,
        "targets": tokens,
        "targets_segmentation": segmentation,
        "targets_position": positions,
    }
