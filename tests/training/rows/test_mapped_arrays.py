"""Arrays in a file that processes share, and the plan of an epoch in such files."""

import gc
import json
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.errors import ProbelineError
from tests.support.repository import ROOT
from training.rows.row_table import MappedArrays


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def written() -> MappedArrays:
    mapped = MappedArrays({"a": (np.int32, 5), "none": (np.uint64, 0), "b": (np.float64, 3)})
    mapped.write("a", 1, np.array([1, 2]))
    mapped.write("a", 4, np.array([3]))
    mapped.write("b", 0, np.array([0.5, 1.5, 2.5]))
    return mapped


def check(mapped: MappedArrays) -> None:
    arrays = mapped.arrays()
    assert {name: values.tolist() for name, values in arrays.items()} == {
        "a": [0, 1, 2, 0, 3],
        "none": [],
        "b": [0.5, 1.5, 2.5],
    }
    assert [values.dtype for values in arrays.values()] == [np.int32, np.uint64, np.float64]


def test_arrays_are_what_was_written(folder: Path) -> None:
    mapped = written()
    check(mapped)
    check(pickle.loads(pickle.dumps(mapped)))


def test_the_file_lives_as_long_as_the_object_of_the_process_that_made_it(folder: Path) -> None:
    mapped = written()
    copy = pickle.loads(pickle.dumps(mapped))
    del copy
    arrays = mapped.arrays()
    del mapped
    assert list(folder.iterdir()) == [] and arrays["b"].sum() == 4.5


FORK = """
import os
from tests.training.rows.test_mapped_arrays import check, written
mapped = written()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
check(mapped)
"""


def test_a_fork_that_ends_leaves_the_file_to_its_parent() -> None:
    subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, check=True)


def test_writing_to_an_array_changes_no_other_map(folder: Path) -> None:
    mapped = written()
    mapped.arrays()["a"][:] = 7
    check(mapped)


def test_a_file_that_cannot_be_written_is_said_in_one_line(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(ProbelineError, match=f"{folder}.*: File too large"):
            written()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    gc.collect()  # the error held the frame
    assert list(folder.iterdir()) == []


# Plans an epoch of rows whose index says the same for every 65,536; prints by how many MiB that
# raised the peak of memory, and the bytes that a worker is sent.
PLANNER = """
import json, pickle, resource, sys
from types import SimpleNamespace
import numpy as np, pyarrow as pa
from training.batches.config import DataConfig
from training.batches.planning import HostPlan

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

lines = np.arange(1 << 16)
names = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}" for i in lines]
table = pa.table({
    "num_bytes": lines + 100, "src_id": lines, "src_addr": names, "row_index": lines * 0,
    "n_measurements": lines % 700 + 1, "num_ipv6": lines * 0, "num_failed": lines * 0,
})
class Dataset:
    def __init__(self, num_parts):
        self.num_parts = num_parts

    def index_lines(self, *args):
        return (table for _ in range(self.num_parts))

def plan(num_parts):
    dataset = Dataset(num_parts)
    num_rows = num_parts << 16
    shards = SimpleNamespace(
        row_begins=np.array([0, num_rows]), chosen=[0], dataset=dataset, split="train",
        shards=[SimpleNamespace(num_records=num_rows)],
    )
    return HostPlan(shards, DataConfig("rows", 64))

plan(1)
before = peak()
host = plan(int(sys.argv[1]))
num_pickled = len(pickle.dumps(host))
print(json.dumps({"mib": peak() - before, "pickled": num_pickled}))
"""


@pytest.mark.slow
def test_planning_takes_little_memory_for_each_row() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PLANNER, "64"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["pickled"] < 10_000  # what a worker gets: names of files
    assert found["mib"] < 40 * (64 << 16) / 2**20  # 40 bytes for each of 4 million rows
