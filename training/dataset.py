"""From shards to batches: `build_dataset(DataConfig(files="rows/train", batch_size=256))`.

A batch has the arrays that MaxText expects: inputs, targets, and the segmentation and positions of
both, int32 [batch, crop]. Example i of the global batch is the next crop of lane i, whichever
process computes it (see `lanes`). So batches are the same for any number of hosts, workers and
threads, and after any resume; the state is the lanes' cursors. Host h of H owns lanes
[h, h + 1) * batch_size / H, divided among its workers. In a mixture, every dataset has its own
lanes and cursors, and `mixture` chooses the dataset of each example.
"""
# Grain comes without stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import atexit
import concurrent.futures
import dataclasses
import hashlib
import logging
import os
import re
import signal
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np
import orjson
from absl import flags

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.machine import end_with_parent, keep_large_blocks
from training.batches.column_cache import CacheFeed
from training.batches.config import DataConfig
from training.batches.lane_feed import LaneFeed
from training.batches.lanes import CURSOR
from training.batches.mixture import Assignment, find_datasets
from training.batches.packing import Crops, narrow, new_crops, to_batch, widen
from training.batches.planning import HostPlan
from training.batches.shard_feed import ShardFeed
from training.batches.states import HostState, cursors_from_numbers, cursors_to_numbers
from training.rows.row_table import ShardSet
from training.rows.shard_reader import check_feed, check_shards, num_threads_for

_LOG = logging.getLogger("training")
_ENDED_WORKER = re.compile(r"Worker process was terminated.* exit code (-?\d+)")  # of Grain

type Batch = dict[str, np.ndarray]


def build_dataset(config: DataConfig) -> "BatchDataset":
    """Builds the dataset of a host's batches.

    Args:
      config: the data, and how examples are drawn.

    Raises:
      ProbelineError: a dataset does not exist, or differs from its manifest.
      UsageError: the configuration does not suit the data, or the datasets of a mixture conflict.

    Example:

        dataset = build_dataset(DataConfig(files="rows/train", batch_size=4, crop_size=256))
        batch = next(iter(dataset))
        batch["inputs"].shape  # (4, 256)
    """
    datasets = find_datasets(config.files)
    for shards in datasets:
        check_shards(shards)
        check_feed(shards, has_cache=config.cache_dir is not None)
    return BatchDataset(config, [_plan(shards, config) for shards in datasets])


def _plan(shards: ShardSet, config: DataConfig) -> HostPlan:
    try:
        return HostPlan(shards, config)
    except UsageError as error:
        if not config.is_mixture:
            raise
        raise UsageError(f"{shards.dataset.path}, {shards.split} split: {error}") from error


def create_probe_training_pipeline(
    arrayrecord_pattern: str,
    batch_size: int = 256,
    crop_size: int = 1024,
    shuffle: bool = True,
    num_workers: int = 16,
    seed: int = 0,
) -> "BatchDataset":
    """Builds the dataset of `sampler="windows"`, like `build_dataset`.

    Args:
      arrayrecord_pattern: DataConfig's `files`.
      batch_size: examples per batch, each of a different probe.
      crop_size: tokens of an example.
      shuffle: see DataConfig.
      num_workers: number of reading threads.
      seed: seed of all random choices.

    Example:

        dataset = create_probe_training_pipeline("rows/train/*.arrayrecord", batch_size=2)
        next(iter(dataset))["inputs"].shape  # (2, 1024)
    """
    options = {"crop_size": crop_size, "shuffle": shuffle, "seed": seed}
    return build_probe_chunk_dataset(
        arrayrecord_pattern, batch_size, sampler="windows", num_threads=num_workers, **options
    )


def build_probe_chunk_dataset(
    files: str | Sequence[str], batch_size: int, **options: Any
) -> "BatchDataset":
    """Builds the same dataset as `build_dataset`.

    Args:
      files: see DataConfig.
      batch_size: see DataConfig.
      options: other fields of DataConfig.

    Example:

        dataset = build_probe_chunk_dataset("rows/train", 4, crop_size=256)
    """
    return build_dataset(DataConfig(files=files, batch_size=batch_size, **options))


def _begin_worker(*_: int) -> None:
    """Prepares a worker process, which ends with the program that has started it."""
    # Ctrl-C reaches the program too. A worker that it interrupts may wait forever, and the program
    # for it, once a queue between them is full.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


class _LaneDataset(grain.IterDataset[Batch]):
    """The crops of some lanes, computed by one process.

    Elements have `crops` (narrow in a worker), the cursors after them, and numbered bad rows.
    """

    def __init__(self, dataset: "BatchDataset", state: HostState, num_left: int | None):
        super().__init__()
        self.config, self.plans = dataset.config, dataset.plans
        self.step, self.num_left = state.step, num_left
        self.lanes, self.cursors = dataset.config.lanes, state.cursors
        self.is_in_worker = False

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps a worker's part of the lanes; called by Grain in worker sl.start of sl.step."""
        num_lanes = len(self.lanes)
        part = slice(num_lanes * sl.start // sl.step, num_lanes * (sl.start + 1) // sl.step)
        self.cursors, self.lanes = self.cursors[:, part], self.lanes[part]
        self.is_in_worker = True

    def __iter__(self) -> "_LaneIterator":
        return _LaneIterator(self)


class _LaneIterator(grain.DatasetIterator[dict[str, Any]]):
    """Computes crops. Stateless: BatchIterator keeps the cursors."""

    def __init__(self, dataset: _LaneDataset):
        super().__init__()
        self._dataset = dataset
        self._config = dataset.config
        self._step = dataset.step
        self._num_left = dataset.num_left  # batches; None if they never end
        self._executor: concurrent.futures.Executor | None = None
        self._feeds: list[LaneFeed] = []
        config = dataset.config
        self._assign = Assignment(config.mixture, config.batch_size, config.seed)

    def _begin(self) -> list[LaneFeed]:
        """Opens the shards or fills the cache, before the first batch."""
        keep_large_blocks()
        dataset, config = self._dataset, self._config
        num_threads = max(num_threads_for(p.shards, config.num_threads) for p in dataset.plans)
        if num_threads:
            self._executor = concurrent.futures.ThreadPoolExecutor(num_threads, "read-rows")
        open_feed = ShardFeed if config.cache_dir is None else CacheFeed
        return [
            open_feed(config, plan, dataset.lanes, cursors.copy(), self._executor)
            for plan, cursors in zip(dataset.plans, dataset.cursors, strict=True)
        ]

    def __next__(self) -> dict[str, Any]:
        feeds = self._feeds = self._feeds or self._begin()
        if self._num_left == 0:
            raise StopIteration
        lanes = self._dataset.lanes
        number_of_lane = self._assign(self._step)[lanes.start : lanes.stop]
        numbers: list[int] = np.unique(number_of_lane).tolist()
        for number in numbers:  # all of them, before one moves its cursors
            feeds[number].load(number_of_lane == number)
        crops = new_crops(len(lanes), self._config.crop_size)
        for number in numbers:
            feeds[number].fill(crops)
        self._step += 1
        is_empty = all(feeds[number].is_done() for number in numbers)
        is_last = False
        if self._num_left is not None:  # a single dataset
            self._num_left -= 1
            # All hosts must yield the same number of batches, even if one has no rows left.
            is_last = self._num_left == 0
            is_last |= self._config.host_count == 1 and feeds[0].has_ended()
        return {
            "crops": narrow(crops) if self._dataset.is_in_worker else crops,
            "cursors": np.stack([cursors_to_numbers(feed.cursors) for feed in feeds]),
            "is_empty": is_empty,
            "is_last": is_last,
            "bad_rows": [
                (number, bad_row)
                for number, feed in enumerate(feeds)
                for bad_row in feed.take_bad_rows()
            ],
        }

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        raise AssertionError("BatchIterator begins a new iterator instead")

    def close(self) -> None:
        super().close()
        if self._executor:
            self._executor.shutdown(wait=False, cancel_futures=True)


class BatchDataset(grain.IterDataset[Batch]):
    """A host's batches, as a `grain.IterDataset`, built by `build_dataset`.

    A batch has inputs and targets, the tokens, and for both their segmentation (0 is padding) and
    position: six arrays, int32 [batch_size / host_count, crop_size]. An iterator has `get_state`
    and `set_state`, which resume exactly.

    Example:

        batches = iter(build_dataset(DataConfig(files="rows/train", batch_size=4)))
        batch, state = next(batches), batches.get_state()
        batches.set_state(state)
    """

    def __init__(self, config: DataConfig, plans: Sequence[HostPlan]):
        super().__init__()
        self.config = config
        self.plans = plans  # of each dataset

    def __iter__(self) -> "BatchIterator":
        return BatchIterator(self)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Refuses a share of the batches; called by Grain in each of several workers."""
        raise UsageError(
            "workers around this dataset would each need other batches: remove mp_prefetch, or "
            "give it one worker, and set num_workers in DataConfig"
        )

    def __repr__(self) -> str:
        return (
            f"BatchDataset(split={self.plans[0].shards.split}, fingerprint={self.fingerprint}, "
            f"host={self.config.host_index} of {self.config.host_count})"
        )

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for all hosts and runs with the same global batches."""
        data = orjson.dumps([self.data_fingerprints, self.config.mixture, self.config.fingerprint])
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def data_fingerprints(self) -> list[str]:
        """The fingerprint of each dataset's shards."""
        return [plan.shards.fingerprint for plan in self.plans]


class BatchIterator(grain.DatasetIterator[Batch]):
    """Joins the crops of all lanes of a host; its state is their cursors and a step number.

    Threads may share it: each batch goes to one of them. Processes may not.
    """

    def __init__(self, dataset: BatchDataset):
        super().__init__()
        # `close` needs these; Grain also calls it if the rest of __init__ fails.
        self._source: grain.DatasetIterator[dict[str, Any]] | None = None
        self._ahead: concurrent.futures.Future[tuple[Batch, HostState]] | None = None
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock, self._process = threading.RLock(), os.getpid()
        _ITERATORS.add(self)
        keep_large_blocks()
        self._dataset = dataset
        self._config = dataset.config
        self._data = dataset.data_fingerprints
        self._num_workers = min(self._config.num_workers, len(self._config.lanes))
        self._state = HostState(np.zeros((len(self._data), len(self._config.lanes)), CURSOR))
        if self._config.num_threads:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, "prepare-batch")

    def __next__(self) -> Batch:
        self._assert_not_closed()
        if self._process != os.getpid():
            raise UsageError(
                "this iterator was made before the process forked, and would give its batches "
                "twice: call iter(dataset) in each process, with its own host_index"
            )
        with self._lock:
            return self._take()

    def _take(self) -> Batch:
        if self._executor is None:
            batch, self._state = self._make(self._state)
            return batch
        batch, state = (self._ahead or self._executor.submit(self._make, self._state)).result()
        self._ahead = self._executor.submit(self._make, state)
        self._state = state
        return batch

    def _make(self, state: HostState) -> tuple[Batch, HostState]:
        """Returns the next batch and the state after it; the source must be at `state`."""
        if state.has_ended:
            raise StopIteration
        try:
            if self._source is None:
                self._source = self._start(state)
            parts = [next(self._source) for _ in range(max(1, self._num_workers))]
        except OSError as error:
            if not self._num_workers:
                raise
            raise ProbelineError(
                f"the data workers cannot run: {one_line(error)}; allow more open files (ulimit "
                "-n) or more of /dev/shm, or prepare batches without workers"
            ) from error
        except RuntimeError as error:
            if (ended := _ENDED_WORKER.search(str(error))) is None:
                raise
            why = ", most likely because memory ran out" if ended[1] == "-9" else ""
            raise ProbelineError(
                f"a data worker ended with exit code {ended[1]}{why}: give fewer workers, or "
                "prepare batches without them"
            ) from error
        if self._config.host_count == 1 and all(part["is_empty"] for part in parts):
            raise StopIteration
        skipped = set(state.skipped)
        for number, bad_row in (bad_row for part in parts for bad_row in part["bad_rows"]):
            place = number, bad_row.shard, bad_row.position
            if place not in skipped:
                skipped.add(place)
                _LOG.warning("skipped: %s", bad_row.reason)
        numbers = np.concatenate([part["cursors"] for part in parts], axis=1)
        return to_batch(self._join_crops(parts)), dataclasses.replace(
            state,
            step=state.step + 1,
            cursors=cursors_from_numbers(numbers),
            skipped=frozenset(skipped),
            has_ended=all(part["is_last"] for part in parts),
        )

    def _join_crops(self, parts: list[dict[str, Any]]) -> Crops:
        if self._num_workers == 0:
            return parts[0]["crops"]
        crops, first = new_crops(len(self._config.lanes), self._config.crop_size), 0
        for part in parts:
            inputs, targets, segmentation, _ = part["crops"]
            widen(inputs, targets, segmentation, crops, first)
            first += len(inputs)
        return crops

    def _start(self, state: HostState) -> grain.DatasetIterator[dict[str, Any]]:
        num_left = self._dataset.plans[0].count_batches(self._config, state.first_epoch)
        if num_left is not None:
            num_left -= state.step - state.first_step
        lanes = _LaneDataset(self._dataset, state, num_left)
        if self._num_workers == 0:
            return iter(lanes)
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags
        options = grain.multiprocessing.MultiprocessingOptions(
            num_workers=self._num_workers,
            per_worker_buffer_size=self._config.worker_buffer_size,
        )
        return iter(lanes.mp_prefetch(options, _begin_worker))

    def get_state(self) -> dict[str, Any]:
        """Returns the state after the last batch as JSON values.

        It has a few dozen bytes per lane and dataset. In each of its "datasets", "skipped_rows" are
        the [shard, position] of the rows skipped so far.
        """
        return self._state.to_json(self._config, self._data)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from where `state` was saved, with any number of workers and threads.

        A run of more epochs continues where one of fewer ended. A mixture may have other weights
        than when the state was saved, and additional datasets, which start from the beginning.

        Raises:
          ProbelineError: the state belongs to other data, another configuration or other lanes.
        """
        restored = HostState.from_json(state, self._config, self._data)
        with self._lock:
            self._stop()
            self._state = restored

    def _stop(self) -> None:
        if self._ahead is not None:
            concurrent.futures.wait([self._ahead])
            self._ahead = None
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        if self._closed or self._process != os.getpid():
            return
        super().close()
        with self._lock:
            self._stop()
        if self._executor:
            # It is idle. Python may collect this iterator in that thread, which cannot join itself.
            self._executor.shutdown(wait=False)


_ITERATORS: weakref.WeakSet[BatchIterator] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes what a program leaves open while Python's modules still work."""
    for iterator in list(_ITERATORS):
        iterator.close()
