"""Rows on `gs://`: the same batches, from few requests, each for little more than is needed."""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline.errors import UsageError
from tests.conftest import Gcs
from tests.support.batches import is_same
from tests.support.faulty_gcs import FaultyGcs, faulty
from tests.support.loader_helpers import batches_of, config_of, open_iterator, refusal_of
from tests.support.probe_rows_on_disk import (
    OPTIONS,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    shard_paths,
    write_dataset,
)
from training.dataset import build_dataset

PLAIN = "group_size:1,uncompressed"
NUM_SHARDS = 3


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mixed_rows`, uncompressed."""
    folder = tmp_path_factory.mktemp("plain") / "rows"
    return write_dataset(folder, mixed_rows(), "compact", NUM_SHARDS, (), PLAIN)


def uploaded(gcs: Gcs, dataset: Path) -> str:
    bucket = gcs.make_bucket()
    gcs.upload(dataset, f"{bucket}/rows")
    return f"{bucket}/rows"


@contextlib.contextmanager
def through_proxy(gcs: Gcs, monkeypatch: pytest.MonkeyPatch, every: int = 0) -> Iterator[FaultyGcs]:
    with faulty(gcs.endpoint, every) as proxy, monkeypatch.context() as patch:
        for name in ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
            patch.setenv(name, proxy.endpoint)
        yield proxy


def shard_requests(proxy: FaultyGcs) -> Counter[str]:
    """Returns the number of requests for each shard, listings left out."""
    names = (request.name.rpartition("/")[2] for request in proxy.requests)
    return Counter(name for name in names if name.endswith(".arrayrecord"))


@pytest.mark.slow
def test_a_worker_reads_gs(plain: Path, gcs: Gcs) -> None:
    assert is_same(batches_of(uploaded(gcs, plain), num_workers=1), batches_of(plain))


@pytest.mark.parametrize("options", [OPTIONS, PLAIN])
def test_requests_for_a_cache(
    gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    dataset = write_dataset(tmp_path / "rows", mixed_rows(), "compact", NUM_SHARDS, (), options)
    folder, cache = uploaded(gcs, dataset), tmp_path / "cache"
    with through_proxy(gcs, monkeypatch) as proxy:
        found = batches_of(folder, cache_dir=str(cache))
        assert set(shard_requests(proxy).values()) == {1}
        assert len(proxy.requests) <= 3 * NUM_SHARDS + 2
        assert is_same(batches_of(folder, cache_dir=str(cache)), found)  # and reads no shard again
        assert set(shard_requests(proxy).values()) == {1}
    assert is_same(found, batches_of(dataset))
    (columns,) = cache.glob("*/columns")
    batches_of(dataset, 1, cache_dir=str(tmp_path / "local"))
    (of_local,) = (tmp_path / "local").glob("*/columns")
    assert columns.read_bytes() == of_local.read_bytes()
    assert not list(cache.glob("**/*.arrayrecord"))


@pytest.mark.slow
def test_cache_filled_over_a_bad_network(
    plain: Path, gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = uploaded(gcs, plain)
    with through_proxy(gcs, monkeypatch, every=2) as proxy:
        assert is_same(batches_of(folder, cache_dir=str(tmp_path)), batches_of(plain))
        assert len(proxy.faults) > 2


def test_requests_for_small_rows(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(5, i)) for i in range(400)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 2, (), PLAIN)
    folder, expected = uploaded(gcs, dataset), batches_of(dataset, 20)
    with through_proxy(gcs, monkeypatch) as proxy:
        assert is_same(batches_of(folder, 20), expected)
        assert max(shard_requests(proxy).values()) <= 20  # one a batch


def test_bytes_fetched_for_rows(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (8_000, 60_000)  # measurements: read as a record, and used in place
    rows = [RowSpec(ipv4_probe(i), make_measurements(sizes[i % 2], i)) for i in range(8)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 2, (), PLAIN)
    folder, config = uploaded(gcs, dataset), {"num_epochs": 1}
    expected = batches_of(dataset, **config)
    num_bytes = sum(path.stat().st_size for path in shard_paths(dataset))
    with through_proxy(gcs, monkeypatch) as proxy:
        assert is_same(batches_of(folder, **config), expected)
        fetched = [r for r in proxy.requests if r.name.endswith(".arrayrecord")]
        assert len(fetched) <= len(rows) + 8  # a row that two lanes share may come again
        assert sum(request.num_bytes for request in fetched) < 2 * num_bytes + len(rows) * 2**16


def test_compressed_rows_need_a_cache(gcs: Gcs, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "rows", mixed_rows(), "compact", 2)
    folder = uploaded(gcs, dataset)
    refusal_of(
        lambda: build_dataset(config_of(folder)),
        *(folder, OPTIONS, "set cache_dir"),
        kind=UsageError,
    )
    assert build_dataset(config_of(folder, cache_dir=str(tmp_path / "cache")))


def test_missing_shard_is_not_a_bad_row(
    plain: Path, gcs: Gcs, caplog: pytest.LogCaptureFixture
) -> None:
    folder = uploaded(gcs, plain)
    iterator = open_iterator(folder, on_bad_row="skip")
    next(iterator)
    from benchmarks.engine_servers import gcs_client

    bucket, _, _ = folder.removeprefix("gs://").partition("/")
    for path in shard_paths(plain):
        name = f"rows/train/{os.path.basename(path)}"
        gcs_client(gcs.endpoint).bucket(bucket).blob(name).delete()
    with caplog.at_level(logging.WARNING, logger="training"):
        refusal_of(lambda: [next(iterator) for _ in range(30)], "there is no such object")
    assert not caplog.messages
