"""Batches as tensors: a `torch.utils.data.IterableDataset` over a `BatchDataset`."""
# Checked where PyTorch is not installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from beam_pipeline.errors import UsageError
from training.dataset import BatchDataset, BatchIterator


class TorchDataset(IterableDataset):
    """A rank's batches; `build_torch_dataset` makes one and says what it does.

    Its state is that of the iterator that was begun last, as a `BatchIterator` has it.
    """

    def __init__(self, dataset: BatchDataset):
        super().__init__()
        self._dataset = dataset
        self._batches = iter(dataset)
        self._is_begun = False

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if (worker := get_worker_info()) is not None:
            raise UsageError(
                f"the DataLoader has num_workers={worker.num_workers}, each of which would give "
                "the whole data: use 0 there, and DataConfig(num_workers=…), whose processes share "
                "every batch"
            )
        if self._is_begun:
            self._batches = iter(self._dataset)
        self._is_begun = True
        return _tensors(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last batch as JSON values, see `BatchIterator.get_state`."""
        return self._batches.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator continue where a state was taken.

        Raises:
          ProbelineError: the state belongs to other data, another configuration or other ranks.
        """
        batches = iter(self._dataset)
        batches.set_state(state_dict)
        self._batches, self._is_begun = batches, False

    def __reduce__(self) -> tuple[Any, ...]:
        return TorchDataset, (self._dataset,)  # to a worker that is spawned, which then refuses

    def __repr__(self) -> str:
        return f"TorchDataset({self._dataset!r})"


def _tensors(batches: BatchIterator) -> Iterator[dict[str, torch.Tensor]]:
    for batch in batches:
        yield {name: torch.from_numpy(values) for name, values in batch.items()}
    batches.close()
