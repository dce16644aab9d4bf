"""Stress test: short trainings at three learning rates, with and without warm-up.

Six copies of the model are trained for a few steps of Adam on a synthetic task. The result is one
row per run and the sensitivity of the loss to the learning rate; the test gives no verdict.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.interrupts import deferred_interrupt, raise_if_interrupted
from addnorm.core.rows import Row
from addnorm.doctor.model_trace import clone_inputs, model_loss, to_call_arguments
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.doctor.trace.state_guard import preserve_all_rng
from addnorm.doctor.trace.tensors import iter_tensors
from addnorm.measure.sites import unwrap_model

Call = tuple[tuple[Any, ...], dict[str, Any]]
Loss = Callable[[Any], Tensor]
DEFAULT_STEPS = 40
LR_FACTORS = (1 / 3, 1.0, 3.0)
LAST_STEPS = 5
"""Number of final steps that the last loss is averaged over."""


class StressTestError(UserError):
    """The model cannot be copied or trained."""


def stress(
    model: nn.Module,
    example_inputs: Any,
    loss: Loss | str | None = None,
    *,
    lr: float,
    steps: int = DEFAULT_STEPS,
) -> Iterator[Row]:
    """Train copies of a model for a few steps of Adam and yield one row per run.

    Args:
        model: the model; it is left unchanged
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments
        loss: function from the model's output to a scalar, or a key of LOSSES. By default the loss
            that the model returns, else cross entropy if the output holds logits of the input
            tokens, else the mean squared error.
        lr: middle learning rate; the runs use a third of it, itself, and three times it
        steps: optimizer steps per run; runs with warm-up spend a quarter of them on it

    Raises:
        StressTestError: the model cannot be copied or trained
    """
    if not math.isfinite(lr) or lr <= 0:
        raise UserError(f"lr: expected a positive number such as 1e-3, got {lr!r}")
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(unknown_name_message("loss", loss, LOSSES))
    model = unwrap_model(model)
    for factor in LR_FACTORS:
        for warmup in (0, steps // 4):
            # Between two rows the caller has its own random generators and signal handlers.
            with deferred_interrupt(), preserve_all_rng(model):
                torch.manual_seed(0)
                call = clone_inputs(to_call_arguments(example_inputs))
                measure = loss if callable(loss) else _SyntheticLoss(call, loss)
                row = _train_copy(
                    model,
                    call,
                    measure=measure,
                    schedule=learning_rates(lr * factor, warmup, steps),
                )
            yield {"measure": "stress", "lr": lr * factor, "warmup": warmup, **row}


def learning_rates(lr: float, warmup: int, steps: int) -> list[float]:
    """Return the learning rate of each step: a linear warm-up, then a constant.

    >>> learning_rates(1.0, 2, 4)
    [0.5, 1.0, 1.0, 1.0]
    """
    return [lr * min(1.0, (step + 1) / warmup) if warmup else lr for step in range(steps)]


def _train_copy(model: nn.Module, call: Call, *, measure: Loss, schedule: Sequence[float]) -> Row:
    """Train a copy of the model; turn any error of the user's code into a StressTestError."""
    try:
        return _train(copy.deepcopy(model).train(), call, measure=measure, schedule=schedule)
    except UserError:
        raise
    except USER_CODE_ERRORS as problem:
        raise StressTestError(
            f"the model cannot be copied and trained: {describe_exception(problem)}; omit the "
            "stress test"
        ) from problem


def _train(model: nn.Module, call: Call, *, measure: Loss, schedule: Sequence[float]) -> Row:
    """Run one step per learning rate of the schedule; stop at a loss that is not finite."""
    weights = [w for w in model.parameters() if w.requires_grad]
    if not weights:
        raise UserError("model: expected a trainable model, got one without trainable weights")
    optimizer = torch.optim.Adam(weights, lr=schedule[0])
    losses: list[float] = []
    largest = 0.0
    for rate in schedule:
        raise_if_interrupted()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        value = measure(model(*call[0], **call[1]))
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            break
        value.backward()
        size = float(nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None]))
        largest = max(largest, size) if math.isfinite(size) else math.inf
        optimizer.step()
    tail = losses[-LAST_STEPS:]
    return {
        "steps": len(losses),
        "first_loss": losses[0],
        "last_loss": sum(tail) / len(tail),
        "best_loss": min(losses),
        "largest_gradient": largest,
        "finite": len(losses) == len(schedule) and math.isfinite(losses[-1]),
    }


class _SyntheticLoss:
    """Loss of a fixed synthetic task that fits the kind of output."""

    def __init__(self, call: Call, loss_name: str | None) -> None:
        integers = (
            t for t in iter_tensors(call) if not t.is_floating_point() and t.dtype != torch.bool
        )
        self.ids, self.loss_name = list(integers), loss_name
        self.target: Tensor | None = None

    def __call__(self, out: Any) -> Tensor:
        own = model_loss(out)
        if self.loss_name == "own" and own is None:
            raise UserError(
                "--loss own: expected a loss in the model's output, as attribute or key `loss`, "
                "got none"
            )
        if self.loss_name in (None, "own") and own is not None:
            return own
        values = [t for t in iter_tensors(out) if t.requires_grad and t.is_floating_point()]
        if not values:
            raise UserError("no output depends on a weight; pass a loss of the model's output")
        tokens = self._find_token_ids(values[0])
        if self.loss_name == "mse" or (self.loss_name is None and tokens is None):
            return self._regression_loss(values[0])
        if tokens is None:
            raise UserError(
                "--loss cross_entropy: expected logits of tokens whose ids are an input, got an "
                f"output of shape {tuple(values[0].shape)}; use --loss mse"
            )
        table = torch.randperm(values[0].shape[-1], generator=_make_generator()).to(
            values[0].device
        )
        targets = table[tokens].flatten()
        return nn.functional.cross_entropy(values[0].float().flatten(0, 1), targets)

    def _find_token_ids(self, value: Tensor) -> Tensor | None:
        """Return the input ids that logits of shape (B, L, vocabulary) belong to, or None."""
        matching = (t for t in self.ids if t.shape == value.shape[:-1] and value.dim() == 3)
        return next((t for t in matching if value.shape[-1] > int(t.max())), None)

    def _regression_loss(self, value: Tensor) -> Tensor:
        if self.target is None:
            self.target = torch.randn(value.shape, generator=_make_generator()).to(value.device)
        return (value.float() - self.target).square().mean()


LOSSES = {
    "cross_entropy": "map each input token to a fixed random token",
    "mse": "fit a fixed random tensor",
    "own": "the loss that the model returns",
}
"""Losses of a stress test by name."""


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
