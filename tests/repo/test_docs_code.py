"""Every block of shell, Python and SQL on the pages runs, in order, in one folder per page.

`Desk` makes the work small: fewer measurements and steps, this machine in place of Dataflow, a
folder in place of a bucket, stand-ins for programs that install, open or cost something.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.clean_environment import tensorflow as tensorflow
from tests.support.desk import Desk, make_presumed
from tests.support.documents import Block
from tests.support.engines import flink_is_built
from tests.support.repository import ROOT

LANGUAGES = ("sh", "python", "sql")
# Blocks with one of these words run elsewhere, or not at all.
ELSEWHERE = {
    "torch": "tests/training/with_torch, in an environment with PyTorch",
    "jax_training": "test_examples.py",
    "sessions.py": "test_examples.py",
    "go run": "test_go_reader.py",
    "templates/tpu": "tests of the scripts for TPUs",
    "EXPORT DATA": "tests of the source atlas_bigquery, and BigQuery only",
    "pip/bin": "installs gigabytes",
    "bin/pip": "installs gigabytes",
    "curl": "loads what RIPE offers",
}


@dataclass(frozen=True)
class Python:
    """What stands around the Python of a page: names that it presumes, and checks."""

    before: str = ""
    after: str = ""


PYTHON = {
    "README.md": Python(
        "import apache_beam as beam\n"
        "pipeline = beam.Pipeline('apache_beam.runners.portability.fn_api_runner.FnApiRunner')\n"
        "records = pipeline | beam.Create([b'%08d' % n for n in range(50)])\n"
        "import os; os.chdir(os.environ['HOME'])",
        "assert row.to_arrow().num_rows == row.n_measurements > 0\n"
        "assert batch['inputs'].shape == (256, 1024)",
    ),
    "docs/format.md": Python(
        "from array_record.python.array_record_module import ArrayRecordReader\n"
        "reader = ArrayRecordReader('rows/train/train_shard_00000-of-00005.arrayrecord')\n"
        "record = reader.read([0])[0]",
        "assert row['n_measurements'] > 0",
    ),
    "docs/training_data.md": Python(
        "", "assert measurements and next(iter(dataset))['inputs'].shape == (256, 1024)"
    ),
}
SLOW = ("README.md", "docs/training.md", "docs/learning.md", "docs/format.md", "docs/engines.md")


def blocks(page: str) -> list[Block]:
    """Returns the blocks of a page that run here."""
    found = [block for block in documents.blocks(page) if block.language in LANGUAGES]
    return [block for block in found if not any(word in block.text for word in ELSEWHERE)]


PAGES = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
    for page in documents.pages()
    if blocks(page)
]


@pytest.fixture(scope="module")
def presumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presumed")
    make_presumed(folder)
    return folder


@pytest.fixture
def desk(tmp_path: Path, presumed: Path) -> Desk:
    folder = shutil.copytree(presumed, tmp_path / "desk", symlinks=True)
    for name in ("beam_pipeline", "examples", "scripts", "templates", ".engines"):
        (folder / name).symlink_to(ROOT / name)
    return Desk(folder)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, desk: Desk, request: pytest.FixtureRequest) -> None:
    if page == "docs/engines.md":
        request.getfixturevalue("prism")
        flink_is_built()
    scripts: dict[str, list[str]] = {}
    for block in blocks(page):
        if block.language == "python":
            needed = "tensorflow" if "tensorflow" in block.text else "python"
            scripts.setdefault(needed, []).append(block.text)
        else:
            desk.run(block)
    around = PYTHON.get(page, Python())
    for needed, texts in scripts.items():
        python = needed if needed == "python" else request.getfixturevalue(needed)
        if needed == "python":
            texts = [around.before, *texts, around.after]
        desk.python(*texts, python=python)
