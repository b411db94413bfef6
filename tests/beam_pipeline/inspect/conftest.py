"""Fixtures: datasets, made once for all tests of inspect, and a wide terminal."""

from pathlib import Path

import pytest

from tests.support.inspected import write_alike, write_unlike


@pytest.fixture(scope="session")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_alike(tmp_path_factory.mktemp("alike") / "rows")


@pytest.fixture(scope="session")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlike(tmp_path_factory.mktemp("unlike") / "rows")


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
