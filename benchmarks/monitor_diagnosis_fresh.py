"""Sentences of `addnorm.Monitor` on failures and healthy runs that no threshold was chosen on.

    OMP_NUM_THREADS=1 python benchmarks/monitor_diagnosis_fresh.py [repeated|planted|healthy ...]

repeated: the failures and healthy runs of `monitor_diagnosis.py` with seeds of their own
planted: other failures; a run counts as found if one sentence contains all expected words
healthy: other models and tasks; expected is no sentence with the severity warning or error

Failures, expected words, seeds and healthy runs were committed before the first run.
"""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from monitor_diagnosis import (
    BATCH,
    DIM,
    FAILURES,
    LENGTH,
    VOCAB,
    Failure,
    Model,
    copy_batch,
    markov_batch,
    run,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import addnorm
from addnorm.core.errors import MonitorWarning
from addnorm.monitor import Sentence

REPEATED_SEEDS, SEEDS = (1001, 1002), (2001, 2002, 2003)
EVERY, PLANTED_STEP = 10, 150
VALID = torch.ones(BATCH, LENGTH, dtype=torch.bool)
Change = Callable[[nn.Module, int], None]


class Fault(nn.Module):
    """An identity until it is turned on: then a NaN in the forward or the backward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.is_on = kind, False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_on:
            return x
        if self.kind == "forward":
            return x + torch.sqrt(x - x.max() - 1)
        return x + 0 * (x - x).square().sum(-1, keepdim=True).sqrt()


class Scale(nn.Module):
    """LayerScale: a learned factor per feature."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((DIM,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ImageModel(nn.Module):
    """Pre-LN Transformer over patches with LayerScale, as in CaiT and timm."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(16, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * depth + 1))
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(DIM, 4, batch_first=True) for _ in range(depth)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
            for _ in range(depth)
        )
        self.scales = nn.ModuleList(Scale(1e-4) for _ in range(2 * depth))
        self.head = nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.positions
        for index, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            y = self.norms[2 * index](x)
            x = x + self.scales[2 * index](attention(y, y, y, need_weights=False)[0])
            x = x + self.scales[2 * index + 1](mlp(self.norms[2 * index + 1](x)))
        return self.head(self.norms[-1](x).mean(1))


class ResNet(nn.Module):
    """Convolutions with batch norms, without attention."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, DIM, 3, 2, 1)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(DIM, DIM, 3, 1, 1, bias=False), nn.BatchNorm2d(DIM), nn.ReLU(),
                nn.Conv2d(DIM, DIM, 3, 1, 1, bias=False), nn.BatchNorm2d(DIM),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for branch in self.branches:
            x = torch.relu(x + branch(x))
        return self.head(x.mean((2, 3)))


class TorchEncoder(nn.Module):
    """`nn.TransformerEncoder`, Pre-LN with a final norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(
            layer, 4, norm=nn.LayerNorm(DIM), enable_nested_tensor=False
        )
        for weight in self.encoder.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.encoder(self.table(ids), mask=mask, is_causal=True))


def make_gpt2(**changes: object) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        n_layer=4, n_embd=DIM, n_head=4, vocab_size=VOCAB, n_positions=LENGTH, use_cache=False,
        bos_token_id=0, eos_token_id=0, **changes,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def make_bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=4 * DIM, max_position_embeddings=LENGTH + 1,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def make_lora() -> nn.Module:
    import peft

    options = peft.LoraConfig(r=4, target_modules=["c_attn"])
    return peft.get_peft_model(make_gpt2(), options)


def text_loss(model: nn.Module, ids: Tensor) -> Tensor:
    out = model(ids[:, :-1], VALID) if isinstance(model, Model) else model(ids[:, :-1])
    logits = getattr(out, "logits", out)
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def masked_loss(model: nn.Module, ids: Tensor) -> Tensor:
    hidden = ids.clone()
    hidden[:, ::5] = 0
    return cross_entropy(model(hidden).logits[:, ::5].flatten(0, 1), ids[:, ::5].flatten())


def image_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def image_batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy copies of ten random images and their numbers."""
    images = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(1000 * step + seed)
    labels = torch.randint(10, (BATCH,), generator=generator)
    return images[labels] + torch.randn(BATCH, 3, 16, 16, generator=generator), labels


def cycle_batch(step: int, seed: int) -> Tensor:
    """Return text in which each letter has one successor, which a model learns completely."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
    start = torch.randint(VOCAB, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    return order[(start + torch.arange(LENGTH + 1)) % VOCAB]


def cosine(step: int, steps: int) -> float:
    return min(step / 30, 0.5 * (1 + math.cos(math.pi * step / steps)))


def adamw(lr: float, weight_decay: float = 0.0) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=weight_decay
    )


DEFAULT_OPTIMIZER = adamw(1e-3)


@dataclass(kw_only=True)
class Run:
    """A training run, and the words that one of its sentences must contain; none if healthy."""

    make: Callable[[], nn.Module]
    expected: tuple[str, ...] = ()
    change: Change = lambda model, step: None
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = DEFAULT_OPTIMIZER
    make_batch: Callable[[int, int], object] = markov_batch
    loss: Callable[[nn.Module, object], Tensor] = text_loss
    steps: int = 300
    every: int = EVERY
    schedule: Callable[[int, int], float] | None = None
    clip: float | None = None

    def train(self, seed: int) -> list[Sentence]:
        """Train and return the sentences."""
        torch.manual_seed(seed)
        model = self.make()
        model.train()
        optimizer = self.make_optimizer(model)
        rate = optimizer.param_groups[0]["lr"]
        with addnorm.Monitor(model, optimizer, every=self.every) as monitor:
            for step in range(1, self.steps + 1):
                self.change(model, step)
                if self.schedule is not None:
                    optimizer.param_groups[0]["lr"] = rate * self.schedule(step, self.steps)
                loss = self.loss(model, self.make_batch(step, seed))
                optimizer.zero_grad()
                loss.backward()
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                monitor.step(loss)
        return monitor.diagnosis()


def make_faulty(kind: str, layer: int) -> Callable[[], Model]:
    def make() -> Model:
        model = Model()
        model.blocks[layer].mlp.append(Fault(kind))
        return model

    return make


def turn_on(model: nn.Module, step: int) -> None:
    for module in model.modules():
        if isinstance(module, Fault) and step == PLANTED_STEP:
            module.is_on = True


@torch.no_grad()
def grow_gain(model: nn.Module, step: int) -> None:
    if step > PLANTED_STEP // 2:
        model.blocks[2].norm_1.weight.mul_(1.05)


@torch.no_grad()
def sharpen_queries(model: nn.Module, step: int) -> None:
    if step > PLANTED_STEP // 2:
        model.blocks[0].attention.qkv.weight[:DIM] *= 1.06


def forget_layer(model: nn.Module) -> torch.optim.Optimizer:
    forgotten = {id(weight) for weight in model.blocks[1].mlp.parameters()}
    forgotten |= {id(weight) for weight in model.blocks[1].norm_2.parameters()}
    return torch.optim.AdamW([p for p in model.parameters() if id(p) not in forgotten], lr=1e-3)


def drop_final_norm() -> nn.Module:
    model = make_gpt2()
    model.transformer.ln_f = nn.Identity()
    return model


PLANTED = {
    "NaN of a square root (blocks.1.mlp.3)": Run(
        make=make_faulty("forward", 1), change=turn_on, steps=PLANTED_STEP + 10,
        expected=("NaN", "`sqrt`", "blocks.1.mlp.3"),
    ),
    "NaN in the backward pass only (blocks.2.mlp)": Run(
        make=make_faulty("backward", 2), change=turn_on, steps=PLANTED_STEP + 10,
        expected=("of the gradients", "blocks.2: feed-forward"),
    ),
    "gain that grows by 5 % a step (blocks.2.norm_1)": Run(
        make=Model, change=grow_gain, steps=200, expected=("argest gain of blocks.2.norm_1",)
    ),
    "attention that becomes one-hot (blocks.0)": Run(
        make=Model, change=sharpen_queries, steps=250,
        expected=("attention entropy of blocks.0", "Zhai"),
    ),
    "weights that the optimizer does not have (blocks.1.mlp)": Run(
        make=Model, make_optimizer=forget_layer, steps=60,
        expected=("blocks.1: feed-forward", "have not changed"),
    ),
    "GPT-2 without its final norm": Run(
        make=drop_final_norm, steps=60, expected=("missing_final_norm",)
    ),
}  # fmt: skip

HEALTHY = {
    "nn.TransformerEncoder Pre-LN, dropout, warm-up and cosine": Run(
        make=TorchEncoder, schedule=cosine, make_optimizer=adamw(3e-3)
    ),
    "GPT-2, weight decay 0.1, clipping, copy task": Run(
        make=make_gpt2, make_optimizer=adamw(3e-3, 0.1), clip=1.0, make_batch=copy_batch
    ),
    "Pre-LN with LayerScale 1e-4, images": Run(
        make=ImageModel, loss=image_loss, make_batch=image_batch
    ),
    "Pre-LN to convergence (loss below 0.01), every=5": Run(
        make=Model, make_optimizer=adamw(3e-3), make_batch=cycle_batch, steps=500, every=5
    ),
    "BERT, Post-LN of 4 layers, warm-up": Run(
        make=make_bert, loss=masked_loss, schedule=cosine, make_optimizer=adamw(3e-3)
    ),
    "LoRA on GPT-2": Run(make=make_lora, make_optimizer=adamw(3e-3)),
    "ResNet with batch norms, SGD": Run(
        make=ResNet, loss=image_loss, make_batch=image_batch,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9),
    ),
}  # fmt: skip


def alarms(sentences: list[Sentence]) -> list[Sentence]:
    return [sentence for sentence in sentences if sentence.severity != "info"]


def report_repeated() -> None:
    print(f"\n| planted (seeds {REPEATED_SEEDS}) | found | example |\n|---|---|---|")
    for name, failure in FAILURES.items():
        results = [run(failure, seed) for seed in REPEATED_SEEDS]
        print_found(name, failure.expected, results)
    print(f"\n| healthy (seeds {REPEATED_SEEDS}) | runs | with a sentence |\n|---|---|---|")
    tasks = {
        "Markov text, Pre-LN": (Model, markov_batch),
        "copy, Pre-LN": (Model, copy_batch),
        "Markov text, Post-LN of 2 layers": (lambda: Model("post_ln", 2), markov_batch),
    }
    for name, (make, make_batch) in tasks.items():
        print_healthy(
            name, ((s, run(Failure((), make), s, make_batch)) for s in REPEATED_SEEDS)
        )  # fmt: skip


def report_planted() -> None:
    print(f"\n| newly planted (seeds {SEEDS}) | found | example |\n|---|---|---|")
    for name, planted in PLANTED.items():
        print_found(name, planted.expected, [planted.train(seed) for seed in SEEDS])


def report_healthy() -> None:
    print(f"\n| other healthy runs (seeds {SEEDS}) | runs | with a sentence |\n|---|---|---|")
    for name, healthy in HEALTHY.items():
        print_healthy(name, ((seed, healthy.train(seed)) for seed in SEEDS))


def print_found(name: str, expected: tuple[str, ...], results: list[list[Sentence]]) -> None:
    hits = [next((s for s in each if all(w in s for w in expected)), None) for each in results]
    example = next((str(hit) for hit in hits if hit is not None), "none")
    found = sum(hit is not None for hit in hits)
    print(f"| {name} | {found} of {len(results)} | {example} |", flush=True)
    for sentences, hit in zip(results, hits, strict=True):
        for sentence in sentences:
            if hit is None or sentence is not hit:
                print(f"  other, {name}: {sentence}", file=sys.stderr, flush=True)


def print_healthy(name: str, results: Iterator[tuple[int, list[Sentence]]]) -> None:
    runs = noisy = 0
    for seed, sentences in results:
        runs += 1
        noisy += bool(alarms(sentences))
        for sentence in sentences:
            print(f"  {name}, {seed}: {sentence.severity}: {sentence}", file=sys.stderr, flush=True)
    print(f"| {name} | {runs} | {noisy} |", flush=True)


def main() -> None:
    warnings.simplefilter("ignore", MonitorWarning)
    logging.getLogger("addnorm.monitor").setLevel(logging.CRITICAL)
    parts = {"repeated": report_repeated, "planted": report_planted, "healthy": report_healthy}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
