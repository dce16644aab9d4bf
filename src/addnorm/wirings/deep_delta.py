"""Deep delta learning: a branch names a direction whose content in the stream is replaced."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.norms.base import statistics_dtype
from addnorm.wirings.base import State, Wiring, autocast_disabled, empty_parameter, register

StepSize = Annotated[float, Field(gt=0, lt=2)]


@register(
    Card(
        name="deep_delta",
        title="Deep delta learning",
        formula="x <- x + beta * (v - k . x) * k, k = f(N(x)) / |f(N(x))|; y = N_final(x)",
        paper="Zhang et al., Deep Delta Learning, 2026, arXiv 2601.00417",
        summary=(
            "Each branch is a direction; what the stream holds along it is erased and rewritten, "
            "or reflected."
        ),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class DeepDelta(Wiring):
    """Replace the component of the stream along the branch.

    x_next = x + beta * (v - k . x) * k
    k      = f(h) / sqrt(|f(h)|^2 + dim * 1e-5),  h = N(x)
    beta   = 2 sigmoid(w_b . h + c_b),  v = 4 sigmoid(w_v . x + c_v)
    y      = N_final(x)      after the last site

    x, f(h): (..., dim) the stream and the branch
    w_b, w_v: (dim) per site, start at N(0, 0.25 / dim)
    c_b: scalar per site, starts at logit(step / 2), so that beta starts near `step`
    c_v: scalar per site, starts uniform in +-1 / sqrt(dim)
    N: one norm per site, and N_final

    Zhang et al. 2026, with a scalar value. beta = 0 leaves x, beta = 1 makes k . x = v, beta = 2
    with v = 0 reflects x. The size of a branch does not matter.
    """

    ignores_branch_size = True

    # NOTE[DIFF]: the main variants of the paper have a matrix state with convolutions; this is the
    # released variant with a scalar value. Its start of the output matrices, which only sets the
    # size of branches, is omitted.
    def __init__(self, plan: Plan, *, step: StepSize = 1.0) -> None:
        super().__init__(plan)
        self.start = step
        self.norms = self.make_site_norms()
        sites = len(plan.sites)
        self.w_b, self.w_v = empty_parameter(sites, plan.dim), empty_parameter(sites, plan.dim)
        self.c_b, self.c_v = empty_parameter(sites), empty_parameter(sites)
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.w_b, self.w_v):
            nn.init.normal_(weight, std=0.5 * self.plan.dim**-0.5)
        nn.init.constant_(self.c_b, math.log(self.start / (2 - self.start)))
        bound = self.plan.dim**-0.5
        nn.init.uniform_(self.c_v, -bound, bound)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        h = self.norm(site)(state[0])
        return h, (state[0], h)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        x, h = state
        index = site.index
        with autocast_disabled(x):
            wide = statistics_dtype(x)
            stream, f = x.to(wide), branch.to(wide)
            k = f * torch.rsqrt(f.square().sum(-1, keepdim=True) + self.plan.dim * 1e-5)
            beta = 2 * _dot(h.to(wide), self.w_b[index], self.c_b[index]).sigmoid()
            value = 4 * _dot(stream, self.w_v[index], self.c_v[index]).sigmoid()
            content = (k * stream).sum(-1, keepdim=True)
            return ((stream + beta * (value - content) * k).to(x.dtype),)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"w_b", "w_v"}


def _dot(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x * weight.to(x.dtype)).sum(-1, keepdim=True) + bias.to(x.dtype)
