"""Claim: Adafactor moves gates that start at zero very slowly."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch.nn import functional as F

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    compute_per_seed,
    estimate_per_seed,
    make_budget_table,
    make_row,
    max_value,
    reseed,
    select_rows,
)
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.models import build
from addnorm.train.optimizers.base import make_optimizer

ARMS = ("adafactor", "adamw")
LEARNING_RATES = (1e-3, 1e-2)
"""Usual learning rates of AdamW and of Adafactor (there relative to the size of the parameter).
Both optimizers are run with both."""
MAX_SLOW_GATE, MIN_GATE_RATIO = 2e-3, 10.0
VOCAB = 32


@register(
    Card(
        name="adafactor_slows_rezero",
        title="Adafactor slows ReZero",
        formula="|step of alpha| <= max(1e-3, |alpha|) * 1e-2, so |alpha| <= 1e-3 after 100 steps",
        paper=(
            "Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
            "2018, arXiv 1804.04235, from whose step sizes it follows; they do not say it"
        ),
        summary=(
            "Adafactor's steps are relative to a parameter's size, so gates that start at zero, as "
            "in ReZero, hardly move."
        ),
    )
)
class AdafactorSlowsRezero(InitClaim):
    """Largest gate of ReZero by step, under both optimizers.

    largest = max over layers of |alpha|
    """

    attributed_to = "ours, on the optimizer of Shazeer and Stern, 2018"
    paper_location = "section 8, relative step sizes; the conclusion about gates is ours"
    about = ("rezero",)
    finding = (
        "after 100 steps ReZero's largest gate is {lr 0.01, behind 100 steps: adafactor, "
        "largest |alpha|} under Adafactor and {exp:lr 0.01, behind 100 steps: ln |alpha|, adamw"
        " minus adafactor} times as large under AdamW, both at the rate 0.01"
    )
    measured_on = "copying random tokens, 2 layers of width 32"
    reach = "about the first steps only; what it costs in the end is not measured"
    experiment = (
        "A language model with ReZero learns to predict the previous token of random sequences "
        "for a hundred steps, under Adafactor and under AdamW, with the same two learning rates. "
        "The largest gate is recorded during training. The claim is about the first steps of the "
        "gates; the loss is not judged."
    )
    rule = (
        f"At each learning rate, behind the last step: the largest gate is below {MAX_SLOW_GATE:g} "
        f"under Adafactor, and more than {MIN_GATE_RATIO:g} times as large under AdamW, seed by "
        "seed."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it gave each "
        "optimizer a rate of its own. Whoever wrote the rule of today had seen those "
        "rows."
    )
    corrected = True
    chart = ChartSpec(
        name="largest", x="step", y="largest |alpha|", group_by=("arm", "lr"), log_y=True
    )
    budgets = make_budget_table(
        seeds=(2, 3, 10),
        depth=(1, 2, 12),
        dim=(16, 32, 128),
        length=(8, 8, 32),
        steps=(4, 100, 100),
        every=(2, 10, 10),
    )

    def cost(self, budget: Budget) -> str:
        at = self.budgets[budget]
        return f"{len(ARMS) * len(LEARNING_RATES) * at['seeds']} runs of {at['steps']} steps"

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for optimizer, lr in product(ARMS, LEARNING_RATES):
            reseed(settings["seed"])
            model = build(
                kind="lm", vocab=VOCAB, dim=settings["dim"], depth=settings["depth"], heads=2,
                wiring="rezero", embed_scale="sqrt_dim",
            )  # fmt: skip
            (alpha,) = (p for name, p in model.named_parameters() if name.endswith("alpha"))
            updater = make_optimizer(optimizer, model, lr=lr)
            for step in range(1, settings["steps"] + 1):
                ids = torch.randint(VOCAB, (16, settings["length"]))
                updater.zero_grad()
                logits = model(ids)[:, 1:]
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, :-1].flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                updater.step()
                if step % settings["every"] == 0:
                    yield make_row(
                        "largest", alpha.detach().abs().max(), arm=optimizer, lr=lr, step=step
                    )

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        last = max((each["step"] for each in rows), default=0)
        checks = []
        for lr in LEARNING_RATES:
            own, other = (select_rows(rows, "largest", arm=arm, step=last, lr=lr) for arm in ARMS)
            more = paired_difference(
                compute_per_seed(other, _log_value), compute_per_seed(own, _log_value)
            )
            label = f"lr {lr:g}, behind {last} steps"
            checks += [
                Check(
                    f"{label}: adafactor, largest |alpha|",
                    estimate_per_seed(own, max_value),
                    high=MAX_SLOW_GATE,
                ),
                Check(
                    f"{label}: ln |alpha|, adamw minus adafactor",
                    more,
                    low=round(math.log(MIN_GATE_RATIO), 6),
                ),
            ]
        return checks


def _log_value(rows: list[Row]) -> float:
    return math.log(max(rows[0]["value"], 1e-30))
