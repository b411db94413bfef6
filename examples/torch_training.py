"""A small transformer on probe rows in plain PyTorch, stopped and resumed on the way.

  pip install '.[torch]'
  python examples/torch_training.py demo/rows

It trains twice: without a stop, and with one in the middle, after which everything is made anew
from a file. Both end with the same loss.
"""

import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from training import DataConfig, build_torch_dataset

NUM_STEPS, WIDTH, HEADS, VOCABULARY, CROP = 60, 64, 4, 267, 128


class Transformer(nn.Module):
    """One block of attention and a perceptron; positions and attention keep to their segment."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CROP, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns logits [batch, crop, vocabulary]."""
        segment = batch["inputs_segmentation"]
        is_hidden = segment[:, :, None] != segment[:, None, :]
        is_hidden |= torch.ones(CROP, CROP, dtype=torch.bool).triu(1)  # what comes later
        x = self.tokens(batch["inputs"]) + self.places(batch["inputs_position"])
        y = self.before(x)
        mask = is_hidden.repeat_interleave(HEADS, dim=0)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.output(x + self.perceptron(self.between(x)))


class Run:
    """A model, its optimizer and its data, at the beginning of training."""

    def __init__(self, rows: str):
        torch.manual_seed(0)
        self.model = Transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        # Of all ranks; torch.distributed, if it is initialised, tells this one's part.
        config = DataConfig(files=rows, batch_size=8, crop_size=CROP, num_threads=1)
        self.data = build_torch_dataset(config)

    def train(self, num_steps: int) -> float:
        """Trains some steps; returns the loss of the last one."""
        loader = DataLoader(self.data, batch_size=None)  # batches come as batches
        for _, batch in zip(range(num_steps), loader):
            logits = self.model(batch).flatten(0, 1)
            losses = functional.cross_entropy(
                logits, batch["targets"].flatten().long(), reduction="none"
            )
            is_token = batch["targets_segmentation"].flatten() > 0  # the rest is padding
            loss = losses[is_token].mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def parts(self) -> dict:
        """Returns what a checkpoint consists of."""
        return {"model": self.model, "optimizer": self.optimizer, "data": self.data}

    def save(self, file: str) -> None:
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, file)

    def load(self, file: str) -> None:
        states = torch.load(file)
        for name, part in self.parts().items():
            part.load_state_dict(states[name])


def main(rows: str) -> None:
    print(f"step 1: loss {Run(rows).train(1):.4f}")
    whole = Run(rows).train(NUM_STEPS)
    print(f"step {NUM_STEPS}, without a stop: loss {whole:.4f}")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(rows)
        run.train(NUM_STEPS // 2)
        run.save(f"{folder}/checkpoint.pt")
        run = Run(rows)
        run.load(f"{folder}/checkpoint.pt")
        resumed = run.train(NUM_STEPS - NUM_STEPS // 2)
    print(f"step {NUM_STEPS}, resumed at step {NUM_STEPS // 2}: loss {resumed:.4f}")
    assert resumed == whole


if __name__ == "__main__":
    main(sys.argv[1])
