"""Stochastic depth: single branches are dropped in training, a sample at a time."""

import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Fraction, InnerCall
from addnorm.wirings.base import State, register
from addnorm.wirings.decorator_base import Decorator


@register(
    Card(
        name="drop_path",
        title="Stochastic depth (DropPath)",
        group="random depth",
        folds_to="pre_ln",
        formula=(
            "branch <- branch * keep / (1 - p), keep = 0 with probability p = rate * layer / "
            "(depth - 1)"
        ),
        paper="Huang et al., Deep Networks with Stochastic Depth, 2016, arXiv 1603.09382",
        summary=(
            "Regularizes deep stacks: in training each sample sees a shallower one. A decorator."
        ),
        reduces_to=(("drop_path(rate=0.0)", "pre_ln"), ("drop_path(inner=b2t, rate=0.0)", "b2t")),
    )
)
class DropPath(Decorator):
    """Zero a branch for some samples before it is written.

    branch = branch * keep / (1 - p)      in training; in evaluation nothing happens

    branch: (B, ..., dim) what the sub-layer returned
    keep: (B), 1 with probability 1 - p, else 0, drawn at every site
    p: constant, rate * layer / (depth - 1), layer from 0: lower layers are dropped less

    Huang et al. 2016, section 3. In Post-LN wirings the norm follows it. With one mask for all
    sub-layers of a layer it would be LayerDrop.
    """

    def __init__(self, plan: Plan, *, inner: InnerCall = "pre_ln", rate: Fraction = 0.1) -> None:
        super().__init__(plan, inner)
        self.rate, self.tokenwise = rate, False

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # Drop or rescale the branch before the inner wiring writes it.
        drop = self.rate * site.layer / max(self.plan.depth - 1, 1)
        if self.training and drop > 0:
            shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
            keep = torch.rand(shape, device=branch.device) >= drop
            branch = branch * keep / (1 - drop) if drop < 1 else torch.zeros_like(branch)
        return self.inner.write(state, site, branch)
