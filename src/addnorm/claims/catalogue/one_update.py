"""Claim: one optimizer step changes the output of Post-LN more than that of Pre-LN."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    compute_per_seed,
    make_budget_table,
    make_row,
    make_slope_statistic,
    reseed,
    select_rows,
)
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.models import Model, build
from addnorm.train.optimizers.base import make_optimizer


@register(
    Card(
        name="one_update",
        title="Output change of one update",
        formula="Var[F(x; W) - F(x; W*)] = O(depth) in Post-LN, O(log(depth)) in Pre-LN",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, "
            "arXiv 2004.08249"
        ),
        summary=(
            "One optimizer step changes the output of a Post-LN stack more than that of a Pre-LN "
            "stack, and the difference grows with depth."
        ),
    )
)
class OneUpdate(InitClaim):
    """Change of the normalized output in one optimizer step.

    change = mean((n(y') - n(y)) ** 2)

    y, y': (B, L, dim), output of the stack before and after the step
    n: LayerNorm without gain and bias, which removes the scale of the stream
    """

    # NOTE[DIFF]: the paper perturbs every weight randomly; here the step is that of an optimizer.
    paper_location = "section 4.2, theorem 2 and figure 7"
    about = ("post_ln", "pre_ln")
    finding = (
        "one step of Adam changes the output of 24 Post-LN layers {exp:ln change at 24 layers, "
        "post_ln minus pre_ln} times as much as that of Pre-LN"
    )
    measured_on = "untrained language models of 3 to 24 layers of width 64"
    reach = "about the first step only"
    experiment = (
        "An untrained language model makes one step of Adam on random tokens. The normalized "
        "output of the stack on other random tokens is compared before and after the step."
    )
    rule = (
        "At the largest depth ln(change) of Post-LN is above that of Pre-LN, and it grows more "
        "steeply with ln(depth): both differences, seed by seed, are above 0."
    )
    chart = ChartSpec(
        name="change", x="depth", y="mean square change of the output", log_x=True, log_y=True
    )
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        depths=([2, 4], [3, 6, 12, 24], [3, 6, 12, 24, 48]),
        dim=(16, 64, 256),
        length=(8, 32, 64),
        lr=1e-4,
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        vocab, heads = 64, settings["dim"] // 16
        for wiring in ("post_ln", "pre_ln"):
            for depth in settings["depths"]:
                reseed(settings["seed"])
                ids, targets, others = torch.randint(vocab, (3, 8, settings["length"]))
                model = build(
                    kind="lm", vocab=vocab, dim=settings["dim"], depth=depth, heads=heads,
                    wiring=wiring, embed_scale="sqrt_dim",
                )  # fmt: skip
                before = _output(model, others)
                loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                make_optimizer("adamw", model, lr=settings["lr"]).step()
                change = (_output(model, others) - before).square().mean()
                yield make_row("change", change, arm=wiring, depth=depth)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        deep = max((each["depth"] for each in rows), default=0)
        post, pre = (select_rows(rows, "change", arm=arm) for arm in ("post_ln", "pre_ln"))
        fit = make_slope_statistic("depth", log_x=True, log_y=True)
        deepest = [[each for each in arm if each["depth"] == deep] for arm in (post, pre)]
        more = paired_difference(
            *(compute_per_seed(each, lambda one: math.log(one[0]["value"])) for each in deepest)
        )
        steeper = paired_difference(compute_per_seed(post, fit), compute_per_seed(pre, fit))
        return [
            Check(f"ln change at {deep} layers, post_ln minus pre_ln", more, low=0),
            Check("slope of ln change over ln depth, post_ln minus pre_ln", steeper, low=0),
        ]


@torch.no_grad()
def _output(model: Model, ids: Tensor) -> Tensor:
    """Return the normalized output of the stack."""
    y: Tensor = model.hidden(ids)  # type: ignore[operator]
    return F.layer_norm(y, y.shape[-1:])
