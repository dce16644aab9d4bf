"""One visit: the model run once, its graph read, its loss differentiated, nothing left behind."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.interrupts import check, listening
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.analysis.results import Anatomy
from addnorm.doctor.trace.errors import FAILED, told
from addnorm.doctor.trace.opaque_modules import statistics_kept
from addnorm.doctor.trace.recorder import Recorder
from addnorm.doctor.trace.state_guard import Guard, untouched, unwrapped
from addnorm.doctor.trace.tensors import mapped, named, tensors

Loss = Callable[[Any], Tensor]
SEED = 0
MANY = 64
"""Outputs that a random loss looks at."""


@dataclass(slots=True)
class Visit:
    """What one visit saw."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    recorder: Recorder
    anatomy: Anatomy
    out: Any
    training: bool
    """Whether it ran in train mode, because it could not in eval mode."""
    weight_gradients: dict[str, float] = field(default_factory=dict)
    """Norm of the gradient of each weight; missing where none arrived."""
    notes: list[str] = field(default_factory=list)
    """What could not be seen."""
    guard: Guard | None = None


@contextlib.contextmanager
def visiting(model: nn.Module, example: Any, loss: Loss | None = None) -> Iterator[Visit]:
    """Visit a model; it and its inputs are as they were when the block ends, whatever happens."""
    model = unwrapped(model)
    with torch.inference_mode(False):  # also for a caller who is in it
        args, kwargs = own_copies(as_call(example))
    for place, tensor in (*named(args), *named(kwargs)):
        if not tensor.numel():
            raise UserError(
                f"got the empty input {place} of shape {tuple(tensor.shape)}; wanted at least one "
                "example of one token"
            )
    with torch.inference_mode(False), listening(), untouched(model) as guard:
        for tensor in tensors((args, kwargs)):
            guard.keep(tensor)  # a forward may write to its inputs, and probes start from them
        visit = _seen(model, args, kwargs=kwargs, loss=loss, guard=guard)
        guard.restore()
        yield visit


def own_copies(call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The same inputs in tensors of their own; what was one tensor stays one."""
    made: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return made[id(tensor)]

    return mapped(call, copied)


def as_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor, a tuple of positional or a dict of keyword inputs, as a call."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if hasattr(example, "keys") and hasattr(example, "__getitem__"):
        return (), {str(key): example[key] for key in example.keys()}  # noqa: SIM118
    raise UserError(
        f"got example inputs of type {type(example).__name__}; wanted a tensor, a tuple of "
        "positional or a dict of keyword inputs"
    )


def _seen(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    kwargs: dict[str, Any],
    loss: Loss | None,
    guard: Guard,
) -> Visit:
    """In eval mode, where nothing is dropped; in train mode if the model runs only there."""
    problems: list[BaseException] = []
    for training in (False, True):
        modes(model, training)
        guard.restore()
        recorder = Recorder(model, guard, still=training)
        torch.manual_seed(SEED)  # probes run with the same one, so that what is random is the same
        try:
            with torch.enable_grad():
                out = recorder.run(args, kwargs)
        except FAILED as problem:
            problems.append(problem)
            continue
        visit = Visit(model, args, kwargs, recorder, _read(recorder), out, training, guard=guard)
        odd = sum(
            int((~each.isfinite()).sum()) for each in tensors(out) if each.is_floating_point()
        )
        if odd:
            visit.notes.append(f"the model returned {odd:,} numbers that are not finite")
        with torch.enable_grad(), torch._C.DisableTorchFunction():
            _measure(visit, loss)
        check()
        return visit
    if isinstance(problems[0], UserError):
        raise problems[0]
    raise UserError(
        f"the model could not be run on these inputs: {told(problems[0])}; wanted inputs that "
        "model(...) takes; try them outside the doctor first"
    ) from problems[0]


def _read(recorder: Recorder) -> Anatomy:
    try:
        return classify(recorder.graph, recorder.joins)
    except Exception as problem:
        raise UserError(
            f"the model ran, but its graph of {len(recorder.graph)} operations could not be read: "
            f"{told(problem)}; this is a mistake of the doctor, please report it"
        ) from problem


def _measure(visit: Visit, loss: Loss | None) -> None:
    """Differentiate the loss; what cannot be differentiated is noted."""
    try:
        scalar = stand_in(visit.out) if loss is None else loss(visit.out)
    except Exception as problem:
        raise UserError(
            f"the loss could not be computed of what the model returned: {told(problem)}; wanted a "
            "function of the model's output that returns a scalar tensor"
        ) from problem
    if scalar is None:
        visit.notes.append("no output depends on a weight: no gradients were measured")
        return
    if not isinstance(scalar, Tensor) or scalar.numel() != 1:
        got = (
            f"shape {tuple(scalar.shape)}" if isinstance(scalar, Tensor) else type(scalar).__name__
        )
        raise UserError(f"the loss returned {got}; wanted a scalar tensor, as .mean() makes it")
    try:
        _differentiate(visit.model, scalar, visit=visit)
    except Exception as problem:
        visit.weight_gradients.clear()
        visit.recorder.signs.gradients.clear()
        visit.notes.append(f"the backward pass failed, no gradients were measured: {told(problem)}")


def modes(model: nn.Module, training: bool) -> None:
    """Eval mode but for batch norms, which are looked at as they train; or train mode."""
    model.train(training)
    for module in model.modules():
        if statistics_kept(module):
            module.train()


def _differentiate(model: nn.Module, scalar: Tensor, *, visit: Visit) -> None:
    """Backward; of every weight's gradient only the norm is kept.

    Gradients are dropped as they come, but for weights that ran without autograd: a checkpoint may
    use these again, in several parts, and their gradients add up.
    """
    handles = []
    again = visit.recorder.unrecorded

    def note(name: str, weight: Tensor) -> None:
        if weight.grad is not None:
            visit.weight_gradients[name] = float(weight.grad.detach().float().norm())
            weight.grad = weight.grad if name in again else None

    for name, weight in model.named_parameters():
        if weight.requires_grad:
            add: Any = weight.register_post_accumulate_grad_hook
            handles.append(add(lambda w, name=name: note(name, w)))
    if visit.guard is not None and _heard(model):
        visit.guard.keep_weights()
    try:
        scalar.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)


def _heard(model: nn.Module) -> bool:
    """Whether code of the model's owner runs in the backward pass."""
    own = (m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return any(own) or any(w._backward_hooks for w in model.parameters())


def own_loss(out: Any) -> Tensor | None:
    """The loss that a model returned itself, as .loss or under that name in a dict."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    return own if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1 else None


def stand_in(out: Any) -> Tensor | None:
    """A scalar to differentiate when no loss is given.

    The model's own loss if it returned one, else a random projection of everything it returned.
    """
    own = own_loss(out)
    if own is not None:
        return own
    values = {id(t): t for t in tensors(out) if t.requires_grad and t.is_floating_point()}
    parts = [t for t in values.values() if t.numel()][:MANY]
    if not parts:
        return None
    generator = torch.Generator().manual_seed(0)
    total = None
    for value in parts:
        direction = torch.randn(value.shape, generator=generator).to(value.device)
        part = (value.float() * direction).sum() / math.sqrt(value.numel())
        total = part if total is None else total + part
    return total
