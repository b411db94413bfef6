"""Inputs, flags and output files for tests that run the overlap job."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

SHARED = "every good boy does fine when all of the notes are played in the right order"


def write_lines(path: Path, *records: Any) -> Path:
    """Writes a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file of JSON lines."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def write_corpus(folder: Path) -> Path:
    """Writes a training file and two evaluation sets, of which one has an overlap."""
    texts = [f"document {number} has nothing to say of anything" for number in range(5)]
    documents = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    shared = {"id": "d5", "text": f"We know that {SHARED}, and more."}
    write_lines(folder / "in/train.jsonl", *documents, shared, {"id": "d6"}, 7)
    write_lines(
        folder / "eval/music-1a2b3c/test.jsonl",
        {"id": "m0", "text": SHARED},
        {"id": "m1", "text": "a text that is in no document at all, whoever looks for it"},
        {"id": "m2", "text": "?!"},
    )
    write_lines(folder / "eval/other.jsonl", {"id": "o0", "text": "nobody has written this yet"})
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with the corpus, for tests that run the job."""
    return write_corpus(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus and what a run with `flags` writes; tests do not change it."""
    from beam_pipeline.overlap.__main__ import main

    folder = write_corpus(tmp_path_factory.mktemp("finished"))
    assert main(flags(folder)) == 0
    return folder


def flags(corpus: Path | str, *more: str) -> list[str]:
    return [
        f"--input_path={corpus}/in",
        f"--decontaminate_source={corpus}/eval/music-1a2b3c",
        f"--decontaminate_source=[x]={corpus}/eval/other.jsonl",
        f"--output_path={corpus}/out",
        "--ngram_length=5,12",
        *more,
    ]
