"""PowerNorm: features scaled by a running second moment, with a custom backward pass."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from addnorm.core.cards import Card
from addnorm.core.registry import Fraction, NonNegativeInt, Positive
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register
from addnorm.norms.statistics import mask_padding, token_count, token_mean


@register(
    Card(
        name="power",
        title="PowerNorm",
        group="batch",
        formula="y = weight * x / psi + bias, psi ** 2 a running mean of x ** 2 over tokens",
        paper=(
            "Shen et al., PowerNorm: Rethinking Batch Normalization in Transformers, 2020, "
            "arXiv 2003.07845"
        ),
        summary=(
            "BatchNorm without its mean and with running statistics already in training; in causal "
            "stacks only with warmup=0."
        ),
        needs=("mask",),
        reduces_to=(("power(warmup=0)", "none"),),
        undefined="What happens to nu in warm-up: it is updated, so that it is ready afterwards.",
    )
)
class PowerNorm(AffineNorm):
    """Divide each feature by the root of its running mean square over the valid tokens.

    h = x / sqrt(psi2 + eps), y = weight * h + bias        0 at padding
    dL/dx = (G - c * h) / sqrt(psi2 + eps)                 G = weight * dL/dy

    in warm-up (PN-V): psi2 = mean(x ** 2) of this batch, c = mean(G * h): the exact gradient
    after it (PN): psi2 and c = nu from the steps before
    in every step, after use:
    psi2 <- decay * psi2 + (1 - decay) * mean(x ** 2)
    nu   <- nu * (1 - (1 - decay) * mean(h ** 2)) + (1 - decay) * mean(G * h)

    x, y: (..., dim); means are over the valid tokens of the batch
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with affine=False
    psi2: (dim), buffer, starts at 1
    nu: (dim), buffer, starts at 0, moved by the backward pass
    steps: scalar, buffer, starts at 0; the first `warmup` of them are the warm-up

    Shen et al. 2020, section 4. Pitfalls: a forward in training mode counts as a step, also one
    that is repeated to save memory; two backward passes move nu twice; after the warm-up the
    gradient is not that of the forward, on purpose.
    """

    causal = False
    psi2: Tensor
    nu: Tensor
    steps: Tensor

    # NOTE[DIFF]: the released code divides the gradient by the current batch's psi after warm-up;
    # here by the running one of the forward, as in the paper.
    # NOTE[DIFF]: the released code takes the approximate gradient in warm-up too and moves psi2
    # twice a step there; here PN-V has its exact gradient and psi2 moves once.
    # NOTE[DIFF]: the released code averages over padding in the backward pass; here over valid
    # tokens in both directions, and padding comes out as 0.
    # NOTE[DIFF]: the released code scales each token by its root mean square, group by group,
    # before PowerNorm; the paper's formula has no such step, and neither has this.
    # NOTE[DIFF]: 1e-5 inside the root and 10000 steps of warm-up are the released code's defaults;
    # its recipes warm up as long as the learning rate, and the last norm of a stack for 1000 steps.
    def __init__(
        self,
        dim: int,
        *,
        warmup: NonNegativeInt = 10000,
        decay: Fraction = 0.9,
        eps: Positive = 1e-5,
        affine: bool = True,
    ) -> None:
        super().__init__(dim, affine=affine, bias=True)
        self.warmup, self.decay, self.eps = warmup, decay, eps
        self.causal = warmup == 0  # statistics of the current batch include later tokens
        self.register_buffer("psi2", torch.empty(dim))
        self.register_buffer("nu", torch.empty(dim))
        self.register_buffer("steps", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.ones_(self.psi2)
        nn.init.zeros_(self.nu)
        nn.init.zeros_(self.steps)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        valid = None if mask is None else mask.reshape(-1)
        tokens = mask_padding(x.reshape(-1, self.dim), valid)
        if self.training:
            psi2, warming = self._update_running_stats(tokens.detach(), valid)
            psi = (psi2 + self.eps).sqrt()
            scale = _PowerScale.apply
            h = scale(tokens, psi, self.nu, warming, self.decay, valid)  # type: ignore[no-untyped-call]
        else:
            h = tokens / (self.psi2.to(x.dtype) + self.eps).sqrt()
        return mask_padding(self.apply_affine(h), valid).reshape(x.shape)

    def _update_running_stats(self, tokens: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Count the step and update psi2; return the psi2 to use and whether this is warm-up."""
        batch = token_mean(tokens.square(), valid).squeeze(0)
        warming = self.steps < self.warmup
        psi2 = torch.where(warming, batch, self.psi2)
        some = (token_count(tokens, valid) > 0).squeeze()
        self.psi2 += torch.where(some, (1 - self.decay) * (batch - self.psi2), 0)
        self.steps += some
        return psi2, warming


class _PowerScale(torch.autograd.Function):
    """h = x / psi and its gradient (G - c * h) / psi, which also moves nu."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        psi: Tensor,
        nu: Tensor,
        in_warmup: Tensor,
        decay: float,
        valid: Tensor | None,
    ) -> Tensor:
        h = x / psi
        ctx.save_for_backward(h, psi, in_warmup, valid)
        ctx.nu, ctx.decay = nu, decay  # a saved tensor must not change, and nu does
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, psi, warming, valid = ctx.saved_tensors
        along = token_mean(grad * h, valid).squeeze(0)
        c = torch.where(warming, along, ctx.nu)
        ctx.nu += (1 - ctx.decay) * (along - ctx.nu * token_mean(h.square(), valid).squeeze(0))
        return (grad - c * h) / psi, None, None, None, None, None
