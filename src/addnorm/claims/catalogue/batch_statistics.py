"""Claim: BatchNorm's statistics do not fit sequences longer than those of training."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    compute_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    max_value,
    reseed,
    select_rows,
)
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.stacks import Encoder

DRIFT_THRESHOLD = 0.1
"""Smallest relevant drift; every feature has a standard deviation of about 1."""


@register(
    Card(
        name="batch_statistics",
        title="BatchNorm on longer sequences",
        formula="mean over tokens of BN(x) moves with the length of x, that of LN(x) does not",
        paper=(
            "Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv 1607.06450, who say it of "
            "recurrent networks"
        ),
        summary=(
            "BatchNorm's statistics do not fit sequences longer than those of training, so its "
            "output drifts; the output of LayerNorm does not."
        ),
    )
)
class BatchStatistics(InitClaim):
    """Change of the mean token on sequences longer than those of training.

    drift = sqrt(mean over features of (m(length) - m(seen)) ** 2)

    m(length): (dim), mean over tokens after the last norm in evaluation mode; m(seen) uses other
        sequences than m(length)
    """

    # NOTE[DIFF]: the paper considers recurrent networks with separate statistics for each time
    # step; here a Transformer, whose statistics are common to all positions.
    paper_location = "sections 1 and 3.1"
    about = ("batch", "layer")
    finding = (
        "at eight times the training length the output drifts by {batch: drift at length 256} "
        "with BatchNorm and {layer: drift at length 256} with LayerNorm"
    )
    measured_on = "untrained Post-LN encoders of width 64, random tokens"
    reach = "untrained models; trained weights may drift less"
    discussion = (
        "The statement says that LayerNorm does not drift, because it has no stored statistics."
        " Measured by the same number for both, LayerNorm's output drifts as well, because "
        "attention averages over more tokens in a longer sequence; BatchNorm drifts more. Only "
        "the absolute part of the statement fails."
    )
    experiment = (
        "Post-LN encoders with sinusoidal positions, one with BatchNorm and one with LayerNorm, "
        "read many batches of short sequences in training mode, so that BatchNorm's running "
        "statistics converge; no weight is changed. Then, in evaluation mode, they read "
        "sequences of the same and of larger lengths. The same quantity is measured for both."
    )
    rule = (
        f"At the largest length BatchNorm's drift is above {DRIFT_THRESHOLD:g} and more than "
        f"{DRIFT_THRESHOLD:g} above LayerNorm's, seed by seed, and LayerNorm's is below "
        f"{DRIFT_THRESHOLD:g}."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it measured "
        "each norm on axes of its own, so that LayerNorm could not fail. Whoever wrote "
        "the rule of today had seen those rows."
    )
    corrected = True
    chart = ChartSpec(name="drift", x="length", y="drift of the mean token", log_x=True)
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        dim=(16, 64, 256),
        batches=(20, 200, 500),
        seen=(8, 32, 64),
        lengths=([8, 32], [32, 64, 128, 256], [64, 128, 256, 512, 1024]),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for norm in ("batch", "layer"):
            reseed(settings["seed"])
            table = torch.randn(64, settings["dim"])
            stack = make_encoder("post_ln", 2, settings["dim"], norm=norm, positions="sinusoid")
            stack.train()
            for _ in range(settings["batches"]):
                _run_stack(stack, table, settings["seen"])
            stack.eval()
            usual = _run_stack(stack, table, settings["seen"], sequences=64).mean((0, 1))
            for length in settings["lengths"]:
                mean = _run_stack(stack, table, length, sequences=32).mean((0, 1))
                drift = (mean - usual).square().mean().sqrt()
                yield make_row("drift", drift, arm=norm, length=length)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        longest = max((each["length"] for each in rows), default=0)
        batch, layer = (
            compute_per_seed(select_rows(rows, "drift", arm=arm, length=longest), max_value)
            for arm in ("batch", "layer")
        )
        return [
            Check(
                f"batch: drift at length {longest}", estimate_over_seeds(batch), low=DRIFT_THRESHOLD
            ),
            Check(
                "the same, batch minus layer", paired_difference(batch, layer), low=DRIFT_THRESHOLD
            ),
            Check(
                f"layer: drift at length {longest}",
                estimate_over_seeds(layer),
                high=DRIFT_THRESHOLD,
            ),
        ]


@torch.no_grad()
def _run_stack(stack: Encoder, table: Tensor, length: int, sequences: int = 8) -> Tensor:
    y: Tensor = stack(table[torch.randint(len(table), (sequences, length))])
    return y
