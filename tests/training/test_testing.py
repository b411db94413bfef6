"""`assert_resumes_exactly`: it passes what resumes exactly, and nothing else."""

from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from tests.support.loader_helpers import config_of
from training import assert_resumes_exactly, build_dataset


@pytest.mark.parametrize("num_epochs", [None, 1])
def test_batches_and_what_is_made_of_them_resume(
    mixed: dict[Encoding, Path], num_epochs: int | None
) -> None:
    dataset = build_dataset(config_of(mixed["compact"], num_epochs=num_epochs, num_threads=1))
    assert_resumes_exactly(dataset, 30 if num_epochs else 5)
    assert_resumes_exactly(dataset.map(lambda batch: batch["inputs"].sum()), 5)


class Counting(grain.IterDataset[dict[str, Any]]):
    """Batches 0, 1, 2; `fault` is what its iterators do wrong."""

    def __init__(self, fault: str, num: int = 3):
        super().__init__()
        self.fault, self.num = fault, num

    def __iter__(self) -> "CountingIterator":
        return CountingIterator(self)


class CountingIterator(grain.DatasetIterator[dict[str, Any]]):
    def __init__(self, dataset: Counting):
        super().__init__()
        self.dataset, self.at, self.is_used = dataset, 0, False

    def __next__(self) -> dict[str, Any]:
        if self.at == self.dataset.num:
            raise StopIteration
        self.at, self.is_used = self.at + 1, True
        return {"inputs": np.full(2, self.at)}

    def get_state(self) -> dict[str, Any]:
        return {"at": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        fault = self.dataset.fault
        if fault == "nothing" or (fault == "one in use goes on" and self.is_used):
            return
        self.at = state["at"] + (fault == "one too far") * (0 < state["at"] < 3)


def test_faults_are_found() -> None:
    assert_resumes_exactly(Counting(""))
    for fault in ("nothing", "one in use goes on", "one too far"):
        with pytest.raises(AssertionError, match=r"batch \d, resumed from the state before"):
            assert_resumes_exactly(Counting(fault))
    with pytest.raises(AssertionError, match="no batch"):
        assert_resumes_exactly(Counting("", num=0))
