"""One visit: the model run once, its graph read, its loss differentiated, nothing left behind."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.interrupts import deferred_interrupt, raise_if_interrupted
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.analysis.results import ModelAnalysis
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.doctor.trace.opaque_modules import is_batch_norm
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.state_guard import StateGuard, preserve_model_state
from addnorm.doctor.trace.tensors import iter_named_tensors, iter_tensors, map_tensors
from addnorm.measure.sites import unwrap_model

Loss = Callable[[Any], Tensor]
SEED = 0
MAX_LOSS_OUTPUTS = 64
"""Outputs that a random loss looks at."""


@dataclass(slots=True)
class ModelTrace:
    """What one visit saw."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    recorder: GraphRecorder
    analysis: ModelAnalysis
    output: Any
    training: bool
    """Whether it ran in train mode, because it could not in eval mode."""
    weight_gradients: dict[str, float] = field(default_factory=dict)
    """Norm of the gradient of each weight; missing where none arrived."""
    notes: list[str] = field(default_factory=list)
    """What could not be seen."""
    guard: StateGuard | None = None


@contextlib.contextmanager
def trace_model(model: nn.Module, example: Any, loss: Loss | None = None) -> Iterator[ModelTrace]:
    """Visit a model; it and its inputs are as they were when the block ends, whatever happens."""
    model = unwrap_model(model)
    with torch.inference_mode(False):  # also for a caller who is in it
        args, kwargs = clone_inputs(to_call_arguments(example))
    for place, tensor in (*iter_named_tensors(args), *iter_named_tensors(kwargs)):
        if not tensor.numel():
            raise UserError(
                f"got the empty input {place} of shape {tuple(tensor.shape)}; wanted at least one "
                "example of one token"
            )
    with torch.inference_mode(False), deferred_interrupt(), preserve_model_state(model) as guard:
        for tensor in iter_tensors((args, kwargs)):
            guard.save(tensor)  # a forward may write to its inputs, and probes start from them
        visit = _run_and_trace(model, args, kwargs=kwargs, loss=loss, guard=guard)
        guard.restore()
        yield visit


def clone_inputs(call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """The same inputs in tensors of their own; what was one tensor stays one."""
    made: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return made[id(tensor)]

    return map_tensors(call, copied)


def to_call_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


def _run_and_trace(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    kwargs: dict[str, Any],
    loss: Loss | None,
    guard: StateGuard,
) -> ModelTrace:
    """In eval mode, where nothing is dropped; in train mode if the model runs only there."""
    problems: list[BaseException] = []
    for training in (False, True):
        set_train_mode(model, training)
        guard.restore()
        recorder = GraphRecorder(model, guard, skip_dropout=training)
        torch.manual_seed(SEED)  # probes run with the same one, so that what is random is the same
        try:
            with torch.enable_grad():
                out = recorder.run(args, kwargs)
        except USER_CODE_ERRORS as problem:
            problems.append(problem)
            continue
        visit = ModelTrace(
            model, args, kwargs, recorder, _analyze(recorder), out, training, guard=guard
        )
        odd = sum(
            int((~each.isfinite()).sum()) for each in iter_tensors(out) if each.is_floating_point()
        )
        if odd:
            visit.notes.append(f"the model returned {odd:,} numbers that are not finite")
        with torch.enable_grad(), torch._C.DisableTorchFunction():
            _measure_gradients(visit, loss)
        raise_if_interrupted()
        return visit
    if isinstance(problems[0], UserError):
        raise problems[0]
    raise UserError(
        f"the model could not be run on these inputs: {describe_exception(problems[0])}; wanted inputs that "
        "model(...) takes; try them outside the doctor first"
    ) from problems[0]


def _analyze(recorder: GraphRecorder) -> ModelAnalysis:
    try:
        return classify(recorder.graph, recorder.residual_adds)
    except Exception as problem:
        raise UserError(
            f"the model ran, but its graph of {len(recorder.graph)} operations could not be read: "
            f"{describe_exception(problem)}; this is a mistake of the doctor, please report it"
        ) from problem


def _measure_gradients(trace: ModelTrace, loss: Loss | None) -> None:
    """Differentiate the loss; what cannot be differentiated is noted."""
    try:
        scalar = surrogate_loss(trace.output) if loss is None else loss(trace.output)
    except Exception as problem:
        raise UserError(
            f"the loss could not be computed of what the model returned: {describe_exception(problem)}; wanted a "
            "function of the model's output that returns a scalar tensor"
        ) from problem
    if scalar is None:
        trace.notes.append("no output depends on a weight: no gradients were measured")
        return
    if not isinstance(scalar, Tensor) or scalar.numel() != 1:
        got = (
            f"shape {tuple(scalar.shape)}" if isinstance(scalar, Tensor) else type(scalar).__name__
        )
        raise UserError(f"the loss returned {got}; wanted a scalar tensor, as .mean() makes it")
    try:
        _differentiate(trace.model, scalar, trace=trace)
    except Exception as problem:
        trace.weight_gradients.clear()
        trace.recorder.stats.gradients.clear()
        trace.notes.append(
            f"the backward pass failed, no gradients were measured: {describe_exception(problem)}"
        )


def set_train_mode(model: nn.Module, training: bool) -> None:
    """Eval mode but for batch norms, which are looked at as they train; or train mode."""
    model.train(training)
    for module in model.modules():
        if is_batch_norm(module):
            module.train()


def _differentiate(model: nn.Module, scalar: Tensor, *, trace: ModelTrace) -> None:
    """Backward; of every weight's gradient only the norm is kept.

    Gradients are dropped as they come, but for weights that ran without autograd: a checkpoint may
    use these again, in several parts, and their gradients add up.
    """
    handles = []
    again = trace.recorder.no_grad_weights

    def note(name: str, weight: Tensor) -> None:
        if weight.grad is not None:
            trace.weight_gradients[name] = float(weight.grad.detach().float().norm())
            weight.grad = weight.grad if name in again else None

    for name, weight in model.named_parameters():
        if weight.requires_grad:
            add: Any = weight.register_post_accumulate_grad_hook
            handles.append(add(lambda w, name=name: note(name, w)))
    if trace.guard is not None and _has_backward_hooks(model):
        trace.guard.save_weights()
    try:
        scalar.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)


def _has_backward_hooks(model: nn.Module) -> bool:
    """Whether code of the model's owner runs in the backward pass."""
    own = (m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return any(own) or any(w._backward_hooks for w in model.parameters())


def model_loss(out: Any) -> Tensor | None:
    """The loss that a model returned itself, as .loss or under that name in a dict."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    return own if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1 else None


def surrogate_loss(out: Any) -> Tensor | None:
    """A scalar to differentiate when no loss is given.

    The model's own loss if it returned one, else a random projection of everything it returned.
    """
    own = model_loss(out)
    if own is not None:
        return own
    values = {id(t): t for t in iter_tensors(out) if t.requires_grad and t.is_floating_point()}
    parts = [t for t in values.values() if t.numel()][:MAX_LOSS_OUTPUTS]
    if not parts:
        return None
    generator = torch.Generator().manual_seed(0)
    total = None
    for value in parts:
        direction = torch.randn(value.shape, generator=generator).to(value.device)
        part = (value.float() * direction).sum() / math.sqrt(value.numel())
        total = part if total is None else total + part
    return total
