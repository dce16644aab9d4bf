"""What the kernels save: each against the plain way of torch, and in a whole step of training.

    python benchmarks/kernels.py [rounds]

One thread, seconds of CPU time, so that other work on the machine counts little. Ways take turns,
the order reversed every other round; a ratio is the median of the ratios within a round, and above
1 is faster than the plain way. The model is that of recipes/multi30k.yaml; torch.nn.Transformer
gets the same sizes, Pre-LN, a tied table, and no dropout of attention weights, as ours has none.
"""

import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels.cross_entropy import linear_cross_entropy
from addnorm.kernels.dropout import Dropout
from addnorm.models import build
from addnorm.train.objective import Objective

TOKENS, DIM, WIDE, CLASSES = 2048, 128, 256, 8000
VOCAB, SENTENCES, LENGTH = 5000, 80, 25
SIZE = {"vocab": VOCAB, "dim": DIM, "depth": 4, "heads": 4, "ffn_dim": WIDE, "dropout": 0.2}
SMOOTHING = 0.1

Way = Callable[[], object]


def main(rounds: int) -> None:
    """Print all tables."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, {rounds} rounds, milliseconds of CPU time")
    table(
        f"Output layer with cross entropy, {TOKENS} x {DIM} x {CLASSES}, forward and backward",
        output_layer(),
        rounds,
    )
    table(f"Dropout of {TOKENS} x {WIDE}, forward", dropout(backward=False), rounds)
    table(f"Dropout of {TOKENS} x {WIDE}, forward and backward", dropout(backward=True), rounds)
    table("Product of 512 x 512 matrices", products(), rounds)
    ways, tokens = steps()
    table(f"Step of training, 4+4 layers, {tokens} target tokens", ways, rounds, tokens)


def table(title: str, ways: dict[str, Way], rounds: int, tokens: int = 0) -> None:
    """Medians of each way, and ratios to the first, which is the plain one."""
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            start = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - start)
    plain = next(iter(times.values()))
    print(f"\n{title}\n\n| way | ms | times as fast |{' tokens/s |' if tokens else ''}")
    print(f"|---|---|---|{'---|' if tokens else ''}")
    for name, taken in times.items():
        middle = statistics.median(taken)
        faster = statistics.median(p / t for p, t in zip(plain, taken, strict=True))
        rate = f" {tokens / middle:,.0f} |" if tokens else ""
        print(f"| {name} | {1e3 * middle:.2f} | {faster:.3g} |{rate}", flush=True)


def output_layer() -> dict[str, Way]:
    """All logits at once, and a few tokens' at a time."""
    h = torch.randn(TOKENS, DIM, requires_grad=True)
    weight = torch.randn(CLASSES, DIM, requires_grad=True)
    targets = torch.randint(CLASSES, (TOKENS,))

    def plain() -> None:
        logits = h @ weight.T
        backward(F.cross_entropy(logits, targets, label_smoothing=SMOOTHING, reduction="sum"))

    def ours() -> None:
        backward(linear_cross_entropy(h, weight, targets, smoothing=SMOOTHING).loss)

    def backward(loss: Tensor) -> None:
        torch.autograd.grad(loss, (h, weight))

    return {"torch, whole logits": plain, "kernels/cross_entropy.py": ours}


def dropout(*, backward: bool) -> dict[str, Way]:
    """A draw a feature, and one for four."""
    x = torch.randn(TOKENS, WIDE, requires_grad=True)
    upstream = torch.randn(TOKENS, WIDE)

    def way(layer: nn.Module) -> Way:
        def run() -> None:
            for _ in range(10):  # one alone is too short for the clock
                y = layer(x)
                if backward:
                    torch.autograd.grad(y, x, upstream)

        return run

    return {"torch, ten times": way(nn.Dropout(0.2)), "kernels/dropout.py": way(Dropout(0.2))}


def products() -> dict[str, Way]:
    """Why bfloat16 is no gain on a CPU without instructions for it."""
    wide = torch.randn(512, 512)
    narrow = wide.bfloat16()
    return {"float32": lambda: wide @ wide, "bfloat16": lambda: narrow @ narrow}


def steps() -> tuple[dict[str, Way], int]:
    """A whole update, with and without the kernels; and the target tokens of it."""
    source = torch.randint(4, VOCAB, (SENTENCES, LENGTH))
    targets = torch.randint(4, VOCAB, (SENTENCES, LENGTH + 1))
    lengths = torch.randint(
        LENGTH - 5, LENGTH + 1, (SENTENCES, 1)
    )  # sorted ones have little padding
    source[torch.arange(LENGTH) >= lengths] = 0
    targets[torch.arange(LENGTH + 1) > lengths.flip(0)] = -100
    asked = int((targets[:, 1:] >= 0).sum())

    def update(model: nn.Module, loss: Callable[[], Tensor]) -> Way:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def run() -> None:
            optimizer.zero_grad()
            (loss() / asked).backward()
            optimizer.step()

        return run

    def whole_logits(model: nn.Module) -> Callable[[], Tensor]:
        mask = source != 0
        return lambda: entropy(model(source, targets[:, :-1].clamp(min=0), source_mask=mask))

    def entropy(logits: Tensor) -> Tensor:
        return F.cross_entropy(
            *(logits.flatten(0, 1), targets[:, 1:].flatten()),
            label_smoothing=SMOOTHING,
            reduction="sum",
        )

    def ours() -> nn.Module:
        return build(kind="seq2seq", seed=0, **SIZE)

    peer, neither, first, both = Peer(), plain_dropout(ours()), plain_dropout(ours()), ours()
    aims = [Objective(model, "translate", smoothing=SMOOTHING) for model in (first, both)]
    counts = [sum(each.numel() for each in model.parameters()) for model in (peer, both)]
    print(f"\nParameters: torch.nn.Transformer {counts[0]:,}, addnorm {counts[1]:,}")
    return {
        "torch.nn.Transformer": update(peer, whole_logits(peer)),
        "addnorm, torch's cross entropy and dropout": update(neither, whole_logits(neither)),
        "addnorm, torch's dropout": update(first, lambda: aims[0](source, targets)[0]),
        "addnorm": update(both, lambda: aims[1](source, targets)[0]),
    }, asked


def plain_dropout(model: nn.Module) -> nn.Module:
    """The same model with torch's dropout."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.p))
    return model


class Peer(nn.Module):
    """torch's Transformer with a tied table and sinusoidal positions."""

    positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        depth, heads = int(SIZE["depth"]), int(SIZE["heads"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Pre-LN has no nested tensors
            self.body = nn.Transformer(
                *(DIM, heads, depth, depth, WIDE),
                dropout=SIZE["dropout"],
                batch_first=True,
                norm_first=True,
            )
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.dropout = nn.Dropout(SIZE["dropout"])
        rates = torch.exp(torch.arange(0, DIM, 2) * (-math.log(10_000) / DIM))
        angles = torch.arange(LENGTH)[:, None] * rates
        table = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        self.register_buffer("positions", table)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        padding = ~source_mask
        h = self.body(
            *(self.embedded(source), self.embedded(target)),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return h @ self.table.weight.T

    def embedded(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * math.sqrt(DIM) + self.positions[: ids.shape[1]])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
