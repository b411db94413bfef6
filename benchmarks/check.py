"""Counts the output of a contender of the grouping bench."""

from pathlib import Path

import pyarrow as pa

from benchmarks.peers.common import read_records


def count(folder: str) -> dict[str, int]:
    """Counts all ArrayRecord files below a folder.

    Returns:
      {"records", "measurements", "probes", "largest_record", "file_bytes"}
    """
    paths = sorted(Path(folder).rglob("*.arrayrecord"))
    records = measurements = largest = 0
    probes = set()
    for record in read_records(paths):
        with pa.ipc.open_stream(record) as stream:
            row = stream.read_next_batch()
        records += 1
        measurements += row.column("n_measurements")[0].as_py()
        probes.add(row.column("src_id")[0].as_py())
        largest = max(largest, len(record))
    return {
        "records": records,
        "measurements": measurements,
        "probes": len(probes),
        "largest_record": largest,
        "file_bytes": sum(path.stat().st_size for path in paths),
    }
