"""GPAS: scale the stream down in the forward pass, but not its gradient."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import InnerCall
from addnorm.wirings.base import State, Wiring, empty_parameter, register
from addnorm.wirings.decorator_base import Decorator


@register(
    Card(
        name="gpas",
        title="Gradient-preserving activation scaling",
        group="scaled",
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

    x <- G(x + f(N(x)))          place=stream, the default for Pre-LN wirings: pre_ln, sandwich, ...
    x <- N(alpha * G(x) + f(x))  place=skip, the default for Post-LN wirings: post_ln, deepnorm, ...

    x, f(x): (..., dim) the stream and the branch
    g: scalar, starts at 0, not decayed; one per layer, or per site with per=site

    Chen et al. 2025, section 3. At scale the release clips the gradient of g to 0.01.
    """

    # NOTE[DIFF]: place=own follows the released code, which puts G after the add of Pre-LN layers
    # and on the skip of Post-LN ones; place=stream and place=skip use one placement in all layers.
    # NOTE[DIFF]: the released code shares one g among the sub-layers of a layer; per=site gives
    # each its own.
    def __init__(
        self,
        plan: Plan,
        *,
        inner: InnerCall = "pre_ln",
        per: Literal["layer", "site"] = "layer",
        place: Literal["own", "stream", "skip"] = "own",
    ) -> None:
        super().__init__(plan, inner)
        if self.num_state_tensors != 1 or type(self.inner).trunk is not Wiring.trunk:
            raise UserError(
                f"gpas scales one stream, and {inner} has several; choose an inner wiring of one, "
                "such as pre_ln, sandwich, deepnorm or mix_ln"
            )
        self.place, self.per = place, per
        self.g = empty_parameter(plan.depth if per == "layer" else len(plan.sites))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.g)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # With place=own, Post-LN wirings scale the skip before the add, others the stream after it.
        own = "skip" if self.inner.has_post_norm(site) else "stream"
        if (own if self.place == "own" else self.place) == "skip":
            return self.inner.write((self._scale_stream(state[0], site),), site, branch)
        (x,) = self.inner.write(state, site, branch)
        return (self._scale_stream(x, site),)

    def _scale_stream(self, x: Tensor, site: Site) -> Tensor:
        g = self.g[site.layer if self.per == "layer" else site.index]
        return x - F.silu(g) * x.detach()
