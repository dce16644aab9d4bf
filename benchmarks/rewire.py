"""Eight changes of a trained language model: naive against `addnorm.rewire`.

For each change: the held-out loss before, right after, and after 10 % more steps of training.

    addnorm data files --lines --text train.txt.xz --valid-text valid.txt.xz \
        --test-text test.txt.xz -o wikitext-2
    addnorm train lm -c benchmarks/recipes/wikitext2.yaml data=wikitext-2 norm=layer dim=64 \
        depth=4 heads=4 vocab=2000 steps=1000 batch_tokens=1024 max_length=128 dropout=0 \
        activation=gelu -o run
    python benchmarks/rewire.py run
"""

import argparse
import copy
import itertools

import torch

from addnorm.data.batches import BatchIterator
from addnorm.models import Model
from addnorm.rewiring import change_naively, rewire
from addnorm.rewiring.losses import evaluation
from addnorm.train import TrainedRun

CHANGES = {
    "norm=rms": {"norm": "rms"},
    "norm=dyt": {"norm": "dyt"},
    "norm=derf": {"norm": "derf"},
    "qk_norm=rms": {"qk_norm": "rms"},
    "wiring=layer_scale": {"wiring": "layer_scale"},
    "depth + 50 %": {"depth": 6},
    "wiring=sandwich": {"wiring": "sandwich"},
    "wiring=post_ln": {"wiring": "post_ln"},
}
LR = 1e-4
WARMUP = 10


class Data:
    """Batches of a run's corpus."""

    def __init__(self, run: TrainedRun) -> None:
        self.task = run.recipe.make_task()
        corpus = self.task.open_corpus(run.recipe.data)
        limits = {"batch_tokens": run.recipe.batch_tokens, "max_length": run.recipe.max_length}
        # Other batches than those of the training, in an order of their own.
        self.train = self.task.make_batches(corpus, run.tokenizer, seed=12345, **limits)
        self.valid = self.task.make_batches(corpus, run.tokenizer, split="valid", **limits)

    def take(self, batches: BatchIterator, count: int) -> list[torch.Tensor]:
        """Return the ids of some batches."""
        stream = itertools.islice(batches.stream(), count)
        return [batch.inputs_and_targets[0] for batch, _ in stream]


def held_out(model: Model, data: list[torch.Tensor]) -> float:
    with evaluation(model):
        losses = [step_loss(model, each) for each in data]
    return float(torch.stack(losses).mean())


def step_loss(model: Model, ids: torch.Tensor) -> torch.Tensor:
    return model.compute_loss(model(ids), ids)


def train(model: Model, data: list[torch.Tensor]) -> None:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    model.train()
    for step, ids in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / WARMUP)
        loss = step_loss(model, ids)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.after_step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=4, help="sequences of a batch")
    options = parser.parse_args()
    torch.manual_seed(0)
    run = TrainedRun.open(options.run)
    data = Data(run)
    train_ids = [ids[: options.sequences] for ids in data.take(data.train, options.steps + 1)]
    valid_ids = data.take(data.valid, 8)
    calibrate, train_ids = train_ids[:1], train_ids[1:]
    base = run.model.eval()
    before = held_out(base, valid_ids)
    control = copy.deepcopy(base)
    train(control, train_ids)
    print(f"{sum(i.numel() for i in valid_ids)} held-out tokens", flush=True)
    print(
        f"{'unchanged':20} before {before:.4f}  after {options.steps} steps "
        f"{held_out(control, valid_ids):.4f}",
        flush=True,
    )
    print("| change | grade | before | naive | ours | naive later | ours later |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, changes in CHANGES.items():
        naive = change_naively(base, calibrate, **changes)
        ours, report = rewire(base, calibrate=calibrate, **changes)
        at_once = [held_out(each, valid_ids) for each in (naive, ours)]
        for each in (naive, ours):
            train(each, train_ids)
        later = [held_out(each, valid_ids) for each in (naive, ours)]
        cells = [f"{value:.4f}" for value in (before, *at_once, *later)]
        print(f"| {name} | {report.grade} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
