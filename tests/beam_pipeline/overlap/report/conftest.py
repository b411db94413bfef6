"""The page that several modules look at."""

from pathlib import Path

import pytest

from tests.support.overlap_report import made_with_everything


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with something in every section; the output and other formats lie beside it."""
    return made_with_everything(tmp_path_factory.mktemp("page"))
