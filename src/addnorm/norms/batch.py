"""BatchNorm over the valid tokens of a padded batch."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Fraction, NonNegative
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register
from addnorm.norms.statistics import mask_padding, token_count, token_mean


@register(
    Card(
        name="batch",
        title="BatchNorm",
        group="batch",
        formula="y = weight * (x - mean_batch(x)) / sqrt(var_batch(x) + eps) + bias",
        paper=(
            "Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by "
            "Reducing Internal Covariate Shift, 2015, arXiv 1502.03167"
        ),
        summary=(
            "The baseline that fails on text, because statistics of batches fluctuate; not for "
            "causal stacks."
        ),
        needs=("mask",),
    )
)
class BatchNorm(AffineNorm):
    """Center and scale each feature over all valid tokens of the batch.

    y = weight * (x - m) / sqrt(v + eps) + bias      0 at padding
    in training m, v are mean and biased variance over the n valid tokens of the batch, and
    running_mean <- (1 - momentum) * running_mean + momentum * m
    running_var  <- (1 - momentum) * running_var  + momentum * v * n / (n - 1)
    in evaluation m, v are the running ones

    x, y: (..., dim)
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with affine=False
    running_mean: (dim), buffer, starts at 0
    running_var: (dim), buffer, starts at 1
    num_batches_tracked: scalar, buffer, starts at 0

    Ioffe and Szegedy 2015, algorithms 1 and 2. A batch of fewer than two tokens does not update the
    running statistics, and its one token becomes the bias. Pitfall: in distributed training every
    process has its own statistics.
    """

    causal = False
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    # NOTE[DIFF]: the paper has no padding; here padding is left out of the statistics and comes out
    # as 0.
    # NOTE[DIFF]: the paper averages the statistics of evaluation over many batches after training;
    # here, as in torch.nn.BatchNorm1d, running averages are used.
    # NOTE[DIFF]: PowerNorm's released "batch" scales each token by its root mean square first and
    # fills padding with the mean, which makes the variance too small; here neither.
    def __init__(
        self,
        dim: int,
        *,
        eps: NonNegative = 1e-5,
        momentum: Fraction = 0.1,
        affine: bool = True,
    ) -> None:
        super().__init__(dim, affine=affine, bias=True)
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.empty(dim))
        self.register_buffer("running_var", torch.empty(dim))
        self.register_buffer("num_batches_tracked", torch.empty((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_var)
        nn.init.zeros_(self.num_batches_tracked)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        tokens = x.reshape(-1, self.dim)
        valid = None if mask is None else mask.reshape(-1)
        tokens = mask_padding(tokens, valid)
        if self.training:
            mean = token_mean(tokens, valid)
            var = token_mean(mask_padding(tokens - mean, valid).square(), valid)
            self._update_running_stats(mean, var, token_count(tokens, valid))
        else:
            mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        y = self.apply_affine((tokens - mean) / (var + self.eps).sqrt())
        return mask_padding(y, valid).reshape(x.shape)

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update the running statistics; fewer than two tokens have no unbiased variance."""
        enough = (count > 1).squeeze()
        unbiased = var * count / (count - 1).clamp_min(1)
        for running, batch in ((self.running_mean, mean), (self.running_var, unbiased)):
            running += torch.where(enough, self.momentum * (batch.squeeze(0) - running), 0)
        self.num_batches_tracked += enough
