"""The config of a run: read from arguments, built by MaxText, recorded for later evaluation.

`python -m training.train tiny steps=200` names the config file `tiny.yml` of training/configs and
one override. `read` reports errors in one line before a device is used, `build` returns MaxText's
config, `record` writes the config next to the checkpoints.
"""

import atexit
import contextlib
import difflib
import fcntl
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import omegaconf
import pydantic
import yaml
from etils import epath
from maxtext.configs import pyconfig
from maxtext.utils.globals import MAXTEXT_CONFIGS_DIR
from pydantic.fields import FieldInfo

from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.storage.files import open_own
from training.maxtext.curriculum import Stage, rope_base
from training.maxtext.iterators import DATA_KEYS, NetworkConfig
from training.tokens.contexts import MIN_CROP

CONFIGS = Path(__file__).parents[1] / "configs"
_BASE, _RECORD, _LOCK = "base.yml", "run_config.yml", "train.lock"
_TOKENS = "network_train_tokens"
_BASE_FILE = os.path.join(MAXTEXT_CONFIGS_DIR, _BASE)

# The least whole number of each key that MaxText divides by, or that sizes a batch or the model.
_LEAST = {
    **dict.fromkeys(("steps", "checkpoint_period", "log_period", "max_num_checkpoints_to_keep"), 1),
    **dict.fromkeys(("per_device_batch_size", "per_device_batch_size_start"), 1),
    **dict.fromkeys(("per_device_batch_size_increment", "base_emb_dim", "base_mlp_dim"), 1),
    **dict.fromkeys(("base_num_query_heads", "base_num_kv_heads", "base_num_decoder_layers"), 1),
    "eval_per_device_batch_size": 0,  # as per_device_batch_size
    "head_dim": 4,
    "max_target_length": MIN_CROP,
}

# The keys that decide which arrays a checkpoint has.
_MODEL_KEYS = (
    *("decoder_block", "base_emb_dim", "base_mlp_dim", "base_num_decoder_layers", "head_dim"),
    *("base_num_query_heads", "base_num_kv_heads", "vocab_size", "mlp_activations", "use_qk_norm"),
    *("logits_via_embedding", "scan_layers", "opt_type"),
)

# The keys of MaxText's Grain pipeline that affect our batches.
_GRAIN_KEYS = {
    *("grain_worker_count", "grain_worker_count_eval", "grain_ram_budget_mb"),
    *("grain_per_worker_buffer_size", "grain_per_worker_buffer_size_eval"),
    *("grain_num_threads", "grain_num_threads_eval"),
    *("grain_debug_mode", "grain_visualization_dir"),
}


@dataclass(frozen=True)
class Arguments:
    """The arguments of a run; all keys are known."""

    file: str  # a temporary file of the config merged with its bases
    overrides: tuple[str, ...]  # key=value, which take precedence over the file
    values: dict[str, Any]  # by key, from the file and the overrides, as written there

    def argv(self, *more: str) -> list[str]:
        """Returns the command line for MaxText."""
        return ["training.train", self.file, *self.overrides, *more]


def read(arguments: Sequence[str]) -> Arguments:
    """Parses [CONFIG] key=value …; UsageError if malformed, unknown or without effect."""
    file = str(CONFIGS / "network.yml")
    if arguments and "=" not in arguments[0]:
        file, arguments = _config_file(arguments[0]), arguments[1:]
    keys: set[str] = set()
    for argument in arguments:
        if "=" not in argument or argument.startswith("-"):
            raise UsageError(f"{argument!r} is not key=value: write steps=200, without dashes")
        if (key := argument.partition("=")[0]) in keys:
            raise UsageError(f"{key} is given more than once: keep one value")
        keys.add(key)
    try:
        loaded = _load(file)
        values = _merge(loaded, omegaconf.OmegaConf.from_cli(list(arguments)))
    except (
        *(omegaconf.errors.OmegaConfBaseException, yaml.YAMLError),
        *(ValueError, TypeError, OSError),  # TypeError: a mapping in place of a list
    ) as error:
        raise UsageError(f"{file} and the arguments cannot be read: {_one_line(error)}") from error
    for key in values:
        if not _is_known(key, NetworkConfig.model_fields):
            raise _unknown_key(key)
    _check_numbers(values)
    if values["dataset_type"] != "network":
        raise UsageError(
            f"dataset_type={values['dataset_type']} is for MaxText's own command, "
            "python -m maxtext.trainers.pre_train.train: use it, or dataset_type=network"
        )
    for key in _changed(values):
        if key.startswith("grain_") and key not in _GRAIN_KEYS:
            raise UsageError(
                f"{key}={values[key]} has no effect on these batches: remove it; "
                "docs/training_keys.md lists the keys that have one"
            )
    overrides = list(arguments)
    if values["hardware"] == "cpu" and "JAX_PROCESS_COUNT" not in os.environ:
        # One host: without a launcher's variables, MaxText cannot connect several.
        values["skip_jax_distributed_system"] = True
        overrides.append("skip_jax_distributed_system=true")
    folder = values.get("base_output_directory")
    if isinstance(folder, str) and folder and "://" not in folder:  # Orbax requires absolute paths
        values["base_output_directory"] = os.path.abspath(folder)
        overrides.append(f"base_output_directory={values['base_output_directory']}")
    return Arguments(_written(_changed(loaded)), tuple(overrides), values)


def _check_numbers(values: dict[str, Any]) -> None:
    """Raises UsageError for a number that MaxText fails on, or trains on nothing with."""
    for key, least in _LEAST.items():
        try:
            number = float(values[key])
        except (KeyError, TypeError, ValueError):
            continue  # a default of MaxText's; or of a wrong type, which it reports
        if not (number >= least and number.is_integer()) and (key, number) != ("steps", -1):
            raise UsageError(f"{key}={values[key]}: it must be a whole number, {least} or more")


def _config_file(name: str) -> str:
    own = sorted(path.stem for path in CONFIGS.glob("*.yml"))
    if name in own:
        return str(CONFIGS / f"{name}.yml")
    if not name.endswith(".yml"):
        raise UsageError(f"config {name!r} does not exist: use {', '.join(own)} or a .yml file")
    if not os.path.isfile(name):
        raise UsageError(
            f"config file {name} does not exist: use {', '.join(own)} or another .yml file"
        )
    return name


def _load(file: str) -> dict[str, Any]:
    """Loads a config over its base_config: next to it, ours (default network.yml), or MaxText's."""
    if file == _BASE_FILE:
        return _base_values()
    values = _plain(omegaconf.OmegaConf.load(file))
    base = values.pop("base_config", "network.yml")
    for folder in (os.path.dirname(file), str(CONFIGS), MAXTEXT_CONFIGS_DIR):
        if os.path.isfile(path := os.path.join(folder, base)):
            return _merge(_load(path), values)
    raise UsageError(
        f"{file}: base_config {base} is not next to it, in {CONFIGS} or in MaxText's configs"
    )


@functools.cache
def _base_values() -> dict[str, Any]:
    """Returns the values of MaxText's base.yml, which nobody changes."""
    values = _plain(omegaconf.OmegaConf.load(_BASE_FILE))
    values.pop("base_config", None)
    return values


def _merge(values: dict[str, Any], over: Any) -> dict[str, Any]:
    """Merges `over` into `values`; each of steps and network_train_tokens replaces the other."""
    if "steps" in over and over.get(_TOKENS):
        raise UsageError(
            f"steps={over['steps']} and {_TOKENS}={over[_TOKENS]} both set the length of the run: "
            "use one of them"
        )
    replaced = {_TOKENS: 0} if "steps" in over and _TOKENS in values else {}
    return _plain(omegaconf.OmegaConf.merge(values, replaced, over))


def _plain(config: Any) -> dict[str, Any]:
    return cast(dict[str, Any], omegaconf.OmegaConf.to_container(config, resolve=True))


def _changed(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that differ from MaxText's base.yml."""
    base = _base_values()
    return {key: value for key, value in values.items() if key not in base or base[key] != value}


def _written(changed: dict[str, Any]) -> str:
    """Writes a temporary config file for MaxText; returns its name."""
    with tempfile.NamedTemporaryFile("w", suffix=".yml", delete=False) as file:
        yaml.safe_dump({**changed, "base_config": _BASE}, file)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


def _is_known(key: str, fields: Mapping[str, FieldInfo]) -> bool:
    """Returns whether a key is a field of MaxText's config or of a nested config."""
    nested = (getattr(field.annotation, "model_fields", {}) for field in fields.values())
    return key in fields or any(_is_known(key, inner) for inner in nested)


def _unknown_key(key: str) -> UsageError:
    near = difflib.get_close_matches(key, NetworkConfig.model_fields, 1)
    cure = "docs/training_keys.md lists ours, base.yml MaxText's"
    if near:
        cure = f"did you mean {near[0]}?"
    if known := DATA_KEYS.get(key.removeprefix("network_")):
        cure = f"use {known}"
    return UsageError(f"there is no key {key}: {cure}")


def build(arguments: Arguments) -> Any:
    """Builds MaxText's config of a run; on a pod this connects the hosts.

    With network_train_tokens, `steps` is the number of whole steps that these tokens suffice for,
    padding included. Raises UsageError if MaxText rejects a value, or there are too few tokens.
    """
    config = _initialized(arguments.argv())
    if not (tokens := arguments.values.get(_TOKENS)):
        return config
    tokens_per_step = config.global_batch_size_to_train_on * config.max_target_length
    if config.network_train_tokens < tokens_per_step:
        raise UsageError(
            f"{_TOKENS}={tokens} is less than the {tokens_per_step} tokens of one step: increase "
            "it, or reduce per_device_batch_size"
        )
    return _initialized(arguments.argv(f"steps={config.network_train_tokens // tokens_per_step}"))


def _initialized(argv: list[str]) -> Any:
    try:
        config = pyconfig._initialize_pydantic(argv, config_class=NetworkConfig)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"])
        given = f"{key}={fault['input']!r}: " if key else ""
        raise UsageError(f"{given}{_one_line(fault['msg'])}") from error
    except (ValueError, TypeError, ArithmeticError, AssertionError, FileNotFoundError) as error:
        raise UsageError(_one_line(error)) from error
    return pyconfig.HyperParameters(config)


def has_profile(config: Any, stage: Stage, begin: int) -> bool:
    """Returns whether a stage that begins at step `begin` is long enough to be profiled."""
    return begin + config.skip_first_n_steps_for_profiler < stage.end


def overrides_of(config: Any, stage: Stage, begin: int) -> list[str]:
    """Returns the overrides that turn the config of a run into that of one stage."""
    scale = config.max_target_length // stage.crop_size
    before = config.network_curriculum.split(",")[: stage.number]
    overrides = {
        "run_name": config.run_name,  # the time by default
        "base_output_directory": config.base_output_directory,
        "steps": stage.end,
        "learning_rate_schedule_steps": config.learning_rate_schedule_steps,
        "max_target_length": stage.crop_size,
        "rope_max_timescale": rope_base(config, stage),
        "per_device_batch_size": config.per_device_batch_size * scale,
        "eval_per_device_batch_size": config.eval_per_device_batch_size * scale,
        "network_curriculum": f"'{','.join(before)}'",
        # MaxText raises an error if it cannot profile.
        **({} if has_profile(config, stage, begin) else {"profiler": "''"}),
    }
    return [f"{key}={value}" for key, value in overrides.items()]


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


# --- the record of a run ------------------------------------------------------------------------


@contextlib.contextmanager
def only_trainer(config: Any) -> Iterator[None]:
    """Locks the folder of a local run, so that two trainers cannot write to it; ends with them."""
    folder = os.path.join(config.base_output_directory, config.run_name)
    if jax.process_index() or "://" in folder:
        yield
        return
    with explained_os_errors("write", folder):
        os.makedirs(folder, exist_ok=True)
        file = open_own(os.path.join(folder, _LOCK), "ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process trains in {folder}: wait for its end, or set another run_name"
            ) from None
        yield


def check_model(arguments: Arguments, config: Any) -> None:
    """Raises UsageError if the run's checkpoints are of a different model or optimizer."""
    path = epath.Path(config.base_output_directory) / config.run_name / _RECORD
    if not path.exists():
        return
    base = _base_values()
    old, new = {**base, **yaml.safe_load(path.read_text())}, {**base, **arguments.values}
    different = [key for key in _MODEL_KEYS if old.get(key) != new.get(key)]
    if different:
        now = ", ".join(f"{key}={new.get(key)} (it has {old.get(key)})" for key in different)
        raise UsageError(
            f"the checkpoints of {path.parent} are of another model, {now}: set these keys as they "
            "were, or another run_name"
        )


def record(arguments: Arguments, config: Any) -> None:
    """Writes run_config.yml with the values that differ from MaxText's base.yml."""
    if jax.process_index():
        return
    folder = epath.Path(config.base_output_directory) / config.run_name
    folder.mkdir(parents=True, exist_ok=True)
    values = {**arguments.values, "steps": config.steps}
    values.pop(_TOKENS, None)  # its number of steps depends on the number of devices
    text = yaml.safe_dump({**_changed(values), "base_config": _BASE})
    (folder / _RECORD).write_text(f"# The config of this run; --checkpoint reads it.\n{text}")


def recorded(run_folder: str, *overrides: str) -> Arguments:
    """Returns the recorded arguments of a run, for use on any machine, with overrides."""
    try:
        values = yaml.safe_load((epath.Path(run_folder) / _RECORD).read_text())
    except FileNotFoundError:
        raise UsageError(
            f"{run_folder} is not the folder of a run, base_output_directory/run_name: it has no "
            f"{_RECORD}"
        ) from None
    # Sharding depends on the training machines, and initial weights matter only at the start.
    kept = {
        key: value
        for key, value in values.items()
        if key != "base_config" and not key.startswith(("ici_", "dcn_", "load_"))
    }
    return read([_written(kept), *overrides])
