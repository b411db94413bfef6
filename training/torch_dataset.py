"""Batches for PyTorch: `build_torch_dataset(DataConfig(files="rows/train", batch_size=256))`."""
# Checked where PyTorch is not installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.command import require_packages
from beam_pipeline.errors import UsageError
from training.batches.config import DataConfig
from training.dataset import BatchDataset, build_dataset

if TYPE_CHECKING:
    import torch
    from torch.utils.data import IterableDataset
else:
    try:
        from torch.utils.data import IterableDataset
    except ImportError:  # reported by build_torch_dataset
        IterableDataset = object


def build_torch_dataset(
    config: DataConfig, rank: int | None = None, world_size: int | None = None
) -> "TorchDataset":
    """Builds a `torch.utils.data.IterableDataset` of the batches of one rank.

    Rank r of w gets the batches of `build_dataset` for host r of w, as tensors that share memory
    with its arrays, so the global batch is the same for any number of ranks. The tensors are
    complete batches: use `DataLoader(dataset, batch_size=None)`. The loader's `num_workers` must be
    0; `num_workers` and `num_threads` of the config prepare batches in advance.

    `state_dict` and `load_state_dict` resume exactly, directly or through torchdata's
    `StatefulDataLoader`. States are interchangeable with those of `build_dataset`'s iterators, and
    `reshard_states` divides those of all ranks among a different number of ranks. Every `iter`
    restarts the data, except the first one after `load_state_dict`.

    Args:
      config: the data, and how examples are drawn; batch_size is that of all ranks.
      rank: the rank of this process. Defaults to that of torch.distributed if it is initialised,
        else to host_index of the config.
      world_size: the number of ranks, a divisor of batch_size; required with `rank`.

    Raises:
      ProbelineError: a dataset does not exist, or differs from its manifest.
      UsageError: PyTorch is missing, the ranks are invalid or differ from the config, or the
        configuration does not suit the data.

    Example:

        dataset = build_torch_dataset(DataConfig(files="rows/train", batch_size=4, crop_size=256))
        batch = next(iter(dataset))
        batch["inputs"].shape  # (4, 256)
    """
    require_packages("build_torch_dataset", "torch")
    return TorchDataset(build_dataset(_as_host(config, rank, world_size)))


def _as_host(config: DataConfig, rank: int | None, world_size: int | None) -> DataConfig:
    """Returns the config of the host that corresponds to a rank."""
    import torch.distributed as ranks

    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size is {world_size}: give both or neither")
    if rank is None or world_size is None:
        if not (ranks.is_available() and ranks.is_initialized()):
            return config
        rank, world_size = ranks.get_rank(), ranks.get_world_size()
    given = config.host_index, config.host_count
    if given not in ((0, 1), (rank, world_size)):
        raise UsageError(
            f"the config is for host {given[0]} of {given[1]}, but this is rank {rank} of "
            f"{world_size}: omit host_index and host_count"
        )
    return dataclasses.replace(config, host_index=rank, host_count=world_size)


class TorchDataset(IterableDataset):
    """The batches of one rank, see `build_torch_dataset`; its state is its latest iterator's."""

    def __init__(self, dataset: BatchDataset):
        super().__init__()
        self._dataset = dataset
        self._batches = iter(dataset)
        self._is_begun = False

    def __iter__(self) -> "Iterator[dict[str, torch.Tensor]]":
        from torch.utils.data import get_worker_info

        if (worker := get_worker_info()) is not None:
            raise UsageError(
                f"the DataLoader has num_workers={worker.num_workers}, and each worker would "
                "produce all data: use num_workers=0 there and DataConfig(num_workers=…), whose "
                "processes share every batch"
            )
        if self._is_begun:
            self._batches = iter(self._dataset)
        self._is_begun = True
        return self._tensors()

    def _tensors(self) -> "Iterator[dict[str, torch.Tensor]]":
        import torch

        batches = self._batches
        for batch in batches:
            yield {name: torch.from_numpy(values) for name, values in batch.items()}
        batches.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last batch as JSON values."""
        return self._batches.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator continue from a state.

        Raises:
          ProbelineError: the state belongs to other data, another configuration or other ranks.
        """
        batches = iter(self._dataset)
        batches.set_state(state_dict)
        self._batches, self._is_begun = batches, False

    def __reduce__(self) -> tuple[Any, ...]:
        return TorchDataset, (self._dataset,)  # to a spawned worker, which raises UsageError

    def __repr__(self) -> str:
        return f"TorchDataset({self._dataset!r})"
