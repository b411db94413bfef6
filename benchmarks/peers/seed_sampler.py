"""Peer: the loader of the first design, with a list of dictionaries per row.

`ProbeRowDataSource` and `ProbeRowSampler` with the names, the arithmetic and the order of calls of
that design, all K contexts of a row per visit (its option B), in the plainest loop: rows in
shuffled order, contexts joined to batches. It differs only where the design could not run:

- `random.Random` in place of Grain's generator, which has neither `sample` nor `randint`;
- `encode_measurement`, which the design imports and does not show, is written in plain Python;
  addresses go through `socket.inet_pton`, several times faster than `ipaddress`;
- each measurement of a context begins with the probe's address, because the vocabulary has a
  source: hence `src_addr` in the row and one more argument;
- a dataset is several files, and a record has two columns more.

Its flaws stay: it pads, `targets` are `inputs`, and `partial` puts timestamped measurements first.
"""

import glob
import math
import random
import socket
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import accumulate, count
from typing import Any

import numpy as np
import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader

MEASUREMENT_START = 0
SRC_IPV4, SRC_IPV6, DST_IPV4, DST_IPV6 = 1, 2, 3, 4
TIMESTAMP_ABS, TIMESTAMP_DELTA1, TIMESTAMP_DELTA4 = 5, 6, 7
RTT_START, FAILED = 8, 10
FIRST_BYTE = 11

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_MANTISSA_BITS = 11


class ProbeRowDataSource:
    def __init__(self, arrayrecord_path: str):
        paths = sorted(glob.glob(arrayrecord_path))
        self._readers = [ArrayRecordReader(path) for path in paths]
        self._ends = list(accumulate(reader.num_records() for reader in self._readers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._read_row(index)
        return {
            "src_id": row["src_id"],
            "src_addr": row["src_addr"],
            "measurements": self._deserialize_measurements(row["measurements"]),
            "n_measurements": row["n_measurements"],
            "metadata": {
                "time_span_seconds": row["time_span_seconds"],
                "first_timestamp": row["first_timestamp"],
                "last_timestamp": row["last_timestamp"],
            },
        }

    def _read_row(self, index: int) -> dict[str, Any]:
        file = bisect_right(self._ends, index)
        reader = self._readers[file]
        record = reader.read([index - (self._ends[file] - reader.num_records())])[0]
        return pa.ipc.open_stream(record).read_all().to_pylist()[0]

    def _deserialize_measurements(self, measurements_bytes: bytes) -> list[dict[str, Any]]:
        return pa.ipc.open_stream(measurements_bytes).read_all().to_pylist()


class ProbeRowSampler:
    def __init__(
        self,
        crop_size: int = 1024,
        avg_tokens_per_measurement: int = 30,
        max_contexts_per_row: int = 16,
        mode_weights: tuple[float, float, float] = (0.40, 0.30, 0.30),
    ):
        self.crop_size = crop_size
        self.avg_tokens_per_meas = avg_tokens_per_measurement
        self.max_K = max_contexts_per_row
        self.mode_weights = mode_weights

    def random_map(self, row: dict[str, Any], rng: random.Random) -> list[dict[str, np.ndarray]]:
        num_contexts = min(math.ceil(row["n_measurements"] / self.avg_tokens_per_meas), self.max_K)
        return [self._generate_one_context(row, rng) for _ in range(num_contexts)]

    def _generate_one_context(
        self, row: dict[str, Any], rng: random.Random
    ) -> dict[str, np.ndarray]:
        measurements = row["measurements"]
        target_measurements = self.crop_size // self.avg_tokens_per_meas
        if len(measurements) < target_measurements:
            meas_buffer = measurements
        else:
            meas_buffer = self._sample_large_row(measurements, target_measurements, rng)
        mode = self._select_timestamp_mode(rng)
        source = address_tokens(row["src_addr"], SRC_IPV4, SRC_IPV6)
        return self._format_output(self._tokenize_measurements(source, meas_buffer, mode, rng))

    def _sample_large_row(
        self, measurements: list[dict[str, Any]], target: int, rng: random.Random
    ) -> list[dict[str, Any]]:
        n = len(measurements)
        window_size = min(n, int(np.exp(rng.uniform(0, np.log(n)))))
        offset = 0 if window_size >= n else rng.randint(0, n - window_size)
        window = measurements[offset : offset + window_size]
        selected = window if len(window) <= target else rng.sample(window, target)
        selected.sort(key=lambda m: m["event_time"])
        return selected

    def _select_timestamp_mode(self, rng: random.Random) -> str:
        r = rng.random()
        if r < self.mode_weights[0]:
            return "full"
        return "partial" if r < self.mode_weights[0] + self.mode_weights[1] else "none"

    def _tokenize_measurements(
        self,
        source: list[int],
        measurements: list[dict[str, Any]],
        mode: str,
        rng: random.Random,
    ) -> list[int]:
        tokens: list[int] = []
        prev_timestamp = None
        if mode == "full":
            for meas in measurements:
                tokens.extend(encode_measurement(source, meas, prev_timestamp, True, rng))
                prev_timestamp = meas["event_time"]
        elif mode == "partial":
            for meas, include_ts in _interleaved(measurements, rng):
                previous = prev_timestamp if include_ts else None
                tokens.extend(encode_measurement(source, meas, previous, include_ts, rng))
                if include_ts:
                    prev_timestamp = meas["event_time"]
        else:
            shuffled = measurements.copy()
            rng.shuffle(shuffled)
            for meas in shuffled:
                tokens.extend(encode_measurement(source, meas, None, False, rng))
        return tokens

    def _format_output(self, token_list: list[int]) -> dict[str, np.ndarray]:
        tokens = np.array(token_list, dtype=np.int32)
        if len(tokens) > self.crop_size:
            tokens = tokens[: self.crop_size]
        original_length = len(tokens)
        if len(tokens) < self.crop_size:
            padding = np.zeros(self.crop_size - len(tokens), dtype=np.int32)
            tokens = np.concatenate([tokens, padding])
        segmentation = np.ones(self.crop_size, dtype=np.int32)
        segmentation[original_length:] = 0
        positions = np.arange(self.crop_size, dtype=np.int32)
        return {
            "inputs": tokens,
            "inputs_segmentation": segmentation,
            "inputs_position": positions,
            "targets": tokens,
            "targets_segmentation": segmentation,
            "targets_position": positions,
        }


def _interleaved(
    measurements: list[dict[str, Any]], rng: random.Random
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yields (measurement, whether it keeps its timestamp), merged by coin tosses."""
    n_extract = int(len(measurements) * rng.uniform(0.1, 0.9))
    extracted = set(rng.sample(range(len(measurements)), n_extract))
    timestamped = [meas for i, meas in enumerate(measurements) if i not in extracted]
    non_timestamped = [meas for i, meas in enumerate(measurements) if i in extracted]
    rng.shuffle(non_timestamped)
    ts_idx = nts_idx = 0
    for _ in range(len(measurements)):
        if ts_idx >= len(timestamped):
            include_ts = False
        elif nts_idx >= len(non_timestamped):
            include_ts = True
        else:
            include_ts = rng.random() < 0.5
        if include_ts:
            yield timestamped[ts_idx], True
            ts_idx += 1
        else:
            yield non_timestamped[nts_idx], False
            nts_idx += 1


def encode_measurement(
    source: list[int],
    meas: dict[str, Any],
    prev_timestamp: datetime | None,
    include_timestamp: bool,
    rng: random.Random,
) -> list[int]:
    """Returns a measurement's tokens, its fields in random order."""
    blocks = [source, address_tokens(meas["dst_addr"], DST_IPV4, DST_IPV6)]
    if meas["rtt"] < 0:
        blocks.append([FAILED])
    else:
        us = round(meas["rtt"] * 1000)
        exponent = max(us.bit_length() - _MANTISSA_BITS, 0)
        blocks.append([RTT_START, *_byte_tokens(exponent << _MANTISSA_BITS | us >> exponent, 2)])
    if include_timestamp:
        blocks.append(_timestamp_tokens(meas["event_time"], prev_timestamp))
    rng.shuffle(blocks)
    tokens = [MEASUREMENT_START]
    for block in blocks:
        tokens.extend(block)
    return tokens


def _byte_tokens(value: int, num_bytes: int) -> list[int]:
    return [FIRST_BYTE + byte for byte in value.to_bytes(num_bytes, "big")]


def address_tokens(text: str, role_ipv4: int, role_ipv6: int) -> list[int]:
    """Returns an address's role and bytes."""
    is_ipv6 = ":" in text
    packed = socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, text)
    return [role_ipv6 if is_ipv6 else role_ipv4, *(FIRST_BYTE + byte for byte in packed)]


def _timestamp_tokens(time: datetime, previous: datetime | None) -> list[int]:
    seconds = (time - _EPOCH) // _SECOND
    if previous is None:
        return [TIMESTAMP_ABS, *_byte_tokens(seconds, 8)]
    delta = seconds - (previous - _EPOCH) // _SECOND
    if delta < 256:
        return [TIMESTAMP_DELTA1, *_byte_tokens(delta, 1)]
    return [TIMESTAMP_DELTA4, *_byte_tokens(delta, 4)]


def batches(
    arrayrecord_path: str, batch_size: int, seed: int = 0, num_epochs: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of int32 [batch_size, 1024] from the files of a glob.

    An incomplete batch at the end of the last epoch is dropped.
    """
    source, sampler = ProbeRowDataSource(arrayrecord_path), ProbeRowSampler()
    if len(source) == 0:
        raise ValueError(f"no records in {arrayrecord_path}")
    rng = random.Random(seed)
    waiting: list[dict[str, np.ndarray]] = []
    for _ in count() if num_epochs is None else range(num_epochs):
        order = list(range(len(source)))
        rng.shuffle(order)
        for index in order:
            waiting.extend(sampler.random_map(source[index], rng))
            while len(waiting) >= batch_size:
                batch, waiting = waiting[:batch_size], waiting[batch_size:]
                yield {name: np.stack([context[name] for context in batch]) for name in batch[0]}
