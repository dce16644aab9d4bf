"""Objects that a run works with, built from its recipe: data, model, optimizer, schedule."""

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
from addnorm.models import Model, build, load
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.tasks import Objective, TextTask
from addnorm.tasks.base import Masks
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.distributed import World, wrap_ddp
from addnorm.train.ema import EMA
from addnorm.train.environment import collect_versions
from addnorm.train.optimizers.base import Optimizer, make_optimizer
from addnorm.train.optimizers.qk_clip import QKClip
from addnorm.train.recipe import Recipe
from addnorm.train.schedules.base import Schedule, recommended_schedule
from addnorm.train.schedules.base import registry as schedules
from addnorm.train.sharding.fsdp import apply_fsdp
from addnorm.train.sharding.tensor_parallel import apply_tensor_parallel


@dataclass
class Session:
    """Objects of one run in one process."""

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
    qk_clip: QKClip | None
    facts: dict[str, Any]
    """Content of `arrangement.json`."""

    def model_inputs(self, batch: Batch) -> tuple[tuple[Tensor, ...], Masks]:
        """Return the positional arguments and the masks of the model for a batch."""
        return self.task.model_inputs(*batch.to(self.world.device).inputs_and_targets)

    def summarize(self) -> dict[str, Any]:
        """Return facts for `TrainCallback.on_train_start`: model, parameters, device, schedule."""
        wirings = sorted({str(stack.wiring_call) for stack in self.model.stacks})
        is_recommended = self.recipe.schedule == str(
            schedules.resolve(recommended_schedule(*wirings))
        )
        strategy: list[str] = [self.recipe.parallel] if self.world.replicas > 1 else []
        if self.world.tensor_parallel > 1:
            strategy.append(f"tensor_parallel={self.world.tensor_parallel}")
        processes = f", {self.world.size} processes ({', '.join(strategy)})"
        return {
            "model": self.model,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": f"{self.world.device}{processes if self.world.size > 1 else ''}",
            "recommended": f", recommended for {', '.join(wirings)}" if is_recommended else "",
        }


def build_session(
    recipe: Recipe,
    folder: Path,
    world: World,
    *,
    on_message: Callable[[str], None] = lambda text: None,
) -> Session:
    """Read the corpus, prepare the folder, and build all objects of a run.

    The order of construction matters: FSDP replaces the parameters, so the optimizer is made after
    sharding, and DDP wraps the compiled objective.

    Args:
        recipe: all choices of the run
        folder: the run's folder, locked by the caller
        world: the processes of the run
        on_message: receives a line before slow work, such as the training of a tokenizer

    Raises:
        UserError: the recipe, the corpus or the folder cannot be used
    """
    task = recipe.make_task()
    if world.replicas > 1 and world.tensor_parallel > 1 and recipe.parallel == "ddp":
        raise UserError(
            f"parallel: expected fsdp, because tensor_parallel={world.tensor_parallel} leaves "
            f"{world.replicas} replicas on {world.size} processes, got ddp, which cannot average "
            "split gradients"
        )
    # A model without storage rejects invalid configs before the corpus is read.
    classes = 2 if task.predicts_label else None
    build(recipe.build_config(vocab=1000, classes=classes), device="meta")
    corpus = task.open_corpus(recipe.data)
    task.check_corpus(corpus)
    corpus.verify()
    world.check_equal({"checksum of data": corpus.digest})
    world.run_on_main(lambda: _prepare_folder(recipe, folder, corpus, on_message))
    tokenizer = Tokenizer.load(folder / files.TOKENIZER)
    world.run_on_main(lambda: _check_checkpoint(folder, corpus, tokenizer))
    task.check_tokenizer(tokenizer)
    limits: dict[str, Any] = {"batch_tokens": recipe.batch_tokens, "max_length": recipe.max_length}
    batches = task.make_batches(
        corpus, tokenizer, seed=derive_seed(recipe.seed, "data"), order=recipe.order, **limits
    )
    valid_batches = (
        task.make_batches(corpus, tokenizer, split="valid", **limits)
        if recipe.valid_every and corpus.counts.get("valid")
        else None
    )
    if recipe.patience and valid_batches is None:
        raise UserError(
            f"patience={recipe.patience} requires a validation split, and {corpus.folder} has none;"
            " remove patience, or add a valid split to the corpus"
        )
    model = (
        _build_model(recipe, task, corpus, tokenizer, batches)
        if recipe.start is None
        else _load_start(recipe, folder, tokenizer)
    ).to(world.device)
    if not recipe.master_weights:
        model = model.to(torch.bfloat16)
    facts = _collect_facts(recipe, corpus, tokenizer, model)
    for stack in model.stacks:
        stack.recompute, stack.packed = recipe.recompute, True
        stack.stream = torch.bfloat16 if recipe.stream == "bfloat16" else None
    objective: nn.Module = Objective(
        model, task, smoothing=recipe.label_smoothing or 0.0, z_loss=recipe.z_loss
    )
    qk_clip = _attach_qk_clip(model, recipe.qk_clip)
    if world.tensor_parallel > 1:
        apply_tensor_parallel(model, world)
    if world.replicas > 1 and recipe.parallel == "fsdp":
        apply_fsdp(model, world)
    optimizer = make_optimizer(
        recipe.optimizer, model, lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    ema = EMA(model, recipe.ema) if recipe.ema else None
    if recipe.compile:
        # Hooks of FSDP break the graph; without them one graph serves all batches.
        objective.compile(dynamic=True, fullgraph=recipe.parallel != "fsdp")
    if world.replicas > 1 and recipe.parallel == "ddp":
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
        valid_batches,
        model,
        objective,
        optimizer,
        schedule,
        ema,
        qk_clip,
        facts,
    )


def _attach_qk_clip(model: Model, tau: float | None) -> QKClip | None:
    """Watch the logits of all attention sub-layers, if the recipe bounds them."""
    if tau is None:
        return None
    for stack in model.stacks:
        for site in stack.plan.sites:
            plugs = stack.wiring.plugs(site)
            if any((plugs.query, plugs.key, plugs.match)):
                raise UserError(
                    f"qk_clip: expected a wiring without norms of queries and keys, got "
                    f"{stack.wiring_call}"
                )
    attentions = [each for each in model.modules() if isinstance(each, MultiHeadAttention)]
    return QKClip(attentions, tau=tau)


def _prepare_folder(
    recipe: Recipe, folder: Path, corpus: Corpus, on_message: Callable[[str], None]
) -> None:
    """Claim the folder for the recipe, and make sure that it has a tokenizer."""
    files.claim_run_folder(folder, recipe)
    # Until a checkpoint has its digest, a tokenizer that an interrupted start left is not trusted.
    if not (folder / files.TOKENIZER).exists() or not files.has_checkpoint(folder):
        if recipe.tokenizer in KINDS:
            on_message(f"training a tokenizer ({recipe.tokenizer}) on {corpus.folder}")
        make_tokenizer(recipe, corpus).save(folder / files.TOKENIZER)


def _check_checkpoint(folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Raise `UserError` if the run's checkpoints come from another corpus or tokenizer."""
    checkpoint_folder = folder / files.CHECKPOINTS
    for step in checkpoints.list_steps(checkpoint_folder):
        state = checkpoints.read_state(checkpoint_folder, step)
        if state is None:
            continue
        if state.get("tokenizer") != tokenizer.digest:
            raise UserError(
                f"{folder / files.TOKENIZER} is the tokenizer of another run; restore the "
                "tokenizer that this run started with"
            )
        if state.get("corpus") != corpus.digest:
            raise UserError(
                f"the corpus {corpus.folder} has changed since this run started; restore it, or "
                "start a new run with another -o"
            )
        return


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
    """Build the model and run its data-dependent initialization on the first batch."""
    config = recipe.build_config(vocab=tokenizer.vocab, classes=task.num_classes(corpus))
    model = build(config, seed=derive_seed(recipe.seed, "init"))
    batch, _ = next(batches.stream())
    inputs, masks = task.model_inputs(*batch.inputs_and_targets)
    model.calibrate(*inputs, **masks)
    return model


def _load_start(recipe: Recipe, folder: Path, tokenizer: Tokenizer) -> Model:
    """Load the model that training starts from; `addnorm train` has written it."""
    path = folder / files.START
    if not path.is_dir():
        raise UserError(
            f"start: expected the model at {path}, got none; run `addnorm train`, which writes it"
        )
    model = load(path)
    if model.config.vocab != tokenizer.vocab:
        raise UserError(
            f"start: expected a model of {tokenizer.vocab} tokens, as the tokenizer, got "
            f"{model.config.vocab}; pass tokenizer={recipe.start}/tokenizer.json"
        )
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
        "versions": collect_versions(),
    }
