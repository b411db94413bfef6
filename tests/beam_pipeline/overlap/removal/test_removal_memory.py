"""The memory of a removal does not grow with the corpus."""

import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.peak_memory import peak_memory
from tests.support.removal_corpus import SHARED, find_in, write_evaluation

pytestmark = pytest.mark.slow
SMALL_MB, LARGE_MB = 20, 200
MAX_GROWTH_MIB = 50  # a file of the large corpus has 100 MB, one of the small corpus 10


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Corpora by their size: half of each is JSON lines, half is Parquet in small row groups."""
    found = {}
    for mb in (SMALL_MB, LARGE_MB):
        found[mb] = tmp_path_factory.mktemp(f"{mb}mb")
        write_documents(found[mb], mb)
        find_in(found[mb], "in", "out")
    return found


def write_documents(folder: Path, mb: int) -> None:
    """Writes documents of a kilobyte, every second of which has the passage."""
    rng = random.Random(0)
    words = [f"w{rng.randrange(10**6):x}" for _ in range(10_000)]
    texts = []
    for number in range(mb * 500):
        around = [" ".join(rng.choices(words, k=75)) for _ in range(2)]
        texts.append(f" {SHARED} ".join(around) if number % 2 else " ".join(around))
    ids = list(map(str, range(len(texts))))
    write_evaluation(folder)
    (folder / "in").mkdir()
    with (folder / "in/a.jsonl").open("w") as file:
        for pair in zip(ids, texts, strict=True):
            file.write(json.dumps(dict(zip(("id", "text"), pair, strict=True))) + "\n")
    table = pa.table({"id": ids, "text": texts})
    pq.write_table(table, folder / "in/b.parquet", row_group_size=1000)


@pytest.mark.parametrize("mode", ["document", "split"])
def test_memory_does_not_grow_with_the_corpus(corpora: dict[int, Path], mode: str) -> None:
    peaks = {mb: peak_of_removal(folder, mode) for mb, folder in corpora.items()}
    assert peaks[LARGE_MB] < peaks[SMALL_MB] + MAX_GROWTH_MIB


def peak_of_removal(folder: Path, mode: str) -> float:
    command = [sys.executable, "-m", "beam_pipeline.overlap.remove", f"--result_path={folder}/out"]
    command += [f"--output_path={folder}/{mode}", f"--remove={mode}", "--direct_num_workers=1"]
    return peak_memory(command)
