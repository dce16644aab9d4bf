"""The changes of one rewiring, applied in order to a float64 model."""

import copy
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from addnorm.rewiring.batches import Batch, read_batches
from addnorm.rewiring.changes.attention_options import change_attention
from addnorm.rewiring.changes.depth import grow_depth
from addnorm.rewiring.changes.merge_norms import merge_norms
from addnorm.rewiring.changes.norm import change_norms
from addnorm.rewiring.changes.qk_norm import change_qk_norm, fit_qk_norms, gain_parameters
from addnorm.rewiring.changes.wiring import change_wiring, fit_wiring
from addnorm.rewiring.core_models import require_core, with_core
from addnorm.rewiring.report import Change

MAX_LENGTH = 1024


@dataclass(frozen=True)
class ChangeRequest:
    """Changes that a caller asks for; None and False are no change."""

    norm: str | None = None
    qk_norm: str | None = None
    wiring: str | None = None
    depth: int | None = None
    gate: str | None = None
    value_residual: str | None = None
    merge_norms: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no change is asked for."""
        return self == ChangeRequest()

    @property
    def needs_sites(self) -> bool:
        """Whether a change needs a model whose sites are known."""
        options = (self.qk_norm, self.wiring, self.depth, self.gate, self.value_residual)
        return any(each is not None for each in options)


CHANGES = tuple(each.name for each in fields(ChangeRequest))
"""Names of the changes, as arguments of `rewire` and keys of recipes."""


@dataclass
class Draft:
    """A rewired model in float64."""

    module: nn.Module
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fitted: list[nn.Parameter] = field(default_factory=list)
    """Parameters that a refinement may change."""


def apply_changes(
    module: nn.Module,
    request: ChangeRequest,
    batches: list[Batch],
    *,
    fit: bool,
    max_length: int = MAX_LENGTH,
) -> Draft:
    """Return a rewired model.

    Args:
        module: model in float64, which may be changed
        request: the changes
        batches: data for fits
        fit: False leaves new parameters at their start values and centers nothing
        max_length: positions of a table that replaces sinusoids
    """
    draft = Draft(module)
    if request.depth is not None:
        core, changes = grow_depth(require_core(draft.module, "depth"), request.depth, fit=fit)
        draft.changes += changes
        draft.module = with_core(draft.module, core)
    if request.wiring is not None:
        _apply_wiring(draft, request.wiring, batches, fit=fit)
    if request.merge_norms:
        draft.module, changes = merge_norms(draft.module, batches[0])
        draft.changes += changes
    if request.gate is not None or request.value_residual is not None:
        _apply_attention_options(draft, request, fit=fit)
    if request.norm is not None:
        change = change_norms(draft.module, request.norm, batches, fit=fit, max_length=max_length)
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


def _apply_wiring(draft: Draft, wiring: str, batches: list[Batch], *, fit: bool) -> None:
    old = require_core(draft.module, "wiring")
    core, changes, paths = change_wiring(old, wiring, fit=fit)
    draft.module, draft.changes = with_core(draft.module, core), draft.changes + changes
    if fit:
        fit_wiring(draft.module, core, paths, batches)
    draft.fitted += [p for stack in core.stacks for p in stack.wiring.parameters()]
    draft.fitted += [p for stack in core.stacks for p in stack.embed_norm.parameters()]


def _apply_attention_options(draft: Draft, request: ChangeRequest, *, fit: bool) -> None:
    name = "gate" if request.gate is not None else "value_residual"
    core, changes, added = change_attention(
        require_core(draft.module, name),
        gate=request.gate,
        value_residual=request.value_residual,
        fit=fit,
    )
    draft.module, draft.changes = with_core(draft.module, core), draft.changes + changes
    parameters = dict(core.named_parameters())
    draft.fitted = [parameters[each] for each in added]


def change_naively(model: nn.Module, data: Any, **changes: Any) -> nn.Module:
    """Return a model after changes without centering, neutral start values and fits.

    This is what `addnorm.rewire` is measured against; the precision is that of the model.

    Args:
        model: the model, which is not changed
        data: as `calibrate` of `addnorm.rewire`
        **changes: changes of `addnorm.rewire`
    """
    dtype = next(model.parameters()).dtype
    batches = read_batches("data", data)
    request = ChangeRequest(**changes)
    draft = apply_changes(copy.deepcopy(model).double(), request, batches, fit=False)
    return draft.module.to(dtype)
