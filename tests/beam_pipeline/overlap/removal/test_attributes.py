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
    write_corpus,
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


def write_dolma_corpus(folder: Path) -> list[dict[str, Any]]:
    """Writes a corpus as Dolma wants it, and returns its documents."""
    documents = [
        {"id": "one", "text": "nothing to see", "source": "x"},
        {"id": 2**70, "text": CONTAMINATED["text"], "source": "x"},
        {"id": 1.5, "text": f"\U0001f600 {SHARED} {AROUND} {SHARED}", "source": "x"},
    ]
    write_corpus(folder)
    lines = "".join(json.dumps(document) + "\n" for document in documents).encode()
    (folder / "documents/deep").mkdir(parents=True)
    for name in ("a.jsonl", "deep/b.jsonl.gz", "c.json.zst"):
        write_compressed(folder / "documents" / name, lines)
    return documents


@pytest.mark.slow
def test_dolmas_mixer_reads_them(tmp_path: Path, dolma: Path) -> None:
    documents = write_dolma_corpus(tmp_path)
    find_in(tmp_path, "documents", "out")
    assert attributes(tmp_path, ".", "--format=dolma") == 0
    most = "$.attributes[?(@.overlap__coverage && @.overlap__coverage[0][2] > 0.2)]"
    cut = {"span": "$.attributes.overlap__spans", "min_score": 0.5, "replacement": "[gone]"}
    stream = {
        "name": "clean",
        "documents": [f"{tmp_path}/documents/{name}" for name in ("*.jsonl", "*/*.gz", "*.zst")],
        "attributes": ["overlap"],
        "output": {"path": str(tmp_path / "mixed"), "max_size_in_bytes": 10**9},
        "filter": {"exclude": [most]},
        "span_replacement": [cut],
    }
    (tmp_path / "mix.json").write_text(json.dumps({"streams": [stream]}))
    subprocess.run([dolma, "-c", str(tmp_path / "mix.json"), "mix"], check=True)
    written = list(map(json.loads, plain(tmp_path / "attributes/overlap/a.jsonl").splitlines()))
    assert [line["id"] for line in written] == [document["id"] for document in documents]
    whole = [[0, len(documents[1]["text"]), 1.0]]
    assert written[1]["attributes"]["overlap__set__quiz"] == whole
    assert list(written[0]["attributes"]) == ["overlap__spans"]
    lines = gzip.decompress((tmp_path / "mixed/clean-0000.json.gz").read_bytes()).splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts == [documents[0]["text"], f"{AROUND}. [gone]! {AROUND}\u00e9"] * 3
