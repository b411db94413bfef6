"""ArrayRecord files: `open_reader` and `open_writer`, in place of the library's constructors."""
# pyright: reportMissingTypeStubs=false

import functools
import os

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline.machine import require_threads
from beam_pipeline.storage.gcs import prepare_native_reader

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_NUM_THREADS = 64  # that ArrayRecord's first reader starts


def open_reader(path: str) -> ArrayRecordReader:
    """Opens a local or `gs://` file without a readahead; ProbelineError if it would hang.

    A damaged file opens too: `ok()` is false and `close()` raises the reason.
    """
    prepare_native_reader(path)
    _require_threads(os.getpid())
    return ArrayRecordReader(path, _READER_OPTIONS)


def open_writer(path: str, options: str) -> ArrayRecordWriter:
    """Opens a new local file; ProbelineError if a reader could not open it here later."""
    _require_threads(os.getpid())
    return ArrayRecordWriter(path, options)


@functools.lru_cache(1)
def _require_threads(process: int) -> None:
    """Tries to start ArrayRecord's threads: it would wait forever for one that cannot start."""
    require_threads(_NUM_THREADS)
