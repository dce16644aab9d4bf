r"""A GPT in plain PyTorch as a task of `addnorm compare`.

addnorm compare --task examples/nano_gpt.py:train --axis wiring=pre_ln,post_ln \
    --axis optimizer=adamw,sgd --lr 1e-3,1e-2 --depth 4 --steps 200 --seeds 3 -o nano

Nothing in the model or the loop comes from addnorm. `data=FILE` trains on your own text.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import addnorm

BATCH, LENGTH, HEADS = 8, 64, 4


class Block(nn.Module):
    """Attention and feed-forward, with the norms before or after each residual add."""

    def __init__(self, dim: int, wiring: str) -> None:
        super().__init__()
        self.post = wiring == "post_ln"
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, branch in zip(self.norms, (self.attend, self.ffn), strict=True):
            x = norm(x + branch(x)) if self.post else x + branch(norm(x))
        return x


class GPT(nn.Module):
    """Decoder-only language model."""

    def __init__(self, vocab: int, dim: int, depth: int, wiring: str) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(LENGTH, dim)
        self.blocks = nn.Sequential(*(Block(dim, wiring) for _ in range(depth)))
        self.norm = nn.Identity() if wiring == "post_ln" else nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def sample_batch(data: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return windows of the text, and the same shifted by one character."""
    starts = torch.randint(len(data) - LENGTH, (BATCH,), generator=generator)
    windows = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, data: torch.Tensor) -> float:
    """Return the loss on held-out text."""
    generator = torch.Generator().manual_seed(0)  # the same batches for every cell
    batches = [sample_batch(data, generator) for _ in range(4)]
    losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in batches]
    return torch.stack(losses).mean().item()


@addnorm.task("nano_gpt", defaults={"depth": 4, "lr": [1e-3, 3e-3]})
def train(cell: addnorm.Cell) -> dict[str, float]:
    """Train one cell of the comparison."""
    path = Path(argparse.__file__ if cell.data == "demo" else cell.data)
    text = path.read_text(encoding="utf-8")
    symbols = sorted(set(text))
    data = torch.tensor([symbols.index(character) for character in text])
    split = len(data) * 9 // 10

    model = GPT(len(symbols), cell.get("dim", 64), cell.depth, cell.wiring)
    optimizers = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = optimizers[cell.get("optimizer", "adamw")](model.parameters(), lr=cell.lr)
    batches = torch.Generator().manual_seed(cell.seed)
    cell.log(0, valid_loss=evaluate(model, data[split:]))  # untrained: the baseline
    for step in range(1, cell.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = cell.lr * min(1.0, step / max(1, cell.warmup))
        x, y = sample_batch(data[:split], batches)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cell.log(step, train_loss=loss)
        if step % max(1, cell.steps // 4) == 0:
            cell.log(step, valid_loss=evaluate(model, data[split:]))
    valid_loss = evaluate(model, data[split:])
    return {"valid_loss": valid_loss, "bits_per_character": valid_loss / math.log(2)}
