"""The example and the code of the pages that need PyTorch."""

from pathlib import Path

import pytest

from beam_pipeline.dataset.layout import Encoding
from tests.support import documents
from tests.support.loader_helpers import open_iterator
from tests.support.training_examples import check_training_example


def test_the_example_in_pytorch(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    check_training_example("torch_training.py", mixed["compact"], tmp_path)


def test_the_code_of_the_page(
    mixed: dict[Encoding, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").symlink_to(mixed["compact"])
    (block,) = [b for b in documents.blocks("docs/training_data.md") if "torch" in b.text]
    names = {}
    exec(block.text.replace("batch_size=256", "batch_size=8"), names)
    assert {tuple(values.shape) for values in names["batch"].values()} == {(8, 1024)}
    iterator = open_iterator(mixed["compact"], crop_size=1024)
    next(iterator)
    assert names["state"] == iterator.get_state()
