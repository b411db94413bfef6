"""An output of the job with something in every section of the report, and its page."""

from pathlib import Path

import pytest

from tests.support.overlap_report import SETS, TRAINING, page_of, run

EVERYTHING = (
    *("--max_document_frequency=2", "--rules=llama2", "--min_tokens=3"),
    *("--max_details_per_pair=100", "--max_details=1000"),
)


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output; tests do not change it."""
    return run(tmp_path_factory.mktemp("everything"), SETS, TRAINING, *EVERYTHING)


@pytest.fixture(scope="session")
def page(output: Path) -> Path:
    """The page of the output."""
    return page_of(output)
