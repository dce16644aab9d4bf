"""Pre-LN's deepest layers can be taken away with less harm than its first ones."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.claims.base import Budget, Claim, Desk, Drawing, register
from addnorm.claims.share import shortened
from addnorm.claims.start import Sizes, by_seed, row, sizes
from addnorm.claims.training import DATA
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.data.batches import Batch, Batches
from addnorm.data.corpus import Corpus
from addnorm.lab.statistics import paired
from addnorm.train.loop import train
from addnorm.train.objective import Objective
from addnorm.train.recipe import Recipe
from addnorm.train.run import Run

QUARTER = 4


@register(
    Card(
        name="deep_layers_can_go",
        title="The curse of depth",
        formula="loss(without layer l) - loss falls with l in Pre-LN",
        paper=("Sun et al., The Curse of Depth in Large Language Models, 2025, arXiv 2502.05795"),
        summary=(
            "In Pre-LN the deepest layers do little: they can be taken away with less harm than "
            "the first ones."
        ),
    )
)
class DeepLayersCanGo(Claim):
    """What it costs to take one layer out of a trained model.

    harm_l = loss on held-out text with the branches of layer l set to 0, minus the loss with all
    """

    # NOTE[DIFF]: the paper takes layers out of released models of billions of parameters.
    place = "section 2 and figure 1"
    how = "by training"
    experiment = (
        "Pre-LN language models are trained on the documentation of Python, letter by letter. Then "
        "each layer is taken out by itself, and the loss on held-out text is compared with that "
        "of the whole model."
    )
    rule = (
        "Seed by seed: the mean harm of the first quarter of the layers minus that of the last "
        "quarter is above 0."
    )
    drawing = Drawing(name="harm", x="layer", y="loss without it, minus with it (nats)")
    budgets = sizes(
        seeds=(1, 3, 5),
        depth=(4, 12, 24),
        dim=(8, 32, 128),
        heads=(2, 2, 4),
        steps=(3, 400, 5000),
        batch_tokens=(64, 512, 2048),
        max_length=(32, 64, 256),
        lr=2e-3,
        records=(3, 1000, 1000),
        batches=(2, 20, 50),
    )

    def settings(self, budget: Budget) -> dict[str, Any]:
        """The sizes."""
        return dict(self.budgets[budget])

    def cost(self, budget: Budget) -> str:
        """So many runs of so many steps."""
        at = self.budgets[budget]
        return f"{at['seeds']} runs of {at['steps']} steps"

    def rows(self, budget: Budget, desk: Desk) -> list[Row]:
        """Train with each seed, or go on, and take layers out."""
        at = self.budgets[budget]
        data = shortened(desk.studies.parent / DATA, "lm", at["records"])
        made: list[Row] = []
        for seed in range(at["seeds"]):
            folder = desk.folder / f"seed-{seed}"
            if train(_recipe(at, data, seed), folder).ending == "interrupted":
                raise KeyboardInterrupt
            made += [{**each, "seed": seed} for each in _harm(Run.open(folder, which="last"), at)]
        return made

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """First quarter against last."""
        count = max((each["layer"] for each in rows), default=0)
        few = max(1, count // QUARTER)
        first, last = (
            by_seed([each for each in rows if start <= each["layer"] < start + few], _mean)
            for start in (1, count - few + 1)
        )
        return [Check("harm in nats, first quarter minus last", paired(first, last), low=0)]


def _recipe(at: Sizes, data: Path, seed: int) -> Recipe:
    keys = ("depth", "dim", "heads", "steps", "batch_tokens", "max_length", "lr")
    fixed = {"task": "lm", "wiring": "pre_ln", "tokenizer": "char", "dropout": 0.0}
    quiet = {"valid_every": 0, "monitor_every": 0, "save_every": at["steps"]}
    own = {"data": str(data), "seed": seed}
    return Recipe.of(fixed | quiet | own | {key: at[key] for key in keys})


def _harm(run: Run, at: Sizes) -> Iterator[Row]:
    spans = {"tokens": at["batch_tokens"], "longest": at["max_length"]}
    corpus = Corpus.open(run.recipe.data)
    held_out = Batches(corpus, run.tokenizer, split="valid", **spans)
    batches = [batch for batch, _ in islice(held_out.epoch(), at["batches"])]
    (stack,) = run.model.stacks
    whole = _loss(run, batches)
    for layer in range(stack.plan.depth):
        taps = [stack.taps.branch[s.index] for s in stack.plan.sites if s.layer == layer]
        hooks = [tap.register_forward_hook(_silenced) for tap in taps]
        yield row("harm", _loss(run, batches) - whole, arm="pre_ln", layer=layer + 1)
        for hook in hooks:
            hook.remove()


def _silenced(_tap: nn.Module, _inputs: Any, branch: Tensor) -> Tensor:
    return torch.zeros_like(branch)


@torch.no_grad()
def _loss(run: Run, batches: Sequence[Batch]) -> float:
    objective = Objective(run.model, run.task).eval()
    total = sum(float(objective(*batch.sides)[0]) for batch in batches)
    return total / sum(batch.count for batch in batches)


def _mean(rows: list[Row]) -> float:
    return fmean(each["value"] for each in rows)
