"""Counts what a contender of the grouping bench wrote."""

from pathlib import Path

import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader

_RECORDS_AT_ONCE = 16  # of up to 8 MiB each


def count(folder: str) -> dict[str, int]:
    """Reads all ArrayRecord files below a folder.

    Returns:
      {"records", "measurements", "probes", "largest_record", "file_bytes"}
    """
    records = measurements = largest = file_bytes = 0
    probes = set()
    for path in sorted(Path(folder).rglob("*.arrayrecord")):
        file_bytes += path.stat().st_size
        reader = ArrayRecordReader(str(path))
        num_records = reader.num_records()
        for start in range(0, num_records, _RECORDS_AT_ONCE):
            for record in reader.read(start, min(start + _RECORDS_AT_ONCE, num_records)):
                with pa.ipc.open_stream(record) as stream:
                    row = stream.read_next_batch()
                records += 1
                measurements += row.column("n_measurements")[0].as_py()
                probes.add(row.column("src_id")[0].as_py())
                largest = max(largest, len(record))
        reader.close()
    return {
        "records": records,
        "measurements": measurements,
        "probes": len(probes),
        "largest_record": largest,
        "file_bytes": file_bytes,
    }
