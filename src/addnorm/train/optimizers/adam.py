"""Adam, AdamW and RAdam."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from addnorm.core.cards import Card
from addnorm.core.registry import Epsilon
from addnorm.models.base import WiredModule
from addnorm.train.optimizers.base import (
    Beta,
    Groups,
    Optimizer,
    build_fused_adamw,
    decay_groups,
    register,
    select_fused,
    trainable_parameters,
)


class AdamBase(Optimizer, ABC):
    """Options and parameter groups shared by the Adam variants."""

    def __init__(
        self,
        model: WiredModule,
        lr: float,
        weight_decay: float,
        *,
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Epsilon = 1e-8,
    ) -> None:
        groups = decay_groups(trainable_parameters(model), model, weight_decay, eps=eps)
        super().__init__(lr, [self.build(groups, lr=lr, betas=(beta1, beta2), eps=eps)])

    @abstractmethod
    def build(self, groups: Groups, **options: Any) -> torch.optim.Optimizer:
        """Return the torch optimizer; `options` are lr, betas and eps."""


@register(
    Card(
        name="adamw",
        title="AdamW",
        formula="p <- p - lr * (m / (sqrt(v) + eps) + decay * p)",
        paper=(
            "Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017, arXiv 1711.05101"
        ),
        summary="Adam with decoupled weight decay; the common choice.",
    )
)
class AdamW(AdamBase):
    """Adaptive steps with decoupled weight decay.

    p <- p - lr * (m / (sqrt(v) + eps) + decay * p)

    m: bias-corrected running mean of the gradient (beta1)
    v: bias-corrected running mean of its square (beta2)

    beta2 is that of the original Transformer (Vaswani et al. 2017, section 5.3); torch has 0.999.
    """

    def build(self, groups: Groups, **options: Any) -> torch.optim.Optimizer:
        return build_fused_adamw(groups, **options)


@register(
    Card(
        name="adam",
        title="Adam",
        formula="g <- g + decay * p; p <- p - lr * m / (sqrt(v) + eps)",
        paper="Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014, arXiv 1412.6980",
        summary="The original Adam; weight decay is part of the gradient and therefore weak.",
    )
)
class Adam(AdamBase):
    """Adaptive steps with weight decay in the gradient.

    g <- g + decay * p
    p <- p - lr * m / (sqrt(v) + eps)

    m: bias-corrected running mean of g (beta1)
    v: bias-corrected running mean of its square (beta2)

    Without weight decay the same as adamw.
    """

    def build(self, groups: Groups, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, fused=select_fused(groups), **options)


@register(
    Card(
        name="radam",
        title="RAdam",
        formula="p <- p - lr * (r * m / (sqrt(v) + eps) + decay * p), r rises from 0 to 1",
        paper=(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2019, arXiv "
            "1908.03265"
        ),
        summary="Adam with a built-in warm-up: trains Post-LN without one in the schedule.",
    )
)
class RAdam(AdamBase):
    """Adam with small steps while the variance estimate is unreliable.

    p <- p - lr * (r * m / (sqrt(v) + eps) + decay * p)      as soon as rho > 5
    p <- p - lr * (m + decay * p)                            before

    m, v: as in adamw
    rho: length of the average in v, 2 / (1 - beta2) - 1 in the limit
    r: sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)), almost 0 at first

    Pitfall: with the usual beta2 = 0.999 the warm-up is far longer than with 0.98.
    """

    # NOTE[DIFF]: the paper adapts as soon as rho > 4; torch, whose code runs here, from rho > 5.
    def build(self, groups: Groups, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.RAdam(groups, decoupled_weight_decay=True, foreach=True, **options)
