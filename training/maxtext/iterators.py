"""Connects MaxText to our batches: its config with our keys, its iterators over a `BatchDataset`.

MaxText has no registry of datasets and no hook for additional metrics. `connect` replaces the
factories of its Grain pipeline, whose iterators are part of checkpoints, the function that restores
an iterator, the method that records the metrics of a step, the loss of tokens, whose gradients it
weights, and the first weights of tokens. It copies no code of MaxText.
`training.train` is the command.
"""

import dataclasses
import functools
import inspect
import json
import os
from importlib import metadata
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from maxtext.common import checkpointing, grain_utility
from maxtext.configs import pyconfig, types
from maxtext.input_pipeline import input_pipeline_interface, multihost_dataloading
from maxtext.input_pipeline.multihost_dataloading import MultiHostDataLoadIterator
from maxtext.models import models
from maxtext.utils import max_logging, max_utils, maxtext_utils, train_utils
from pydantic import Field, create_model, model_validator

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.machine import num_cores
from training.batches.config import DataConfig
from training.batches.mixture import check_single, parse_files
from training.dataset import build_dataset
from training.maxtext.curriculum import Shares, Stage, check_shares, share_of, stages_of
from training.maxtext.feed import Feed, FeedIterator
from training.statistics.feed_report import FeedReport
from training.tokens.tokenizer import FIRST_BYTE, RTT_START, VOCABULARY_SIZE

TESTED_VERSION = "0.2.5"
_WORKER_MB = 400  # per worker; 330 measured with batches of 256 crops of 1,024


# --- config -------------------------------------------------------------------------------------


DATA_OPTIONS = {field.name: field for field in dataclasses.fields(DataConfig)}
# The key of each option, MaxText's or ours.
DATA_KEYS: dict[str, str] = {
    name: field.metadata.get("maxtext", f"network_{name}")
    for name, field in DATA_OPTIONS.items()
    if name not in ("files", "host_index", "host_count")
}


class _NetworkKeys(types.MaxTextConfig):
    """The keys that are not options of `DataConfig`."""

    network_data_format: Literal["probe_rows", "probe_chunks"] = "probe_rows"  # the latter an alias
    network_train_files: str = ""  # DataConfig's files, or a mixture
    network_eval_files: str = ""  # DataConfig's files
    network_train_tokens: int = Field(0, ge=0)  # instead of `steps`
    network_rtt_weight: float = Field(1.0, gt=0, allow_inf_nan=False)  # see `weight_rtts`
    network_curriculum: str = Field("", coerce_numbers_to_str=True)  # see `curriculum`
    grain_debug_mode: bool = False  # check and describe the first batches
    grain_visualization_dir: str = ""  # for figures of the first batches
    num_epoch: int | None = 1  # MaxText's key; None never ends

    @model_validator(mode="before")
    @classmethod
    def _network_is_grain(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Presents our data to MaxText as Grain's; `check_config` checks the names of files."""
        if values.get("dataset_type") != "network":
            return values
        values = {**values, "dataset_type": "grain"}
        for key, field in cls.model_fields.items():  # network_x= is read as None
            is_text = key.startswith("network_") and field.annotation is str
            if is_text and values.get(key, "") is None:
                values[key] = ""
        for split in ("train", "eval"):
            files = values.get(f"network_{split}_files", "")
            if isinstance(files, dict):  # JSON, as OmegaConf has read it
                files = values[f"network_{split}_files"] = json.dumps(files)
            values[f"grain_{split}_files"] = files or "network"
        return values


def _data_keys() -> dict[str, Any]:
    """Returns the type and default of network_X for each option X without a MaxText key."""
    keys: dict[str, Any] = {}
    for name, key in DATA_KEYS.items():
        if key.startswith("network_"):
            field = DATA_OPTIONS[name]
            kind = Shares if field.metadata.get("by_stage") else field.type
            keys[key] = (kind, {} if field.default is dataclasses.MISSING else field.default)
    return {**keys, "network_weights": (str, "rows")}


# MaxText's config with dataset_type=network and our keys: `network_x` is field x of DataConfig.
NetworkConfig = create_model("NetworkConfig", __base__=_NetworkKeys, **_data_keys())
_BY_STAGE = [name for name in DATA_KEYS if DATA_OPTIONS[name].metadata.get("by_stage")]


def stages(config: Any) -> list[Stage]:
    """Returns the stages of the run that a config describes."""
    return stages_of(config.network_curriculum, config.max_target_length, config.steps)


def stage_of(config: Any) -> Stage:
    """Returns the stage that a config runs: the last one of its curriculum."""
    return stages(config)[-1]


def check_config(config: Any) -> None:
    """Raises UsageError if a model of this config cannot be trained on measurements."""
    if config.vocab_size < VOCABULARY_SIZE:
        raise UsageError(
            f"vocab_size={config.vocab_size} is too small: measurements have {VOCABULARY_SIZE} "
            "tokens"
        )
    if not config.network_train_files:
        raise UsageError(
            "network_train_files is empty: name a dataset, network_train_files=rows/train"
        )
    is_mixture = not isinstance(parse_files(config.network_train_files), str)
    if is_mixture and config.num_epoch is not None:
        raise UsageError(
            f"num_epoch={config.num_epoch}, but each dataset of a mixture has its own epochs: set "
            "num_epoch=none, and the length of the run with steps"
        )
    if config.eval_interval > 0 and not config.network_eval_files:
        raise UsageError(
            f"eval_interval={config.eval_interval} needs data: set network_eval_files=rows/test"
        )
    check_single(config.network_eval_files, "network_eval_files")
    if stage_of(config).number > 0 and not config.enable_checkpointing:
        raise UsageError(
            "network_curriculum passes the model between stages in checkpoints: set "
            "enable_checkpointing=true"
        )
    for key in (DATA_KEYS[name] for name in _BY_STAGE):
        check_shares(key, getattr(config, key), config.network_curriculum)


def completed_steps(checkpoints: epath.PathLike) -> int:
    """Returns the number of training steps in the last checkpoint of a folder."""
    if not epath.Path(checkpoints).exists():
        return 0
    return 1 + max(ocp.utils.checkpoint_steps(checkpoints), default=-1)


def check_checkpoint(checkpoints: epath.PathLike, completed: int) -> None:
    """Raises ProbelineError if the last checkpoint lacks the data's position; MaxText restarts."""
    folder = epath.Path(checkpoints) / str(completed - 1)
    if completed and not any((folder / "iter").glob("process_*.json")):
        raise ProbelineError(
            f"{folder} has no position in the data (iter), so the run would repeat data: copy the "
            f"checkpoint again as a whole, remove it to continue from the one before, or start "
            f"another run_name with its model, load_full_state_path={folder / 'items'}"
        )


def unreadable_checkpoint(config: Any, completed: int, error: Exception) -> ProbelineError:
    """Returns the error for a checkpoint that Orbax cannot restore."""
    return ProbelineError(
        f"{epath.Path(config.checkpoint_dir) / str(completed - 1)} cannot be restored: copy the "
        "checkpoint again as a whole, remove it to continue from the one before, or start another "
        f"run_name ({one_line(error)[:120]})"
    )


# --- batches ------------------------------------------------------------------------------------


def num_workers(worker_count: int, ram_budget_mb: int) -> int:
    """Returns the number of workers; -1 is as many as cores and the budget allow."""
    if worker_count != -1:
        return worker_count
    chosen = min(num_cores(), ram_budget_mb // _WORKER_MB)
    max_logging.log(f"grain_worker_count=-1, grain_ram_budget_mb={ram_budget_mb}: {chosen} workers")
    return chosen


def data_config(config: Any, process_indices: list[int], *, is_eval: bool) -> DataConfig:
    """Returns the config of this host's batches, from MaxText's keys and ours."""
    stage, hosts = stage_of(config), sorted(process_indices)
    suffix = "_eval" if is_eval else ""
    batch_size = getattr(config, f"global_batch_size_to_load{suffix}")
    options: dict[str, Any] = {
        name: getattr(config, key + suffix if key.startswith("grain_") else key)
        for name, key in DATA_KEYS.items()
    }
    options |= {
        **{name: share_of(options[name], stage) for name in _BY_STAGE},
        # MaxText's batch has a share for every host, including those that load no data.
        "batch_size": batch_size // jax.process_count() * len(hosts),
        "seed": options["seed"] + stage.number,
        "num_workers": num_workers(options["num_workers"], config.grain_ram_budget_mb),
    }
    if is_eval:
        # Evaluate on every row once, without special contexts.
        options |= {"num_epochs": 1, "row_weights": {}}
        options |= {"repeat_share": 0.0, "random_source_share": 0.0}
    return DataConfig(
        files=parse_files(config.network_eval_files if is_eval else config.network_train_files),
        host_index=hosts.index(jax.process_index()),
        host_count=len(hosts),
        **options,
    )


def make_network_iterator(
    config: Any, global_mesh: jax.sharding.Mesh, process_indices: list[int], *, is_eval: bool
) -> MultiHostDataLoadIterator:
    """Builds the iterator of this host's training batches, or of one epoch of network_eval_files.

    Replaces MaxText's Grain iterators. `config` is a NetworkConfig as wrapped by
    `pyconfig.initialize`; `process_indices` are the processes that load data.
    """
    stage, of_data = stage_of(config), data_config(config, process_indices, is_eval=is_eval)
    report = None
    if not is_eval and (config.grain_debug_mode or config.grain_visualization_dir):
        folder = config.grain_visualization_dir
        if folder and config.network_curriculum:
            folder = os.path.join(folder, f"stage-{stage.number}")
        log = max_logging.log if config.grain_debug_mode else None
        report = FeedReport(folder, of_data.host_index, log=log, log_rtt=of_data.log_rtt)
    step_tflops, _, _ = maxtext_utils.calculate_tflops_training_per_device(config, log=False)
    return MultiHostDataLoadIterator(
        Feed(build_dataset(of_data), stage.begin, report, step_tflops),
        global_mesh,
        config.generate_padding_batch_eval if is_eval else config.generate_padding_batch_train,
        expansion_loading_factor_for_grain=config.expansion_factor_real_data,
    )


# --- the loss and the first weights -------------------------------------------------------------


def weight_rtts(cross_entropy: Any, weight: float) -> Any:
    """Returns MaxText's cross entropy with gradients in which an RTT's bytes weigh more.

    The bytes are the two targets after RTT_START. Each weighs `weight` times as much as any other
    target, and the weights' mean is 1. The losses themselves stay as they are.
    """

    @functools.wraps(cross_entropy)
    def weighted(logits, targets, z_loss=0.0):
        losses, z_losses = cross_entropy(logits, targets, z_loss)
        opens = targets[..., RTT_START]
        before = jnp.pad(opens, [(0, 0)] * (opens.ndim - 1) + [(2, 0)])
        weights = 1 + (weight - 1) * (before[..., 1:-1] + before[..., :-2])
        weights /= weights.mean()
        return weights * losses + jax.lax.stop_gradient((1 - weights) * losses), z_losses

    return weighted


def with_alike_bytes(init: Any) -> Any:
    """Returns Transformer.__init__ with `first_weights` for embeddings and logits."""

    @functools.wraps(init)
    def alike(self, config, mesh, quant, *, rngs, **options):
        init(self, config, mesh, quant, rngs=rngs, **options)
        shape = config.vocab_size, config.emb_dim
        embedding = self.token_embedder.embedding
        embedding.set_value(first_weights(rngs.params(), shape).astype(embedding.dtype))
        if not config.logits_via_embedding:
            kernel = self.decoder.logits_dense.kernel
            kernel.set_value(first_weights(rngs.params(), shape).T.astype(kernel.dtype))

    return alike


def first_weights(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws weights of tokens, float32 [vocabulary, width], of variance 1 / width.

    Half of a byte's variance is its own, and half varies slowly with its value: random Fourier
    features (Rahimi and Recht, 2007) of a Gaussian kernel, whose σ of six values is 15 % of an RTT.
    """
    of_tokens, of_speeds, of_phases = jax.random.split(key, 3)
    weights = jax.random.normal(of_tokens, shape)
    speeds = jax.random.normal(of_speeds, shape[1:]) / 6
    phases = jax.random.uniform(of_phases, shape[1:], maxval=2 * jnp.pi)
    slow = jnp.sqrt(2) * jnp.cos(speeds * jnp.arange(256)[:, None] + phases)
    of_bytes = slice(FIRST_BYTE, FIRST_BYTE + 256)
    weights = weights.at[of_bytes].add(slow).at[of_bytes].multiply(jnp.sqrt(0.5))
    return weights * shape[1] ** -0.5


# --- connecting to MaxText ----------------------------------------------------------------------

# The parameters of the MaxText functions that `connect` replaces.
_FACTORY = ("config", "global_mesh", "process_indices")
_RESTORE = ("checkpoint_manager", "step", "data_iterator", "expansion_factor_real_data")
_METRICS = ("self", "metrics", "step", "step_time")
_LOSS = ("logits", "targets", "z_loss")
_TRANSFORMER = ("self", "config", "mesh", "quant", "model_mode", "rngs")
# MaxText's own, also where another run of this process has replaced them; see `check_maxtext`.
_CROSS_ENTROPY = getattr(max_utils, "cross_entropy_with_logits", None)
_TRANSFORMER_INIT = getattr(models, "Transformer", object).__init__


def _metric_logger() -> Any:
    """Returns the class; its import prints lines, so only `training.train` imports it."""
    from maxtext.common.metric_logger import MetricLogger

    return MetricLogger


def _seams() -> tuple[tuple[Any, str, tuple[str, ...]], ...]:
    """Returns the place, name and parameters of the functions that `connect` replaces."""
    return (
        (input_pipeline_interface, "make_grain_train_iterator", _FACTORY),
        (input_pipeline_interface, "make_grain_eval_iterator", _FACTORY),
        (grain_utility, "for_restore", _RESTORE),
        (_metric_logger(), "record_train_metrics", _METRICS),
        (max_utils, "cross_entropy_with_logits", _LOSS),
        (models, "Transformer.__init__", _TRANSFORMER),
        (train_utils, "create_checkpoint_manager", ("config", "mesh", "init_state_fn")),
        (pyconfig, "initialize", ("argv", "config_class", "kwargs")),
        (multihost_dataloading, "_cleanup_orphaned_multiprocessing_processes", ()),
    )


def check_maxtext() -> None:
    """Raises ProbelineError if MaxText lacks the functions that this module replaces."""
    version = metadata.version("maxtext")
    for module, name, expected in _seams():
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        parameters = tuple(inspect.signature(found).parameters) if found else None
        if parameters != expected:
            path = f"{module.__name__}.{name}"
            fault = f"no {path}" if parameters is None else f"{path}({', '.join(parameters)})"
            raise ProbelineError(
                f"maxtext {version} has {fault}, unlike {TESTED_VERSION}, which Probeline is "
                f"tested with: pip install maxtext=={TESTED_VERSION}"
            )


@dataclasses.dataclass(frozen=True)
class Connection:
    """The training feeds and checkpoint managers that MaxText has created since `connect`."""

    feeds: list[Feed] = dataclasses.field(default_factory=list)  # none without data to load
    checkpoint_managers: list[Any] = dataclasses.field(default_factory=list)

    def finish_checkpoints(self) -> None:
        """Waits for unfinished checkpoints; MaxText does not if its data end or fail."""
        for manager in self.checkpoint_managers:
            checkpointing.wait_until_finished(manager)
        self.checkpoint_managers.clear()


def connect(rtt_weight: float) -> Connection:
    """Makes MaxText use our config, iterators and weights in this process; see `check_maxtext`."""
    check_maxtext()
    connection = Connection()
    create_checkpoint_manager = train_utils.create_checkpoint_manager

    def make_and_keep(config, global_mesh, process_indices):
        iterator = make_network_iterator(config, global_mesh, process_indices, is_eval=False)
        connection.feeds.append(cast(Feed, iterator.dataloader))
        return iterator

    def make_for_eval(config, global_mesh, process_indices):
        return make_network_iterator(config, global_mesh, process_indices, is_eval=True)

    def create_and_keep(config, mesh, init_state_fn):
        manager = create_checkpoint_manager(config, mesh, init_state_fn)
        if manager is not None:
            connection.checkpoint_managers.append(manager)
        return manager

    metric_logger = _metric_logger()
    record_train_metrics = metric_logger.record_train_metrics

    def record_with_feed(self, metrics, step, step_time):
        record_train_metrics(self, metrics, step, step_time)
        for feed in connection.feeds:
            metrics["scalar"].update(feed.figures())

    input_pipeline_interface.make_grain_train_iterator = make_and_keep
    input_pipeline_interface.make_grain_eval_iterator = make_for_eval
    grain_utility.for_restore = _for_restore
    metric_logger.record_train_metrics = record_with_feed
    train_utils.create_checkpoint_manager = create_and_keep
    max_utils.cross_entropy_with_logits = weight_rtts(_CROSS_ENTROPY, rtt_weight)
    models.Transformer.__init__ = with_alike_bytes(_TRANSFORMER_INIT)
    pyconfig.initialize = functools.partial(pyconfig.initialize, config_class=NetworkConfig)
    # MaxText's would send SIGTERM to every orphaned multiprocessing process on the machine.
    multihost_dataloading._cleanup_orphaned_multiprocessing_processes = lambda: None
    return connection


def _for_restore(
    checkpoint_manager: Any, step: int, data_iterator: Any, expansion_factor_real_data: int
) -> FeedIterator:
    """Returns the object through which Orbax loads an iterator's state."""
    del checkpoint_manager, expansion_factor_real_data
    iterator: FeedIterator = data_iterator.local_iterator
    iterator.begins_stage = step + 1 == iterator.feed.first_step
    return iterator
