"""The stress run: what really happens in the first steps, at three rates, with and without warm-up.

No verdict: one row a run, with what was seen.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.doctor.guard import generators, unwrapped
from addnorm.doctor.leaves import tensors
from addnorm.doctor.visit import as_call, own_copies

STEPS = 40
FACTORS = (1 / 3, 1.0, 3.0)
LAST = 5
"""Steps at the end that a loss is averaged over."""


def stress(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    lr: float,
    steps: int = STEPS,
) -> Iterator[Row]:
    """Train copies of a model for a few steps of Adam; one row a run.

    loss: a scalar of what the model returns. Without one, logits over tokens learn a fixed random
    table from input to output token; anything else learns to fit a fixed random tensor.
    """
    if not math.isfinite(lr) or lr <= 0:
        raise UserError(f"got lr={lr!r}; wanted a learning rate above 0, such as 1e-3")
    model = unwrapped(model)
    for factor in FACTORS:
        for warmup in (0, steps // 4):
            with generators(model):  # the caller goes on with his own between two rows
                torch.manual_seed(0)
                call = own_copies(as_call(example_inputs))
                row = _run(copy.deepcopy(model), call, loss, lr * factor, warmup, steps)
            yield row


def _run(
    model: nn.Module,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    loss: Callable[[Any], Tensor] | None,
    lr: float,
    warmup: int,
    steps: int,
) -> Row:
    model.train()
    learning = [w for w in model.parameters() if w.requires_grad]
    if not learning:
        raise UserError("no output depends on a weight; wanted a model that can learn")
    optimizer = torch.optim.Adam(learning, lr=lr)
    measure = loss or _task(call)
    seen: list[float] = []
    largest = 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / warmup) if warmup else lr
        optimizer.zero_grad(set_to_none=True)
        value = measure(model(*call[0], **call[1]))
        seen.append(float(value.detach()))
        if not math.isfinite(seen[-1]):
            break
        value.backward()  # type: ignore[no-untyped-call]
        size = float(
            torch.nn.utils.get_total_norm([w.grad for w in learning if w.grad is not None])
        )
        largest = max(largest, size) if math.isfinite(size) else math.inf
        optimizer.step()
    tail = seen[-LAST:]
    return {
        "measure": "stress",
        "lr": lr,
        "warmup": warmup,
        "steps": len(seen),
        "first_loss": seen[0],
        "last_loss": sum(tail) / len(tail),
        "best_loss": min(seen),
        "largest_gradient": largest,
        "finite": len(seen) == steps and math.isfinite(seen[-1]),
    }


def _task(call: tuple[tuple[Any, ...], dict[str, Any]]) -> Callable[[Any], Tensor]:
    """A task for outputs of any kind; it is the same in every step."""
    ids = [t for t in tensors(call) if not t.is_floating_point() and t.dtype != torch.bool]
    kept: dict[str, Tensor] = {}

    def measure(out: Any) -> Tensor:
        own = getattr(out, "loss", None)
        if isinstance(own, Tensor) and own.requires_grad:
            return own
        values = [t for t in tensors(out) if t.requires_grad and t.is_floating_point()]
        if not values:
            raise UserError("no output depends on a weight; give a loss of what the model returns")
        value = values[0]
        tokens = next((t for t in ids if t.shape == value.shape[:-1]), None)
        generator = torch.Generator().manual_seed(0)
        if tokens is not None and value.dim() == 3 and value.shape[-1] > int(tokens.max()):
            table = torch.randperm(value.shape[-1], generator=generator).to(value.device)
            return nn.functional.cross_entropy(value.float().flatten(0, 1), table[tokens].flatten())
        if "goal" not in kept:
            kept["goal"] = torch.randn(value.shape, generator=generator).to(value.device)
        return (value.float() - kept["goal"]).square().mean()

    return measure
