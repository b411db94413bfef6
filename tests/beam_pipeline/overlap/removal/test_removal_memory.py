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


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Half of each corpus is JSON lines, half is Parquet in small row groups."""
    peaks = {}
    for mb in (SMALL_MB, LARGE_MB):
        folder = tmp_path / f"{mb}mb"
        folder.mkdir()
        write_documents(folder, mb)
        find_in(folder, "in", "out")
        command = [sys.executable, "-m", "beam_pipeline.overlap.remove", "--remove=split"]
        flags = [f"--result_path={folder}/out", f"--output_path={folder}/clean"]
        peaks[mb] = peak_memory([*command, *flags, "--direct_num_workers=1"])
    assert peaks[LARGE_MB] < peaks[SMALL_MB] + MAX_GROWTH_MIB
