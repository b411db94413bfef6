"""The same batches for any hosts, workers and threads; what a loader is given; its memory."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import grain
import numpy as np
import psutil
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import UsageError
from tests.support.batches import Epochs, global_batches, host_batches, is_same
from tests.support.codec_rows import both_encodings
from tests.support.helpers import quick_and_slow
from tests.support.loader_helpers import (
    FEEDS,
    VARIANTS,
    all_variants,
    config_of,
    expected_batches,
    feed_of,
    open_iterator,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import (
    CROP,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    shard_paths,
    write_dataset,
)
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S, wait_until
from training.dataset import (
    DataConfig,
    build_dataset,
    build_probe_chunk_dataset,
    create_probe_training_pipeline,
)

# --- hosts, workers, threads, encodings -----------------------------------------------------------


@all_variants
@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("host_count", quick_and_slow([1, 2, 4, 8], [8]))
@both_encodings
def test_the_global_batches_are_the_same(
    mixed: dict[Encoding, Path], variant: str, feed: str, host_count: int, encoding: Encoding
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed[encoding], feed)
    found = global_batches(mixed[encoding], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


@pytest.mark.parametrize(
    ("variant", "feed", "host_count"),
    [
        pytest.param("packed", "two workers", 1, marks=pytest.mark.slow),
        pytest.param("narrow windows", "two workers with threads", 1, marks=pytest.mark.slow),
        pytest.param("windows", "a worker", 2, marks=pytest.mark.slow),
        pytest.param("packed", "two workers and a cache", 1, marks=pytest.mark.slow),
    ],
)
def test_workers_give_the_same_batches(
    mixed: dict[Encoding, Path], variant: str, feed: str, host_count: int
) -> None:
    config = {"batch_size": 8, "crop_size": CROP, **VARIANTS[variant]}
    config |= feed_of(mixed["compact"], feed)
    found = global_batches(mixed["compact"], host_count, 25, **config)
    assert is_same(found, expected_batches(mixed["arrow"], variant, 25))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 100])
def test_workers_end_as_one_process_does(mixed: dict[Encoding, Path], num_workers: int) -> None:
    config = {"batch_size": 3, "crop_size": CROP, "num_epochs": 1}
    alone = host_batches(mixed["compact"], **config)
    assert is_same(host_batches(mixed["compact"], num_workers=num_workers, **config), alone)
    Epochs(mixed["compact"], mixed_rows(), 1).check(alone)


def test_iterators_of_a_dataset_are_apart_from_each_other(mixed: dict[Encoding, Path]) -> None:
    dataset = build_dataset(config_of(mixed["arrow"]))
    expected = expected_batches(mixed["arrow"], "packed", 25)
    one, other = iter(dataset), iter(dataset)
    first = [next(one) for _ in range(10)]
    assert is_same([next(other) for _ in range(5)], expected[:5])
    assert is_same([*first, next(one)], expected[:11])


def test_a_batch_that_was_given_is_not_written_to_again(mixed: dict[Encoding, Path]) -> None:
    for feed in FEEDS:
        iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
        batches = [next(iterator) for _ in range(25)]
        assert is_same(batches, expected_batches(mixed["arrow"], "packed", 25))
        iterator.close()


@pytest.mark.parametrize("feed", FEEDS)
def test_a_closed_iterator_gives_nothing(mixed: dict[Encoding, Path], feed: str) -> None:
    iterator = open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    open_iterator(mixed["arrow"], **feed_of(mixed["arrow"], feed)).close()


def test_the_dataset_is_one_of_grain(mixed: dict[Encoding, Path]) -> None:
    dataset = build_dataset(config_of(mixed["arrow"]))
    assert isinstance(dataset, grain.IterDataset)
    widths = dataset.map(lambda batch: batch["inputs"].shape)
    assert next(iter(widths)) == (8, CROP)
    assert repr(dataset) == repr(build_dataset(config_of(mixed["arrow"], num_threads=2)))


def test_usage_errors_of_workers_are_as_those_of_one_process(mixed: dict[Encoding, Path]) -> None:
    config = {"batch_size": 4096, "crop_size": CROP, "num_workers": 1}
    refusal_of(
        lambda: host_batches(mixed["arrow"], 1, **config),
        "batch_size is 4096",
        "use a smaller",
        kind=UsageError,
    )


def test_what_does_not_suit_the_data_is_said_when_the_dataset_is_built(
    mixed: dict[Encoding, Path],
) -> None:
    for wrong in (
        {"batch_size": 4096},
        {"batch_size": 64, "sampler": "windows"},
        {"sampler": "windows", "weights": [1.0, 2.0]},
    ):
        with pytest.raises(UsageError):
            build_dataset(config_of(mixed["arrow"], **wrong))


def test_an_iterator_that_is_dropped_ends_its_threads(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the thread that prepares the next batch is the last one to hold it."""
    faults: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)
    others = set(threading.enumerate())
    for _ in range(3):
        next(open_iterator(mixed["arrow"], num_threads=2))
    assert wait_until(lambda: set(threading.enumerate()) <= others)
    assert not faults


def test_the_other_names_build_the_same_datasets(mixed: dict[Encoding, Path]) -> None:
    files = str(mixed["compact"] / "train")
    expected = build_dataset(DataConfig(files=files, batch_size=8, crop_size=CROP, seed=3))
    dataset = build_probe_chunk_dataset(files, 8, crop_size=CROP, seed=3)
    assert dataset.config == expected.config
    pattern = f"{files}/*.arrayrecord"
    dataset = create_probe_training_pipeline(pattern, 8, CROP, shuffle=False, num_workers=2)
    assert dataset.config == DataConfig(
        pattern, 8, CROP, shuffle=False, sampler="windows", num_threads=2
    )
    options = {"crop_size": CROP, "shuffle": False, "sampler": "windows"}
    expected = build_dataset(DataConfig(files=files, batch_size=8, **options))
    assert dataset.fingerprint == expected.fingerprint


def test_numbers_may_come_from_numpy(mixed: dict[Encoding, Path]) -> None:
    plain = {"seed": 5, "batch_size": 4, "sampler": "windows", "weights": [1.0] * 55}
    numbers = {
        "seed": np.int64(5),
        "batch_size": np.int32(4),
        "sampler": "windows",
        "weights": np.ones(55),
        "mode_weights": np.array([0.4, 0.3, 0.3]),
    }
    one, other = (open_iterator(mixed["arrow"], **config) for config in (plain, numbers))
    assert is_same([next(one)], [next(other)])
    other.set_state(round_trip(one.get_state()))


def test_files_are_asked_for_when_the_dataset_is_built(
    mixed: dict[Encoding, Path], tmp_path: Path
) -> None:
    for wrong in (tmp_path, mixed["arrow"] / "train" / "x*.arrayrecord", f"{tmp_path}/no/such"):
        refusal_of(lambda: build_dataset(config_of(wrong)), str(wrong))  # noqa: B023
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    for files in (f"{mixed['arrow']}/", f"{mixed['arrow']}/train", shards):
        dataset = build_dataset(DataConfig(files, batch_size=8, crop_size=CROP))
        assert is_same([next(iter(dataset))], expected_batches(mixed["arrow"], "packed", 25)[:1])


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_of_8_mib_need_little_memory(tmp_path: Path) -> None:
    run = make_measurements(838_000, 1)
    rows = [RowSpec(ipv4_probe(i), run) for i in range(40)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    assert sum(path.stat().st_size for path in shard_paths(dataset)) > 100 << 20
    code = f"""
        from pathlib import Path
        from training.dataset import DataConfig, build_dataset
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
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1 << 20, f"{int(result.stdout) >> 10} MiB"


@pytest.mark.slow
def test_workers_end_when_their_process_is_killed(mixed: dict[Encoding, Path]):
    script = (
        "import time, psutil\n"
        "from training.dataset import DataConfig, build_dataset\n"
        "if __name__ == '__main__':\n"
        f"    config = DataConfig({str(mixed['compact'])!r}, 8, crop_size={CROP}, num_workers=2)\n"
        "    batches = iter(build_dataset(config))\n"
        "    next(batches)\n"
        "    children = psutil.Process().children(recursive=True)\n"
        "    print(*(child.pid for child in children), flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(children) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=HANG_S)
    assert not alive
