"""Claim: in Pre-LN removing the deepest layers harms less than removing the first ones."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from addnorm.claims.cell_cache import small_demo_corpus
from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec, ClaimWorkspace, register
from addnorm.claims.experiments import DEEP_LRS
from addnorm.claims.init_claims import BudgetSettings, compute_per_seed, make_budget_table, make_row
from addnorm.claims.progress import ProgressTimer
from addnorm.claims.progress_scale import best_setting_rows, raw_progress
from addnorm.claims.training_claims import DATA_FOLDER, PROGRESS_DEFINITION, TrainedClaim
from addnorm.comparison.statistics import paired_difference
from addnorm.comparison.tasks.text_data import unigram_loss
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.data.batches import Batch
from addnorm.data.corpus import Corpus
from addnorm.tasks import Objective, get_run_task
from addnorm.train.callbacks import TrainCallback
from addnorm.train.recipe import Recipe
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train

NUM_LAYER_GROUPS = 4


@register(
    Card(
        name="deep_layers_are_removable",
        title="The curse of depth",
        formula="loss(without layer l) - loss falls with l in Pre-LN",
        paper="Sun et al., The Curse of Depth in Large Language Models, 2025, arXiv 2502.05795",
        summary=(
            "In Pre-LN the deepest layers contribute little: removing them harms less than "
            "removing the first ones, and this effect is stronger than in Post-LN."
        ),
    )
)
class DeepLayersAreRemovable(TrainedClaim):
    """Loss increase when one layer is removed from a trained model.

    harm_l = loss on held-out text with the branches of layer l set to 0, minus the loss with all
    """

    # NOTE[DIFF]: the paper removes layers from released models with billions of parameters.
    paper_location = "section 2 and figure 1"
    about = ("pre_ln", "post_ln")
    finding = (
        "in Pre-LN removing a layer of the first quarter costs {pre_ln: harm in nats, first "
        "quarter minus last} nats more than one of the last quarter, which is {harm in nats, "
        "first quarter minus last: pre_ln minus post_ln} nats more than in Post-LN"
    )
    measured_on = "language model of Python's documentation, 12 layers of width 32, 250 steps"
    reach = "models of billions of parameters, as in the paper, are not tested"
    experiment = (
        "Language models with Pre-LN and with Post-LN are trained on the documentation of "
        "Python, character by character, over the same learning rates, with a warm-up of a "
        "quarter of the steps. Then each layer is removed by itself, and the loss on held-out "
        "text is compared with that of the whole model. " + PROGRESS_DEFINITION
    )
    pilot = (
        "at the standard budget, a first round of three seeds by the same rule, undecided, in "
        "which each wiring had the schedule that its recipe recommends, and three rates. These "
        "are new seeds, more of them, one more rate, and one schedule for both."
    )
    rule = (
        "Premise: Pre-LN, the reference, learns. Seed by seed: in Pre-LN the mean harm of the "
        "first quarter of the layers minus that of the last quarter is above 0, and above the same "
        "of Post-LN."
    )
    chart = ChartSpec(
        name="harm", x="layer", y="loss without it, minus with it (nats)", group_by=("arm", "lr")
    )
    budgets = make_budget_table(
        arms=(["pre_ln", "post_ln"],) * 3,
        rates=([2e-3], [5e-4, 2e-3, 8e-3, 3.2e-2], DEEP_LRS),
        seeds=(1, 6, 5),
        first_seed=(0, 200, 0),
        depth=(4, 12, 24),
        dim=(8, 32, 128),
        heads=(2, 2, 4),
        steps=(3, 250, 5000),
        batch_tokens=(64, 512, 2048),
        max_length=(32, 64, 256),
        records=(3, 1000, 1000),
        batches=(2, 20, 50),
    )

    def settings(self, budget: Budget) -> dict[str, Any]:
        return dict(self.budgets[budget])

    def cost(self, budget: Budget) -> str:
        at = self.budgets[budget]
        runs = len(at["arms"]) * len(at["rates"]) * at["seeds"]
        return f"{runs:,} runs of {at['steps']:,} steps"

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        at = self.budgets[budget]
        data = small_demo_corpus(workspace.studies.parent / DATA_FOLDER, "lm", at["records"])
        seeds = range(at["first_seed"], at["first_seed"] + at["seeds"])
        settings = list(product(seeds, at["arms"], at["rates"]))
        timer = ProgressTimer(
            workspace.callback.on_message, total=len(settings) * at["steps"], unit="steps"
        )
        runs = {}
        for number, (seed, arm, lr) in enumerate(settings):
            timer.start_training(number * at["steps"])
            arm_settings = {"arm": arm, "lr": lr, "seed": seed}
            runs[arm, lr, seed] = _train_run(at, data, workspace.folder, arm_settings, timer)
        rows: list[Row] = []
        for (arm, lr, seed), each in runs.items():
            fields = {"study": "lm", "arm": arm, "depth": at["depth"], "warmup": at["steps"] // 4}
            fields |= {"lr": lr, "seed": seed}
            progress = raw_progress(each.loss, baseline=each.baseline)
            rows += [make_row("progress", progress, **fields)]
            rows += [
                make_row("harm", value, layer=n, **fields) for n, value in enumerate(each.harm, 1)
            ]
        return rows

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        pre, post = (
            _harm_difference(best_setting_rows(rows, arm=arm)) for arm in ("pre_ln", "post_ln")
        )
        what = "harm in nats, first quarter minus last"
        return [
            Check(f"pre_ln: {what}", estimate_over_seeds(pre), low=0),
            Check(f"{what}: pre_ln minus post_ln", paired_difference(pre, post), low=0),
        ]


def _harm_difference(rows: Sequence[Row]) -> dict[int, float]:
    """Return the mean harm of the first quarter of the layers minus the last, by seed."""
    harms = [each for each in rows if each["name"] == "harm"]
    count = max((each["layer"] for each in harms), default=0)
    size = max(1, count // NUM_LAYER_GROUPS)
    first, last = (
        compute_per_seed([each for each in harms if start <= each["layer"] < start + size], _mean)
        for start in (1, count - size + 1)
    )
    return {seed: first[seed] - last[seed] for seed in first}


class Outcome(NamedTuple):
    """Measurements of one run."""

    loss: float
    """Loss on held-out text; NaN if the run diverged."""
    baseline: float
    harm: list[float]
    """Harm of each layer; empty if the run diverged."""


def _train_run(
    settings: BudgetSettings,
    data: Path,
    folder: Path,
    arm_settings: Mapping[str, Any],
    callback: TrainCallback,
) -> Outcome:
    recipe = _build_recipe(settings, data, arm_settings)
    run_folder = folder / "-".join(map(str, arm_settings.values()))
    ending = train(recipe, run_folder, callback=callback).ending
    if ending == "interrupted":
        raise KeyboardInterrupt
    if ending != "done":
        return Outcome(math.nan, math.nan, [])
    run = TrainedRun.open(run_folder, which="last")
    whole, harm = _measure_harm(run, settings)
    return Outcome(whole, unigram_loss(Corpus.open(data), run.tokenizer, recipe), harm)


def _build_recipe(settings: BudgetSettings, data: Path, arm_settings: Mapping[str, Any]) -> Recipe:
    keys = ("depth", "dim", "heads", "steps", "batch_tokens", "max_length")
    fixed = {"task": "lm", "tokenizer": "char", "dropout": 0.0, "data": str(data)}
    fixed["schedule"] = f"constant(warmup={settings['steps'] // 4})"
    quiet = {"valid_every": 0, "monitor_every": 0, "save_every": settings["steps"]}
    varied = {"wiring": arm_settings["arm"], "lr": arm_settings["lr"], "seed": arm_settings["seed"]}
    return Recipe.from_dict(fixed | quiet | varied | {key: settings[key] for key in keys})


def _measure_harm(run: TrainedRun, settings: BudgetSettings) -> tuple[float, list[float]]:
    """Return the loss of the whole model, and the loss increase without each layer."""
    corpus = Corpus.open(run.recipe.data)
    held_out = get_run_task(run).make_batches(
        corpus,
        run.tokenizer,
        split="valid",
        batch_tokens=settings["batch_tokens"],
        max_length=settings["max_length"],
    )
    batches = [batch for batch, _ in islice(held_out.epoch(), settings["batches"])]
    (stack,) = run.model.stacks
    whole, harm = _mean_loss(run, batches), []
    for layer in range(stack.plan.depth):
        taps = [stack.taps.branch[s.index] for s in stack.plan.sites if s.layer == layer]
        hooks = [tap.register_forward_hook(_zero_branch) for tap in taps]
        harm.append(_mean_loss(run, batches) - whole)
        for hook in hooks:
            hook.remove()
    return whole, harm


def _zero_branch(_tap: nn.Module, _inputs: Any, branch: Tensor) -> Tensor:
    return torch.zeros_like(branch)


@torch.no_grad()
def _mean_loss(run: TrainedRun, batches: Sequence[Batch]) -> float:
    objective = Objective(run.model, get_run_task(run)).eval()
    total = sum(float(objective(*batch.inputs_and_targets)[0]) for batch in batches)
    return total / sum(batch.count for batch in batches)


def _mean(rows: list[Row]) -> float:
    return fmean(each["value"] for each in rows)
