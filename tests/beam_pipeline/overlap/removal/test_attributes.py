"""Attributes: a row for every document, in the order of the corpus, as filters read them.

Dolma is in an environment of its own, .engines/dolma, which is made once.
"""

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.attributes import main as write_attributes
from tests.support.clean_environment import dolma as dolma
from tests.support.removal_corpus import (
    AROUND,
    CONTAMINATED,
    SHARED,
    find_in,
    plain,
    texts_of,
    write_compressed,
    write_evaluation,
)


def attributes(folder: Path, output: str, *flags: str) -> int:
    paths = [f"--result_path={folder}/out", f"--output_path={folder}/{output}"]
    return write_attributes([*paths, "--direct_num_workers=1", *flags])


def test_parquet_has_a_row_for_every_record(found: Path) -> None:
    assert attributes(found, "attributed", "--overwrite") == 0
    folder = found / "attributed/attributes/overlap"
    ids: dict[str, list[str | None]] = {
        **{name: ["a", None, "7", "c"] for name in ("a.jsonl", "b.jsonl.gz", "deep/c.json.zst")},
        "d.jsonl": ["a"],
        "e.parquet": ["p0", "p1", "p2", "p3"],
        "f.json": [None] * 4,
    }
    for name, expected in ids.items():
        path = folder / (name if name == "e.parquet" else f"{name}.parquet")
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        texts = texts_of(found / "in" / name)
        assert [row["id"] for row in rows] == expected and len(texts) == len(rows)
        assert [row["row"] for row in rows] == list(range(len(rows)))
        assert {row["path"] for row in rows} == {str(found / "in" / name)}
        for row, text in zip(rows, texts, strict=True):
            is_hit = text is not None and SHARED.lower() in text.lower()
            assert row["contaminated"] == is_hit
            assert row["eval_datasets"] == (["quiz"] if is_hit else [])
            covered = [text[span["start"] : span["end"]].lower() for span in row["spans"] if text]
            assert covered == ([SHARED] if is_hit else [])
            assert row["coverage"] == (len(SHARED) / len(text) if text and is_hit else 0)
    manifest = json.loads((folder / "_manifest.json").read_text())
    assert manifest["counts"] == {
        "records_in": 21,
        "contaminated": 5,
        "spans": 5,
        "covered_chars": 5 * len(SHARED),
    }
    assert manifest["by_evaluation_set"] == {"quiz": {"contaminated": 5}}
    assert not (folder / ".done").exists()


DOLMA_FILES = ("a.jsonl", "deep/b.jsonl.gz", "c.json.zst")
DOLMA_DOCUMENTS: list[dict[str, Any]] = [
    {"id": "one", "text": "nothing to see", "source": "x"},
    {"id": 2**70, "text": CONTAMINATED["text"], "source": "x"},
    {"id": 1.5, "text": f"\U0001f600 {SHARED} {AROUND} {SHARED}", "source": "x"},
]


@pytest.fixture(scope="module")
def attributed(folder: Path) -> Path:
    """A corpus as Dolma wants it, with attributes."""
    lines = "".join(json.dumps(document) + "\n" for document in DOLMA_DOCUMENTS).encode()
    (folder / "documents/deep").mkdir(parents=True)
    for name in DOLMA_FILES:
        write_compressed(folder / "documents" / name, lines)
    write_evaluation(folder)
    find_in(folder, "documents", "out")
    assert attributes(folder, ".", "--format=dolma") == 0
    return folder


def test_lines_of_dolma_are_those_of_the_documents(
    found: Path, attributed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in DOLMA_FILES:
        lines = plain(attributed / "attributes/overlap" / name).splitlines()
        for line, document in zip(map(json.loads, lines), DOLMA_DOCUMENTS, strict=True):
            text, count = document["text"], document["text"].lower().count(SHARED)
            values = line["attributes"]
            spans = values.pop("overlap__spans")
            assert line["id"] == document["id"]
            assert [text[start:end].lower() for start, end, _ in spans] == [SHARED] * count
            assert [score for *_, score in spans] == [1.0] * count
            scores = {"coverage": count * len(SHARED) / len(text), "set__quiz": 1.0}
            whole = {f"overlap__{name}": [[0, len(text), each]] for name, each in scores.items()}
            assert values == (whole if count else {})
    capsys.readouterr()
    assert attributes(found, "dolma", "--format=dolma") == 2
    assert "e.parquet: Dolma reads JSON lines" in capsys.readouterr().err


@pytest.mark.slow
def test_dolmas_mixer_reads_them(attributed: Path, tmp_path: Path, dolma: Path) -> None:
    most = "$.attributes[?(@.overlap__coverage && @.overlap__coverage[0][2] > 0.2)]"
    cut = {"span": "$.attributes.overlap__spans", "min_score": 0.5, "replacement": "[gone]"}
    stream = {
        "name": "clean",
        "documents": [f"{attributed}/documents/{name}" for name in ("*.jsonl", "*/*.gz", "*.zst")],
        "attributes": ["overlap"],
        "output": {"path": str(tmp_path / "mixed"), "max_size_in_bytes": 10**9},
        "filter": {"exclude": [most]},
        "span_replacement": [cut],
    }
    (tmp_path / "mix.json").write_text(json.dumps({"streams": [stream]}))
    subprocess.run([dolma, "-c", str(tmp_path / "mix.json"), "mix"], check=True)
    lines = gzip.decompress((tmp_path / "mixed/clean-0000.json.gz").read_bytes()).splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts == [DOLMA_DOCUMENTS[0]["text"], f"{AROUND}. [gone]! {AROUND}\u00e9"] * 3
