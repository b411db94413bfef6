"""The column cache: filled once and whole, by whoever needs it, however often it is killed."""

import logging
import os
import random
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.batches import Epochs, global_batches, host_batches, is_same, segments
from tests.support.loader_helpers import batches_of, config_of, open_iterator, refusal_of
from tests.support.probe_rows_on_disk import (
    CROP,
    OPTIONS,
    Mixed,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    num_contexts,
    shard_paths,
    spoil_records,
    untimed_tokens,
    write_dataset,
    write_mixed,
)
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python
from training import assert_resumes_exactly, build_dataset
from training.rows.row_source import ProbeRowDataSource
from training.rows.shard_reader import ShardReader
from training.tokens.tokenizer import decode


def cached_shards(cache: Path) -> set[str]:
    return {path.stem for path in cache.glob("*/shard_*.json")}


# --- filling ------------------------------------------------------------------------------------


def test_shards_read_once(mixed: Mixed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = batches_of(mixed["arrow"])
    reads = []
    read = ShardReader.read
    monkeypatch.setattr(ShardReader, "read", lambda self, row: reads.append(row) or read(self, row))
    for _ in range(2):
        assert is_same(batches_of(mixed["arrow"], cache_dir=str(tmp_path)), expected)
        assert sorted(reads) == list(range(len(mixed_rows())))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_serves_several_datasets_and_splits(mixed: Mixed, tmp_path: Path) -> None:
    shard = shard_paths(mixed["arrow"])[0]
    several = [mixed["arrow"], mixed["compact"], mixed["arrow"] / "test", shard]
    for dataset in several:
        config = {"batch_size": 1, "crop_size": CROP}
        found = host_batches(dataset, 5, cache_dir=str(tmp_path), **config)
        assert is_same(found, host_batches(dataset, 5, **config))
    assert len(list(tmp_path.iterdir())) == len(several)


def test_a_host_fills_only_what_its_lanes_draw_from(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(2000, i)) for i in range(64)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=8)
    used = []
    for host in (0, 3):
        cache = tmp_path / f"cache_{host}"
        config = {"host_index": host, "host_count": 4, "cache_dir": str(cache)}
        assert is_same(
            batches_of(dataset, **config), batches_of(dataset, host_index=host, host_count=4)
        )
        assert 2 <= len(cached_shards(cache)) <= 3
        (columns,) = cache.glob("*/columns")
        used.append(columns.stat().st_blocks * 512 / columns.stat().st_size)
    assert max(used) < 0.5
    assert not cached_shards(tmp_path / "cache_0") & cached_shards(tmp_path / "cache_3")


FILL = """
    import sys
    from training.dataset import DataConfig, build_dataset
    dataset, cache = sys.argv[1:]
    iterator = iter(build_dataset(DataConfig(dataset, 8, 256, cache_dir=cache)))
    next(iterator)
    print("filled", flush=True)
"""


def start_fill(dataset: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*warm_python("training.dataset"), "-c", textwrap.dedent(FILL), str(dataset), str(cache)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_fill_that_is_killed_goes_on(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(20_000, i)) for i in range(48)]
    dataset = write_dataset(tmp_path / "rows", rows, "arrow", num_shards=24)
    expected = batches_of(dataset)
    counts = np.diff(ProbeRowDataSource(str(dataset)).rows.shard_begins)
    num_shards = np.count_nonzero(counts)
    rng = random.Random(1)
    cache = tmp_path / "cache"
    seen = set()
    for _ in range(6):
        process = start_fill(dataset, cache)
        done = len(cached_shards(cache))
        # Some shards further on, at any moment.
        while process.poll() is None and len(cached_shards(cache)) < min(num_shards, done + 3):
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        seen.add(len(cached_shards(cache)))
    assert len(seen) > 2, "no fill was killed on its way"
    assert is_same(batches_of(dataset, cache_dir=str(cache)), expected)
    assert len(cached_shards(cache)) == num_shards


@pytest.mark.slow
def test_processes_fill_together(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(3000, i)) for i in range(24)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=12)
    cache = tmp_path / "cache"
    processes = [start_fill(dataset, cache) for _ in range(3)]
    assert [process.communicate()[0] for process in processes] == ["filled\n"] * 3
    assert is_same(batches_of(dataset, cache_dir=str(cache)), batches_of(dataset))


@pytest.mark.parametrize("harm", ["remove the columns", "cut the columns", "remove notes"])
def test_a_cache_that_lost_files_is_filled_again(mixed: Mixed, tmp_path: Path, harm: str) -> None:
    expected = batches_of(mixed["compact"], cache_dir=str(tmp_path))
    (columns,) = tmp_path.glob("*/columns")
    if harm == "remove the columns":
        columns.unlink()
    elif harm == "cut the columns":
        os.truncate(columns, columns.stat().st_size // 2)
    else:
        for note in list(tmp_path.glob("*/shard_*.json"))[1:]:
            note.unlink()
    assert is_same(batches_of(mixed["compact"], cache_dir=str(tmp_path)), expected)
    assert len(cached_shards(tmp_path)) == 3


@pytest.mark.parametrize("name", ["", "columns", "columns.lock"])
def test_links_in_a_cache_are_not_written_through(mixed: Mixed, tmp_path: Path, name: str) -> None:
    batches_of(mixed["compact"], cache_dir=str(tmp_path / "cache"))
    (folder,) = (tmp_path / "cache").iterdir()
    mine = tmp_path / "mine"
    (folder / name).rename(mine)
    before = (mine / "columns" if not name else mine).read_bytes()
    (folder / name).symlink_to(mine)
    with pytest.raises(UsageError, match="is a link, which Probeline did not create"):
        batches_of(mixed["compact"], cache_dir=str(tmp_path / "cache"))
    assert (mine / "columns" if not name else mine).read_bytes() == before


# --- a damaged cache ------------------------------------------------------------------------------


def damage(cache: Path, share: float = 1.0) -> None:
    """Overwrites a share of the columns with random bytes."""
    (columns,) = cache.glob("*/columns")
    values = np.fromfile(columns, np.uint8)
    rng = np.random.default_rng(3)
    is_hit = rng.random(len(values)) < share
    values[is_hit] = rng.integers(0, 256, is_hit.sum())
    with open(columns, "r+b") as file:
        file.write(values.tobytes())


@pytest.mark.parametrize(
    ("config", "share"), [({}, 1.0), ({"num_threads": 2}, 1e-3), ({"mixed_rows": None}, 1.0)]
)
def test_damaged_columns_are_cached_again_and_told(
    mixed: Mixed,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    share: float,
) -> None:
    config = {"cache_dir": str(tmp_path), **config}
    expected = batches_of(mixed["compact"], **config)
    (columns,) = tmp_path.glob("*/columns")
    filled = columns.read_bytes()
    damage(tmp_path, share)
    with caplog.at_level(logging.WARNING, logger="training"):
        assert is_same(batches_of(mixed["compact"], **config), expected)
    assert 1 <= len(caplog.messages) <= 3
    assert all(message.startswith(f"{columns} is damaged: ") for message in caplog.messages)
    if share == 1.0:
        assert columns.read_bytes() == filled
    caplog.clear()
    assert is_same(batches_of(mixed["compact"], **config), expected) and not caplog.messages


@pytest.mark.parametrize("note", [b"{", b"[]", b'{"bad_rows": [[999999, "why"]]}'])
def test_a_damaged_note_is_written_again(mixed: Mixed, tmp_path: Path, note: bytes) -> None:
    expected = batches_of(mixed["compact"], cache_dir=str(tmp_path))
    path = sorted(tmp_path.glob("*/shard_*.json"))[1]
    written = path.read_bytes()
    path.write_bytes(note)
    assert is_same(batches_of(mixed["compact"], cache_dir=str(tmp_path)), expected)
    assert path.read_bytes() == written


def test_what_is_cached_again_may_be_bad_by_then(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(300, i)) for i in range(20)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1)
    config: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "on_bad_row": "skip"}
    batches_of(dataset, **config)
    damage(tmp_path / "cache")
    (path,) = shard_paths(dataset)
    path.write_bytes(b"\xff" * path.stat().st_size)
    refusal_of(lambda: batches_of(dataset, **config), f"{path} record ")


# --- what cannot be filled ------------------------------------------------------------------------


def test_a_shard_that_was_changed_is_refused(mixed: Mixed, tmp_path: Path) -> None:
    dataset = shutil.copytree(mixed["arrow"], tmp_path / "rows")
    path = shard_paths(dataset)[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cache_dir = str(tmp_path / "cache")
    parts = (str(path), "the manifest says", "copy the dataset again")
    refusal_of(lambda: batches_of(dataset, cache_dir=cache_dir, num_threads=2), *parts)
    assert "shard_00001" not in cached_shards(tmp_path / "cache")


def test_full_disk(mixed: Mixed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs_result((4096, 4096, 100, 2, 2, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    with pytest.raises(ProbelineError, match=r"needs .* GB .* are free: set cache_dir to a larger"):
        batches_of(mixed["arrow"], cache_dir=str(tmp_path))


def test_a_folder_that_cannot_be_one_is_refused(mixed: Mixed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProbelineError, match=f"{tmp_path}/file"):
        batches_of(mixed["arrow"], cache_dir=str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cache_dir is gs://bucket/cache: .* a local disk"):
        batches_of(mixed["arrow"], cache_dir="gs://bucket/cache")


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.usefixtures("warm_workers")
def test_bad_rows_are_left_out_and_told(tmp_path: Path, num_workers: int) -> None:
    dataset = write_mixed(tmp_path)["compact"]
    spoil_records(dataset, {(0, 2), (1, 0)})
    config: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "num_workers": num_workers}
    refusal_of(lambda: batches_of(dataset, **config), "record", "on_bad_row=skip")
    expected = batches_of(dataset, 40, on_bad_row="skip")
    for _ in range(2):  # filling, and from what is there
        assert is_same(batches_of(dataset, 40, on_bad_row="skip", **config), expected)
        iterator = open_iterator(dataset, on_bad_row="skip", **config)
        next(iterator)
        assert iterator.get_state()["datasets"][0]["skipped_rows"] == [[0, 2], [1, 0]]
        iterator.close()
    # A cache that was filled with rows left out does not hide them.
    refusal_of(lambda: batches_of(dataset, **config), "record", "on_bad_row=skip")


@pytest.mark.parametrize("options", [OPTIONS, "group_size:1,uncompressed"])
def test_cache_of_a_shard_with_a_flipped_bit(tmp_path: Path, options: str) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(300, i)) for i in range(20)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1, (), options)
    (path,) = shard_paths(dataset)
    data = bytearray(path.read_bytes())
    data[30_000] ^= 1
    path.write_bytes(data)
    expected = batches_of(dataset, 40, on_bad_row="skip")
    config: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "on_bad_row": "skip"}
    iterator = open_iterator(dataset, **config)
    assert is_same(batches_of(dataset, 40, **config), expected)
    next(iterator)
    assert len(iterator.get_state()["datasets"][0]["skipped_rows"]) == 1
    iterator.close()


def test_a_row_of_centuries_is_refused_with_its_place(tmp_path: Path) -> None:
    """Compact columns hold 136 years."""
    run = make_measurements(50, 1)
    run["event_time"][-1] = 2**33 * 1_000_000
    dataset = write_dataset(tmp_path / "rows", [RowSpec(ipv4_probe(0), run)], "arrow", 1)
    config = {"batch_size": 1, "crop_size": CROP}
    host_batches(dataset, 2, **config)
    refusal_of(
        lambda: host_batches(dataset, 2, cache_dir=str(tmp_path / "cache"), **config),
        str(shard_paths(dataset)[0]),
        "record 0",
        "it spans",
    )


# --- all rows in one window -----------------------------------------------------------------------


def test_an_epoch_of_one_window_is_still_each_context_once(mixed: Mixed, tmp_path: Path) -> None:
    config = {"batch_size": 8, "crop_size": CROP, "num_epochs": 2, "cache_dir": str(tmp_path)}
    alone = host_batches(mixed["arrow"], mixed_rows=None, **config)
    Epochs(mixed["arrow"], mixed_rows(), 2).check(alone)
    found = global_batches(mixed["arrow"], 8, mixed_rows=None, **config)
    assert is_same(found[: len(alone)], alone)
    options = config_of(mixed["arrow"], mixed_rows=None, num_threads=2, cache_dir=str(tmp_path))
    assert_resumes_exactly(build_dataset(options), 20)


def test_one_window_mixes_the_contexts_of_all_rows(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(2000, i)) for i in range(100)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    assert all(num_contexts(row) == 16 and untimed_tokens(row) > CROP for row in rows)
    config: dict[str, Any] = {"batch_size": 1, "crop_size": CROP}
    config["cache_dir"] = str(tmp_path / "cache")

    def sources(**options: Any) -> list[str | None]:
        batches = host_batches(dataset, 400, **config, **options)
        return [decode(segments(batch, 0)[0])[0].src_addr for batch in batches]

    assert len(set(sources(mixed_rows=None))) > 95
    assert len(set(sources(mixed_rows=16))) < 45
