"""Arrays in a file that processes share, and the plan of an epoch in such files."""

import gc
import os
import pickle
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.errors import ProbelineError
from training.rows import row_table
from training.rows.row_table import MappedArrays


@pytest.fixture(params=["named", "nameless"])
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "named":
        monkeypatch.setattr(row_table, "_without_name", lambda: None)
    elif sys.platform != "linux":
        pytest.skip("files have names here")
    return tmp_path


def written() -> MappedArrays:
    mapped = MappedArrays({"a": (np.int32, 5), "none": (np.uint64, 0), "b": (np.float64, 3)})
    mapped.write("a", 1, np.array([1, 2]))
    mapped.write("a", 4, np.array([3]))
    mapped.write("b", 0, np.array([0.5, 1.5, 2.5]))
    return mapped


def check(mapped: MappedArrays) -> None:
    arrays, expected = mapped.arrays(), {"a": [0, 1, 2, 0, 3], "none": [], "b": [0.5, 1.5, 2.5]}
    assert {name: values.tolist() for name, values in arrays.items()} == expected
    assert [values.dtype for values in arrays.values()] == [np.int32, np.uint64, np.float64]


def test_arrays_are_what_was_written(folder: Path) -> None:
    mapped = written()
    check(mapped)
    mapped.arrays()["a"][:] = 7  # in this map only
    check(pickle.loads(pickle.dumps(mapped)))


def test_the_file_lives_as_long_as_the_object_of_the_process_that_made_it(
    folder: Path, request: Any
) -> None:
    mapped = written()
    assert bool(list(folder.iterdir())) != ("nameless" in request.node.name)
    packed = pickle.dumps(mapped)
    arrays = pickle.loads(packed).arrays()
    del mapped
    assert list(folder.iterdir()) == [] and arrays["b"].sum() == 4.5
    with tempfile.TemporaryFile(), pytest.raises(FileNotFoundError):  # with the handle's number
        pickle.loads(packed)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_that_ends_leaves_the_file_to_its_parent(folder: Path) -> None:
    mapped = written()
    if not (child := os.fork()):
        del mapped
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
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
