"""The stress run: what really happens in the first steps, at three rates, with and without warm-up.

No verdict: one row a run, with what was seen, and how much the rate matters.
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
from addnorm.doctor.trace.state_guard import preserve_all_rng, unwrap_model
from addnorm.doctor.trace.tensors import iter_tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]
Loss = Callable[[Any], Tensor]
DEFAULT_STEPS = 40
LR_FACTORS = (1 / 3, 1.0, 3.0)
LAST_STEPS = 5
"""Steps at the end that a loss is averaged over."""


class StressTestError(UserError):
    """A model that was visited cannot be copied, or not trained."""


def stress(
    model: nn.Module,
    example_inputs: Any,
    loss: Loss | str | None = None,
    *,
    lr: float,
    steps: int = DEFAULT_STEPS,
) -> Iterator[Row]:
    """Train copies of a model for a few steps of Adam; one row a run.

    loss: a scalar of what the model returns, or one of the words of LOSSES. Without one, the loss
    that the model returns; else logits over tokens learn a fixed random table from input to output
    token; anything else learns to fit a fixed random tensor.
    """
    if not math.isfinite(lr) or lr <= 0:
        raise UserError(f"got lr={lr!r}; wanted a learning rate above 0, such as 1e-3")
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(unknown_name_message("loss", loss, LOSSES))
    model = unwrap_model(model)
    for factor in LR_FACTORS:
        for warmup in (0, steps // 4):
            # the caller goes on with his own generators and handlers between two rows
            with deferred_interrupt(), preserve_all_rng(model):
                torch.manual_seed(0)
                call = clone_inputs(to_call_arguments(example_inputs))
                measure = loss if callable(loss) else _Task(call, loss)
                row = _train_copy(
                    model,
                    call,
                    measure=measure,
                    schedule=learning_rates(lr * factor, warmup, steps),
                )
            yield {"measure": "stress", "lr": lr * factor, "warmup": warmup, **row}


def learning_rates(lr: float, warmup: int, steps: int) -> list[float]:
    """The learning rate of each step.

    >>> rates(1.0, 2, 4)
    [0.5, 1.0, 1.0, 1.0]
    """
    return [lr * min(1.0, (step + 1) / warmup) if warmup else lr for step in range(steps)]


def _train_copy(model: nn.Module, call: Call, *, measure: Loss, schedule: Sequence[float]) -> Row:
    """Train a copy; what a stranger's code may end with is told in one line."""
    try:
        return _train(copy.deepcopy(model).train(), call, measure=measure, schedule=schedule)
    except UserError:
        raise
    except USER_CODE_ERRORS as problem:
        raise StressTestError(
            f"the model could not be copied and trained: {describe_exception(problem)}; leave the stress run out"
        ) from problem


def _train(model: nn.Module, call: Call, *, measure: Loss, schedule: Sequence[float]) -> Row:
    """As many steps as there are rates, fewer if the loss is no number any more."""
    learning = [w for w in model.parameters() if w.requires_grad]
    if not learning:
        raise UserError("no output depends on a weight; wanted a model that can learn")
    optimizer = torch.optim.Adam(learning, lr=schedule[0])
    seen: list[float] = []
    largest = 0.0
    for rate in schedule:
        raise_if_interrupted()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        value = measure(model(*call[0], **call[1]))
        seen.append(float(value.detach()))
        if not math.isfinite(seen[-1]):
            break
        value.backward()  # type: ignore[no-untyped-call]
        size = float(nn.utils.get_total_norm([w.grad for w in learning if w.grad is not None]))
        largest = max(largest, size) if math.isfinite(size) else math.inf
        optimizer.step()
    tail = seen[-LAST_STEPS:]
    return {
        "steps": len(seen),
        "first_loss": seen[0],
        "last_loss": sum(tail) / len(tail),
        "best_loss": min(seen),
        "largest_gradient": largest,
        "finite": len(seen) == len(schedule) and math.isfinite(seen[-1]),
    }


class _Task:
    """A task for outputs of any kind, the same in every step."""

    def __init__(self, call: Call, loss_name: str | None) -> None:
        whole = (
            t for t in iter_tensors(call) if not t.is_floating_point() and t.dtype != torch.bool
        )
        self.ids, self.loss_name = list(whole), loss_name
        self.target: Tensor | None = None

    def __call__(self, out: Any) -> Tensor:
        own = model_loss(out)
        if self.loss_name == "own" and own is None:
            raise UserError(
                "--loss own: the model returned no loss of its own to train on, as .loss or under "
                "that name in a dict"
            )
        if self.loss_name in (None, "own") and own is not None:
            return own
        values = [t for t in iter_tensors(out) if t.requires_grad and t.is_floating_point()]
        if not values:
            raise UserError("no output depends on a weight; give a loss of what the model returns")
        tokens = self._find_token_ids(values[0])
        if self.loss_name == "mse" or (self.loss_name is None and tokens is None):
            return self._regression_loss(values[0])
        if tokens is None:
            raise UserError(
                f"--loss cross_entropy: got an output of shape {tuple(values[0].shape)}; wanted "
                "logits of tokens whose ids are among the inputs; try --loss mse"
            )
        table = torch.randperm(values[0].shape[-1], generator=_make_generator()).to(
            values[0].device
        )
        goal = table[tokens].flatten()
        return nn.functional.cross_entropy(values[0].float().flatten(0, 1), goal)

    def _find_token_ids(self, value: Tensor) -> Tensor | None:
        """The ids that logits belong to."""
        fitting = (t for t in self.ids if t.shape == value.shape[:-1] and value.dim() == 3)
        return next((t for t in fitting if value.shape[-1] > int(t.max())), None)

    def _regression_loss(self, value: Tensor) -> Tensor:
        if self.target is None:
            self.target = torch.randn(value.shape, generator=_make_generator()).to(value.device)
        return (value.float() - self.target).square().mean()


LOSSES = {
    "cross_entropy": "tokens learn a fixed random table",
    "mse": "the output learns to fit a fixed random tensor",
    "own": "the loss that the model returns",
}


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
