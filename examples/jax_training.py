"""A small transformer on probe rows in plain JAX, stopped and resumed on the way.

  pip install '.[maxtext]'     # JAX, Optax and Orbax; MaxText itself is not used
  python examples/jax_training.py demo/rows

It trains twice: without a stop, and with one in the middle, after which everything is made anew
from a checkpoint of Orbax. Both end with the same loss.
"""

import sys
import tempfile

import grain
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

from training import DataConfig, build_dataset

NUM_STEPS, WIDTH, HEADS, VOCABULARY, CROP = 60, 64, 4, 267, 128
OPTIMIZER = optax.adamw(3e-3)


def new_parameters() -> dict[str, jax.Array]:
    """Returns those of one block of attention and a perceptron."""
    shapes = {
        "tokens": (VOCABULARY, WIDTH),
        "places": (CROP, WIDTH),
        "output": (WIDTH, VOCABULARY),
        "query_key_value": (WIDTH, 3 * WIDTH),
        "mixed": (WIDTH, WIDTH),
        "wide": (WIDTH, 4 * WIDTH),
        "narrow": (4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: jax.random.normal(key, shape) * shape[0] ** -0.5
        for key, (name, shape) in zip(keys, shapes.items())
    }


def logits_of(parameters: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """Returns [batch, crop, vocabulary]; positions and attention keep to their segment."""
    segment = batch["inputs_segmentation"]
    mask = (segment[:, :, None] == segment[:, None, :]) & jnp.tri(CROP, dtype=bool)
    x = parameters["tokens"][batch["inputs"]] + parameters["places"][batch["inputs_position"]]
    heads = jax.nn.standardize(x) @ parameters["query_key_value"]
    query, key, value = jnp.split(heads.reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
    attended = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])
    x += attended.reshape(x.shape) @ parameters["mixed"]
    x += jax.nn.gelu(jax.nn.standardize(x) @ parameters["wide"]) @ parameters["narrow"]
    return x @ parameters["output"]


def loss_of(parameters: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    logits = logits_of(parameters, batch)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return losses.mean(where=batch["targets_segmentation"] > 0)  # the rest is padding


@jax.jit
def step(model: tuple, batch: dict[str, jax.Array]) -> tuple[tuple, jax.Array]:
    parameters, state = model
    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
    updates, state = OPTIMIZER.update(gradients, state, parameters)
    return (optax.apply_updates(parameters, updates), state), loss


class Run:
    """A model with its optimizer's state, and its data, at the beginning of training."""

    def __init__(self, rows: str):
        parameters = new_parameters()
        self.model = parameters, OPTIMIZER.init(parameters)
        # Of all hosts; host_index and host_count tell this one's part.
        config = DataConfig(files=rows, batch_size=8, crop_size=CROP, num_threads=1)
        self.batches = iter(build_dataset(config))

    def train(self, num_steps: int) -> float:
        """Trains some steps; returns the loss of the last one."""
        for _ in range(num_steps):
            self.model, loss = step(self.model, next(self.batches))
        return float(loss)

    def save(self, manager: ocp.CheckpointManager, at: int) -> None:
        model, data = (
            ocp.args.StandardSave(self.model),
            grain.checkpoint.CheckpointSave(self.batches),
        )
        manager.save(at, args=ocp.args.Composite(model=model, data=data))
        manager.wait_until_finished()

    def load(self, manager: ocp.CheckpointManager, at: int) -> None:
        model = ocp.args.StandardRestore(self.model)
        data = grain.checkpoint.CheckpointRestore(self.batches)
        self.model = manager.restore(at, args=ocp.args.Composite(model=model, data=data)).model


def main(rows: str) -> None:
    half = NUM_STEPS // 2
    print(f"step 1: loss {Run(rows).train(1):.4f}")
    whole = Run(rows).train(NUM_STEPS)
    print(f"step {NUM_STEPS}, without a stop: loss {whole:.4f}")
    with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
        run = Run(rows)
        run.train(half)
        run.save(manager, half)
        run = Run(rows)
        run.load(manager, half)
        resumed = run.train(NUM_STEPS - half)
    print(f"step {NUM_STEPS}, resumed at step {half}: loss {resumed:.4f}")
    assert resumed == whole


if __name__ == "__main__":
    main(sys.argv[1])
