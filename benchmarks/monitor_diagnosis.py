"""Sentences of `addnorm.Monitor` on planted failures and on healthy runs.

    OMP_NUM_THREADS=1 python benchmarks/monitor_diagnosis.py [SEEDS] [NAME ...]

Each failure is planted with several seeds; a run counts as found if a sentence names it with the
site or number that the failure was planted at. In healthy runs every sentence is counted. SEEDS is
the number of seeds of each failure, NAME selects some of them.
"""

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import addnorm
from addnorm.core.errors import MonitorWarning

VOCAB, LENGTH, BATCH, DIM, STEPS, EVERY = 32, 24, 16, 32, 320, 10
PLANTED_STEP = 200
HEALTHY_SEEDS = 10


class Attention(nn.Module):
    """Causal self-attention with its softmax in the open."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.half = False

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.half:  # too large for float16
            scores = ((300 * q).half() @ (300 * k).half().mT).float() / q.shape[-1] ** 0.5
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~(causal & valid[:, None, None]), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One layer; `wiring` is pre_ln or post_ln."""

    def __init__(self, wiring: str) -> None:
        super().__init__()
        self.wiring, self.gate, self.is_detached = wiring, 1.0, False
        self.norm_1, self.norm_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        if self.wiring == "post_ln":
            x = self.norm_1(x + self.attention(x, valid))
            return self.norm_2(x + self.mlp(x))
        x = x + self.gate * self.attention(self.norm_1(x), valid)
        branch = self.mlp(self.norm_2(x))
        return x + (branch.detach() if self.is_detached else branch)


class Model(nn.Module):
    """A language model of hand-written blocks."""

    def __init__(self, wiring: str = "pre_ln", depth: int = 4, final_norm: bool = True) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(wiring) for _ in range(depth))
        self.norm = nn.LayerNorm(DIM) if final_norm and wiring == "pre_ln" else nn.Identity()
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids: Tensor, valid: Tensor) -> Tensor:
        x = self.table(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, valid)
        return self.head(self.norm(x))


def markov_batch(step: int, seed: int) -> Tensor:
    """Return text of a random Markov chain with four likely successors per letter."""
    chain = torch.randint(VOCAB, (VOCAB, 4), generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(1000 * step + seed)
    ids = [torch.randint(VOCAB, (BATCH,), generator=generator)]
    for _ in range(LENGTH):
        ids.append(chain[ids[-1], torch.randint(4, (BATCH,), generator=generator)])
    return torch.stack(ids, 1)


def copy_batch(step: int, seed: int) -> Tensor:
    """Return random letters followed by the same letters."""
    generator = torch.Generator().manual_seed(1000 * step + seed)
    half = torch.randint(VOCAB, (BATCH, LENGTH // 2), generator=generator)
    return torch.cat((half, half, half[:, :1]), 1)


@dataclass
class Failure:
    """A planted failure: how to build and change the model, and what counts as found."""

    expected: tuple[str, ...]
    """Words that one sentence must contain, all of them."""
    make: Callable[[], Model] = Model
    change: Callable[[Model, torch.optim.Optimizer, int], None] = lambda model, optimizer, step: (
        None
    )
    lr: float = 1e-3
    steps: int = STEPS
    hides: bool = False
    """Whether one example of a batch is hidden completely at the planted step."""


def at(step_to_change: int, change: Callable[[Model, torch.optim.Optimizer], None]):
    def apply(model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == step_to_change:
            with torch.no_grad():
                change(model, optimizer)

    return apply


def set_lr(factor: float) -> Callable[[Model, torch.optim.Optimizer], None]:
    def change(_model: Model, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= factor

    return change


def grow_queries(model: Model, _optimizer: torch.optim.Optimizer, step: int) -> None:
    if step > PLANTED_STEP // 2:
        with torch.no_grad():
            model.blocks[2].attention.qkv.weight[: 2 * DIM] *= 1.02


def close_gate() -> Model:
    model = Model()
    model.blocks[1].gate = 0.01
    return model


def detach_layer() -> Model:
    model = Model()
    model.blocks[2].is_detached = True
    return model


def freeze_layer() -> Model:
    model = Model()
    model.blocks[3].requires_grad_(False)
    return model


def put_infinity(model: Model, _optimizer: torch.optim.Optimizer) -> None:
    model.blocks[1].mlp[0].weight[0, 0] = torch.inf


def use_half(model: Model, _optimizer: torch.optim.Optimizer) -> None:
    model.blocks[2].attention.half = True


def zero_gain(model: Model, _optimizer: torch.optim.Optimizer) -> None:
    model.blocks[1].norm_2.weight.zero_()


FAILURES = {
    "Post-LN too deep (24 layers, no warm-up)": Failure(
        ("times that at layer", "Post-LN"), lambda: Model("post_ln", 24), steps=60, lr=1e-2
    ),
    "rate too high from the start (x300)": Failure(("% of their norm",), lr=0.3, steps=100),
    "rate x30 at step 200": Failure(
        ("at step", "looks before", "blocks."), change=at(PLANTED_STEP, set_lr(30)), lr=3e-3
    ),
    "missing final norm": Failure(
        ("missing_final_norm",), lambda: Model(final_norm=False), steps=60
    ),
    "dead gate (0.01 in blocks.1)": Failure(
        ("less than 0.1 %", "blocks.1: attention"), close_gate, steps=160
    ),
    "NaN from a mask": Failure(
        ("NaN", "`softmax`", "blocks.0", "-inf throughout"), steps=PLANTED_STEP + 20, hides=True
    ),
    "attention logits exploding (blocks.2)": Failure(
        ("largest attention logit of blocks.2", "Dehghani"), change=grow_queries
    ),
    "infinite weight (blocks.1.mlp)": Failure(
        ("`linear` in `blocks.1.mlp.0`", "blocks.1.mlp.0.weight"),
        change=at(PLANTED_STEP, put_infinity), steps=PLANTED_STEP + 20,
    ),
    "float16 overflow (blocks.2.attention)": Failure(
        ("`matmul` in `blocks.2.attention`", "float16"),
        change=at(PLANTED_STEP, use_half), steps=PLANTED_STEP + 20,
    ),
    "gains of blocks.1.norm_2 set to 0": Failure(
        ("gain", "blocks.1.norm_2"), change=at(PLANTED_STEP, zero_gain), steps=PLANTED_STEP + 40
    ),
    "layer frozen (blocks.3)": Failure(
        ("blocks.3", "none requires a gradient"), freeze_layer, steps=60
    ),
    "branch detached (blocks.2.mlp)": Failure(
        ("blocks.2: feed-forward", "no gradient"), detach_layer, steps=60
    ),
}  # fmt: skip


def run(failure: Failure, seed: int, make_batch=markov_batch) -> list[addnorm.monitor.Sentence]:
    """Train and return the sentences."""
    torch.manual_seed(seed)
    model = failure.make()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=failure.lr, weight_decay=0.0)
    monitor = addnorm.Monitor(model, optimizer, every=EVERY)
    with monitor:
        for step in range(1, failure.steps + 1):
            failure.change(model, optimizer, step)
            ids = make_batch(step, seed)
            valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
            if failure.hides and step == PLANTED_STEP:
                valid[3] = False
            logits = model(ids[:, :-1], valid)
            loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
    return monitor.diagnosis()


def report_failures(seeds: int, names: list[str]) -> None:
    print("| planted | found | first sentence that names it | other sentences, mean |")
    print("|---|---|---|---|")
    for name, failure in FAILURES.items():
        if names and not any(each in name for each in names):
            continue
        found, others, example = 0, 0, "none"
        for seed in range(seeds):
            sentences = run(failure, seed)
            hits = [s for s in sentences if all(word in s for word in failure.expected)]
            found += bool(hits)
            others += len(sentences) - len(hits)
            example = str(hits[0]) if hits and example == "none" else example
        print(f"| {name} | {found} of {seeds} | {example} | {others / seeds:.1f} |", flush=True)


def report_healthy(seeds: int) -> None:
    counts: Counter[str] = Counter()
    runs = with_changes = 0
    tasks = {"Markov text, Pre-LN": (Model, markov_batch), "copy, Pre-LN": (Model, copy_batch)}
    tasks["Markov text, Post-LN of 2 layers"] = (lambda: Model("post_ln", 2), markov_batch)
    print("\n| healthy | runs | facts | changes | associations | runs with 2 or more changes |")
    print("|---|---|---|---|---|---|")
    for name, (make, make_batch) in tasks.items():
        counts, with_changes = Counter(), 0
        for seed in range(seeds):
            sentences = run(Failure((), make), seed, make_batch)
            counts.update(sentence.kind for sentence in sentences)
            with_changes += sum(sentence.kind == "change" for sentence in sentences) > 1
            runs += 1
            for sentence in sentences:
                print(f"  {name}, seed {seed}: {sentence}", file=sys.stderr, flush=True)
        print(
            f"| {name} | {seeds} | {counts['fact']} | {counts['change']} | "
            f"{counts['association']} | {with_changes} |",
            flush=True,
        )


def main() -> None:
    warnings.simplefilter("ignore", MonitorWarning)
    logging.getLogger("addnorm.monitor").setLevel(logging.CRITICAL)
    arguments = sys.argv[1:]
    seeds = int(arguments[0]) if arguments and arguments[0].isdigit() else 3
    names = [each for each in arguments if not each.isdigit()]
    if names != ["healthy"]:
        report_failures(seeds, names)
    if not names or names == ["healthy"]:
        report_healthy(HEALTHY_SEEDS if not names else seeds)


if __name__ == "__main__":
    main()
