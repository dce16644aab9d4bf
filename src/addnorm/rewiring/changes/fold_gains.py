"""Gains and biases of norms moved into the matrices that read them.

W (g * n + b) + c = (W diag(g)) n + (c + W b)

A norm is folded if matrices are all that reads its output, each reads no other, and each has a bias
or may get one. A matrix that is tied to a table gets a copy of its own.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from addnorm.rewiring.batches import Batch
from addnorm.rewiring.core_models import get_core
from addnorm.rewiring.norm_laws import NormSite
from addnorm.rewiring.tracing.mean_terms import METADATA, SAME, VIEWS
from addnorm.rewiring.tracing.recorder import NORM, Op, Value, live_ops, record

MOVES = {*VIEWS, *SAME, "slice", "select", "unsqueeze", "expand", "index", "index_select"}
"""Operations that keep the features of a token together, on the last axis."""


@dataclass(frozen=True)
class Reader:
    """A matrix that reads the output of a norm."""

    path: str
    weight: str
    """Attribute of the module."""
    axis: int
    """Axis of the weight along which it reads features: 1 in nn.Linear, 0 in Conv1D."""
    is_tied: bool = False
    """Whether other modules use the weight too, so that this one needs a copy of its own."""

    @property
    def bias(self) -> str:
        """Attribute of the bias: bias, or in_proj_bias of nn.MultiheadAttention."""
        return self.weight.replace("weight", "bias")


def fold_gains(
    model: nn.Module, batch: Batch, sites: list[NormSite]
) -> tuple[list[NormSite], dict[str, str], list[str]]:
    """Fold gains and biases of a float64 model, in place.

    Returns:
        The sites, folded ones with gain 1 and bias 0, reasons of the others by path, and notes.
    """
    recorder = record(model, batch, [site.path for site in sites])
    live = live_ops(recorder)
    outputs = {op.path: op.outputs[0] for op in recorder.ops if op.name == NORM and op.outputs}
    found = {
        site.path: _find_readers(model, outputs[site.path], live, recorder.outputs)
        for site in sites
    }
    result, reasons, notes = [], {}, []
    for site in sites:
        readers = found[site.path]
        reason = readers if isinstance(readers, str) else _find_problem(model, site, readers, found)
        if reason:
            reasons[site.path] = reason
            result.append(site)
            continue
        assert not isinstance(readers, str)
        for reader in sorted(readers, key=str):
            _fold(model.get_submodule(reader.path), reader, site)
            if reader.is_tied:
                notes.append(f"{reader.path}.{reader.weight} was tied; it is a copy of its own now")
        ones, zeros = torch.ones_like(site.law.gain), torch.zeros_like(site.law.bias)
        law = replace(site.law, gain=ones, bias=zeros)
        result.append(replace(site, law=law, before=site.kind))
    return result, reasons, notes


def _find_readers(
    model: nn.Module, value: Value, live: set[int], returned: set[int]
) -> set[Reader] | str:
    """Return the matrices that read a value, or why there are others."""
    if id(value) in returned:
        return "the model returns its output"
    readers: set[Reader] = set()
    width = value.shape[-1]
    for op in value.uses:
        if id(op) not in live or op.name in METADATA:
            continue
        keeps_width = all(out.shape[-1:] == (width,) for out in op.outputs)
        if keeps_width and (op.name in MOVES or _keeps_last_axis(op)):
            for out in op.outputs:
                inner = _find_readers(model, out, live, returned)
                if isinstance(inner, str):
                    return inner
                readers |= inner
            continue
        reader = _as_reader(model, op, value)
        if reader is None:
            return f"{op.name} in {op.path or 'the model'} reads its output"
        readers.add(reader)
    return readers


def _keeps_last_axis(op: Op) -> bool:
    """Return whether an operation swaps other axes than that of the features."""
    rank = len(op.outputs[0].shape) if op.outputs else 0
    if op.name == "transpose":
        return all(dim % rank != rank - 1 for dim in op.args[1:3])
    return op.name == "permute" and op.args[1][-1] % rank == rank - 1


def _as_reader(model: nn.Module, op: Op, value: Value) -> Reader | None:
    position = {"mm": 0, "addmm": 1}.get(op.name)
    if position is None or op.args[position] is not value:
        return None
    matrix, axis = op.args[position + 1], 0
    while matrix.weight is None and matrix.op is not None and matrix.op.name in ("t", "transpose"):
        matrix, axis = matrix.op.args[0], 1 - axis
    own = [use for use in matrix.uses if use.path == op.path]
    if len(own) != 1:
        return None
    is_tied = len(matrix.uses) > 1
    if is_tied and not _can_untie(model, matrix):
        return None
    module = model.get_submodule(op.path)
    for name, weight in module._parameters.items():
        if weight is matrix.tensor:
            return Reader(op.path, name, axis, is_tied)
    return None


def _can_untie(model: nn.Module, matrix: Value) -> bool:
    """Return whether every module that uses a weight has it as an attribute of its own."""
    paths = {use.path for use in matrix.uses}
    return get_core(model) is None and all(
        any(weight is matrix.tensor for weight in model.get_submodule(path)._parameters.values())
        for path in paths
    )


def _find_problem(
    model: nn.Module, site: NormSite, readers: set[Reader], found: dict[str, set[Reader] | str]
) -> str:
    others = [r for path, each in found.items() if path != site.path for r in each]
    shared = [reader.path for reader in readers if reader in others]
    if shared or not readers:
        return f"{shared[0]} reads several norms" if shared else "no matrix reads its output"
    for reader in readers:
        module = model.get_submodule(reader.path)
        has_bias = isinstance(getattr(module, reader.bias, None), nn.Parameter)
        may_grow = isinstance(module, nn.Linear) and get_core(model) is None
        if bool((site.law.bias != 0).any()) and not has_bias and not may_grow:
            return f"{reader.path} has no bias that could take up that of the norm"
    return ""


@torch.no_grad()
def _fold(module: nn.Module, reader: Reader, site: NormSite) -> None:
    weight = module.get_parameter(reader.weight)
    if reader.is_tied:
        weight = nn.Parameter(weight.data.clone(), requires_grad=weight.requires_grad)
        setattr(module, reader.weight, weight)
    gain, bias = site.law.gain.to(weight), site.law.bias.to(weight)
    columns = weight.data if reader.axis == 1 else weight.data.T
    shift = columns @ bias
    weight.data = weight.data * (gain if reader.axis == 1 else gain[:, None])
    own = getattr(module, reader.bias, None)
    if isinstance(own, nn.Parameter):
        own.data = own.data + shift
    elif bool((bias != 0).any()):
        setattr(module, reader.bias, nn.Parameter(shift))
