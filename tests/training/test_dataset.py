"""The same batches for any hosts, workers and threads; invalid options and states; memory."""

import copy
import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.batches import Epochs, global_batches, host_batches, is_same
from tests.support.loader_helpers import (
    FEEDS,
    VARIANTS,
    State,
    config_of,
    expected_batches,
    feed_of,
    open_iterator,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    Mixed,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    shard_paths,
    write_dataset,
)
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S, wait_until
from training import assert_resumes_exactly
from training.batches.states import reshard_states
from training.dataset import BatchIterator, DataConfig, build_dataset
from training.rows.row_table import find_shards

# Every variant with both encodings in turn with each feed; all of them in the slow suite.
QUICK = set(zip(VARIANTS, itertools.cycle(FEEDS), itertools.cycle(ENCODINGS)))
COMBINATIONS = [
    pytest.param(*choice, 8 if choice in QUICK else [1, 2, 4][number % 3], marks=marks)
    for number, choice in enumerate(itertools.product(VARIANTS, FEEDS, ENCODINGS))
    for marks in ([] if choice in QUICK else [pytest.mark.slow],)
]


@pytest.mark.parametrize(("variant", "feed", "encoding", "host_count"), COMBINATIONS)
def test_the_global_batches_are_the_same(
    mixed: Mixed, variant: str, feed: str, encoding: Encoding, host_count: int
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed[encoding], feed)
    found = global_batches(mixed[encoding], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "feed", "host_count"),
    [
        ("packed", "two workers", 1),
        ("windows", "a worker", 2),
        ("packed", "two workers and a cache", 1),
    ],
)
def test_workers_give_same_batches(
    mixed: Mixed, variant: str, feed: str, host_count: int, request: pytest.FixtureRequest
) -> None:
    if feed != "two workers":  # those are spawned, as users have them
        request.getfixturevalue("warm_workers")
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed["compact"], feed)
    found = global_batches(mixed["compact"], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


def test_workers_that_lack_something_are_one_line(
    mixed: Mixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files", "/psm_0")

    iterator = iter(build_dataset(DataConfig(str(mixed["compact"]), 8, CROP, num_workers=2)))
    monkeypatch.setattr(type(iterator), "_start", fail)
    refusal_of(lambda: next(iterator), "data workers cannot run", "Too many open", "ulimit -n")


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 100])
@pytest.mark.usefixtures("warm_workers")
def test_workers_end_as_one_process_does(mixed: Mixed, num_workers: int) -> None:
    config = {"batch_size": 3, "crop_size": CROP, "num_epochs": 1}
    alone = host_batches(mixed["compact"], **config)
    assert is_same(host_batches(mixed["compact"], num_workers=num_workers, **config), alone)
    Epochs(mixed["compact"], mixed_rows(), 1).check(alone)


def test_threads_that_share_an_iterator_take_each_batch_once(mixed: Mixed) -> None:
    iterator = open_iterator(mixed["arrow"], num_threads=4)
    taken = []
    threads = [
        threading.Thread(target=lambda: taken.extend(next(iterator) for _ in range(5)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    found = sorted(batch["inputs"].tobytes() for batch in taken)
    expected = expected_batches(mixed["arrow"], "packed", 25)
    assert found == sorted(batch["inputs"].tobytes() for batch in expected)
    assert iterator.get_state()["step"] == 25


# Prints what a fork gets from an iterator, and at the end whether the iterator is closed.
FORK = """
import atexit, os, sys
atexit.register(lambda: print("closed:", batches._closed))
from training.dataset import DataConfig, build_dataset
batches = iter(build_dataset(DataConfig(sys.argv[1], 8, crop_size=128, num_threads=2)))
next(batches)
if os.fork():
    os.wait()
else:
    try:
        next(batches)
    except Exception as error:
        print(error, flush=True)
    batches.close()
    os._exit(0)
next(batches)
"""


@pytest.mark.slow
def test_a_fork_gets_no_batches_and_an_iterator_ends_with_its_program(mixed: Mixed) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(mixed["arrow"])]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    refusal, end = result.stdout.splitlines()
    assert "before the process forked" in refusal and "iter(dataset) in each process" in refusal
    assert (end, result.stderr, result.returncode) == ("closed: True", "", 0)


def test_a_copy_of_a_dataset_needs_no_original(mixed: Mixed, tmp_path: Path) -> None:
    config: dict[str, Any] = {"num_epochs": 1, "cache_dir": str(tmp_path / "cache")}
    make = lambda: build_dataset(config_of(mixed["arrow"], **config))  # noqa: E731
    expected = list(itertools.islice(make(), 5))
    original = make()
    early = pickle.loads(pickle.dumps(original))  # while the original is there
    del original
    late = pickle.loads(pickle.dumps(make()))
    for dataset in (early, late, copy.deepcopy(make())):
        gc.collect()
        assert is_same(list(itertools.islice(dataset, 5)), expected)


def test_workers_around_a_dataset_are_refused(mixed: Mixed) -> None:
    """Grain gives every worker its slice of the innermost dataset."""
    dataset = build_dataset(config_of(mixed["arrow"]))
    refusal_of(lambda: dataset.set_slice(slice(0, None, 2)), "set num_workers in DataConfig")


@pytest.mark.parametrize("feed", ["plain", "cache and threads"])
def test_a_closed_iterator_gives_nothing(mixed: Mixed, feed: str) -> None:
    iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


def test_values_may_come_from_numpy_and_pathlib(mixed: Mixed, tmp_path: Path) -> None:
    plain = {"seed": 5, "batch_size": 4, "sampler": "windows", "weights": [1.0] * 55}
    numbers: dict[str, Any] = {
        "seed": np.int64(5),
        "batch_size": np.int32(4),
        "sampler": "windows",
        "weights": np.ones(55),
        "mode_weights": np.array([0.4, 0.3, 0.3]),
    }
    one = open_iterator(mixed["arrow"], **plain)
    other = iter(build_dataset(DataConfig(mixed["arrow"], **numbers, crop_size=CROP)))
    assert is_same([next(one)], [next(other)])
    other.set_state(round_trip(one.get_state()))
    next(open_iterator(mixed["arrow"], cache_dir=tmp_path))
    assert list(tmp_path.iterdir())


def test_dropped_iterator_ends_its_threads(mixed: Mixed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the thread that prepares the next batch is the last one to hold it."""
    faults: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)
    others = set(threading.enumerate())
    for _ in range(3):
        next(open_iterator(mixed["arrow"], num_threads=2))
    assert wait_until(lambda: set(threading.enumerate()) <= others)
    assert not faults


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_of_8_mib_need_little_memory(tmp_path: Path) -> None:
    run = make_measurements(838_000, 1)
    rows = [RowSpec(ipv4_probe(i), run) for i in range(40)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    assert sum(path.stat().st_size for path in shard_paths(dataset)) > 100 << 20
    code = f"""
        from pathlib import Path
        from training.dataset import BatchIterator, DataConfig, build_dataset
        config = DataConfig({str(dataset)!r}, batch_size=64, num_threads=4)
        iterator = iter(build_dataset(config))
        for _ in range(25):
            batch = next(iterator)
        assert batch["inputs_segmentation"].all()
        iterator.close()
        # ru_maxrss would count what the tests' process held when this one began.
        print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1 << 20, f"{int(result.stdout) >> 10} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "ctrl-c", "kill-worker"])
def test_workers_and_their_program_end(end: str, mixed: Mixed):
    script = (
        "import psutil, signal\n"
        "from beam_pipeline.errors import ProbelineError\n"
        "from training.dataset import BatchIterator, DataConfig, build_dataset\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"    config = DataConfig({str(mixed['compact'])!r}, 8, crop_size={CROP}, num_workers=2)\n"
        "    batches = iter(build_dataset(config))\n"
        "    next(batches)\n"
        "    children = psutil.Process().children(recursive=True)\n"
        "    print(*(child.pid for child in children), flush=True)\n"
        "    try:\n"
        "        while True: next(batches)\n"
        "    except ProbelineError as error:\n"
        "        raise SystemExit(str(error))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(children) >= 2
    if end == "kill":
        process.kill()
    elif end == "ctrl-c":  # a terminal sends it to all processes
        os.killpg(process.pid, signal.SIGINT)
    else:
        worker = next(child for child in children if "spawn_main" in " ".join(child.cmdline()))
        worker.kill()
    _, error = process.communicate(timeout=HANG_S)
    _, alive = psutil.wait_procs(children, timeout=HANG_S)
    assert not alive
    if end == "ctrl-c":
        assert error.count("Traceback") == error.count("KeyboardInterrupt") == 1  # the program's
    if end == "kill-worker":
        assert error.startswith("a data worker ended with exit code -9")


NAN = float("nan")
WRONG: dict[str, list[Any]] = {
    "batch_size": ["4", 4.0, None, True, 2**40, 0],
    "crop_size": [200_000, 63],
    "seed": [2**64],
    "num_epochs": ["3", 0],
    "shuffle": ["no", 1, None],
    "sampler": [None, ["rows"], "row"],
    "repeat_share": ["many", 1.5, NAN],
    "stride_ratio": [0, float("inf")],
    "mode_weights": ["abc", None, (1, 2), (1, 2, NAN), (1, -1, 1), (0, 0, 0)],
    "window_shares": [3, (0.5, 0.2), (0, 2), (1,)],
    "weights": [["a"], None, "probe"],
    "cache_dir": [3, "", b"x"],
}


def test_invalid_option() -> None:
    for option, values in WRONG.items():
        for value in values:
            given = {"files": "rows", "batch_size": 4, "sampler": "windows", option: value}
            message = f"{option} is {value!r}: it must be"
            refusal_of(lambda: DataConfig(**given), message, kind=UsageError)  # noqa: B023
    for files in (None, [b"rows"]):
        refusal_of(lambda: find_shards(files), f"files is {files!r}", kind=UsageError)  # type: ignore[arg-type]  # noqa: B023


def test_an_empty_split_is_told(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "rows", mixed_rows()[:3], "compact", 2)
    config = config_of(f"{dataset}/test", batch_size=1)
    refusal_of(lambda: build_dataset(config), f"{dataset}/test", "have no rows", kind=UsageError)


def test_a_damaged_state_is_refused(mixed: Mixed) -> None:
    iterator = open_iterator(mixed["compact"])
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()

    def refused(wrong: Any) -> None:
        refusal_of(lambda: (iterator.set_state(wrong), next(iterator)), "state")

    for name in state:
        lacking = {key: value for key, value in state.items() if key != name}
        refused(lacking)
        if name != "format":
            refusal_of(lambda: reshard_states([lacking], 1), "state")  # noqa: B023
        for value in ({}, -1, 1.5, 2**70, [[-1] * 6] * 8):
            refused({**state, name: value})
    for name in state["datasets"][0]:
        for value in ({}, -1, None, [[-1] * 6] * 8, [[0] * 6] * 3 + [[0]]):
            refused({**state, "datasets": [{**state["datasets"][0], name: value}]})
    for wrong in ([1], None, "state", {}):
        refused(wrong)
    # Cursors beyond the lane: but for epochs, and an index that is past all.
    for field, value in itertools.product(range(6), (10**6, 2**62)):
        wrong = copy.deepcopy(state)
        wrong["datasets"][0]["cursors"][3][field] = value
        try:
            iterator.set_state(wrong)
            next(iterator)
        except ProbelineError as error:
            assert "state is damaged" in str(error)
        else:
            assert field in (0, 2, 3)
    iterator.set_state(state)
    next(iterator)


def test_batches_and_what_is_made_of_them_resume(mixed: Mixed) -> None:
    dataset = build_dataset(config_of(mixed["compact"], num_epochs=1, num_threads=1))
    assert_resumes_exactly(dataset, 30)
    same = config_of(mixed["compact"], num_epochs=1, num_threads=2)
    assert repr(dataset) == repr(build_dataset(same))
    sums = dataset.map(lambda batch: batch["inputs"].sum())
    assert next(iter(sums)) == next(iter(dataset))["inputs"].sum()
    assert_resumes_exactly(sums, 5)
    with pytest.raises(AssertionError, match="no batch"):
        assert_resumes_exactly(dataset.filter(lambda batch: False))


@pytest.mark.parametrize("fault", ["nothing", "one in use goes on", "one too far"])
def test_faults_of_resuming_are_found(
    mixed: Mixed, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    dataset = build_dataset(config_of(mixed["compact"]))
    right, fresh = BatchIterator.set_state, iter(dataset).get_state()

    def wrong(iterator: BatchIterator, state: State) -> None:
        is_used = iterator.get_state() != fresh
        if fault == "one too far" or (fault == "one in use goes on" and not is_used):
            right(iterator, state)
        if fault == "one too far":
            next(iterator)

    monkeypatch.setattr(BatchIterator, "set_state", wrong)
    with pytest.raises(AssertionError, match=r"batch \d, resumed from the state before"):
        assert_resumes_exactly(dataset)
