"""Admin: Post-LN whose skip is scaled by what the branches before it add."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import Observer, State, empty_parameter, register
from addnorm.wirings.post_norm_base import PostNorm


@register(
    Card(
        name="admin",
        title="Admin",
        formula="x <- N(omega * x + f(x)), omega from the branches' variances on one batch",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, "
            "arXiv 2004.08249"
        ),
        summary="Profiles the stack once and scales the skips so that no branch dominates.",
        needs=("calibration",),
        reduces_to=(("admin(start=linear)", "post_ln"), ("admin", "post_ln")),
    )
)
class Admin(PostNorm):
    """Post-LN with a learned scale on the skip, which starts from a profiling pass.

    x_next = N(omega * x + f(x))

    x, f(x): (..., dim) the stream and the branch
    omega: (dim) per site, all entries equal at start: 1 until `calibrate` has seen a batch
    N: one norm per site, no final norm

    start=profile: omega_k = sqrt(running), running starts at 1 and becomes
        Var[omega_k x] + Var[f_k]; every omega is set before the next is computed
    start=paper:   omega_k = sqrt(sum of Var[f_j] over j < k), measured with all omega at 1
    start=log, linear, constant: no batch; sqrt((n + 1) / ln(n + 1) - 1), 1, or sqrt(n) for n sites

    Liu et al. 2020, section 4, and its released code; log, linear, constant: admin-torch 2022.
    """

    # The released recipes: 8000 steps of warm-up, 6000 on IWSLT.
    schedule = "inverse_sqrt(warmup=0.1)"

    # NOTE[DIFF]: profile is the rule of the released code, which counts the input's variance;
    # start=paper is the formula as printed, with omega = 1 at the first site, where its sum is
    # empty.
    # NOTE[DIFF]: the released code measures padding too; here only valid tokens count, so that the
    # start does not depend on how a batch was padded.
    def __init__(
        self,
        plan: Plan,
        *,
        start: Literal["profile", "paper", "log", "linear", "constant"] = "profile",
    ) -> None:
        super().__init__(plan)
        self.start = start
        self.norms = self.make_site_norms()
        self.omega = empty_parameter(len(plan.sites), plan.dim)
        self.calibrated: Tensor
        self.register_buffer("calibrated", torch.empty((), dtype=torch.bool))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Initial omega without a batch; an earlier calibration is discarded.
        n = len(self.plan.at_base.sites)
        starts = {"log": math.sqrt((n + 1) / math.log(n + 1) - 1), "constant": math.sqrt(n)}
        nn.init.constant_(self.omega, starts.get(self.start, 1.0))
        self.calibrated.fill_(self.start not in ("profile", "paper"))

    def extra_repr(self) -> str:
        waiting = not self.calibrated.is_meta and not self.calibrated
        return f"start={self.start}" + (", not calibrated: call calibrate(x)" if waiting else "")

    def scale(self, site: Site) -> float | Tensor | None:
        return self.omega[site.index]

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"omega"}

    def calibrate(self, run: Callable[[Observer], None]) -> None:
        if self.start not in ("profile", "paper"):
            return
        self.omega.fill_(1.0)
        running = 1.0

        def profile(site: Site, state: State, branch: Tensor) -> None:
            nonlocal running
            self.omega[site.index].fill_(math.sqrt(running))
            running = _variance(self.omega[site.index] * state[0]) + _variance(branch)

        variances: list[float] = []
        run(
            profile
            if self.start == "profile"
            else lambda _site, _state, f: variances.append(_variance(f))
        )
        for index in range(1, len(variances)):
            self.omega[index].fill_(math.sqrt(sum(variances[:index])))
        self.calibrated.fill_(True)


def _variance(x: Tensor) -> float:
    """Return the biased variance of all elements."""
    return float(x.double().var(correction=0))
