"""A search with dropped n-grams, removals and attributes: the same bytes on every engine.

What was removed is not found again: a second search of the clean corpora finds nothing.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.__main__ import main as find
from beam_pipeline.overlap.attributes import main as write_attributes
from beam_pipeline.overlap.remove import main as remove
from beam_pipeline.overlap.results import layout
from tests.support.engines import Flink, Gcs, stored_objects
from tests.support.overlap_jobs import write_lines
from tests.support.removal_corpus import SHARED, write_compressed
from tests.support.repository import files_below

NOTICE = "all who read this page agree to the terms of use that stand below it"
LENGTH = 8
# The margin and the least piece of a split are the default: what is around the passage is longer.
TEXTS = [
    "nothing to see",
    f"{'before ' * 80}{SHARED}{' after' * 80}",
    f"{NOTICE} 1",
    "the last one",
]
NAMES = ("a.jsonl", "b.jsonl.gz", "deep/c.json.zst")
IN_MEMORY = ("--direct_num_workers=1",)


def write_corpus(folder: Path) -> None:
    """Writes training files, evaluation rows, and the n-grams of one of these that are dropped."""
    for name in NAMES:
        lines = [json.dumps({"id": f"{name}-{at}", "text": text}) for at, text in enumerate(TEXTS)]
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_compressed(folder / "in" / name, "\n".join(lines).encode())
    quiz = [{"id": "q", "text": SHARED}, {"id": "r", "text": f"{NOTICE} 2"}]
    write_lines(folder / "quiz.jsonl", *quiz)
    words = NOTICE.split()
    ngrams = [" ".join(words[at : at + LENGTH]) for at in range(len(words) - LENGTH + 1)]
    write_lines(folder / "drop.jsonl", *({"ngram": ngram} for ngram in ngrams))


def run_all(folder: str, output: str, *flags: str) -> None:
    """Runs the search, two removals and both forms of attributes; searches again in memory."""
    sets = (
        f"--decontaminate_source=quiz={folder}/quiz.jsonl",
        f"--drop_ngrams={folder}/drop.jsonl",
    )
    search = (*sets, f"--ngram_length={LENGTH}", *flags)
    split = ("--remove=split", f"--remove_output={output}/split")
    result = (f"--input_path={folder}/in", f"--output_path={output}/result")
    assert find([*search, *result, *split]) == 0
    result = (f"--result_path={output}/result", *flags)
    assert remove([*result, "--remove=mask", f"--output_path={output}/mask"]) == 0
    for form in ("parquet", "dolma"):
        named = (f"--format={form}", f"--attribute_name={form}")
        assert write_attributes([*result, *named, f"--output_path={output}"]) == 0
    clean = (f"--input_path={output}/{name}/documents" for name in ("split", "mask"))
    again = (*sets, f"--ngram_length={LENGTH}", *IN_MEMORY, f"--output_path={output}/again")
    assert find([*again, *clean]) == 0


def written_by(output: Path) -> dict[str, bytes]:
    """Returns the files of `run_all` that do not tell when it, or a clean file, was made."""
    return {
        name: data.replace(str(output).encode(), b"OUTPUT")
        for name, data in files_below(output).items()
        if not name.startswith(("again/", "result/progress/progress-0"))
    }


def num_contaminated(result: Path) -> int:
    return len(pq.read_table(result / layout.DOCUMENTS))


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    """A corpus, and what the runner in memory makes of it in `out`."""
    write_corpus(folder)
    run_all(str(folder), f"{folder}/out", *IN_MEMORY)
    return folder


def check(corpus: Path, output: Path, *flags: str) -> None:
    run_all(str(corpus), str(output), *flags)
    assert written_by(output) == written_by(corpus / "out")
    assert num_contaminated(output / "again") == 0


@pytest.mark.slow
def test_in_memory(corpus: Path) -> None:
    assert num_contaminated(corpus / "out/result") == len(NAMES)  # not the documents with NOTICE
    assert num_contaminated(corpus / "out/again") == 0


def test_prism(corpus: Path, tmp_path: Path, prism: str) -> None:
    flags = ["--runner=PrismRunner", f"--prism_location={prism}", "--environment_type=LOOPBACK"]
    check(corpus, tmp_path, *flags)


def test_flink(corpus: Path, tmp_path: Path, flink: Flink) -> None:
    check(corpus, tmp_path, *flink.flags())


@pytest.mark.slow
def test_objects(corpus: Path, tmp_path: Path, gcs: Gcs) -> None:
    """What tells a path differs, and what is made of it: results, manifests and Parquet."""
    bucket = gcs.make_bucket()
    for name in ("in", "quiz.jsonl", "drop.jsonl"):
        gcs.upload(corpus / name, f"{bucket}/{name}")
    run_all(bucket, f"{bucket}/out", *IN_MEMORY)
    expected, written = files_below(corpus / "out"), stored_objects(f"{bucket}/out")
    assert set(written) == set(expected)
    for name, data in expected.items():
        if name.endswith(".parquet") and name.startswith("attributes/"):
            there, here = (pq.read_table(pa.BufferReader(each)) for each in (written[name], data))
            assert there.drop("path") == here.drop("path")
        elif "/documents/" in name or name.endswith(NAMES):
            assert written[name] == data, name
    (tmp_path / "documents").write_bytes(written[f"again/{layout.DOCUMENTS}"])
    assert len(pq.read_table(tmp_path / "documents")) == 0
