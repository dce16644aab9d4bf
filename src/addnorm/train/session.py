"""All that one run works with, made from its recipe."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.batches import Batch, BatchIterator
from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import KINDS, Tokenizer
from addnorm.models import Model, build
from addnorm.train import run_folder as files
from addnorm.train.distributed import World, apply_fsdp, wrap_ddp
from addnorm.train.ema import EMA
from addnorm.train.environment import collect_versions
from addnorm.train.objective import Masks, Objective
from addnorm.train.optimizers.base import Optimizer, make_optimizer
from addnorm.train.recipe import Recipe
from addnorm.train.schedules.base import Schedule, recommended_schedule
from addnorm.train.schedules.base import registry as schedules


@dataclass
class Session:
    """The parts of a run."""

    recipe: Recipe
    folder: Path
    world: World
    corpus: Corpus
    tokenizer: Tokenizer
    batches: BatchIterator
    valid_batches: BatchIterator | None
    model: Model
    objective: nn.Module
    """The model with its loss, as it is called: compiled, copied or sharded."""
    optimizer: Optimizer
    schedule: Schedule
    ema: EMA | None

    def model_inputs(self, batch: Batch) -> tuple[tuple[Tensor, ...], Masks]:
        """What the model is called with."""
        return Objective(self.model, self.recipe.task).model_inputs(
            *batch.to(self.world.device).inputs_and_targets
        )

    def summarize(self) -> dict[str, Any]:
        """What a watcher may want to say."""
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
    on_message: Callable[[str], None] = lambda words: None,
) -> Session:
    """Read the corpus, train the tokenizer, build and wrap the model; said: told what is slow."""
    build(
        recipe.build_config(vocab=1000, classes=_num_classes(recipe, 2)), device="meta"
    )  # refuses nonsense
    corpus = Corpus.open(recipe.data, recipe.task)
    world.run_on_main(lambda: _prepare_folder(recipe, folder, corpus, on_message))
    tokenizer = Tokenizer.load(folder / files.TOKENIZER)
    sides: dict[str, Any] = {"tokens": recipe.batch_tokens, "longest": recipe.max_length}
    batches = BatchIterator(
        corpus, tokenizer, seed=derive_seed(recipe.seed, "data"), order=recipe.order, **sides
    )
    held_out = (
        BatchIterator(corpus, tokenizer, split="valid", **sides)
        if recipe.valid_every and corpus.counts.get("valid")
        else None
    )
    if recipe.patience and held_out is None:
        raise UserError(
            f"patience={recipe.patience} needs a validation, and {corpus.folder} has no valid part;"
            " leave patience out, or make the corpus with one"
        )
    model = _build_model(recipe, corpus, tokenizer, batches).to(world.device)
    if world.is_main:
        files.write_arrangement(folder, _collect_facts(recipe, corpus, tokenizer, model))
    for stack in model.stacks:
        stack.recompute, stack.packed = recipe.recompute, True
        stack.stream = torch.bfloat16 if recipe.stream == "bfloat16" else None
    objective: nn.Module = Objective(model, recipe.task, smoothing=recipe.label_smoothing or 0.0)
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
    """What must be in the folder before anything else."""
    files.claim_run_folder(folder, recipe)
    if not (folder / files.TOKENIZER).exists():
        if recipe.tokenizer in KINDS:
            on_message(f"training a tokenizer ({recipe.tokenizer}) on {corpus.folder}")
        make_tokenizer(recipe, corpus).save(folder / files.TOKENIZER)


def make_tokenizer(recipe: Recipe, corpus: Corpus) -> Tokenizer:
    """The tokenizer that a recipe names: trained on the corpus, or read from a file."""
    if recipe.tokenizer in KINDS:
        return Tokenizer.train(corpus, recipe.tokenizer, vocab=recipe.vocab)
    return Tokenizer.load(recipe.tokenizer)


def _build_model(
    recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, batches: BatchIterator
) -> Model:
    """The model at its start, with the data-dependent part of it where a wiring has one."""
    if recipe.task == "classify" and len(corpus.labels) < 2:
        raise UserError(
            f"{corpus.folder} has {len(corpus.labels)} label; wanted two or more to tell apart"
        )
    config = recipe.build_config(
        vocab=tokenizer.vocab, classes=_num_classes(recipe, len(corpus.labels))
    )
    model = build(config, seed=derive_seed(recipe.seed, "init"))
    given, masks = Objective(model, recipe.task).model_inputs(
        *next(batches.stream())[0].inputs_and_targets
    )
    model.calibrate(*given, **masks)
    return model


def _num_classes(recipe: Recipe, count: int) -> int | None:
    return count if recipe.task == "classify" else None


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
        "versions": collect_versions(),
    }
