"""Claim: RMSNorm is as good as LayerNorm and takes less time."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from addnorm.claims.checks import Check
from addnorm.claims.claim import Budget, ClaimWorkspace, register
from addnorm.claims.experiments import norm_comparison
from addnorm.claims.init_claims import (
    BudgetSettings,
    compute_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    reseed,
    select_rows,
)
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    PROGRESS_DEFINITION,
    ComparisonClaim,
    make_progress_chart,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

ARMS = {"layer": "pre_ln", "rms": "pre_ln rms"}


@register(
    Card(
        name="rms_norm_equals_layer_norm",
        title="RMSNorm equals LayerNorm",
        formula="loss(RMSNorm) = loss(LayerNorm), time(RMSNorm) < time(LayerNorm)",
        paper="Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv 1910.07467",
        summary="RMSNorm trains as well as LayerNorm and takes less time.",
    )
)
class RmsNormEqualsLayerNorm(ComparisonClaim):
    """Progress and speed of RMSNorm and LayerNorm in Pre-LN.

    speed = tokens per second of CPU time, forward and backward
    """

    paper_location = "section 5 and tables 2 to 9"
    about = ("rms", "layer")
    finding = (
        "RMSNorm's progress minus LayerNorm's is {progress, rms minus layer}, and it runs "
        "{exp:ln(speed), rms minus layer} times as fast"
    )
    measured_on = "dates, 3+3 layers of width 32, 200 steps on 5,000 pairs"
    reach = "the speed is that of our kernels on a CPU"
    discussion = (
        "The progress is equal; the time is not. The paper times other implementations on a "
        "GPU. Here both norms are one native kernel on a CPU, where subtracting the mean costs "
        "little, and the kernel of RMSNorm is a few percent slower."
    )
    experiment = (
        "Pre-LN with either norm learns to translate dates over the same learning rates. In "
        "addition, encoders with either norm run forward and backward in alternation, so that "
        "the load of the machine is the same for both. " + PROGRESS_DEFINITION
    )
    rule = (
        "Premise: LayerNorm, the reference, learns. The progress of RMSNorm differs "
        f"from its by less than {NEGLIGIBLE_PROGRESS:g}, seed by seed; and ln(speed) of RMSNorm is "
        "above that of LayerNorm, round by round."
    )
    chart = make_progress_chart()
    timing_settings = make_budget_table(
        rounds=(2, 12, 24), passes=(2, 10, 20), dim=(16, 128, 512), depth=(1, 4, 12)
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {"norms": norm_comparison(budget, ["layer", "rms"])}

    def settings(self, budget: Budget) -> dict[str, Any]:
        return super().settings(budget) | {"clock": dict(self.timing_settings[budget])}

    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        return [*super().rows(budget, workspace), *_measure_speed(self.timing_settings[budget])]

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        layer, rms = (best_setting_values(rows, arm=arm) for arm in ARMS.values())
        slow, fast = (
            compute_per_seed(
                select_rows(rows, "speed", arm=arm), lambda rounds: math.log(rounds[0]["value"])
            )
            for arm in ARMS.values()
        )
        return [
            Check(
                "progress, rms minus layer",
                paired_difference(rms, layer),
                -NEGLIGIBLE_PROGRESS,
                NEGLIGIBLE_PROGRESS,
            ),
            Check("ln(speed), rms minus layer", paired_difference(fast, slow), low=0),
        ]


def _measure_speed(settings: BudgetSettings) -> Iterator[Row]:
    """Measure the speed of both norms in several rounds; the number of a round is its seed."""
    reseed(0)
    x = torch.randn(8, 32, settings["dim"])
    stacks = {
        norm: make_encoder("pre_ln", settings["depth"], settings["dim"], norm=norm) for norm in ARMS
    }
    for seed in range(-1, settings["rounds"]):
        seconds_by_norm = dict.fromkeys(ARMS, 0.0)
        for norm in [*ARMS] * settings["passes"]:
            start = time.process_time()
            stacks[norm](x).square().mean().backward()
            seconds_by_norm[norm] += time.process_time() - start
        if seed >= 0:  # round -1 is a warm-up
            for norm, seconds in seconds_by_norm.items():
                rate = settings["passes"] * x[..., 0].numel() / max(seconds, 1e-9)
                yield make_row("speed", rate, study="clock", arm=ARMS[norm], seed=seed)
