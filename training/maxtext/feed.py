"""A host's batches for MaxText, their state in checkpoints, and throughput figures.

The figures are counted only here, for MaxText's metrics of each step and for the summary of the run
by `training.train`.
"""

import asyncio
import dataclasses
import json
import operator
import time
from typing import Any

import grain
import jax
import numpy as np
from etils import epath

from training.batches.column_cache import CacheUse, cache_use
from training.batches.states import reshard_states
from training.dataset import BatchDataset, BatchIterator
from training.statistics.feed_report import FeedReport

_SEGMENTATION = "targets_segmentation"  # 0 is padding


@dataclasses.dataclass(frozen=True)
class Fed:
    """The batches that MaxText consumed, from the second one on."""

    seconds: float = 0.0  # from batch to batch
    waited_s: float = 0.0  # the part of them that MaxText waited for a batch
    num_tokens: int = 0  # without padding
    tflops: float = 0.0  # 10^12 operations per device to train on them

    def __add__(self, other: "Fed") -> "Fed":
        return Fed(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def tflops_per_s(self) -> float:
        return self.tflops / self.seconds

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.seconds


@dataclasses.dataclass
class Feed:
    """A host's batches for MaxText, with figures of their use."""

    dataset: BatchDataset
    first_step: int  # the training step of the first batch
    report: FeedReport | None  # checks and describes the first batches
    step_tflops: float = 0.0  # 10^12 operations per step and device
    failure: Exception | None = None  # ended the batches; MaxText only logs it
    has_ended: bool = False
    last: Fed = dataclasses.field(default_factory=Fed)  # the last batch
    total: Fed = dataclasses.field(default_factory=Fed)  # all batches
    cache: CacheUse | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.cache = cache_use(self.dataset.config, self.dataset.plans)

    def __iter__(self) -> "FeedIterator":
        return FeedIterator(self)

    def total_of_hosts(self) -> Fed:
        """Returns the total of all hosts, assuming the same number of tokens on each."""
        num_tokens = self.total.num_tokens * self.dataset.config.host_count
        return dataclasses.replace(self.total, num_tokens=num_tokens)

    def figures(self) -> dict[str, float]:
        """Returns this host's figures of the last batch as MaxText metrics; none for the first."""
        if not self.last.seconds:
            return {}
        figures = {
            "feed/real_tokens_per_sec": self.last.tokens_per_s,
            "feed/waiting_share": self.last.waited_share,
        }
        if self.cache is not None:
            figures["feed/cache_gigabytes"] = self.cache.num_bytes() / 1e9
            figures["feed/cache_hit_share"] = self.cache.hit_share
        return figures

    def close_report(self) -> None:
        """Writes the report of a run with fewer steps than it covers."""
        if self.report is not None:
            self.report.close()


class FeedIterator(grain.DatasetIterator[dict[str, np.ndarray]]):
    """The iterator in MaxText's checkpoints, with one state file per host."""

    def __init__(self, feed: Feed):
        self._batches: BatchIterator = iter(feed.dataset)
        super().__init__(self._batches)
        self.feed = feed
        self.begins_stage = False  # the checkpoint to restore is of the previous stage
        self._given_s: float | None = None

    def __next__(self) -> dict[str, np.ndarray]:
        feed, asked_s = self.feed, time.perf_counter()
        try:
            batch = next(self._batches)
            given_s = time.perf_counter()
            if feed.report is not None:
                feed.report.add(batch)
        except StopIteration:
            feed.has_ended = True
            raise
        except Exception as error:
            feed.failure = error
            raise
        if self._given_s is not None:
            num_tokens = int(np.count_nonzero(batch[_SEGMENTATION]))
            seconds, waited_s = given_s - self._given_s, given_s - asked_s
            feed.last = Fed(seconds, waited_s, num_tokens, feed.step_tflops)
            feed.total += feed.last
        self._given_s = given_s
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches.set_state(state)

    async def load(self, directory: epath.Path) -> Any:
        """Restores the state from a checkpoint of any number of hosts; called by Orbax."""
        return asyncio.to_thread(self._load, epath.Path(directory))

    def _load(self, directory: epath.Path) -> None:
        if self.begins_stage:
            return
        config = self.feed.dataset.config
        files = sorted(directory.glob("process_*-of-*.json"))
        if len(files) == jax.process_count() == config.host_count:
            own = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
            state = json.loads((directory / own).read_text())
        else:
            states = [json.loads(file.read_text()) for file in files]
            state = reshard_states(states, config.host_count)[config.host_index]
        self.set_state(state)

    def close(self) -> None:
        super().close()
        self._batches.close()
        self.feed.close_report()


# 10^12 operations per second in bfloat16, dense, by JAX's device_kind. Sources: the specifications
# of each version in docs.cloud.google.com/tpu/docs; NVIDIA's data sheets of A100, H100 and H200.
PEAK_TFLOPS = {
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H200": 989.0,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,  # v5e
    "TPU v5e": 197.0,
    "TPU v5": 459.0,  # v5p
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,  # v6e
    "TPU v6e": 918.0,
}


def throughput_text(fed: Fed, device_kind: str) -> str:
    """Returns tokens per second, the waiting share, TFLOP/s per device; MFU of a known chip."""
    text = (
        f"{fed.tokens_per_s:,.0f} real tokens a second, waited for data {fed.waited_share:.1%} of "
        f"{fed.seconds:.0f} s, {fed.tflops_per_s:.3g} TFLOP/s per device"
    )
    if peak := PEAK_TFLOPS.get(device_kind):
        text += f", MFU {fed.tflops_per_s / peak:.1%}"
    return text
