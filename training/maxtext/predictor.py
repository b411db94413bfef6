"""A trained model as a function from tokens to log-probabilities of the next token."""
# MaxText, Flax and Orbax are typed in part.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import contextlib
import functools
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx
from maxtext.layers.attention_op import DEFAULT_MASK_VALUE, AttentionOp
from maxtext.utils import model_creation_utils

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from training.maxtext import run_config
from training.maxtext.curriculum import rope_base, share_of
from training.maxtext.iterators import completed_steps, stages
from training.tokens.tokenizer import VOCABULARY_SIZE


@dataclass(frozen=True)
class Predictor:
    """The model of a checkpoint, an `evaluation.predictions.Predictor`."""

    crop_size: int
    fixed_order_share: float
    log_rtt: bool
    step: int
    vocab_size: int
    description: str
    _forward: Callable[..., jax.Array]

    def __call__(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        return np.asarray(self._forward(inputs, positions, segmentation))


def load_predictor(checkpoint: str) -> Predictor:
    """Loads a model trained by `training.train` on this machine's devices.

    Args:
      checkpoint: base_output_directory/run_name, for the last checkpoint of a run, or
        base_output_directory/run_name/checkpoints/STEP; local or gs://.

    Raises:
      UsageError: the checkpoint does not exist.
      ProbelineError: it is cut, or of a model other than its run_config.yml.

    Example:

        predictor = load_predictor("runs/first")
        predictor.step, predictor.crop_size
    """
    path = epath.Path(checkpoint if "://" in checkpoint else os.path.abspath(checkpoint))
    run_folder = path.parent.parent if path.name.isdecimal() else path
    checkpoints = run_folder / "checkpoints"
    step = int(path.name) if path.name.isdecimal() else completed_steps(checkpoints) - 1
    if not (checkpoints / str(step)).exists():
        missing = "no checkpoint yet" if step < 0 else f"no checkpoint {step}"
        raise UsageError(f"{run_folder} has {missing}")
    overrides = (
        f"base_output_directory={run_folder.parent}",
        f"run_name={run_folder.name}",
        f"load_parameters_path={checkpoints / str(step) / 'items'}",
        "skip_jax_distributed_system=true",
        f"hardware={jax.default_backend()}",
        "attention=dot_product",
    )
    config = run_config.build(run_config.recorded(str(run_folder), *overrides))
    stage = next(stage for stage in stages(config) if step < stage.end)
    base = f"rope_max_timescale={rope_base(config, stage)}"
    config = run_config.build(run_config.recorded(str(run_folder), *overrides, base))
    try:
        loaded: Any = model_creation_utils.from_pretrained(config)
    except Exception as error:
        raise ProbelineError(
            f"{checkpoints / str(step)} cannot be loaded as the model of run_config.yml: copy the "
            f"run's folder again as a whole, or name an earlier step ({one_line(error)[:120]})"
        ) from error
    model, _ = loaded
    graph, state = nnx.split(model)
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))

    @jax.jit
    def forward(state, inputs, positions, segmentation):
        with _branches():
            logits = nnx.merge(graph, state)(
                decoder_input_tokens=inputs,
                decoder_positions=positions,
                decoder_segment_ids=segmentation,
                enable_dropout=False,
            )
        logits = logits[..., :VOCABULARY_SIZE].astype(np.float32)
        return jax.nn.log_softmax(logits, axis=-1)

    return Predictor(
        crop_size=stage.crop_size,
        fixed_order_share=share_of(config.network_fixed_order_share, stage),
        log_rtt=config.network_log_rtt,
        step=step + 1,
        vocab_size=config.vocab_size,
        description=f"{run_folder.name}, {num_parameters / 1e6:.2f} M parameters",
        _forward=functools.partial(forward, state),
    )


@contextlib.contextmanager
def _branches() -> Generator[None]:
    """Makes MaxText's attention, while it is traced, know branches: see `predictions.Predictor`.

    To MaxText a branch is a part of segment 1; what is added hides branches from all others.
    """
    usual = AttentionOp.generate_attention_mask

    def mask(self, query, key, decoder_segment_ids, *args, **kwargs):
        ids = decoder_segment_ids
        found: Any = usual(self, query, key, jnp.where(ids < 0, 1, ids), *args, **kwargs)
        asks, sees = ids[:, :, None], ids[:, None, :]
        is_hidden = (sees < 0) & (asks != sees)
        return jnp.where(is_hidden[:, None, None], DEFAULT_MASK_VALUE, found)

    AttentionOp.generate_attention_mask = mask
    try:
        yield
    finally:
        AttentionOp.generate_attention_mask = usual
