"""Batches of documents: the texts of some records as one UTF-8 buffer.

Readers of all formats yield `DocumentBatch`es of a few MiB. Scans work on the bytes; a text becomes
a Python string only where a scan finds something.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.dead_letters import DeadLetter

# Why a record is a dead letter.
REASONS = (
    "json_invalid",
    "json_not_an_object",
    "record_too_long",
    "text_not_a_string",
    "utf8_invalid",
)


class DocumentBatch(NamedTuple):
    """Consecutive records: k with a text, some without one, and some that are dead letters.

    Rows count from the beginning of the file or, in a work unit whose `first_row` is unknown, from
    the beginning of the work unit. A lone surrogate has three bytes, as `surrogatepass` writes it.
    """

    num_rows: int  # records of all three kinds
    rows: np.ndarray  # int64 [k]
    utf8: np.ndarray  # uint8, the texts, concatenated; read-only
    bounds: np.ndarray  # int64 [k + 1], where each text begins in utf8, and the end
    ids: list[str | None]  # k
    num_without_text: int  # records whose text is null or missing
    letters: list[DeadLetter]

    def text_bytes(self, index: int) -> bytes:
        """Returns the UTF-8 of one of the k texts."""
        return self.utf8[self.bounds[index] : self.bounds[index + 1]].tobytes()


def encode(text: str) -> bytes:
    """Returns a text as UTF-8, a lone surrogate as three bytes."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """Inverts `encode`."""
    return data.decode("utf-8", "surrogatepass")


def text_buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the UTF-8 of texts and their bounds in it, as a batch holds them."""
    try:
        return array_buffers(pa.array(texts, pa.large_string()))  # one copy, at 4 GB/s
    except UnicodeEncodeError:
        return array_buffers(pa.array(list(map(encode, texts)), pa.large_binary()))


def array_buffers(
    texts: pa.LargeStringArray | pa.LargeBinaryArray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of n strings without nulls, uint8, and their bounds, int64 [n + 1]."""
    _, offsets, data = texts.buffers()
    utf8, bounds = np.empty(0, np.uint8), np.zeros(1, np.int64)
    if len(texts):
        bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        if data is not None:  # None: all are empty
            utf8 = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    utf8.flags.writeable = False
    return utf8, bounds - bounds[0]
