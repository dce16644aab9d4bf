"""What is minimised: a model and its loss as one module, to be compiled, copied and sharded."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.data.tokenizer import PAD
from addnorm.kernels.precision import widest_float
from addnorm.models import Model

Masks = dict[str, Tensor | None]


@dataclass(frozen=True)
class LossMeans:
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
        given, masks = self.model_inputs(inputs, targets)
        loss, *counted = self.model.loss(
            self.select_targets(targets), *given, smoothing=self.smoothing, **masks
        )
        return loss, torch.stack([each.detach().to(widest_float(loss.device)) for each in counted])

    def model_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], Masks]:
        """What the model is called with: tensors, and masks by name."""
        if self.task != "translate":
            return (inputs,), {"mask": make_token_mask(inputs)}
        target = targets[:, :-1].clamp(min=PAD)
        return (inputs, target), {
            "source_mask": make_token_mask(inputs),
            "target_mask": make_token_mask(target),
        }

    def select_targets(self, targets: Tensor) -> Tensor:
        """What the logits are for."""
        if self.task == "translate":
            return targets[:, 1:]
        return targets if self.task == "lm" else targets[:, 0]


def make_token_mask(ids: Tensor) -> Tensor | None:
    """The mask of a batch, True at tokens; None where nothing is padding."""
    mask = ids != PAD
    if torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask
