"""MaxText's side of training: its config with our keys, its iterators over our batches.

MaxText has no registry of datasets. `connect` puts the factories of this module in the place of
those of its Grain pipeline, the one whose iterators its checkpoints hold, and answers how an
iterator resumes. No code of MaxText is copied. `train` is the command.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import os
import time
from importlib import metadata
from typing import Any, Literal, cast

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from maxtext.common import checkpointing, grain_utility
from maxtext.configs import pyconfig, types
from maxtext.input_pipeline import input_pipeline_interface, multihost_dataloading
from maxtext.input_pipeline.multihost_dataloading import MultiHostDataLoadIterator
from maxtext.utils import max_logging, train_utils
from pydantic import Field, model_validator

from beam_pipeline.errors import ProbelineError, UsageError
from training.batches.config import DataConfig
from training.batches.states import reshard_states
from training.dataset import BatchDataset, BatchIterator, build_dataset
from training.maxtext.curriculum import Stage, stages_of
from training.padding.feed_report import FeedReport
from training.tokens.tokenizer import VOCABULARY_SIZE

TESTED_VERSION = "0.2.5"


# --- config -------------------------------------------------------------------------------------


class NetworkConfig(types.MaxTextConfig):
    """MaxText's config, dataset_type=network and our keys.

    A key `network_x` without a line of its own is field x of `training.batches.config.DataConfig`.

    Attributes:
      network_data_format: probe_rows; probe_chunks is another word for it.
      network_train_files, network_eval_files: DataConfig's files.
      network_curriculum: shorter crops first, see `training.maxtext.curriculum`.
      grain_debug_mode: check and describe the batches of the first steps.
      grain_visualization_dir: a folder for pictures of what is fed in the first steps.
      num_epoch: MaxText's; none never ends.
    """

    network_data_format: Literal["probe_rows", "probe_chunks"] = "probe_rows"
    network_train_files: str = ""
    network_eval_files: str = ""
    network_sampler: Literal["rows", "windows"] = "rows"
    network_mixed_rows: int | None = 16
    network_avg_tokens_per_measurement: int = 30
    network_max_contexts_per_row: int = 16
    network_mode_weights: tuple[float, float, float] = (0.4, 0.3, 0.3)
    network_weights: str = "rows"
    network_on_bad_row: Literal["fail", "skip"] = "fail"
    network_cache_dir: str | None = None
    network_curriculum: str = Field("", coerce_numbers_to_str=True)
    grain_debug_mode: bool = False
    grain_visualization_dir: str = ""
    num_epoch: int | None = 1

    @model_validator(mode="before")
    @classmethod
    def _network_is_grain(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Tells MaxText `grain`, and files: `check_config` finds out whether they are named."""
        if values.get("dataset_type") != "network":
            return values
        return {
            **values,
            "dataset_type": "grain",
            "grain_train_files": values.get("network_train_files") or "network",
            "grain_eval_files": values.get("network_eval_files") or "network",
        }


def stage_of(config: Any) -> Stage:
    """Returns the last stage of the curriculum; the config of an earlier one ends with it."""
    return stages_of(config.network_curriculum, config.max_target_length, config.steps)[-1]


def check_config(config: Any) -> None:
    """Raises UsageError if a model of that config cannot learn from measurements."""
    if config.vocab_size < VOCABULARY_SIZE:
        raise UsageError(
            f"vocab_size={config.vocab_size} is too small: measurements have {VOCABULARY_SIZE} "
            "tokens"
        )
    if not config.network_train_files:
        raise UsageError(
            "network_train_files is empty: name a dataset, network_train_files=rows/train"
        )
    if config.eval_interval > 0 and not config.network_eval_files:
        raise UsageError(
            f"eval_interval={config.eval_interval} needs data: network_eval_files=rows/test"
        )
    num_stages = len(stages_of(config.network_curriculum, config.max_target_length, config.steps))
    if num_stages > 1 and not config.enable_checkpointing:
        raise UsageError(
            "network_curriculum hands the model on through checkpoints: leave "
            "enable_checkpointing=true"
        )


def completed_steps(checkpoints: epath.PathLike) -> int:
    """Returns how many steps of training the last one of a folder of checkpoints has seen."""
    if not epath.Path(checkpoints).exists():
        return 0
    return 1 + max(ocp.utils.checkpoint_steps(checkpoints), default=-1)


# --- batches ------------------------------------------------------------------------------------


class Feed(grain.IterDataset[dict[str, np.ndarray]]):
    """A host's batches as MaxText takes them, with what a run wants to know of them.

    Attributes:
      first_step: the step of training that takes the first batch.
      report: is shown the first batches, if there is one.
      failure: what ended the batches; MaxText logs it and ends like one that is done.
      has_ended: there was no further batch.
      waited_s, fed_s: seconds that MaxText waited for batches after the first one, of so many.
    """

    def __init__(self, dataset: BatchDataset, first_step: int, report: FeedReport | None = None):
        super().__init__(dataset)
        self.dataset = dataset
        self.first_step = first_step
        self.report = report
        self.failure: Exception | None = None
        self.has_ended = False
        self.waited_s = 0.0
        self.fed_s = 0.0

    def __iter__(self) -> "FeedIterator":
        return FeedIterator(self)

    def __repr__(self) -> str:
        return f"Feed({self.dataset!r}, first_step={self.first_step})"


class FeedIterator(grain.DatasetIterator[dict[str, np.ndarray]]):
    """The iterator that MaxText's checkpoints hold: each host's state in a file of its own."""

    def __init__(self, feed: Feed):
        self._batches: BatchIterator = iter(feed.dataset)
        super().__init__(self._batches)
        self.feed = feed
        self._began_s: float | None = None

    def __next__(self) -> dict[str, np.ndarray]:
        asked_s = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.feed.has_ended = True
            raise
        except Exception as error:
            self.feed.failure = error
            raise
        given_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = given_s
        else:
            self.feed.waited_s += given_s - asked_s
            self.feed.fed_s = given_s - self._began_s
        if self.feed.report is not None:
            self._show(self.feed.report, batch)
        return batch

    def _show(self, report: FeedReport, batch: dict[str, np.ndarray]) -> None:
        try:
            report.add(batch)
        except ProbelineError as error:
            self.feed.failure = error
            raise

    def get_state(self) -> dict[str, Any]:
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._batches.set_state(state)

    async def load(self, directory: epath.Path) -> Any:
        """Goes on where the hosts of a checkpoint, however many, were; Orbax calls it."""
        return asyncio.to_thread(self._load, epath.Path(directory))

    def _load(self, directory: epath.Path) -> None:
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
        if self.feed.report is not None:
            self.feed.report.close()


def _make_iterator(
    config: Any, global_mesh: jax.sharding.Mesh, process_indices: list[int], *, is_eval: bool
) -> MultiHostDataLoadIterator:
    stage = stage_of(config)
    hosts = sorted(process_indices)
    batch_size = config.global_batch_size_to_load
    if is_eval:
        batch_size = config.global_batch_size_to_load_eval
    options = {
        field.name: getattr(config, f"network_{field.name}")
        for field in dataclasses.fields(DataConfig)
        if f"network_{field.name}" in NetworkConfig.model_fields
    }
    data_config = DataConfig(
        files=config.network_eval_files if is_eval else config.network_train_files,
        # A host's share is a share of all hosts' batch, also if not all of them load.
        batch_size=batch_size // jax.process_count() * len(hosts),
        crop_size=config.max_target_length,
        seed=config.data_shuffle_seed + stage.number,
        shuffle=config.enable_data_shuffling,
        num_epochs=1 if is_eval else config.num_epoch,
        pack=config.packing,
        host_index=hosts.index(jax.process_index()),
        host_count=len(hosts),
        num_workers=config.grain_worker_count_eval if is_eval else config.grain_worker_count,
        num_threads=config.grain_num_threads_eval if is_eval else config.grain_num_threads,
        **options,
    )
    report = None
    if not is_eval and (config.grain_debug_mode or config.grain_visualization_dir):
        folder = config.grain_visualization_dir
        if folder and config.network_curriculum:
            folder = os.path.join(folder, f"crops-of-{stage.crop_size}")
        log = max_logging.log if config.grain_debug_mode else None
        report = FeedReport(folder, data_config.host_index, log=log)
    return MultiHostDataLoadIterator(
        Feed(build_dataset(data_config), stage.begin, report),
        global_mesh,
        config.generate_padding_batch_eval if is_eval else config.generate_padding_batch_train,
        expansion_loading_factor_for_grain=config.expansion_factor_real_data,
    )


def make_network_train_iterator(
    config: Any, global_mesh: jax.sharding.Mesh, process_indices: list[int]
) -> MultiHostDataLoadIterator:
    """Makes the iterator of this host's training batches, in the place of MaxText's Grain one.

    Args:
      config: a NetworkConfig, as `pyconfig.initialize` wraps it.
      process_indices: the processes that load data.

    Raises:
      ProbelineError: there is no such dataset, or the config does not suit it.
    """
    return _make_iterator(config, global_mesh, process_indices, is_eval=False)


def make_network_eval_iterator(
    config: Any, global_mesh: jax.sharding.Mesh, process_indices: list[int]
) -> MultiHostDataLoadIterator:
    """Makes the iterator of one epoch of network_eval_files; see make_network_train_iterator."""
    return _make_iterator(config, global_mesh, process_indices, is_eval=True)


# --- connecting to MaxText ----------------------------------------------------------------------

# What this module takes the place of: module, name, parameters.
_FACTORY = ("config", "global_mesh", "process_indices")
_RESTORE = ("checkpoint_manager", "step", "data_iterator", "expansion_factor_real_data")
_SEAMS = (
    (input_pipeline_interface, "make_grain_train_iterator", _FACTORY),
    (input_pipeline_interface, "make_grain_eval_iterator", _FACTORY),
    (grain_utility, "for_restore", _RESTORE),
    (train_utils, "create_checkpoint_manager", ("config", "mesh", "init_state_fn")),
    (pyconfig, "initialize", ("argv", "config_class", "kwargs")),
    (multihost_dataloading, "_cleanup_orphaned_multiprocessing_processes", ()),
)


def check_maxtext() -> None:
    """Raises ProbelineError if MaxText is not what this module was written for."""
    version = metadata.version("maxtext")
    for module, name, expected in _SEAMS:
        found = getattr(module, name, None)
        parameters = tuple(inspect.signature(found).parameters) if found else None
        if parameters != expected:
            changed = "no" if parameters is None else f"another ({', '.join(parameters)})"
            raise ProbelineError(
                f"maxtext {version} has {changed} {module.__name__}.{name}: Probeline is tested "
                f"with {TESTED_VERSION}, pip install maxtext=={TESTED_VERSION}"
            )


@dataclasses.dataclass(frozen=True)
class Connection:
    """What MaxText has been given, and made, since `connect`.

    Attributes:
      feeds: of training; none on a host that loads no data.
      checkpoint_managers: of runs that keep checkpoints.
    """

    feeds: list[Feed] = dataclasses.field(default_factory=list)
    checkpoint_managers: list[Any] = dataclasses.field(default_factory=list)

    def finish_checkpoints(self) -> None:
        """Waits for those in the making; MaxText does not if its data end or fail."""
        for manager in self.checkpoint_managers:
            checkpointing.wait_until_finished(manager)
        self.checkpoint_managers.clear()


def connect() -> Connection:
    """Makes MaxText, in this process, take NetworkConfig and our iterators.

    Raises:
      ProbelineError: MaxText has changed.
    """
    check_maxtext()
    connection = Connection()
    create_checkpoint_manager = train_utils.create_checkpoint_manager

    def make_and_keep(config, global_mesh, process_indices):
        iterator = make_network_train_iterator(config, global_mesh, process_indices)
        connection.feeds.append(cast(Feed, iterator.dataloader))
        return iterator

    def create_and_keep(config, mesh, init_state_fn):
        manager = create_checkpoint_manager(config, mesh, init_state_fn)
        if manager is not None:
            connection.checkpoint_managers.append(manager)
        return manager

    input_pipeline_interface.make_grain_train_iterator = make_and_keep
    input_pipeline_interface.make_grain_eval_iterator = make_network_eval_iterator
    grain_utility.for_restore = _for_restore
    train_utils.create_checkpoint_manager = create_and_keep
    pyconfig.initialize = functools.partial(pyconfig.initialize, config_class=NetworkConfig)
    # It would send SIGTERM to every orphaned multiprocessing process of the machine.
    multihost_dataloading._cleanup_orphaned_multiprocessing_processes = lambda: None
    return connection


def _for_restore(
    checkpoint_manager: Any, step: int, data_iterator: Any, expansion_factor_real_data: int
) -> Any:
    """Returns what Orbax loads an iterator's state with, whatever number of hosts saved it."""
    del checkpoint_manager, expansion_factor_real_data
    iterator = data_iterator.local_iterator
    if step + 1 == iterator.feed.first_step:
        return _NewStage()
    return iterator


class _NewStage:
    """Leaves the data of a curriculum's next stage at its beginning."""

    async def save(self, directory: Any) -> Any:
        raise AssertionError("only loaded")

    async def load(self, directory: Any) -> Any:
        return asyncio.sleep(0)
