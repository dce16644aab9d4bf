"""`addnorm.rewire`: another arrangement for a model that already exists."""

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop import HFModel, from_hf
from addnorm.models import Config, Model
from addnorm.models.check_config import _make_inputs
from addnorm.rewiring.batches import Batch, read_batches
from addnorm.rewiring.changes.depth import grow_depth
from addnorm.rewiring.changes.qk_norm import change_qk_norm, fit_qk_norms, gain_parameters
from addnorm.rewiring.changes.wiring import change_wiring, fit_wiring
from addnorm.rewiring.checks import check_model
from addnorm.rewiring.core_models import get_core, require_core, with_core
from addnorm.rewiring.fitting import refine
from addnorm.rewiring.hf_models import RewiredHFModel
from addnorm.rewiring.losses import Losses, LossFunction, evaluation
from addnorm.rewiring.changes.norm import change_norms
from addnorm.rewiring.proof import Proof, prove, rounding_error, to_double
from addnorm.rewiring.report import GRADES, Change, Grade, RewireReport, worst_grade
from addnorm.rewiring.tensor_changes import compare_tensors

FIT_STEPS = 20
MAX_LENGTH = 1024


@dataclass
class _Draft:
    """A rewired model in float64."""

    module: nn.Module
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fitted: list[nn.Parameter] = field(default_factory=list)
    """Parameters that a refinement may change."""


@dataclass(frozen=True)
class _Request:
    """Changes that the caller asks for."""

    norm: str | None
    qk_norm: str | None
    wiring: str | None
    depth: int | None
    max_length: int
    fit_steps: int


def rewire(
    model: Any,
    *,
    norm: str | None = None,
    qk_norm: str | None = None,
    wiring: str | None = None,
    depth: int | None = None,
    example_inputs: Any = None,
    calibrate: Any = None,
    loss: LossFunction | None = None,
    require: Grade | None = None,
    max_length: int = MAX_LENGTH,
    fit_steps: int = FIT_STEPS,
) -> tuple[Any, RewireReport]:
    """Change the arrangement of a model, and prove or measure what that does to its outputs.

    The model itself is not changed. Norms can be changed in any module, if each is a module of its
    own; the other changes need a model of `addnorm.build` or `from_hf`. A model of transformers is
    converted first if they do.

    Args:
        model: the model
        norm: call string of the new norms, such as rms, dyt or rms(eps=1e-6)
        qk_norm: call string of new norms of queries and keys
        wiring: call string of the new wiring
        depth: number of layers, at least as many as there are
        example_inputs: inputs for the proof: a tensor, a tuple, a dict, or an iterable of these
        calibrate: data for fits and losses, in the same forms; one of both is enough
        loss: function of a model and a batch that returns its loss; by default the loss that the
            model returns for labels, or that of the next token
        require: grade to reach; a `UserError` is raised if the result is not of it
        max_length: positions of a table that replaces sinusoids, where these must be centered
        fit_steps: steps of Adam on the new parameters after a fit in closed form; 0 for none

    Returns:
        The new model, in the precision and mode of the old one, and a `RewireReport`.

    Raises:
        UserError: the model, the data or a change is not supported

    >>> import torch, addnorm
    >>> model = addnorm.build(kind="lm", vocab=50, dim=16, depth=2, heads=2, seed=0)
    >>> new, report = rewire(model, norm="rms", example_inputs=torch.arange(12).view(2, 6))
    >>> report.grade, new.config.norm
    ('exact', 'rms(eps=1e-05)')
    """
    check_model(model)
    if norm is None and qk_norm is None and wiring is None and depth is None:
        raise UserError("rewire: expected norm, qk_norm, wiring or depth, got no change; pass one")
    if require is not None and require not in GRADES:
        raise UserError(f"require: expected one of {', '.join(GRADES)}, got {require!r}")
    request = _Request(norm, qk_norm, wiring, depth, max_length, fit_steps)
    source, wrap = _find_source(model, request)
    batches = _read_data(source, example_inputs, calibrate)
    losses = Losses(source, batches, loss)
    double = to_double(source)
    draft = _apply(copy.deepcopy(double), request, batches, fit=True)
    proof = prove(double, draft.module, batches)
    grade = _find_grade(draft, proof)
    naive: float | None = None
    if grade == "fitted":
        draft, naive = _fit(double, draft, request, batches, losses)
        proof = prove(double, draft.module, batches)
    if require is not None and GRADES.index(grade) > GRADES.index(require):
        reasons = [str(each) for each in draft.changes if each.grade == grade]
        why = reasons[0] if reasons else f"outputs differ by {proof.max_error:.2g}"
        raise UserError(f"require: expected a change that is {require}, got {grade}: {why}")
    result = _cast_like(draft.module, source)
    report = RewireReport(
        grade=grade,
        max_error=proof.max_error,
        output_scale=proof.scale,
        changes=tuple(draft.changes),
        loss_before=losses.before,
        loss_after=losses.measure(result),
        loss_naive=naive,
        loss_name=losses.name,
        inputs=proof.inputs,
        rounding_error=rounding_error(source, result, batches),
        tensors=compare_tensors(double, draft.module),
        notes=tuple(dict.fromkeys(draft.notes)),
    )
    if isinstance(result, HFModel):
        result = RewiredHFModel.from_model(result)
    return wrap(result), report


def _find_source(model: nn.Module, request: _Request) -> tuple[nn.Module, Any]:
    """Return the module to rewire, and a function from its result to that of the caller."""
    inner = getattr(model, "model", None)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if (
        isinstance(inner, Model)
        and kind == Config.model_type
        and not isinstance(model, Model | HFModel)
    ):
        from addnorm.interop import to_hf

        return inner, to_hf
    needs_sites = request.qk_norm or request.wiring or request.depth
    is_hf = type(model).__module__.startswith("transformers.")
    if needs_sites and is_hf and get_core(model) is None:
        return from_hf(model), lambda result: result
    return model, lambda result: result


def _read_data(model: nn.Module, example_inputs: Any, calibrate: Any) -> list[Batch]:
    if calibrate is not None:
        return read_batches("calibrate", calibrate)
    if example_inputs is not None:
        return read_batches("example_inputs", example_inputs)
    if isinstance(model, Model):
        return read_batches("example_inputs", tuple(_make_inputs(model)))
    raise UserError(
        "example_inputs: expected inputs for a forward pass, got none; pass example_inputs or "
        "calibrate"
    )


def _apply(module: nn.Module, request: _Request, batches: list[Batch], *, fit: bool) -> _Draft:
    """Apply all changes to a float64 model, which may be changed."""
    draft = _Draft(module)
    if request.depth is not None:
        core, changes = grow_depth(require_core(draft.module, "depth"), request.depth, fit=fit)
        draft.changes += changes
        draft.module = with_core(draft.module, core)
    if request.wiring is not None:
        old = require_core(draft.module, "wiring")
        core, changes, paths = change_wiring(old, request.wiring, fit=fit)
        draft.module, draft.changes = with_core(draft.module, core), draft.changes + changes
        if fit:
            fit_wiring(draft.module, core, paths, batches)
        draft.fitted += [p for stack in core.stacks for p in stack.wiring.parameters()]
        draft.fitted += [p for stack in core.stacks for p in stack.embed_norm.parameters()]
    if request.norm is not None:
        change = change_norms(
            draft.module, request.norm, batches, fit=fit, max_length=request.max_length
        )
        draft.module, draft.changes = change.module, draft.changes + change.changes
        draft.notes += change.notes
        draft.fitted = [
            parameter
            for path in change.new_paths
            for parameter in draft.module.get_submodule(path).parameters()
        ]
    if request.qk_norm is not None:
        old = require_core(draft.module, "qk_norm")
        core, changes, notes = change_qk_norm(old, request.qk_norm)
        draft.module, draft.changes = with_core(draft.module, core), draft.changes + changes
        draft.notes += notes
        if fit and changes:
            fit_qk_norms(draft.module, core, batches)
        draft.fitted = gain_parameters(core) if changes else draft.fitted
    return draft


def _find_grade(draft: _Draft, proof: Proof) -> Grade:
    """Return the grade that the proof supports."""
    if not proof.is_equal:
        return "fitted"
    grade = worst_grade(each.grade for each in draft.changes)
    return "equal_at_start" if grade == "fitted" else grade


def _fit(
    double: nn.Module, draft: _Draft, request: _Request, batches: list[Batch], losses: Losses
) -> tuple[_Draft, float]:
    """Refine a draft; return the better one of it and the naive change, and the naive loss."""
    simple = _apply(copy.deepcopy(double), request, batches, fit=False)
    naive = losses.measure(simple.module)
    with evaluation(draft.module):
        refine(
            draft.module,
            draft.fitted,
            lambda module: _divergence(losses, module),
            steps=request.fit_steps,
        )
        closer = float(_divergence(losses, draft.module))
    with evaluation(simple.module):
        is_worse = closer > float(_divergence(losses, simple.module))
    draft = simple if is_worse else draft
    if is_worse:
        draft.notes.append("the fit did not come closer than the naive change, which was kept")
    all_exact = all(each.grade == "exact" for each in draft.changes)  # and the proof says no
    draft.changes = [
        each if each.grade == "exact" and not all_exact else replace(each, grade="fitted")
        for each in draft.changes
    ]
    return draft, naive


def _divergence(losses: Losses, module: nn.Module) -> Tensor:
    total = [losses.divergence(module, index) for index in range(len(losses.batches))]
    return torch.stack(total).mean()


def _cast_like(result: nn.Module, original: nn.Module) -> nn.Module:
    """Return a float64 model in dtype, mode and gradient flags of the original."""
    hf_config: Any = getattr(result, "config", None)
    if getattr(hf_config, "tie_word_embeddings", False) and not isinstance(result, HFModel | Model):
        tied = [len(list(m.parameters())) for m in (original, result)]
        if tied[0] < tied[1]:  # otherwise save_pretrained and from_pretrained would tie it again
            hf_config.tie_word_embeddings = False
    tensors = dict((*original.named_parameters(), *original.named_buffers()))
    floats = [each.dtype for each in original.parameters() if each.is_floating_point()]
    default = floats[0] if floats else torch.float32
    flags = {name: each.requires_grad for name, each in original.named_parameters()}
    for name, tensor in (*result.named_parameters(), *result.named_buffers()):
        if tensor.is_floating_point():
            old = tensors.get(name)
            tensor.data = tensor.data.to(default if old is None else old.dtype)
        if isinstance(tensor, nn.Parameter):
            tensor.requires_grad_(flags.get(name, True))
            tensor.grad = None
    modes = {name: module.training for name, module in original.named_modules()}
    result.train(original.training)
    for name, module in result.named_modules():
        module.training = modes.get(name, original.training)
    return result
