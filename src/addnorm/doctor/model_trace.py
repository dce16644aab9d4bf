"""Trace of a model: one recorded forward pass, its analysis, and one backward pass.

    with trace_model(model, example_inputs) as trace:
        trace.analysis.blocks()      # residual adds
        trace.gradients.weights      # {"layers.0.weight": 0.3, ...}

Inside the block, rules may run the model again. Afterwards weights, buffers, gradients, modes,
hooks and random generators are what they were before, also if an exception was raised.

The model runs in eval mode, with batch norms in train mode. If it runs in train mode only, it runs
there with dropout disabled.
"""

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
from addnorm.doctor.trace.recording import Recording
from addnorm.doctor.trace.state_guard import StateGuard, preserve_model_state
from addnorm.doctor.trace.tensors import (
    iter_named_tensors,
    iter_tensors,
    map_tensors,
    to_plain,
)
from addnorm.measure.sites import unwrap_model

Loss = Callable[[Any], Tensor]
SEED = 0
MAX_LOSS_OUTPUTS = 64
"""Maximum number of outputs in the surrogate loss."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Positional and keyword inputs of a model together, as example inputs."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Result of the backward pass; what has no gradient is missing."""

    weights: Mapping[str, float] = field(default_factory=dict)
    """Norm of the gradient of each weight, by name."""
    sums: Mapping[int, float] = field(default_factory=dict)
    """Norm of the gradient at each residual add, by the node of its sum."""
    notes: tuple[str, ...] = ()
    """Why gradients are missing."""


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """A recorded and analyzed run of a model."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    recording: Recording
    """Graph, residual adds and statistics of the forward pass."""
    analysis: ModelAnalysis
    output: Any
    """What the model returned, with sparse tensors made dense."""
    training: bool
    """Whether the model ran in train mode because it does not run in eval mode."""
    gradients: GradientNorms
    notes: tuple[str, ...] = ()
    """What could not be measured."""
    guard: StateGuard | None = None


@contextlib.contextmanager
def trace_model(
    model: nn.Module, example: Any, loss: Loss | None = None, *, backward: bool = True
) -> Iterator[ModelTrace]:
    """Run and analyze a model; restore the model and its inputs at the end of the block.

    Args:
        model: model to trace; wrappers such as DDP and `torch.compile` are removed
        example: a tensor, a tuple of positional inputs, or a dict of keyword inputs
        loss: function from the output to a scalar; by default `surrogate_loss`
        backward: whether to run the backward pass; without it there are no gradients

    Raises:
        UserError: if the model does not run on the inputs, or the loss is not a scalar
    """
    model = unwrap_model(model)
    call = to_call_arguments(example)
    _check_tensors(model, call)
    with torch.inference_mode(False):  # the caller may be inside inference_mode
        args, kwargs = clone_inputs(call)
    with torch.inference_mode(False), deferred_interrupt(), preserve_model_state(model) as guard:
        for tensor in iter_tensors((args, kwargs)):
            guard.save(tensor)  # a forward pass may write to its inputs, and rules reuse them
        trace = _run_and_trace(
            model, args, kwargs=kwargs, loss=loss, guard=guard, backward=backward
        )
        guard.restore()
        yield trace


def _check_tensors(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Raise a UserError if an input or a weight has no values to compute with."""
    for name, tensor in (*iter_named_tensors(call[0]), *iter_named_tensors(call[1])):
        if tensor.is_nested:
            raise UserError(
                f"input {name}: expected a tensor with a shape, got a nested tensor; pass padded "
                "examples and their mask"
            )
        if tensor.device.type == "meta":
            raise UserError(
                f"input {name}: expected a tensor with values, got one on the meta device; create "
                "it on the device of the model"
            )
        if not tensor.numel():
            raise UserError(
                f"input {name}: expected at least one example of one token, got the empty shape "
                f"{tuple(tensor.shape)}"
            )
    empty = [name for name, weight in model.named_parameters() if weight.device.type == "meta"]
    if empty:
        raise UserError(
            f"model: expected weights with values, got {len(empty)} on the meta device, the first "
            f"{empty[0]!r}; build the model on a real device or load its weights"
        )


def clone_inputs(call: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Return the same inputs with cloned tensors; one tensor used twice is cloned once."""
    clones: dict[int, Tensor] = {}

    def clone(tensor: Tensor) -> Tensor:
        if id(tensor) not in clones:
            clones[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return clones[id(tensor)]

    return map_tensors(call, clone)


def to_call_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments."""
    if isinstance(example, CallArguments):
        return example.args, dict(example.kwargs)
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if hasattr(example, "keys") and hasattr(example, "__getitem__"):
        return (), {str(key): example[key] for key in example.keys()}  # noqa: SIM118
    raise UserError(
        "example_inputs: expected a tensor, a tuple of positional inputs or a dict of keyword "
        f"inputs, got {type(example).__name__}"
    )


def _run_and_trace(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    kwargs: dict[str, Any],
    loss: Loss | None,
    guard: StateGuard,
    backward: bool,
) -> ModelTrace:
    """Run the model in eval mode, or in train mode if it fails in eval mode."""
    problems: list[BaseException] = []
    for training in (False, True):
        set_train_mode(model, training)
        guard.restore()
        recorder = GraphRecorder(model, guard, skip_dropout=training)
        torch.manual_seed(SEED)  # rules that run the model again use the same seed
        try:
            with torch.enable_grad():
                recording = recorder.run(args, kwargs)
            output = map_tensors(recording.output, to_plain)
        except USER_CODE_ERRORS as problem:
            problems.append(problem)
            continue
        if any(tensor.device.type == "meta" for tensor in iter_tensors(output)):
            raise UserError(
                "model: expected outputs with values, got one on the meta device; remove what "
                "moves it there"
            )
        analysis = _analyze(recording)
        gradients = GradientNorms()
        if backward:
            with torch.enable_grad(), torch._C.DisableTorchFunction():
                gradients = _measure_gradients(
                    model, output, loss=loss, recorder=recorder, guard=guard
                )
        raise_if_interrupted()
        return ModelTrace(
            model, args, kwargs, recording, analysis, output, training, gradients,
            notes=(*_note_non_finite(output), *gradients.notes), guard=guard,
        )  # fmt: skip
    if isinstance(problems[0], UserError):
        raise problems[0]
    raise UserError(
        f"the model could not be run on these inputs: {describe_exception(problems[0])}; call "
        "model(...) with them outside the doctor first"
    ) from problems[0]


def _note_non_finite(output: Any) -> list[str]:
    count = sum(
        int((~tensor.isfinite()).sum())
        for tensor in iter_tensors(output)
        if tensor.is_floating_point()
    )
    return [f"finite outputs: {count:,} values of the output are NaN or infinite"] if count else []


def _analyze(recording: Recording) -> ModelAnalysis:
    try:
        return classify(recording.graph, recording.residual_adds)
    except Exception as problem:
        raise UserError(
            f"internal error while analyzing the traced graph ({len(recording.graph)} operations): "
            f"{describe_exception(problem)}; please report it with the model"
        ) from problem


def _measure_gradients(
    model: nn.Module,
    output: Any,
    *,
    loss: Loss | None,
    recorder: GraphRecorder,
    guard: StateGuard,
) -> GradientNorms:
    """Differentiate the loss; hooks of the recorder measure the gradients at the sums."""
    try:
        scalar = surrogate_loss(output) if loss is None else loss(output)
    except Exception as problem:
        raise UserError(
            f"loss: expected a function of the model's output that returns a scalar tensor, but it "
            f"raised {describe_exception(problem)}"
        ) from problem
    if scalar is None:
        return GradientNorms(notes=(_describe_missing_gradient(output),))
    if not isinstance(scalar, Tensor) or scalar.numel() != 1:
        actual = (
            f"shape {tuple(scalar.shape)}" if isinstance(scalar, Tensor) else type(scalar).__name__
        )
        raise UserError(f"loss: expected a scalar tensor, got {actual}; reduce it, as .mean() does")
    try:
        weights = _differentiate(model, scalar, recorder=recorder, guard=guard)
    except Exception as problem:
        note = f"gradients: the backward pass failed: {describe_exception(problem)}"
        return GradientNorms(notes=(note,))
    return GradientNorms(weights, recorder.collector.sum_gradients)


def _describe_missing_gradient(output: Any) -> str:
    dtypes = {tensor.dtype for tensor in iter_tensors(output)}
    if not dtypes:
        return "gradients: the model returned no tensor"
    if any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        return "gradients: no output depends on a weight"
    return f"gradients: outputs of type {', '.join(sorted(map(str, dtypes)))} have none"


def set_train_mode(model: nn.Module, training: bool) -> None:
    """Set eval or train mode; batch norms use the statistics of the batch in both."""
    model.train(training)
    for module in model.modules():
        if is_batch_norm(module):
            module.train()


def _differentiate(
    model: nn.Module, scalar: Tensor, *, recorder: GraphRecorder, guard: StateGuard
) -> dict[str, float]:
    """Run the backward pass and return the gradient norm of each weight.

    Each gradient is freed as soon as it is measured. Weights that were used without autograd keep
    it: a reentrant checkpoint uses them in several parts, and their gradients accumulate.
    """
    gradients: dict[str, float] = {}
    handles = []
    accumulated = recorder.no_grad_weights

    def record(name: str, weight: Tensor) -> None:
        if weight.grad is not None:
            gradients[name] = float(weight.grad.detach().float().norm())
            weight.grad = weight.grad if name in accumulated else None

    for name, weight in model.named_parameters():
        if weight.requires_grad:
            register: Any = weight.register_post_accumulate_grad_hook
            handles.append(register(lambda w, name=name: record(name, w)))
    if _has_backward_hooks(model):
        guard.save_weights()
    try:
        scalar.backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return gradients


def _has_backward_hooks(model: nn.Module) -> bool:
    """Return whether hooks of the model run in the backward pass; they may write to weights."""
    own = (m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return any(own) or any(w._backward_hooks for w in model.parameters())


def model_loss(out: Any) -> Tensor | None:
    """Return the loss in the output of a model, as an attribute or key `loss`; None without one."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    return own if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1 else None


def surrogate_loss(out: Any) -> Tensor | None:
    """Return a scalar to differentiate if no loss is given; None if no output requires a gradient.

    It is the loss that the model returned, else a random projection of all its outputs.
    """
    own = model_loss(out)
    if own is not None:
        return own
    values = {id(t): t for t in iter_tensors(out) if t.requires_grad}
    parts = [
        torch.view_as_real(t) if t.is_complex() else t
        for t in values.values()
        if t.numel() and (t.is_floating_point() or t.is_complex())
    ][:MAX_LOSS_OUTPUTS]
    if not parts:
        return None
    generator = torch.Generator().manual_seed(0)
    total = None
    for value in parts:
        direction = torch.randn(value.shape, generator=generator).to(value.device)
        part = (value.float() * direction).sum() / math.sqrt(value.numel())
        total = part if total is None else total + part
    return total
