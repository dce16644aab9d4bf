"""`fold`: rewrite a model into the plainest arrangement that computes the same."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.exporters.folding import boundaries
from addnorm.exporters.folding.boundaries import Workspace
from addnorm.exporters.folding.decorators import unwrap_decorators
from addnorm.exporters.folding.eliminate import eliminate_terms, has_droppable_bias
from addnorm.exporters.folding.norm_forms import NormForm, read_norm
from addnorm.exporters.folding.remove_scale import remove_scale
from addnorm.exporters.folding.stack_forms import (
    PLAIN_WIRINGS,
    DoesNotFoldError,
    StackForm,
    read_stack,
)
from addnorm.exporters.report import Grade
from addnorm.exporters.source import prepare_model
from addnorm.measure.sites import find_stacks, unwrap_model
from addnorm.models import Classifier, LanguageModel, MaskedLM, Model, PrefixLM, Seq2Seq, build
from addnorm.norms.base import Norm
from addnorm.norms.none import NoNorm
from addnorm.stacks.transformer import TransformerStack
from addnorm.sublayers import SelfAttention
from addnorm.wirings.base import Wiring
from addnorm.wirings.normformer import NormFormer

MAX_LENGTH = 1024
"""Positions of a table that replaces sinusoids."""


@dataclass(frozen=True)
class FoldNote:
    """What `fold` did, or could not do, with one part of a model.

    >>> print(FoldNote("encoder", "deepnorm", "scale of the skip carried in the stream"))
    encoder: deepnorm: scale of the skip carried in the stream
    """

    site: str
    """Where: a stack such as `encoder`, or a part such as `encoder.norms` or `model`."""
    term: str
    """What: the call string of a wiring or norm, or the name of an option."""
    text: str
    """What was done, or why it does not fold."""
    grade: Grade = "exact"
    folded: bool = True
    """False if the part stays as it is, because no plainer form computes the same."""

    def __str__(self) -> str:
        return f"{self.site}: {self.term}: {self.text}"


@dataclass
class FoldedStack:
    """Wiring and norms of a stack after folding."""

    wiring: Call
    norm: Call
    embed_norm: Call
    tensors: dict[str, Tensor]
    """State of the wiring and of `embed_norm`, by name in the stack."""


def fold(model: Model, *, max_length: int = MAX_LENGTH) -> tuple[Model, list[FoldNote]]:
    """Rewrite a model into the plainest arrangement that computes the same.

    The model itself is not changed. Weights are computed in float64 and returned in the precision
    of the model, in evaluation mode. A part that has no plainer form stays, with a note.

    Args:
        model: a model of `addnorm.build`, trained or not
        max_length: positions of the table that replaces sinusoids, where these must be scaled

    Returns:
        The plain model, and notes on every part that was not plain already.

    >>> from addnorm.models import build
    >>> plain, notes = fold(build(kind="lm", vocab=9, dim=8, depth=1, heads=2, wiring="rezero"))
    >>> plain.config.wiring, str(notes[0])
    ('none', 'decoder: rezero: alpha moved into the matrices that write to the stream')
    """
    model = unwrap_model(model) if isinstance(model, nn.Module) else model  # type: ignore[assignment]
    if not isinstance(model, Model):
        raise UserError(f"model: expected a model of addnorm.build, got {type(model).__name__}")
    check_parts(model)
    scale, model = model.config.scale, remove_scale(model)
    prepared, _ = prepare_model(model)
    dtype = next(prepared.parameters()).dtype
    core = prepared.model if isinstance(prepared, PrefixLM) else prepared
    assert isinstance(core, LanguageModel | MaskedLM | Seq2Seq | Classifier)
    with torch.no_grad():
        work, notes = Workspace(core.double()), []
        if scale is not None:
            notes.append(FoldNote("model", scale, "factors moved into weights"))
        if boundaries.bake_table_norm(work):
            term = model.config.table_norm
            notes.append(FoldNote("model", f"table_norm {term}", "normalized rows written"))
        if boundaries.bake_logit_scale(work):
            notes.append(FoldNote("model", "logit_scale", "moved into a table of the head's own"))
        if boundaries.fold_attention_scale(work):
            notes.append(FoldNote("model", "scale", "moved into query weights"))
        if boundaries.fold_qk_norm(work):
            term, text = f"qk_norm {model.config.qk_norm}", "division by the length is rms_head"
            notes.append(FoldNote("model", term, text, "rounding"))
        results = _fold_stacks(work, notes, max_length)
        notes += [
            FoldNote("model", name, "moved into its table")
            for name in boundaries.fold_factors(work)
        ]
        _fold_head_norm(work, results[-1])
        plain = _rebuild(model, work, results)
    return plain.to(dtype).eval(), notes


def _fold_stacks(work: Workspace, notes: list[FoldNote], max_length: int) -> list[FoldedStack]:
    names, results = list(find_stacks(work.model)), []
    forms: list[StackForm | None] = []
    for index, (name, stack) in enumerate(zip(names, work.model.stacks, strict=True)):
        assert isinstance(stack, TransformerStack)
        wiring, call, decorators = unwrap_decorators(stack)
        notes += [FoldNote(name, term, text) for term, text in decorators]
        form = _try_fold(work, index, name, wiring, call, notes)
        forms.append(form)
        if form is None:
            results.append(_keep_wiring(stack, wiring, call, name, notes))
        else:
            boundaries.absorb_output(work, index, form.end_scale, form.end_shift)
            results.append(_plain_wiring(form, name, notes))
    for text in boundaries.scale_entries(work, max_length):
        notes.append(FoldNote("model", "embedding", text))
    return results


def _try_fold(
    work: Workspace, index: int, name: str, wiring: Wiring, call: Call, notes: list[FoldNote]
) -> StackForm | None:
    """Return the form of a stack without any terms but norms; None if it does not fold."""
    stack = work.model.stacks[index]
    if call.name in PLAIN_WIRINGS and call.name not in ("post_ln", "pre_ln", "none"):
        return None
    if stack.embed_proj is not None and call.name in PLAIN_WIRINGS:
        return None
    try:
        if stack.embed_proj is not None:
            raise DoesNotFoldError("a projection of the embedding before the first site")
        form = read_stack(stack, wiring)
        _check_form(work, index, form)
        eliminate_terms(form, lambda scale: work.entry_scales.update({index: scale}))
    except DoesNotFoldError as reason:
        notes.append(FoldNote(name, str(call), f"does not fold: {reason}", folded=False))
        return None
    form.end_scale = _unless_constant(form.end_scale, 1.0)
    form.end_shift = _unless_constant(form.end_shift, 0.0)
    plain = _plain_call(form)
    if str(plain) != str(call):
        text = "; ".join(form.texts) or "only start weights differ"
        notes.append(FoldNote(name, str(call), text))
    return form


def _check_form(work: Workspace, index: int, form: StackForm) -> None:
    """Raise `DoesNotFoldError` for terms that nothing around the stack can take up."""
    has_maps = any(norm.is_affine for norm in form.norms)
    shifts = has_maps or any(
        site.in_shift is not None or has_droppable_bias(site.pre_norm) for site in form.sites
    )
    ends = form.end_scale is not None or form.end_shift is not None
    ends = ends or has_maps or has_droppable_bias(form.final_norm)
    if ends and not boundaries.can_absorb_output(work, index):
        raise DoesNotFoldError("nothing behind the stack could take up its last scale and shift")
    inside = form.stack.layer_config.attention_options
    hidden = [name for name in ("canon", "value_embed", "value_residual") if name in inside]
    reads = has_maps or any(
        term is not None
        for site in form.sites
        for term in (site.in_scale, site.in_shift, site.skip_scale, site.out_scale)
    )
    if (reads or shifts) and hidden:
        raise DoesNotFoldError(f"{hidden[0]} reads or mixes what a scale or shift would change")
    if shifts and "experts" in inside:
        raise DoesNotFoldError("a shift of what the router of experts reads, which has no bias")
    if shifts and "gate" in inside:
        raise DoesNotFoldError("a shift of what the gate of attention reads, which has no bias")
    lacks_key_bias = any(
        isinstance(each, SelfAttention) and not each.qk_norm.key_bias
        for each in form.stack.sublayers
    )
    if shifts and lacks_key_bias:
        raise DoesNotFoldError("a shift of what attention reads, whose keys have no bias")
    entry = form.entry_norm
    others = [stack for each, stack in enumerate(work.model.stacks) if each != index]
    if entry is None:
        return
    if entry.is_affine and (others or any(not norm.is_affine for norm in form.norms)):
        raise DoesNotFoldError("embed_norm has running statistics, other norms have not")
    # A pair has one setting for both of its embedding norms.
    same = [
        (other.wiring_call, other.plan.norm) == (form.stack.wiring_call, form.stack.plan.norm)
        for other in others
    ]
    if form.stack.embed_norm_call.name == "none" and not all(same):
        raise DoesNotFoldError("the other stack of the pair would get a norm of its embedding, too")


def _unless_constant(tensor: Tensor | None, value: float) -> Tensor | None:
    return None if tensor is None or bool((tensor == value).all()) else tensor


def _plain_call(form: StackForm) -> Call:
    """Return the wiring of a form that has only norms."""
    if any(site.post_norm is not None for site in form.sites):
        return Call("post_ln", {"final_norm": True} if form.final_norm is not None else {})
    if any(site.pre_norm is not None for site in form.sites) or form.final_norm is not None:
        return Call("pre_ln", {} if form.sites[0].pre_norm is not None else {"first_norm": False})
    return Call("none")


def _plain_wiring(form: StackForm, name: str, notes: list[FoldNote]) -> FoldedStack:
    """Return wiring and norms of a form without other terms."""
    wiring = _plain_call(form)
    tensors: dict[str, Tensor] = {}
    for site in form.sites:
        norm = site.post_norm or site.pre_norm
        if norm is not None:
            tensors |= _prefixed(f"wiring.norms.{site.site.index}", norm)
    if form.final_norm is not None:
        tensors |= _prefixed("wiring.final_norm", form.final_norm)
    inside = [norm for norm in form.norms if norm is not form.entry_norm]
    call = _final_call(inside[0]) if inside else Call("layer")
    _note_norms(name, form.stack.plan.norm, inside, notes)
    entry = Call("none")
    if form.entry_norm is not None:
        entry = _final_call(form.entry_norm)
        tensors |= _prefixed("embed_norm", form.entry_norm)
        _note_norms(f"{name}.embed_norm", form.stack.embed_norm_call, [form.entry_norm], notes)
    return FoldedStack(wiring, call, entry, tensors)


def _fold_head_norm(work: Workspace, result: FoldedStack) -> None:
    """Rewrite the norm of a masked language model's head, which is built from the same call."""
    model = work.model
    if not isinstance(model, MaskedLM) or model.head_matrix is None:
        return
    call = model.encoder.plan.norm
    if result.norm == call and result.wiring.name != "none":
        return
    form = read_norm(model.head_norm, call)
    model.head_norm = NoNorm(model.config.dim)  # its state comes from the form
    if form.is_affine:
        boundaries.absorb_head_input(work, form.gain, form.bias)
        result.norm = Call("none")
        return
    if has_droppable_bias(form):
        boundaries.absorb_head_input(work, None, form.bias)
        form.bias = None
    result.norm = _final_call(form)
    work.tensors |= _prefixed("head_norm", form)


def _final_call(norm: NormForm) -> Call:
    """Return the call of a norm, without the bias that went into other weights."""
    assert norm.call is not None
    options = dict(norm.call.options)
    if norm.bias is None:
        options.pop("bias", None)
    return Call(norm.call.name, options)


def _note_norms(site: str, call: Call, norms: list[NormForm], notes: list[FoldNote]) -> None:
    texts = {norm.text: norm.grade for norm in norms if norm.text}
    notes += [FoldNote(site, str(call), text, grade) for text, grade in texts.items()]


def _keep_wiring(
    stack: TransformerStack, wiring: Wiring, call: Call, name: str, notes: list[FoldNote]
) -> FoldedStack:
    """Return the wiring as it is, with its norms in their plainest form."""
    norms = {
        each: read_norm(module, stack.plan.norm)
        for each, module in wiring.named_modules()
        if isinstance(module, Norm) and not isinstance(module, NoNorm)
    }
    calls = {str(norm.call) for norm in norms.values()}
    tensors = {f"wiring.{key}": value.clone() for key, value in wiring.state_dict().items()}
    norm_call = stack.plan.norm
    if isinstance(wiring, NormFormer) and boundaries.fold_head_scales(stack, wiring):
        call = Call(call.name, {**call.options, "head_scale": "none"})
        tensors = {key: each for key, each in tensors.items() if not key.startswith("wiring.g.")}
        notes.append(FoldNote(name, "head_scale", "moved into the output matrices"))
    if len(calls) == 1 and "None" not in calls:
        for each, norm in norms.items():
            prefix = f"wiring.{each}."
            tensors = {key: value for key, value in tensors.items() if not key.startswith(prefix)}
            tensors |= _prefixed(f"wiring.{each}", norm)
        norm_call = next(iter(norms.values())).call or norm_call
        _note_norms(name, stack.plan.norm, list(norms.values()), notes)
    entry = read_norm(stack.embed_norm, stack.embed_norm_call)
    if entry.call is not None:
        tensors |= _prefixed("embed_norm", entry)
        return FoldedStack(call, norm_call, entry.call, tensors)
    state = stack.embed_norm.state_dict()
    tensors |= {f"embed_norm.{key}": value.clone() for key, value in state.items()}
    return FoldedStack(call, norm_call, stack.embed_norm_call, tensors)


def _prefixed(prefix: str, norm: NormForm) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in norm.tensors().items()}


def _rebuild(model: Model, work: Workspace, results: list[FoldedStack]) -> Model:
    """Build the plain model and fill it with the rewritten weights."""
    changes = dict(work.changes)
    *first, last = results
    changes |= {"wiring": str(last.wiring), "norm": str(last.norm)}
    if first and isinstance(model, Seq2Seq):
        differs = (str(first[0].wiring), str(first[0].norm)) != (str(last.wiring), str(last.norm))
        changes["encoder_wiring"] = str(first[0].wiring) if differs else None
        changes["encoder_norm"] = str(first[0].norm) if differs else None
    changes["embed_norm"] = str(last.embed_norm)
    tensors = _collect_tensors(work, results)
    for field, names in BIASES.items():
        has_bias = any(f".{name}.bias" in key for key in tensors for name in names)
        if has_bias and not _has_biases(model, field):
            changes[field] = True
            if field == "bias":  # the defaults of the others follow it
                for other in ("out_bias", "ffn_bias"):
                    changes.setdefault(other, _has_biases(model, other))
    plain = build(model.config.replace(**changes)).double()
    prefix = "model." if isinstance(model, PrefixLM) else ""
    state = plain.state_dict()
    expected = {name for name in state if not name.endswith("_extra_state")}
    for name in expected:
        ours = name.removeprefix(prefix)
        if ours not in tensors and name.endswith(".bias"):
            tensors[ours] = torch.zeros_like(state[name])
    given = {f"{prefix}{name}" for name in tensors}
    assert given == expected, sorted(given ^ expected)  # every tensor is accounted for
    plain.load_state_dict({f"{prefix}{name}": each for name, each in tensors.items()}, strict=False)
    return plain


BIASES = {
    "bias": ("q_proj", "k_proj", "v_proj"),
    "out_bias": ("out_proj",),
    "ffn_bias": ("up_proj", "gate_proj", "down_proj"),
}
"""Fields of a config, and the matrices whose biases they switch on."""


def _has_biases(model: Model, field: str) -> bool:
    value = getattr(model.config, field)
    return bool(model.config.bias if value is None else value)


def _collect_tensors(work: Workspace, results: list[FoldedStack]) -> dict[str, Tensor]:
    """Return all tensors of the plain model but biases that are zero."""
    stacks = [name for name, each in work.model.named_modules() if each in work.model.stacks]
    inside = tuple(f"{name}.{part}." for name in stacks for part in ("wiring", "embed_norm"))
    tensors: dict[str, Any] = {
        name: value
        for name, value in work.model.state_dict().items()
        if not name.startswith(inside) and not name.endswith("_extra_state")
    }
    if "positions" in work.changes:
        tensors = {name: each for name, each in tensors.items() if "positions.table" not in name}
    for name, result in zip(stacks, results, strict=True):
        tensors |= {f"{name}.{key}": value for key, value in result.tensors.items()}
    return tensors | work.tensors


def check_parts(model: Model) -> None:
    """Raise `UserError` if parts of a model are not those that its config describes."""
    expected = dict(build(model.config, device="meta").named_modules())
    got = dict(model.named_modules())
    for name in sorted({*expected, *got}):
        ours, theirs = (type(each.get(name)).__name__ for each in (expected, got))
        if ours != theirs:
            raise UserError(
                f"model: expected {name} to be {ours}, as in its config, got {theirs}; a model "
                "whose parts were replaced cannot be folded, use --to onnx or --to torch"
            )


def describe_unfolded(notes: list[FoldNote]) -> list[FoldNote]:
    """Return the notes on parts that did not fold."""
    return [note for note in notes if not note.folded]
