"""Fixtures that more than one test file needs, and the marks of tests that need an engine."""

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from beam_pipeline.dataset.layout import Encoding
from tests.support import properties, warm_python, workers
from tests.support.browser import browser
from tests.support.cpu_seconds import CpuSeconds
from tests.support.engines import Gcs, flink, gcs, gcs_emulator, prism, spark
from tests.support.workers import warm_workers

__all__ = ["Gcs", "browser", "flink", "gcs", "gcs_emulator", "prism", "properties", "spark"]
__all__ += ["warm_workers"]
_REPO = Path(__file__).parent / "repo"
_SERVERS = ("flink", "spark")
_ENGINES = ("browser", "flink", "gcs", "prism", "spark")
# Files with tests of a minute; tests for which MaxText is imported, in 15 CPU-seconds.
_WITH_MAXTEXT = ("test_train", "test_run_config", "test_feed")
_ALSO_WITH_MAXTEXT = ("arena_runs", "run[README.md]", "unknown_training_key", "accepts_every_key")
_BESIDE_ENGINES = ("test_torch_dataset", "test_examples", "test_packaging", "test_worker_packages")
_LONG = ("test_hot_probe", "test_hit_memory", "test_shuffle", "test_benches", "test_kills")
_LONG += ("test_removal_memory",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder for the tests of a module."""
    return tmp_path_factory.mktemp("module")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budget", type=float, help="most CPU-seconds that the tests may take")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["PROBELINE_QUIET"] = "1"  # whatever a program has to compile
    # A shell's background command ignores Ctrl-C, and so would every program under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if (budget := config.getoption("cpu_budget")) is not None:
        config.pluginmanager.register(CpuSeconds(budget))
    gc.disable()  # imports make little garbage


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Marks tests by what they are about and the engines they ask for; orders those that remain."""
    for item in items:
        if _REPO in item.path.parents:
            item.add_marker("repo")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")
        for engine in _ENGINES:
            if engine in getattr(item, "fixturenames", ()):
                item.add_marker(engine)
    yield
    items[:] = _dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _dealt(items: list[pytest.Item], num_workers: int) -> list[pytest.Item]:
    """Returns tests in another order, so that each worker begins with a group of long ones.

    Of the equal parts that xdist makes of the list, a worker that is done takes from the ends of
    others: what is long must not be last, and a group that shares a server stays together.
    """
    groups: list[list[pytest.Item]] = [[], [], []]
    others = []
    for item in items:
        names_it = any(name in item.name for name in _ALSO_WITH_MAXTEXT)
        if item.path.stem in _WITH_MAXTEXT or names_it:
            groups[0].append(item)
        elif item.path.stem in _BESIDE_ENGINES or any(map(item.get_closest_marker, _SERVERS)):
            groups[1].append(item)
        elif item.path.stem in _LONG:
            groups[2].append(item)
        else:
            others.append(item)
    dealt = []
    for worker in range(num_workers):
        of_worker = [item for group in groups[worker::num_workers] for item in group]
        share = len(items) * (worker + 1) // num_workers - len(dealt) - len(of_worker)
        dealt += of_worker + others[: max(0, share)]
        del others[: max(0, share)]
    return dealt + others


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("property"):
        properties.bound(item.obj)  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from searching modules and tests again and again: they stay."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why tests were skipped, in one line for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, number in reasons.items():
        terminalreporter.line(f"skipped {number}: {reason}")


def pytest_sessionfinish() -> None:
    warm_python.stop()
    workers.stop()


@pytest.fixture(scope="session", autouse=True)
def _time_of_runs() -> None:
    """All runs start at one time, so that files which tell it have the same bytes."""
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"


@pytest.fixture(scope="session", autouse=True)
def _quick_beam() -> None:
    if "apache_beam" in sys.modules:
        from tests.support import quick_beam

        quick_beam.install()


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that are killed leave files: here they lie in pytest's folder and go with it."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    os.environ["TMPDIR"] = tempfile.tempdir = folder


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoding, Path]:
    """`probe_rows_on_disk.mixed_rows` as a dataset in both encodings; no test changes it."""
    from tests.support.probe_rows_on_disk import write_mixed

    return write_mixed(tmp_path_factory.mktemp("mixed"))
