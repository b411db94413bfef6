"""Every block of shell, Python and SQL on the pages runs, in order, in one folder per page.

`Desk` makes the work small: fewer measurements and steps, this machine in place of Dataflow, a
folder in place of a bucket, stand-ins for programs that install, open or cost something.
"""

import os
import re
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.engine_servers import free_port, running_server
from tests.support import documents
from tests.support.clean_environment import tensorflow as tensorflow
from tests.support.desk import Desk, make_presumed
from tests.support.documents import Block
from tests.support.engines import JAVA, flink_is_built
from tests.support.repository import ROOT

LANGUAGES = ("sh", "python", "sql")
# Blocks with one of these words run elsewhere, or not at all.
ELSEWHERE = {
    "torch": "tests/training/with_torch, in an environment with PyTorch",
    "jax_training": "test_examples.py",
    "sessions.py": "test_examples.py",
    "go run": "test_go_reader.py",
    "flink_cluster.sh": "test_flink.py",
    "templates/tpu": "tests of the scripts for TPUs",
    "EXPORT DATA": "tests of the source atlas_bigquery, and BigQuery only",
    "pip/bin": "installs gigabytes",
    "bin/pip": "installs gigabytes",
    "curl": "loads what RIPE offers",
    "hardware=gpu": "needs a GPU",
}


@dataclass(frozen=True)
class Python:
    """What stands around the Python of a page: names that it presumes, and checks."""

    before: str = ""
    after: str = ""


PYTHON = {
    "README.md": Python("", "assert batch['inputs'].shape == (256, 1024)"),
    "docs/format.md": Python(
        "from array_record.python.array_record_module import ArrayRecordReader\n"
        "reader = ArrayRecordReader('rows/train/train_shard_00000-of-00001.arrayrecord')\n"
        "record = reader.read([0])[0]",
        "assert row['n_measurements'] > 0",
    ),
    "docs/training_data.md": Python(
        "", "assert measurements and next(iter(dataset))['inputs'].shape == (256, 1024)"
    ),
}
FIRST = "README.md"
SLOW = (FIRST, "docs/training.md", "docs/learning.md", "docs/format.md", "docs/engines.md")


def blocks(page: str) -> list[Block]:
    """Returns the blocks of a page that run here."""
    found = [block for block in documents.blocks(page) if block.language in LANGUAGES]
    return [block for block in found if not any(word in block.text for word in ELSEWHERE)]


def without_repeated_training(page: str, text: str) -> str:
    """Leaves out the runs of training that README.md shows in the same words: they run once."""
    training = re.compile(r"^probeline (?:train|evaluate) (?:.*\\\n)*.*\n", re.MULTILINE)
    first = {run for block in blocks(FIRST) for run in training.findall(block.text)}
    return training.sub(lambda run: "" if page != FIRST and run[0] in first else run[0], text)


PAGES = [
    pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
    for page in documents.pages()
    if blocks(page)
]


@pytest.fixture(scope="module")
def presumed(folder: Path) -> Path:
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
    port = str(free_port())
    with ExitStack() as servers:
        for block in blocks(page):
            text = without_repeated_training(page, block.text).replace("8099", port)
            if block.language == "python":
                needed = "tensorflow" if "tensorflow" in text else "python"
                scripts.setdefault(needed, []).append(text)
            elif "flink_server.sh" in text:
                command = ["bash", "-c", text.replace(port, f"{port} {desk.folder}/flink")]
                log, variables = desk.folder / "flink.log", {**os.environ, **JAVA}
                server = running_server("Flink", command, int(port), log, variables)
                servers.enter_context(server)
            else:
                desk.run(replace(block, text=text))
    around = PYTHON.get(page, Python())
    for needed, texts in scripts.items():
        python = needed if needed == "python" else request.getfixturevalue(needed)
        if needed == "python":
            texts = [around.before, *texts, around.after]
        desk.python(*texts, python=python)
