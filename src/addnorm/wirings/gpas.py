"""GPAS: shrink the stream in the forward pass, leave its gradient alone."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import InnerCall
from addnorm.wirings.base import State, parameter, register
from addnorm.wirings.decorator import Decorator

# Where the released code puts it: behind the add of Pre-LN kinds, on the skip of Post-LN kinds.
PLACES = {
    "pre_ln": "stream",
    "ln_scaling": "stream",
    "sandwich": "stream",
    "post_ln": "skip",
    "deepnorm": "skip",
}


@register(
    Card(
        name="gpas",
        title="Gradient-preserving activation scaling",
        formula="x <- G(x + f(N(x))), G(x) = x - silu(g) * stop_gradient(x), g = 0 at start",
        paper=(
            "Chen et al., GPAS: Accelerating Convergence of LLM Pretraining via "
            "Gradient-Preserving Activation Scaling, 2025, arXiv 2506.22049"
        ),
        summary="Lets a stream that grows with depth be scaled down without starving lower layers.",
        reduces_to=(
            ("gpas", "pre_ln"),
            ("gpas(inner=deepnorm)", "deepnorm"),
            ("gpas(inner=sandwich)", "sandwich"),
        ),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class GPAS(Decorator):
    """A learned scale whose Jacobian is the identity, around another wiring.

    G(x) = x - silu(g) * stop_gradient(x)

    x <- G(x + f(N(x)))          inner of the Pre-LN kind: pre_ln, ln_scaling, sandwich
    x <- N(G(x) * alpha + f(x))  inner of the Post-LN kind: post_ln, deepnorm

    x, f(x): (..., dim) the stream and the branch
    g: scalar, starts at 0, not decayed; one per layer, or per site with per=site

    Chen et al. 2025, section 3. At scale the release clips the gradient of g to 0.01.
    """

    # NOTE[DIFF]: the released code shares one g among the sub-layers of a layer; per=site gives
    # each its own.
    def __init__(
        self,
        plan: Plan,
        *,
        inner: InnerCall = "pre_ln",
        per: Literal["layer", "site"] = "layer",
    ) -> None:
        super().__init__(plan, inner)
        name = Call.parse(inner).name
        if name not in PLACES:
            raise UserError(
                f"gpas is defined around {', '.join(PLACES)}, got inner={inner}; choose one of them"
            )
        self.place, self.per = PLACES[name], per
        self.g = parameter(plan.depth if per == "layer" else len(plan.sites))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """No scaling."""
        nn.init.zeros_(self.g)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        """Scale the skip before the add, or the stream behind it."""
        if self.place == "skip":
            return self.inner.write((self._scaled(state[0], site),), site, branch)
        (x,) = self.inner.write(state, site, branch)
        return (self._scaled(x, site),)

    def _scaled(self, x: Tensor, site: Site) -> Tensor:
        g = self.g[site.layer if self.per == "layer" else site.index]
        return x - F.silu(g) * x.detach()
