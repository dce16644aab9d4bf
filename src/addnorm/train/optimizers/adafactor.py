"""Adafactor: the second moment of a matrix, factored into a row and a column."""

from typing import Annotated

import torch
from pydantic import Field

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Positive
from addnorm.models.base import WiredModule
from addnorm.train.optimizers.base import (
    Optimizer,
    decay_groups,
    is_sharded,
    register,
    trainable_parameters,
)


@register(
    Card(
        name="adafactor",
        title="Adafactor",
        formula="p <- p - max(floor, rms(p)) * min(lr, 1 / sqrt(t)) * clipped(g / sqrt(R C))",
        paper=(
            "Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
            "2018, arXiv 1804.04235"
        ),
        summary="Keeps a row and a column for each matrix instead of two matrices; no momentum.",
    )
)
class Adafactor(Optimizer):
    """Adam whose second moment is a product of a row and a column, and whose step is relative.

    p <- p - max(floor, rms(p)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / clip) - lr * decay * p

    u: g / sqrt(v)
    v: R C / mean(R), means of g ** 2 over columns and rows, averaged with 1 - t ** -decay; of a
        vector g ** 2 itself, averaged likewise

    lr is relative to the size of the weight, so use a larger one than for Adam, e.g. 0.01. Pitfall:
    parameters that start at 0 (ReZero's alpha, Fixup's last matrices) move by at most floor * lr
    per step; choose another optimizer for such wirings.
    """

    # NOTE[DIFF]: the paper adds 1e-30 to g ** 2; torch, whose code runs here, bounds v from below
    # by the square of the type's precision.
    def __init__(
        self,
        model: WiredModule,
        lr: float,
        weight_decay: float,
        *,
        decay: Positive = 0.8,
        clip: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0,
        floor: Positive = 1e-3,
    ) -> None:
        if is_sharded(model):
            raise UserError(
                "torch's Adafactor does not support sharded matrices (fsdp); choose parallel=ddp, "
                "or another optimizer"
            )
        optimizer = torch.optim.Adafactor(
            decay_groups(trainable_parameters(model), model, weight_decay, rule="adafactor"),
            lr=lr,
            beta2_decay=-decay,
            eps=(None, floor),
            d=clip,
            foreach=True,
        )
        super().__init__(lr, [optimizer])
