"""`open_dataset(…).rows(split)` and `.index(split)`: a dataset read from Python, without Beam."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline import open_dataset
from beam_pipeline.dataset.rows import BadRowError
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.damaged_dataset import DamagedDataset
from tests.support.damaged_dataset import compact_copy as compact_copy
from tests.support.damaged_dataset import compact_dataset as compact_dataset
from tests.support.engines import Gcs


@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_in_shard_order(split: str, compact_dataset: Path) -> None:
    dataset = open_dataset(str(compact_dataset))
    rows, index = dataset.rows(split), dataset.index(split)
    assert len(rows) == index.num_rows == dataset.manifest.splits[split].num_records > 5
    for line, row in zip(index.to_pylist(), rows, strict=True):
        for name in ("src_id", "src_addr", "row_index", "n_measurements", "num_bytes"):
            assert getattr(row, name) == line[name]
        assert row.to_arrow().num_rows == row.n_measurements
    assert rows.lines.n_measurements.tolist() == index["n_measurements"].to_pylist()


def test_rows_are_a_sequence(compact_dataset: Path) -> None:
    rows = open_dataset(str(compact_dataset)).rows("train")
    ids = [(row.src_id, row.row_index) for row in rows]
    assert [(row.src_id, row.row_index) for row in rows[2:-1:3]] == ids[2:-1:3]
    last = np.int64(len(rows) - 1)
    assert (rows[-1].src_id, rows[-1].row_index) == ids[-1] == (rows[last].src_id, ids[-1][1])
    for outside in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=f"row {outside} of {len(rows)}"):
            rows[outside]
    assert pickle.loads(pickle.dumps(rows))[3].run.tobytes() == rows[3].run.tobytes()


def test_unknown_split(compact_dataset: Path) -> None:
    dataset = open_dataset(str(compact_dataset))
    for read in (dataset.rows, dataset.index):
        with pytest.raises(UsageError, match="no split 'validation': give train or test"):
            read("validation")


def test_damaged_index_and_row(compact_copy: DamagedDataset) -> None:
    dataset = open_dataset(str(compact_copy.folder))
    rows = dataset.rows("train")
    compact_copy.folder.joinpath("train/rows.parquet").write_bytes(b"")
    with pytest.raises(ProbelineError, match=r"rows\.parquet has checksum"):
        dataset.rows("train")
    for shard in compact_copy.folder.glob("train/*.arrayrecord"):
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(BadRowError, match=r"beam_pipeline\.verify .* lists all damage"):
        rows[0]


def test_rows_on_gcs(gcs: Gcs, compact_dataset: Path) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(compact_dataset, f"{bucket}/rows")
    here = open_dataset(str(compact_dataset)).rows("test")
    there = open_dataset(f"{bucket}/rows").rows("test")
    assert [row.run.tobytes() for row in here] == [row.run.tobytes() for row in there]
