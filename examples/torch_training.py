"""The model and the recipe of `tiny` (training/configs) in plain PyTorch.

pip install '.[torch]'  # with PyTorch 2.9 or newer, for Muon
python examples/torch_training.py demo/rows      # 60 steps, whole and resumed: the same loss
python examples/torch_training.py rows 12000     # the recipe, then errors of RTTs of rows/test
"""

import math
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from training import DataConfig, build_torch_dataset
from training.evaluation.examples import open_splits
from training.evaluation.results import evaluate
from training.extent import EvaluationExtent
from training.tokens.tokenizer import FIRST_BYTE, RTT_START

WIDTH, HEADS, HIDDEN, BLOCKS, VOCABULARY, CROP = 96, 2, 256, 3, 267, 1024
# Share of the steps, crop size and repeat_share; every step has 1,024 tokens.
STAGES = (0.3, 256, 0.5), (0.275, 256, 0.2), (0.383, 512, 0.15), (0.042, CROP, 0.1)
RTT_WEIGHT = 8  # of an RTT's bytes in the loss; of other tokens 1
RATE, WARM_UP, LAST_RATE, DECAY = 5e-3, 0.02, 0.02, 0.05
MUON_RMS = 0.35 / 0.2  # of an update; torch's is 0.2 times the rate


class Block(nn.Module):
    """Attention with rotary positions, within a segment, and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.before, self.between = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.of_query, self.of_key = nn.RMSNorm(size, 1e-6), nn.RMSNorm(size, 1e-6)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (part(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv)
        q, k = turned(self.of_query(q), angles), turned(self.of_key(k), angles)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        x = x + self.mix(found.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (i, i + size / 2) of queries or keys by their positions' angles."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Transformer(nn.Module):
    """Tokens in, log-probabilities of the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.after, self.output = nn.RMSNorm(WIDTH, 1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear):  # torch's own are too small to learn to copy from
                std = part.in_features**-0.5 / 0.8796  # of a normal cut at 2
                nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        for part in (self.tokens, self.output):
            part.weight.data = first_weights()

    def forward(
        self, inputs: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor
    ) -> torch.Tensor:
        """Returns float32 [batch, crop, vocabulary], from three int32 [batch, crop]."""
        crop, size = inputs.shape[1], WIDTH // HEADS
        base = 10_000 * (crop / CROP) ** (size / (size - 2))  # shorter crops turn as far
        speeds = base ** (-torch.arange(0, size, 2) / size)
        angles = (positions[..., None] * speeds)[:, None]
        sees = segments[:, :, None] == segments[:, None, :]
        sees &= torch.ones(crop, crop, dtype=torch.bool).tril()  # what comes before
        x = self.tokens(inputs)
        for block in self.blocks:
            x = block(x, angles, sees[:, None])
        return functional.log_softmax(self.output(self.after(x)), dim=-1)


def first_weights() -> torch.Tensor:
    """Draws weights of tokens, of bytes as `training.maxtext.iterators.first_weights` does."""
    weights = torch.randn(VOCABULARY, WIDTH)
    angles = torch.arange(256)[:, None] * torch.randn(WIDTH) / 6 + 2 * torch.pi * torch.rand(WIDTH)
    weights[FIRST_BYTE:] = (weights[FIRST_BYTE:] + 2**0.5 * angles.cos()) * 0.5**0.5
    return weights * WIDTH**-0.5


class Run:
    """A training of some steps: the model, its optimizers and the data of its stage."""

    def __init__(self, rows: str, num_steps: int):
        torch.manual_seed(0)
        self.rows, self.num_steps, self.step = rows, num_steps, 0
        self.model = Transformer()
        inner = list(self.model.blocks.parameters())
        matrices = [each for each in inner if each.ndim == 2]
        others = [each for each in self.model.parameters() if not any(each is m for m in matrices)]
        self.muon = torch.optim.Muon(
            matrices, weight_decay=DECAY / MUON_RMS, adjust_lr_fn="match_rms_adamw"
        )
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=DECAY)
        self.data = self.data_of_stage()

    def stage(self) -> int:
        ends = np.cumsum([share for share, _, _ in STAGES])
        return int(np.searchsorted(ends * self.num_steps, self.step + 0.5))

    def data_of_stage(self):
        """Returns the data; torch.distributed, if it is initialised, tells this rank's part."""
        number = self.stage()
        _, crop, repeat_share = STAGES[number]
        return build_torch_dataset(
            DataConfig(
                files=self.rows,
                batch_size=CROP // crop,
                crop_size=crop,
                seed=number,
                repeat_share=repeat_share,
                random_source_share=1,
                fixed_order_share=1,
                log_rtt=True,
                mixed_rows=256,
                num_threads=1,
            )
        )

    def train(self, end: int) -> float:
        """Trains up to a step; returns the loss of the last one."""
        while self.step < end:
            stage = self.stage()
            for batch in DataLoader(self.data, batch_size=None):  # batches come as batches
                loss = self.train_step(batch)
                self.step += 1
                if self.step == end:
                    return loss
                if self.stage() != stage:
                    break
            self.data = self.data_of_stage()
        return math.nan

    def train_step(self, batch: dict[str, torch.Tensor]) -> float:
        warm = min(1.0, (self.step + 1) / (WARM_UP * self.num_steps))
        falling = (1 + math.cos(math.pi * self.step / self.num_steps)) / 2
        rate = RATE * warm * (LAST_RATE + (1 - LAST_RATE) * falling)
        for optimizer, factor in ((self.muon, MUON_RMS), (self.adam, 1.0)):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.zero_grad()
        names = "inputs", "inputs_position", "inputs_segmentation"
        log_p = self.model(*(batch[name] for name in names)).flatten(0, 1)
        losses = functional.nll_loss(log_p, batch["targets"].flatten().long(), reduction="none")
        is_rtt = batch["inputs"] == RTT_START
        is_rtt[:, 1:] |= is_rtt[:, :-1].clone()
        weights = torch.where(is_rtt, RTT_WEIGHT, 1.0) * (batch["targets_segmentation"] > 0)
        loss = (losses * weights.flatten()).sum() / weights.sum()  # segment 0 is padding
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.muon.step()
        self.adam.step()
        return loss.item()

    def save(self, file: str) -> None:
        parts = {
            name: getattr(self, name).state_dict() for name in ("model", "muon", "adam", "data")
        }
        torch.save({**parts, "step": self.step}, file)

    def load(self, file: str) -> None:
        states = torch.load(file)
        self.step = states.pop("step")
        self.data = self.data_of_stage()
        for name, state in states.items():
            getattr(self, name).load_state_dict(state)


class Predictor:
    """A trained model, as `training.evaluation` asks it."""

    crop_size, fixed_order_share, log_rtt, vocab_size = CROP, 1.0, True, VOCABULARY

    def __init__(self, run: Run):
        self.model, self.step, self.description = run.model, run.step, "PyTorch"

    @torch.inference_mode()
    def __call__(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        arrays = inputs, positions, segmentation
        return self.model(*map(torch.as_tensor, arrays)).numpy()


def show_errors(run: Run, rows: str) -> None:
    """Prints the median relative errors of the model and of the last RTT, on the test split."""
    extent = EvaluationExtent(num_rtt=4000)
    evaluation = evaluate(Predictor(run), *open_splits(rows), extent)
    for error in evaluation.errors:
        print(f"{error.method}, {error.group}: {error.median_relative:.1%}")


def main(rows: str, num_steps: int = 60) -> None:
    torch.set_num_threads(1)  # so small a model gains nothing from more
    train = f"{rows}/train"
    print(f"step 1: loss {Run(train, num_steps).train(1):.4f}")
    run = Run(train, num_steps)
    whole = run.train(num_steps)
    print(f"step {num_steps}, without a stop: loss {whole:.4f}")
    if num_steps > 60:
        return show_errors(run, rows)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(train, num_steps)
        run.train(num_steps // 2)
        run.save(f"{folder}/checkpoint.pt")
        run = Run(train, num_steps)
        run.load(f"{folder}/checkpoint.pt")
        resumed = run.train(num_steps)
    print(f"step {num_steps}, resumed at step {num_steps // 2}: loss {resumed:.4f}")
    assert resumed == whole


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
