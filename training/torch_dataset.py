"""Batches for PyTorch: `build_torch_dataset(DataConfig(files="rows/train", batch_size=256))`."""
# Checked where PyTorch is not installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import dataclasses
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import require_packages
from beam_pipeline.errors import UsageError
from training.batches.config import DataConfig

if TYPE_CHECKING:
    from training.torch.dataset import TorchDataset


def build_torch_dataset(
    config: DataConfig, rank: int | None = None, world_size: int | None = None
) -> "TorchDataset":
    """Builds a `torch.utils.data.IterableDataset` of a rank's batches.

    Rank r of w gives what `build_dataset` gives host r of w, as tensors that share the memory of
    its arrays. So the global batch is the same for any number of ranks. The tensors are batches
    already: `DataLoader(dataset, batch_size=None)`. That loader's `num_workers` must be 0;
    `num_workers` and `num_threads` of the config prepare batches ahead.

    The dataset has `state_dict` and `load_state_dict`, which resume exactly, by themselves or
    through torchdata's `StatefulDataLoader`. The state is that of `build_dataset`'s iterators: each
    continues with the other's, and `reshard_states` divides those of all ranks among others. Every
    `iter` begins the data anew, except the first one after `load_state_dict`.

    Args:
      config: what is read, and how examples are drawn; batch_size is that of all ranks.
      rank: this process among those that share the batch. By default that of torch.distributed if
        it is initialised, otherwise host_index of the config.
      world_size: the number of ranks, which divides batch_size; given with `rank`.

    Raises:
      ProbelineError: a dataset does not exist, or differs from its manifest.
      UsageError: PyTorch is missing, the ranks are not possible or not those of the config, or the
        configuration does not suit the data.

    Example:

        dataset = build_torch_dataset(DataConfig(files="rows/train", batch_size=4, crop_size=256))
        batch = next(iter(dataset))
        batch["inputs"].shape  # (4, 256)
    """
    require_packages("build_torch_dataset", "torch")
    from training.dataset import build_dataset
    from training.torch.dataset import TorchDataset

    return TorchDataset(build_dataset(_as_host(config, rank, world_size)))


def _as_host(config: DataConfig, rank: int | None, world_size: int | None) -> DataConfig:
    """Returns the config of the host that a rank is."""
    import torch.distributed as ranks

    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size {world_size}: give both, or neither")
    if rank is None or world_size is None:
        if not (ranks.is_available() and ranks.is_initialized()):
            return config
        rank, world_size = ranks.get_rank(), ranks.get_world_size()
    given = config.host_index, config.host_count
    if given not in ((0, 1), (rank, world_size)):
        raise UsageError(
            f"the config is of host {given[0]} of {given[1]}, but this is rank {rank} of "
            f"{world_size}: leave host_index and host_count out"
        )
    return dataclasses.replace(config, host_index=rank, host_count=world_size)
