"""Norms of the same input in `parallel(norms=own)`, shared by the sub-layers of a layer.

Gain and bias of each norm go into the matrices that read it; the shared norm has gain 1 and bias 0.
"""

import copy

import torch
from torch import nn

from addnorm.exporters.folding import laws
from addnorm.models import Model
from addnorm.norms.affine import AffineNorm
from addnorm.rewiring.core_models import get_state, named_stacks, rebuild, stack_prefix
from addnorm.rewiring.report import Change
from addnorm.stacks.transformer import TransformerStack
from addnorm.sublayers import FeedForward
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.wirings.parallel import Parallel

OTHER_READERS = ("value_embed", "canon_a", "canon_c")
"""Parts of a sub-layer that read its input and are no matrices."""


def has_own_norms(stack: TransformerStack) -> bool:
    """Return whether the sub-layers of each layer have norms of the same input."""
    return isinstance(stack.wiring, Parallel) and not stack.wiring.shared


def describe_sharing(core: Model) -> str:
    """Return why no norms of a model can be shared; an empty string if some can."""
    stacks = [stack for stack in named_stacks(core).values() if has_own_norms(stack)]
    if not stacks:
        calls = ", ".join(sorted({str(s.wiring_call) for s in named_stacks(core).values()}))
        return f"{calls}, which has no norms of the same input, as parallel(norms=own) has"
    return next((reason for stack in stacks if (reason := _find_problem(stack))), "")


def _find_problem(stack: TransformerStack) -> str:
    norms = _own_norms(stack)
    for norm in norms:
        is_affine = isinstance(norm, AffineNorm) and not hasattr(norm, "alpha")
        if not is_affine or any(True for _ in norm.buffers()):
            return f"norms of {stack.plan.norm}, whose parameters no matrix can take up"
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        if not isinstance(sublayer, MultiHeadAttention | FeedForward):
            return f"{type(sublayer).__name__}, whose matrices are not known"
        for name in OTHER_READERS:
            if getattr(sublayer, name, None) is not None:
                return f"{name}, which reads the norm too"
        mixer = getattr(sublayer, "value_residual", None)
        if mixer is not None and mixer.proj is not None:
            return "value_residual=token, which reads the norm too"
        bias = getattr(norms[site.index], "bias", None)
        has_biases = all(each.bias is not None for each in laws.readers(sublayer))
        if bias is not None and bool((bias != 0).any()) and not has_biases:
            return "matrices without a bias that could take up that of the norms"
    return ""


def _own_norms(stack: TransformerStack) -> nn.ModuleList:
    assert isinstance(stack.wiring, Parallel)
    return stack.wiring.norms


def fold_own_norms(core: Model) -> Model:
    """Return a float64 model whose norms of the same input are equal: gain 1, bias 0."""
    core = copy.deepcopy(core)
    for stack in named_stacks(core).values():
        if has_own_norms(stack) and not _find_problem(stack):
            for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
                _fold_norm(_own_norms(stack)[site.index], laws.readers(sublayer))
    return core


@torch.no_grad()
def _fold_norm(norm: nn.Module, readers: list[nn.Linear]) -> None:
    assert isinstance(norm, AffineNorm)
    if norm.weight is None:
        return
    offset = float(getattr(norm, "gain_offset", 0.0))
    if norm.bias is not None and bool((norm.bias != 0).any()):
        laws.shift_inputs(readers, norm.bias)
        norm.bias.zero_()
    laws.scale_inputs(readers, norm.weight + offset)
    norm.weight.fill_(1.0 - offset)


def share_norms(core: Model) -> tuple[Model, list[Change]]:
    """Return a model with `parallel` in place of `parallel(norms=own)`, in float64."""
    folded = fold_own_norms(core)
    tensors, fields, changes = get_state(folded), {}, []
    for name, stack in named_stacks(folded).items():
        if not has_own_norms(stack):
            continue
        prefix = f"{stack_prefix(folded, name)}wiring.norms."
        own = {key: tensors.pop(key) for key in [*tensors] if key.startswith(prefix)}
        for key, value in own.items():
            number, _, parameter = key.removeprefix(prefix).partition(".")
            layer, slot = divmod(int(number), stack.plan.per_layer)
            if slot == 0:
                tensors[f"{prefix}{layer}.{parameter}"] = value
        fields[_wiring_field(core, name)] = "parallel"
        text = "gains and biases moved into the matrices that read them"
        changes.append(Change(name, "parallel(norms=own)", "parallel", "exact", text))
    return rebuild(folded, tensors, **fields), changes


def _wiring_field(core: Model, name: str) -> str:
    """Return the field of the config with the wiring of a stack."""
    has_own = core.config.encoder_wiring is not None
    return "encoder_wiring" if name == "encoder" and has_own else "wiring"
