"""A small corpus with contaminated documents, and the result of the search for them."""

from pathlib import Path

import pytest

from tests.support.removal_corpus import find_in, write_corpus


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus `in` and the result `out`, which tests do not change."""
    folder = tmp_path_factory.mktemp("found")
    write_corpus(folder)
    find_in(folder, "in", "out")
    return folder
