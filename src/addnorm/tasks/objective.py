"""The training objective: a model and its loss as one module, which is compiled and wrapped."""

import torch
from torch import Tensor, nn

from addnorm.decode.engine import InferenceEngine
from addnorm.kernels.device_dtypes import widest_float
from addnorm.models import Model
from addnorm.tasks.base import TextTask


class Objective(nn.Module):
    """Loss of a model on a batch of a task.

    loss = sum over predictions of cross_entropy(logits, target, smoothing)
    """

    def __init__(
        self, model: Model | InferenceEngine, task: TextTask, *, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.model, self.task, self.smoothing = model, task, smoothing

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the sums that processes add up.

        Args:
            inputs: (B, S) as in `Batch`
            targets: (B, L) as in `Batch`

        Returns:
            The summed loss, differentiable, and (3,) nll, correct and count without gradient.
        """
        arguments, masks = self.task.model_inputs(inputs, targets)
        loss, *sums = self.model.loss(
            self.task.select_targets(targets), *arguments, smoothing=self.smoothing, **masks
        )
        return loss, torch.stack([each.detach().to(widest_float(loss.device)) for each in sums])
