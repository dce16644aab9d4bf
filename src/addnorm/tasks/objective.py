"""The training objective: a model and its loss as one module, which is compiled and wrapped."""

import torch
from torch import Tensor, nn

from addnorm.decode.engine import InferenceEngine
from addnorm.kernels.cross_entropy import IGNORE_INDEX, cross_entropy
from addnorm.kernels.device_dtypes import widest_float
from addnorm.kernels.host_copies import recall, remember
from addnorm.models import Model
from addnorm.tasks.base import Masks, TextTask


class Objective(nn.Module):
    """Loss of a model on a batch of a task.

    loss = sum over predictions of cross_entropy(logits, target, smoothing)
           + z_loss * logsumexp(logits)^2

    z_loss: Chowdhery et al., PaLM, 2022, arXiv 2204.02311, section 5. It needs all logits at once,
    which takes more memory.
    """

    def __init__(
        self,
        model: Model | InferenceEngine,
        task: TextTask,
        *,
        smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.task, self.smoothing, self.z_loss = model, task, smoothing, z_loss

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the sums that processes add up.

        Args:
            inputs: (B, S) as in `Batch`
            targets: (B, L) as in `Batch`

        Returns:
            The summed loss, differentiable, and (3,) nll, correct and count without gradient.
        """
        arguments, masks, selected = self._prepare_inputs(inputs, targets)
        if self.z_loss and isinstance(self.model, Model):
            logits = self.model(*arguments, **masks)
            loss, *sums = cross_entropy(logits, selected, smoothing=self.smoothing)
            sizes = logits.to(widest_float(logits.device)).logsumexp(-1)
            squares = sizes.square().masked_fill(selected == IGNORE_INDEX, 0.0)
            loss = loss + self.z_loss * squares.sum().to(loss.dtype)
        else:
            loss, *sums = self.model.loss(selected, *arguments, smoothing=self.smoothing, **masks)
        return loss, torch.stack([each.detach().to(widest_float(loss.device)) for each in sums])

    def _prepare_inputs(
        self, inputs: Tensor, targets: Tensor
    ) -> tuple[tuple[Tensor, ...], Masks, Tensor]:
        """Return arguments and masks of the model, and the targets of its logits.

        On a GPU the host computes the same from its own copies, so that no later code must wait
        for the device to learn where padding is.
        """
        arguments, masks = self.task.model_inputs(inputs, targets)
        selected = self.task.select_targets(targets)
        if inputs.device.type == "cpu" or torch.compiler.is_compiling():
            return arguments, masks, selected
        host_inputs, host_targets = recall(inputs), recall(targets)
        if host_inputs is None or host_targets is None:
            return arguments, masks, selected
        _, known = self.task.model_inputs(host_inputs, host_targets)
        masks = {name: _remember_mask(mask, known[name]) for name, mask in masks.items()}
        # A copy, because a view of the targets could be the targets themselves.
        selected = remember(selected.clone(), self.task.select_targets(host_targets))
        return arguments, masks, selected


def _remember_mask(mask: Tensor | None, host: Tensor | None) -> Tensor | None:
    return None if mask is None or host is None else remember(mask, host)
