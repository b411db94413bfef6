"""Fixtures: datasets, made once for all tests of the analysis of padding."""

from pathlib import Path

import pytest

from tests.support.damaged_dataset import arrow_dataset, compact_dataset, copy
from tests.support.dataset_analysis import dataset_of

__all__ = ["arrow_dataset", "compact_dataset", "copy"]


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty probes of 3 to 23 measurements: none has enough for a crop."""
    counts = [3 + number % 21 for number in range(50)]
    return dataset_of(tmp_path_factory.mktemp("padding"), counts, num_destinations=250)
