"""The distinct tokens of evaluation rows, however many come at a time."""

from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.overlap.ngrams.token_batches import token_batches
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import contaminated

DEFAULT = TOKENIZERS["default"]
TEXTS = [
    text_buffers([f"w{number % 13} w{number} again" for number in range(start, start + 20)])
    for start in range(0, 200, 20)
]


@pytest.mark.parametrize("min_waiting", [1, 30, 1 << 20])
def test_each_token_is_there_once_in_order(tmp_path: Path, monkeypatch, min_waiting: int) -> None:
    monkeypatch.setattr(contaminated, "_MIN_WAITING", min_waiting)
    path = str(tmp_path / "tokens.parquet")
    contaminated.write_eval_tokens(path, str(tmp_path), TEXTS, DEFAULT)
    hashes = [batch.hashes for text in TEXTS for batch in token_batches(*text, DEFAULT)]
    wanted = np.unique(np.concatenate(hashes))
    assert len(wanted) == 201
    assert contaminated.read_eval_tokens(path).tolist() == wanted.tolist()


def test_no_texts_have_no_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.parquet")
    contaminated.write_eval_tokens(path, str(tmp_path), [], DEFAULT)
    assert contaminated.read_eval_tokens(path).tolist() == []
