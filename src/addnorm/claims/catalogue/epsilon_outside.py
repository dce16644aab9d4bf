"""Claim: an epsilon outside the root multiplies gradients of constant tokens by 1 / eps."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_row,
    max_value,
    min_value,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.norms import make_norm

UNIT_GAIN_RANGE = (0.99, 1.01)
POWERS = {"inside": 0.5, "outside": 1.0}


@register(
    Card(
        name="epsilon_outside",
        title="Epsilon outside of the root",
        formula="|d loss / d x| = |d loss / d y| / eps outside, / sqrt(eps) inside, if var(x) = 0",
        paper=(
            "Rush et al., The Annotated Transformer, 2018 (its LayerNorm); the gradient follows "
            "from Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv 1607.06450"
        ),
        summary=(
            "With (x - mean) / (std + eps), as tutorials write it, a constant token multiplies "
            "gradients by 1 / eps; with sqrt(var + eps) only by 1 / sqrt(eps)."
        ),
    )
)
class EpsilonOutside(InitClaim):
    """Factor by which LayerNorm multiplies the gradient of a constant token.

    gain = |d loss / d x| / |g - mean(g)|, g = d loss / d y

    x: (dim), all entries equal, as in a padded token
    """

    attributed_to = "ours, on the code of Rush et al., 2018"
    paper_location = "class LayerNorm of the Annotated Transformer; equation 4 of Ba et al."
    about = ("layer",)
    finding = (
        "for a constant token the gradient gain is {eps inside: largest gain * eps ** 0.5} / "
        "sqrt(eps) with eps inside the root and {eps outside: largest gain * eps ** 1} / eps "
        "outside"
    )
    measured_on = "LayerNorm alone, width 256"
    reach = "exact; how often constant tokens occur is another question"
    experiment = (
        "Constant tokens pass through LayerNorm without gain and bias, and a random gradient is "
        "propagated back. The norm of the gradient at the input is divided by that at the "
        "output, without its mean, for several eps inside and outside the root."
    )
    rule = (
        f"gain * sqrt(eps) inside and gain * eps outside are {UNIT_GAIN_RANGE[0]:g} to "
        f"{UNIT_GAIN_RANGE[1]:g} at every eps."
    )
    chart = ChartSpec(name="gain", x="eps", y="gain of the gradient", log_x=True, log_y=True)
    budgets = make_budget_table(
        seeds=(2, 5, 10),
        eps=([1e-3, 1e-5], [1e-2, 1e-3, 1e-4, 1e-5, 1e-6], [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8]),
        dim=(16, 256, 1024),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for mode in POWERS:
            for eps in settings["eps"]:
                call = f"layer(affine=False, eps={eps}, eps_mode={mode})"
                norm = make_norm(call, settings["dim"]).double()
                x = torch.randn(32, 1, dtype=torch.float64).expand(-1, settings["dim"]).clone()
                x.requires_grad_()
                g = torch.randn(x.shape, dtype=torch.float64)
                (gradient,) = torch.autograd.grad(norm(x), x, g)
                gain = gradient.norm() / (g - g.mean(-1, keepdim=True)).norm()
                yield make_row("gain", gain, arm=f"eps {mode}", eps=eps)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        checks = []
        for mode, power in POWERS.items():
            gains = select_rows(rows, "gain", arm=f"eps {mode}")
            scaled = [{**each, "value": each["value"] * each["eps"] ** power} for each in gains]
            for which, statistic in (("smallest", min_value), ("largest", max_value)):
                what = f"eps {mode}: {which} gain * eps ** {power:g}"
                checks.append(Check(what, estimate_per_seed(scaled, statistic), *UNIT_GAIN_RANGE))
        return checks
