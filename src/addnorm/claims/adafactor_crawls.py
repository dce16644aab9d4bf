"""Adafactor moves gates that start at zero only by crawling."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from addnorm.claims.base import Budget, Drawing, register
from addnorm.claims.start import AtStart, Sizes, by_seed, each_seed, highest, picked, row, sizes
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.statistics import paired
from addnorm.models import build
from addnorm.train.optim import make_optimizer

RATES = {"adafactor": 1e-2, "adamw": 1e-3}
"""The learning rate that is usual for each; Adafactor's is a share of the parameter's size."""
CRAWL, TIMES = 2e-3, 10.0
VOCAB = 32


@register(
    Card(
        name="adafactor_crawls",
        title="Adafactor crawls from zero",
        formula="|step of alpha| <= max(1e-3, |alpha|) * 1e-2, so |alpha| <= 1e-3 after 100 steps",
        paper=(
            "Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
            "2018, arXiv 1804.04235"
        ),
        summary=(
            "Adafactor's steps are shares of a parameter's size, so gates that start at zero, as "
            "ReZero's do, hardly leave it."
        ),
    )
)
class AdafactorCrawls(AtStart):
    """The largest gate of ReZero, step by step, under both optimizers.

    largest = max over layers of |alpha|
    """

    how = "by training"
    place = "section 8, relative step sizes"
    experiment = (
        "A language model with ReZero learns to name the token before the last of random "
        "sequences, for a hundred steps, under Adafactor and under AdamW with the learning rate "
        "that is usual for each. The largest gate is looked at on the way."
    )
    rule = (
        f"Behind the last step the largest gate is {CRAWL:g} or less under Adafactor, and at least "
        f"{TIMES:g} times as large under AdamW, seed by seed."
    )
    drawing = Drawing(name="largest", x="step", y="largest |alpha|", log_y=True)
    budgets = sizes(
        seeds=(2, 5, 10),
        depth=(1, 4, 12),
        dim=(16, 32, 128),
        length=(8, 16, 32),
        steps=(4, 100, 100),
        every=(2, 10, 10),
    )

    def cost(self, budget: Budget) -> str:
        """Steps of a small model."""
        at = self.budgets[budget]
        return f"{len(RATES) * at['seeds']} runs of {at['steps']} steps"

    def measure(self, at: Sizes) -> Iterator[Row]:
        """A short training under each optimizer."""
        for optimizer, lr in RATES.items():
            model = build(
                kind="lm", vocab=VOCAB, dim=at["dim"], depth=at["depth"], heads=2,
                wiring="rezero", embed_scale="sqrt_dim",
            )  # fmt: skip
            (alpha,) = (p for name, p in model.named_parameters() if name.endswith("alpha"))
            steps = make_optimizer(optimizer, model, lr=lr)
            for step in range(1, at["steps"] + 1):
                ids = torch.randint(VOCAB, (16, at["length"]))
                steps.zero_grad()
                logits = model(ids)[:, 1:]
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, :-1].flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                steps.step()
                if step % at["every"] == 0:
                    yield row("largest", alpha.detach().abs().max(), arm=optimizer, step=step)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Behind the last step."""
        last = max((each["step"] for each in rows), default=0)
        own, other = (picked(rows, "largest", arm=arm, step=last) for arm in RATES)

        def ln(found: list[Row]) -> float:
            return math.log(max(found[0]["value"], 1e-30))

        more = paired(by_seed(other, ln), by_seed(own, ln))
        return [
            Check(
                f"adafactor: largest |alpha| behind {last} steps",
                each_seed(own, highest),
                high=CRAWL,
            ),
            Check("ln |alpha|, adamw minus adafactor", more, low=round(math.log(TIMES), 6)),
        ]
