"""What is minimised: a model and its loss as one module, to be compiled, copied and sharded."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.data.tokenizer import PAD
from addnorm.kernels.precision import wide
from addnorm.models import Model

Masks = dict[str, Tensor | None]


@dataclass(frozen=True)
class Means:
    """What sums over all that was predicted come to."""

    nll: float
    """Negative log-likelihood in nats, without smoothing."""
    correct: float
    """How often the likeliest answer was right."""
    count: float
    """How much was predicted."""

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood."""
        return self.nll / self.count if self.count else math.nan

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.count if self.count else math.nan


class Objective(nn.Module):
    """The loss of a model on a batch.

    loss = sum over what is asked of cross_entropy(logits, target, smoothing)

    forward returns (loss, sums): the sum with its gradient, and (nll, correct, count) in float64
    without one, so that processes can add them up.
    """

    def __init__(self, model: Model, task: str, *, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.task, self.smoothing = model, task, smoothing

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """inputs, targets: as in `Batch`."""
        given, masks = self.call(inputs, targets)
        loss, *counted = self.model.loss(
            self.asked(targets), *given, smoothing=self.smoothing, **masks
        )
        return loss, torch.stack([each.detach().to(wide(loss.device)) for each in counted])

    def call(self, inputs: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], Masks]:
        """What the model is called with: tensors, and masks by name."""
        if self.task != "translate":
            return (inputs,), {"mask": valid(inputs)}
        target = targets[:, :-1].clamp(min=PAD)
        return (inputs, target), {"source_mask": valid(inputs), "target_mask": valid(target)}

    def asked(self, targets: Tensor) -> Tensor:
        """What the logits are for."""
        if self.task == "translate":
            return targets[:, 1:]
        return targets if self.task == "lm" else targets[:, 0]


def valid(ids: Tensor) -> Tensor | None:
    """The mask of a batch, True at tokens; None where nothing is padding."""
    mask = ids != PAD
    if torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask
