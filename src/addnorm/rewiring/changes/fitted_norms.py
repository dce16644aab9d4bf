"""Another norm in place of each norm of a model, fitted on data.

Sites are replaced in the order of the forward pass. Each new norm is fitted to what the old one
returns for the inputs that it now gets, so that errors of earlier sites are taken into account.
"""

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.base import registry as norms
from addnorm.norms.constant_std import ConstantStd
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.fitting import fit_norm, record_inputs
from addnorm.rewiring.norm_laws import NormSite, set_module
from addnorm.rewiring.report import Change, Grade

SAME_FUNCTION = 1e-12
"""Relative difference of outputs below which two norms are the same function."""


def check_target(call: Call) -> None:
    """Raise `UserError` for norms that no fit on single tokens can set."""
    card = norms.card(call.name)
    norm = make_norm(call, 8)
    if "cond" in card.needs:
        raise UserError(f"norm: expected one without a condition, got {call}")
    has_statistics = any(True for _ in norm.buffers()) and not isinstance(norm, ConstantStd)
    if not norm.causal or "mask" in card.needs or has_statistics:
        raise UserError(
            f"norm: expected one of single tokens without running statistics, got {call}"
        )


def merge_options(call: Call, site: NormSite) -> Call:
    """Return a call with eps and bias of the old norm where the caller does not give them."""
    known = norms.card(call.name).options or {}
    options = dict(call.options)
    if "eps" in known:
        options.setdefault("eps", site.law.eps)
    if "eps_mode" in known and site.law.eps_mode != "inside":
        options.setdefault("eps_mode", site.law.eps_mode)
    if call.name == "constant_std" and site.law.kind == "rms":
        options.setdefault("center", False)
    has_bias = bool((site.law.bias != 0).any())
    if call.name == "rms" and has_bias and options.get("affine", True):
        options.setdefault("bias", True)
    return norms.resolve(Call(call.name, options))


def make_start_norm(call: Call, site: NormSite) -> Norm:
    """Return the new norm as a naive replacement has it.

    Norms with statistics keep gain and bias; DyT and Derf get their start values.
    """
    norm = make_norm(call, site.dim).double()
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if call.name in ("rms", "layer", "constant_std") and isinstance(weight, nn.Parameter):
        offset = float(getattr(norm, "gain_offset", 0.0))
        weight.data.copy_(site.law.gain - offset)
        if isinstance(bias, nn.Parameter):
            bias.data.copy_(site.law.bias)
    return norm


def replace_norms(
    model: nn.Module,
    sites: list[NormSite],
    call: Call,
    batches: list[Batch],
    *,
    fit: bool,
    reasons: dict[str, str] | None = None,
    order: list[NormSite] | None = None,
) -> list[Change]:
    """Replace norms of a float64 model in place.

    Args:
        model: model in float64
        sites: norms to replace, in the order of the forward pass
        call: the new norm
        batches: data for the fit
        fit: whether to fit; False replaces naively
        reasons: why a site could not be changed exactly, by path
        order: all norms in the order of the forward pass, if `sites` are some of them
    """
    check_target(call)
    places = {site.path: index for index, site in enumerate(order or sites, 1)}
    changes = []
    for site in sites:
        norm = make_start_norm(call, site)
        if isinstance(norm, ConstantStd):
            norm.place.fill_(places[site.path])
        text = (reasons or {}).get(site.path, "")
        grade: Grade = "fitted"
        if fit:
            x = record_inputs(model, site.path, batches)
            y = site.law(x)
            if isinstance(norm, ConstantStd):
                _measure_deviation(norm, x)
            start = float((norm(x) - y).detach().norm() / y.norm().clamp(min=1e-30))
            kept = {name: value.clone() for name, value in norm.state_dict().items()}
            error = fit_norm(norm, x, y)
            if error > start:
                norm.load_state_dict(kept)
                error = start
            if start < SAME_FUNCTION:
                norm.load_state_dict(kept)
                grade = "equal_at_start" if isinstance(norm, ConstantStd) else "exact"
            fitted = f"fitted, relative error {error:.2g}, naive {start:.2g}"
            text = "" if grade != "fitted" else f"{text}; {fitted}" if text else fitted
        set_module(model, site.path, norm.requires_grad_(True))
        changes.append(Change(site.path, site.kind, str(call), grade, text))
    return changes


def _measure_deviation(norm: ConstantStd, x: Tensor) -> None:
    """Start the running mean of the deviation at that of the data."""
    with torch.no_grad():
        norm.train()(x)
        norm.eval()
