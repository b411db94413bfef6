"""The records of a shard from the first to the last, of either file format, local or on `gs://`.

ArrayRecord reads its shards itself, also on `gs://`.
"""

import contextlib
from collections.abc import Iterator

from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset.options import OutputFormat
from beam_pipeline.dataset.row_reader import READ_ERRORS, READER_OPTIONS
from beam_pipeline.dataset.tfrecord import DamagedRecordError, read_tfrecord
from beam_pipeline.errors import one_line
from beam_pipeline.storage.gcs import prepare_native_reader


def read_shard(path: str, output_format: OutputFormat) -> Iterator[bytes | DamagedRecordError]:
    """Yields each record of a shard, or why it cannot be read; holds one at a time.

    Raises:
      DamagedRecordError, OSError: the file as a whole, or all that follows, cannot be read.
    """
    if output_format == "tfrecord":
        yield from read_tfrecord(path)
        return
    reader = _open_shard(path)
    for record in range(reader.num_records()):
        try:
            data = reader.read()
        except READ_ERRORS as error:
            yield DamagedRecordError(one_line(error))
            reader = _open_shard(path)  # one that failed reads no more
            reader.seek(record + 1)
        else:
            yield data
    with contextlib.suppress(*READ_ERRORS):  # reported with the record that it is about
        reader.close()


def _open_shard(path: str) -> ArrayRecordReader:
    prepare_native_reader(path)
    reader = ArrayRecordReader(path, READER_OPTIONS)
    # A damaged file opens without an error and has 0 records; closing it raises the reason.
    if not reader.ok():
        reason = ""
        try:
            reader.close()
        except RuntimeError as error:
            reason = f": {one_line(error)}"
        raise DamagedRecordError(f"it is not a whole ArrayRecord file{reason}")
    return reader
