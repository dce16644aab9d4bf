"""Loss of a model on the data of the caller, and the outputs that are compared."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.doctor.trace.tensors import iter_tensors
from addnorm.models.training_interface import TrainingInterface
from addnorm.rewiring.batches import Batch

LossFunction = Callable[[nn.Module, Any], Any]
"""Function of a model and a batch as the caller passed it, which returns a scalar."""


@contextlib.contextmanager
def evaluation(*models: nn.Module) -> Iterator[None]:
    """Run models in evaluation mode and without gradients; restore the modes afterwards."""
    modes = {module: module.training for model in models for module in model.modules()}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        # The fast path of nn.TransformerEncoderLayer reads weights of norms past their modules.
        torch.backends.mha.set_fastpath_enabled(False)
        for model in models:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in modes.items():
            module.training = training


def run_batch(model: nn.Module, batch: Batch) -> Any:
    """Return the output for a batch; raise `UserError` if the model does not run on it."""
    try:
        return batch.call(model)
    except USER_CODE_ERRORS as problem:
        if isinstance(problem, UserError):
            raise
        hint = "leave labels out of a tuple, " if len(batch.args) > 1 else ""
        raise UserError(
            f"the model could not be run on the batch: {describe_exception(problem)}; {hint}call "
            "model(...) with it first"
        ) from problem


def list_outputs(output: Any) -> list[Tensor]:
    """Return the floating-point tensors of an output, without its loss."""
    return [t for t in iter_tensors(output) if t.is_floating_point() and t.ndim]


class Losses:
    """Losses of models on some batches, comparable among each other.

    The loss is, in this order: that of the caller's function; the loss that the model returns,
    because the batch has labels; next-token prediction of a causal language model; otherwise the
    root mean square of the difference to the original's outputs, relative to their deviation.

    Args:
        model: the original model
        batches: the data
        function: loss function of the caller, or None
    """

    def __init__(
        self, model: nn.Module, batches: list[Batch], function: LossFunction | None = None
    ) -> None:
        self.batches, self.function = batches, function
        self.references: list[list[Tensor]] = []
        self.name = "loss"
        with evaluation(model):
            outputs = [run_batch(model, batch) for batch in batches]
            self.references = [[t.double() for t in list_outputs(each)] for each in outputs]
            self._check_finite()
            if function is None and find_loss(outputs[0]) is None and not is_causal_lm(model):
                self.name = "relative difference of outputs"
        self.before = self.measure(model)

    def _check_finite(self) -> None:
        for tensor in (t for each in self.references for t in each):
            if not bool(tensor.isfinite().all()) and bool(tensor.isnan().any()):
                raise UserError(
                    "model: expected finite outputs on the batch, got NaN; repair the weights or "
                    "the batch first"
                )

    def measure(self, model: nn.Module) -> float:
        """Return the mean loss of a model over the batches."""
        with evaluation(model):
            losses = [self.measure_batch(model, i) for i in range(len(self.batches))]
        return float(torch.stack([loss.double().cpu() for loss in losses]).mean())

    def measure_batch(self, model: nn.Module, index: int) -> Tensor:
        """Return the loss of one batch, which has a gradient if gradients are enabled."""
        batch = self.batches[index]
        if self.function is not None:
            value = self.function(model, batch.original)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise UserError(
                    f"loss: expected a function that returns a scalar tensor, got "
                    f"{type(value).__name__}"
                )
            return value
        output = run_batch(model, batch)
        loss = find_loss(output)
        if loss is not None:
            return loss
        if is_causal_lm(model):
            return _next_token_loss(list_outputs(output)[0], _find_ids(batch))
        return self.difference(output, index)

    def difference(self, output: Any, index: int) -> Tensor:
        """Return the distance of an output to that of the original, relative to its deviation."""
        errors = [
            (ours.double() - theirs).square().mean() / theirs.var().clamp(min=1e-30)
            for ours, theirs in zip(list_outputs(output), self.references[index], strict=False)
            if ours.shape == theirs.shape
        ]
        return torch.stack(errors).mean().sqrt() if errors else torch.zeros(())

    def divergence(self, model: nn.Module, index: int) -> Tensor:
        """Return how far a model is from the original on a batch, to be minimized by a fit.

        KL(original, model) where outputs are logits, squared differences elsewhere.
        """
        output = run_batch(model, self.batches[index])
        ours, theirs = list_outputs(output)[0], self.references[index][0]
        if is_causal_lm(model) or find_loss(output) is not None:
            expected = theirs.to(ours).log_softmax(-1)
            return (
                F.kl_div(ours.log_softmax(-1), expected, log_target=True, reduction="none")
                .sum(-1)
                .mean()
            )
        return (ours - theirs.to(ours)).square().mean() / theirs.var().to(ours).clamp(min=1e-30)


def find_loss(output: Any) -> Tensor | None:
    """Return the scalar loss inside an output, or None."""
    loss = output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def is_causal_lm(model: nn.Module) -> bool:
    """Return whether a model predicts the next token from ids and returns logits."""
    if isinstance(model, TrainingInterface):
        is_headless = getattr(getattr(model, "variant", None), "output_kind", "") == "hidden"
        return model.loss_type == "ForCausalLM" and not is_headless
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) and not getattr(
        getattr(model, "config", None), "is_encoder_decoder", False
    )


def _find_ids(batch: Batch) -> Tensor:
    for name in ("input_ids", "ids"):
        if isinstance(batch.kwargs.get(name), Tensor):
            return batch.kwargs[name]
    if batch.args and isinstance(batch.args[0], Tensor) and not batch.args[0].is_floating_point():
        return batch.args[0]
    raise UserError("calibrate: expected token ids in the batch, got none; pass a loss function")


def _next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    if ids.shape[1] < 2:
        return torch.zeros((), device=logits.device, dtype=logits.dtype)
    targets = ids[:, 1:].to(logits.device)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten().long())
