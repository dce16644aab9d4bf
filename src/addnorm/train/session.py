"""The components of a run, built from its recipe."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm import __version__
from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.batches import Batch, BatchIterator
from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import KINDS, Tokenizer
from addnorm.models import Model, build
from addnorm.tasks import Objective, TextTask
from addnorm.tasks.base import Masks
from addnorm.train import run_folder as files
from addnorm.train.distributed import World, apply_fsdp, wrap_ddp
from addnorm.train.ema import EMA
from addnorm.train.optimizers.base import Optimizer, make_optimizer
from addnorm.train.recipe import Recipe
from addnorm.train.schedules.base import Schedule, recommended_schedule
from addnorm.train.schedules.base import registry as schedules


@dataclass
class Session:
    """The components of a run."""

    recipe: Recipe
    task: TextTask
    folder: Path
    world: World
    corpus: Corpus
    tokenizer: Tokenizer
    batches: BatchIterator
    valid_batches: BatchIterator | None
    model: Model
    objective: nn.Module
    """The model with its loss, compiled and wrapped for distributed training."""
    optimizer: Optimizer
    schedule: Schedule
    ema: EMA | None

    def model_inputs(self, batch: Batch) -> tuple[tuple[Tensor, ...], Masks]:
        """Return the positional and keyword arguments of the model for a batch."""
        return self.task.model_inputs(*batch.to(self.world.device).inputs_and_targets)

    def summarize(self) -> dict[str, Any]:
        """Return the facts that callbacks report at the start."""
        wirings = {str(stack.wiring_call) for stack in self.model.stacks}
        advised = self.recipe.schedule == str(
            schedules.resolve(recommended_schedule(*sorted(wirings)))
        )
        count = f", {self.world.size} processes ({self.recipe.parallel})"
        return {
            "model": self.model,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": f"{self.world.device}{count if self.world.size > 1 else ''}",
            "recommended": f", recommended for {', '.join(sorted(wirings))}" if advised else "",
        }


def build_session(
    recipe: Recipe,
    folder: Path,
    world: World,
    *,
    on_message: Callable[[str], None] = lambda text: None,
) -> Session:
    """Read the corpus, train the tokenizer, build and wrap the model.

    Args:
        recipe: the recipe
        folder: run folder
        world: the processes of the run
        on_message: receives a message before a slow step
    """
    task = recipe.make_task()
    # Invalid model settings fail here, before the corpus is read.
    classes = 2 if task.predicts_label else None
    build(recipe.build_config(vocab=1000, classes=classes), device="meta")
    corpus = task.open_corpus(recipe.data)
    task.check_corpus(corpus)
    world.run_on_main(lambda: _prepare_folder(recipe, folder, corpus, on_message))
    tokenizer = Tokenizer.load(folder / files.TOKENIZER)
    task.check_tokenizer(tokenizer)
    sizes: dict[str, Any] = {"batch_tokens": recipe.batch_tokens, "max_length": recipe.max_length}
    batches = task.make_batches(
        corpus, tokenizer, seed=derive_seed(recipe.seed, "data"), order=recipe.order, **sizes
    )
    held_out = (
        task.make_batches(corpus, tokenizer, split="valid", **sizes)
        if recipe.valid_every and corpus.counts.get("valid")
        else None
    )
    if recipe.patience and held_out is None:
        raise UserError(
            f"patience: expected 0 for a corpus without valid part, got {recipe.patience}; make "
            f"{corpus.folder} again with one, or leave patience out"
        )
    model = _build_model(recipe, task, corpus, tokenizer, batches).to(world.device)
    if world.is_main:
        files.write_arrangement(folder, _collect_facts(recipe, corpus, tokenizer, model))
    for stack in model.stacks:
        stack.recompute, stack.packed = recipe.recompute, True
        stack.stream = torch.bfloat16 if recipe.stream == "bfloat16" else None
    objective: nn.Module = Objective(model, task, smoothing=recipe.label_smoothing or 0.0)
    if world.size > 1 and recipe.parallel == "fsdp":
        apply_fsdp(model, world)
    optimizer = make_optimizer(
        recipe.optimizer, model, lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    average = EMA(model, recipe.ema) if recipe.ema else None
    if recipe.compile:
        objective.compile(dynamic=True)
    if world.size > 1 and recipe.parallel == "ddp":
        objective = wrap_ddp(objective, world)
    schedule = schedules.make(recipe.schedule)
    return Session(
        recipe,
        task,
        folder,
        world,
        corpus,
        tokenizer,
        batches,
        held_out,
        model,
        objective,
        optimizer,
        schedule,
        average,
    )


def _prepare_folder(
    recipe: Recipe, folder: Path, corpus: Corpus, on_message: Callable[[str], None]
) -> None:
    """Claim the run folder and write the tokenizer."""
    files.claim_run_folder(folder, recipe)
    if not (folder / files.TOKENIZER).exists():
        if recipe.tokenizer in KINDS:
            on_message(f"training a tokenizer ({recipe.tokenizer}) on {corpus.folder}")
        make_tokenizer(recipe, corpus).save(folder / files.TOKENIZER)


def make_tokenizer(recipe: Recipe, corpus: Corpus) -> Tokenizer:
    """Return the tokenizer of a recipe: trained on the corpus, or read from a file."""
    if recipe.tokenizer in KINDS:
        return Tokenizer.train(
            corpus,
            recipe.tokenizer,
            vocab=recipe.vocab,
            special_tokens=recipe.make_task().special_tokens,
        )
    return Tokenizer.load(recipe.tokenizer)


def _build_model(
    recipe: Recipe, task: TextTask, corpus: Corpus, tokenizer: Tokenizer, batches: BatchIterator
) -> Model:
    """Return the initialized model, calibrated on the first batch."""
    config = recipe.build_config(vocab=tokenizer.vocab, classes=task.num_classes(corpus))
    model = build(config, seed=derive_seed(recipe.seed, "init"))
    batch, _ = next(batches.stream())
    arguments, masks = task.model_inputs(*batch.inputs_and_targets)
    model.calibrate(*arguments, **masks)
    return model


def _collect_facts(
    recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, model: Model
) -> dict[str, Any]:
    return {
        "task": recipe.task,
        "stacks": [stack.arrangement | {"depth": stack.plan.depth} for stack in model.stacks],
        "model": model.config.model_dump(exclude_defaults=True),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokenizer": tokenizer.digest,
        "labels": list(corpus.labels),
        "corpus": {"counts": corpus.counts, "about": corpus.about},
        "versions": {
            "addnorm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
