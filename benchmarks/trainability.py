"""Final loss of a deep stack of each wiring on a small fixed task, without warm-up or tuning.

    OMP_NUM_THREADS=1 python benchmarks/trainability.py --task copy --depth 12 --steps 100 --seeds 2

copy: every token predicts itself, which only requires that signal and gradient reach all layers.
reverse: every token predicts its mirror image, which requires attention. The loss of a uniform
prediction is ln(16).
"""

import argparse
import math
import statistics
import time
import warnings

import torch
from torch.nn.functional import cross_entropy

from addnorm.models import build
from addnorm.wirings import registry

VOCAB, LENGTH, BATCH = 16, 12, 32


def train_and_measure_loss(wiring: str, options: argparse.Namespace, seed: int) -> float:
    """Return the mean loss of the last ten steps; infinity if a loss was not finite."""
    model = build(
        kind="masked_lm",
        vocab=VOCAB,
        dim=options.dim,
        depth=options.depth,
        heads=4,
        wiring=wiring,
        embed_scale="sqrt_dim",
        seed=seed,
    )
    target = {"copy": torch.clone, "reverse": lambda ids: ids.flip(1)}[options.task]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    losses: list[float] = []
    for step in range(options.steps):
        ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
        if step == 0:
            model.encoder.calibrate(model.embed(ids))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, (step + 1) / max(options.warmup, 1))
        loss = cross_entropy(model(ids).flatten(0, 1), target(ids).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.after_step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return math.inf
    return statistics.fmean(losses[-10:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wiring", nargs="*", default=list(registry))
    parser.add_argument("--task", choices=("copy", "reverse"), default="copy")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| wiring | loss, one number per seed | seconds |\n|---|---|---|")
    for wiring in options.wiring:
        start = time.perf_counter()
        losses = [train_and_measure_loss(wiring, options, seed) for seed in range(options.seeds)]
        text = ", ".join(f"{loss:.2f}" for loss in losses)
        print(f"| `{wiring}` | {text} | {time.perf_counter() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
