"""`addnorm.rewire`: another arrangement for a model that already exists."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop import HFModel, from_hf
from addnorm.models import Config, Model
from addnorm.models.check_config import make_example_inputs
from addnorm.rewiring.apply_changes import (
    CHANGES,
    MAX_LENGTH,
    ChangeRequest,
    Draft,
    apply_changes,
)
from addnorm.rewiring.batches import Batch, find_dtype, read_batches
from addnorm.rewiring.checks import check_model
from addnorm.rewiring.core_models import get_core
from addnorm.rewiring.fitting import refine
from addnorm.rewiring.hf_models import RewiredHFModel
from addnorm.rewiring.losses import Losses, LossFunction, evaluation
from addnorm.rewiring.proof import Proof, copy_model, prove, rounding_error, to_double
from addnorm.rewiring.report import GRADES, Change, Grade, RewireReport, worst_grade
from addnorm.rewiring.stock_saving import is_pretrained_model, warn_on_save
from addnorm.rewiring.tensor_changes import compare_tensors
from addnorm.sublayers.base import check_bool, check_positive_int

FIT_STEPS = 20


def rewire(
    model: Any,
    *,
    norm: str | None = None,
    qk_norm: str | None = None,
    wiring: str | None = None,
    depth: int | None = None,
    gate: str | None = None,
    value_residual: str | None = None,
    merge_norms: bool = False,
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
        gate: gate of the outputs of attention heads, head or element
        value_residual: mixture of values with those of the first layer: scalar, token or half
        merge_norms: whether to merge norms in a row, or norms of the same input, into one
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
    check_bool("merge_norms", merge_norms)
    check_positive_int("max_length", max_length)
    if loss is not None and not callable(loss):
        raise UserError(f"loss: expected a function of model and batch, got {loss!r}")
    if not isinstance(fit_steps, int) or isinstance(fit_steps, bool) or fit_steps < 0:
        raise UserError(f"fit_steps: expected a whole number from 0, got {fit_steps!r}")
    request = ChangeRequest(norm, qk_norm, wiring, depth, gate, value_residual, merge_norms)
    if request.is_empty:
        raise UserError(f"rewire: expected one of {', '.join(CHANGES)}, got no change; pass one")
    if require is not None and require not in GRADES:
        raise UserError(f"require: expected one of {', '.join(GRADES)}, got {require!r}")
    source, wrap = _find_source(copy_model(model), request)
    batches = _read_data(source, example_inputs, calibrate)
    losses = Losses(source, batches, loss)
    double = to_double(source)
    draft = apply_changes(copy.deepcopy(double), request, batches, fit=True, max_length=max_length)
    proof = prove(double, draft.module, batches)
    grade = _find_grade(draft, proof)
    naive: float | None = None
    if grade == "fitted":
        draft, naive = _fit(double, draft, request, losses, fit_steps)
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
        precision=str(find_dtype(result)[0]).removeprefix("torch."),
        tensors=compare_tensors(double, draft.module),
        notes=tuple(dict.fromkeys(draft.notes)),
    )
    if isinstance(result, HFModel):
        result = RewiredHFModel.from_model(result)
    elif draft.changes and is_pretrained_model(result):
        warn_on_save(result, norm or "merged", batches[0])
    return wrap(result), report


def _find_source(model: nn.Module, request: ChangeRequest) -> tuple[nn.Module, Any]:
    """Return the module to rewire, and a function from its result to that of the caller."""
    inner = getattr(model, "model", None)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if (
        isinstance(inner, Model)
        and kind == Config.model_type
        and not isinstance(model, Model | HFModel)
    ):
        return inner, lambda result: _wrap_again(result, model)
    is_hf = type(model).__module__.startswith("transformers.")
    if request.needs_sites and is_hf and get_core(model) is None:
        return from_hf(model), lambda result: result
    return model, lambda result: result


def _wrap_again(result: Model, original: Any) -> Any:
    """Return a model in the class of transformers of the original, with its other settings."""
    from addnorm.interop import to_hf

    names = (
        *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
        *("id2label", "label2id", "problem_type"),
    )
    values = {name: getattr(original.config, name, None) for name in names}
    wrapped = to_hf(result, **{name: v for name, v in values.items() if v is not None})
    wrapped.generation_config = copy.deepcopy(getattr(original, "generation_config", None))
    return wrapped.train(original.training)


def _read_data(model: nn.Module, example_inputs: Any, calibrate: Any) -> list[Batch]:
    if calibrate is not None:
        return read_batches("calibrate", calibrate)
    if example_inputs is not None:
        return read_batches("example_inputs", example_inputs)
    if isinstance(model, Model):
        return read_batches("example_inputs", tuple(make_example_inputs(model)))
    raise UserError(
        "example_inputs: expected inputs for a forward pass, got none; pass example_inputs or "
        "calibrate"
    )


def _find_grade(draft: Draft, proof: Proof) -> Grade:
    """Return the grade that the proof supports."""
    if not proof.is_equal:
        return "fitted"
    grade = worst_grade(each.grade for each in draft.changes)
    return "equal_at_start" if grade == "fitted" else grade


def _fit(
    double: nn.Module, draft: Draft, request: ChangeRequest, losses: Losses, steps: int
) -> tuple[Draft, float]:
    """Refine a draft; return the better one of it and the naive change, and the naive loss."""
    simple = apply_changes(copy.deepcopy(double), request, losses.batches, fit=False)
    naive = losses.measure(simple.module)
    with evaluation(draft.module):
        refine(
            draft.module,
            draft.fitted,
            lambda module: _divergence(losses, module),
            steps=steps,
        )
        closer = float(_divergence(losses, draft.module))
    with evaluation(simple.module):
        is_worse = closer > float(_divergence(losses, simple.module))
    draft = simple if is_worse else draft
    if is_worse:
        draft.notes.append("the fit did not come closer than the naive change, which was kept")
    draft.changes = _correct_grades(draft.changes)
    return draft, naive


def _correct_grades(changes: list[Change]) -> list[Change]:
    """Return the changes of a model whose outputs differ; at least one of them is fitted."""
    if any(each.grade != "exact" for each in changes):
        return [e if e.grade == "exact" else replace(e, grade="fitted") for e in changes]
    why = "exact on the given data, but outputs differ on varied inputs"
    texts = (f"{each.text}; {why}" if each.text else why for each in changes)
    return [replace(e, grade="fitted", text=t) for e, t in zip(changes, texts, strict=True)]


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
