"""The feed of MaxText: what it counts of the batches, for the metrics and for the last line."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.loader_helpers import config_of
from tests.support.probe_rows_on_disk import (
    Mixed,
    RowSpec,
    ipv4_probe,
    make_measurements,
    write_dataset,
)
from training import build_dataset

if TYPE_CHECKING:
    from training.maxtext import feed as feeding
    from training.maxtext.feed import throughput_text

pytestmark = pytest.mark.slow  # imports JAX, a second


@pytest.fixture(scope="module", autouse=True)
def _jax() -> None:
    global feeding, throughput_text
    from training.maxtext import feed as feeding
    from training.maxtext.feed import throughput_text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that `feed` reads, to be filled by a test."""
    times: list[float] = []
    monkeypatch.setattr(feeding.time, "perf_counter", lambda: times.pop(0))
    return times


def test_figures_are_of_the_last_batch_and_sums_of_all(mixed: Mixed, clock: list[float]):
    feed = feeding.Feed(build_dataset(config_of(mixed["compact"])), 0, None, step_tflops=0.5)
    iterator = iter(feed)
    # Asked and given: each is waited for 1, 2, 3 and 4 s, and trained on for 10 s.
    clock += [0, 1, 11, 13, 23, 26, 36, 40]
    tokens = []
    for waited_s in (1, 2, 3, 4):
        tokens.append(np.count_nonzero(next(iterator)["targets_segmentation"]))
        if waited_s == 1:
            assert feed.figures() == {}  # MaxText compiles
            continue
        assert feed.figures() == {
            "feed/real_tokens_per_sec": tokens[-1] / (10 + waited_s),
            "feed/waiting_share": waited_s / (10 + waited_s),
        }
    assert feed.total == feed.total_of_hosts() == feeding.Fed(39, 9, sum(tokens[1:]), 1.5)
    both = feed.total + feeding.Fed(1, 1, 10, 0.5)
    assert (both.seconds, both.waited_share) == (40, 10 / 40)
    assert both.tokens_per_s == (sum(tokens[1:]) + 10) / 40
    assert both.tflops_per_s == 2 / 40
    iterator.close()


def test_each_host_gives_its_part_of_the_tokens(mixed: Mixed):
    dataset = build_dataset(config_of(mixed["compact"], host_count=4))
    feed = feeding.Feed(dataset, 0, None, total=feeding.Fed(10, 1, 100, 0.5))
    assert feed.total_of_hosts() == feeding.Fed(10, 1, 400, 0.5)


def test_throughput_beside_the_peak_of_a_known_chip():
    fed = feeding.Fed(seconds=100, waited_s=1.5, num_tokens=60_000_000, tflops=39_560)
    said = "600,000 real tokens a second, waited for data 1.5% of 100 s, 396 TFLOP/s per device"
    assert throughput_text(fed, "NVIDIA H100 80GB HBM3") == f"{said}, MFU 40.0%"
    for unknown in ("cpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"):
        assert throughput_text(fed, unknown) == said
    slow = feeding.Fed(10, 0, 1000, 0.123456)
    assert throughput_text(slow, "cpu").endswith(" of 10 s, 0.0123 TFLOP/s per device")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.usefixtures("warm_workers")
def test_the_cache_is_told(tmp_path: Path, num_workers: int):
    rows = [RowSpec(ipv4_probe(i), make_measurements(2000, i)) for i in range(32)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", num_shards=8)

    def figures(**config: int) -> tuple[float, float]:
        options = {"cache_dir": str(tmp_path / "cache"), "num_workers": num_workers, **config}
        feed = feeding.Feed(build_dataset(config_of(dataset, **options)), 0, None)
        iterator = iter(feed)
        for _ in range(2):
            next(iterator)
        found = feed.figures()
        iterator.close()
        return found["feed/cache_hit_share"], found["feed/cache_gigabytes"]

    assert (first := figures(host_count=2))[0] == 0
    second = figures()
    assert 0.5 <= second[0] < 1  # of the other host's shards some were missing
    assert 0 < first[1] < second[1]
    (columns,) = (tmp_path / "cache").glob("*/columns")
    assert second[1] == pytest.approx(columns.stat().st_blocks * 512 / 1e9)
    assert figures() == (1, second[1])
