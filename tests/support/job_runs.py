"""Runs of the dataset job on small inputs, and readers of their output."""

import itertools
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.row_codec import ProbeRow, decode_record
from beam_pipeline.main import main
from beam_pipeline.verify import __main__ as verify
from tests.support.helpers import records_as_tuples
from tests.support.probe_rows_on_disk import read_records

# Lossless, so that rows can be compared with what went in.
FLAGS = ["--max_row_size_mb=0.01", "--probes_per_shard=3", "--measurement_encoding=arrow"]


def make_dataset(source: Path | str, output: Path, *flags: str) -> Path:
    """Runs the job on small rows and few probes a shard, and verifies what comes out."""
    assert main([f"--input={source}", f"--output={output}", *FLAGS, *flags]) == 0
    assert verify.main([str(output)]) == 0
    return output


def write_input(folder: Path, *tables: pa.Table, row_group_size: int = 1000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=row_group_size)
    return folder / "*.parquet"


def read_rows(dataset: Path, split: str = "*") -> list[ProbeRow]:
    """Returns the rows of a split, or of all."""
    rows = []
    for path in sorted(dataset.glob(f"{split}/*.arrayrecord")):
        rows += map(decode_record, read_records(path))
    return rows


def history(rows: list[ProbeRow]) -> dict[str, list[tuple[int, int, float]]]:
    """Returns what every probe measured, in the order of its rows."""
    probes = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.row_index):
        probes[row.src_addr] += records_as_tuples(row.run)
    return dict(probes)


def files_of(dataset: Path) -> dict[str, bytes]:
    """Returns the bytes of everything that must not depend on how a run went."""
    names = ("*/*.arrayrecord", "*/rows.parquet")
    paths = itertools.chain(*(dataset.glob(name) for name in names))
    return {str(path.relative_to(dataset)): path.read_bytes() for path in paths}
