"""Outputs have the bytes that earlier versions wrote, for a fixed corpus and several options."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_runs import run

CASES = {
    "full": ["--ngram_length=1,3", "--max_document_frequency=3", "--rules=palm,llama2"],
    "compact": ["--ngram_length=2", "--details=compact", "--max_details=9", "--num_shards=2"],
}
GOLDEN = {
    "full": "aacc609f22715d7042ec61802a2c8a3b",
    "compact": "2ce14183d9073137fa5e3b6a74520d24",
}


def digest_of(folder: Path) -> str:
    """Returns a digest of the files, of tables their values: Parquet's bytes vary with pyarrow."""
    digest = hashlib.blake2b(digest_size=16)
    for pattern in ("stats/*.*", "clean/*.*", "rules/*/*.*", "tmp/*.*"):
        for path in sorted(folder.glob(pattern)):
            if path.name in ("overlap_train_files.parquet", "report.json"):  # times of files
                continue
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data = json.dumps(pq.read_table(path).to_pylist()).encode()
            digest.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_corpus(Path(), 11, num_files=3), "out", *CASES[name])
    assert digest_of(Path("out")) == GOLDEN[name]
