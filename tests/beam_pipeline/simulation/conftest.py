"""Fixtures: one run of the generator, made once for all tests of the simulation."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.generated import NUM_MEASUREMENTS, NUM_PROBES, rows_of, run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pings")
    assert run(folder, num_measurements=NUM_MEASUREMENTS, num_probes=NUM_PROBES) == 0
    return folder


@pytest.fixture(scope="session")
def rows(folder: Path) -> pa.Table:
    return rows_of(folder)


@pytest.fixture(scope="session")
def probes(folder: Path) -> pa.Table:
    return pq.read_table(folder / "truth/probes.parquet")


@pytest.fixture(scope="session")
def anchors(folder: Path) -> pa.Table:
    return pq.read_table(folder / "truth/anchors.parquet")
