"""Two norms merged into one without a change of the function.

two in a row        N2(c N1(x); eps2) = N1(x; eps) / sqrt(1 + eps2 / c^2),
                    eps = eps1 eps2 / (c^2 + eps2), c the same gain for all features
two of one input    parallel(norms=own): W (g * n(x) + b) = (W diag(g)) n(x) + W b, so that the
                    sub-layers of a layer may share n(x)
"""

import dataclasses
import math

import torch
from torch import nn

from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.norms.base import Norm, make_norm
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.changes.share_norms import describe_sharing, share_norms
from addnorm.rewiring.core_models import get_core, with_core
from addnorm.rewiring.norm_laws import NormLaw, NormSite, find_all_sites, set_module
from addnorm.rewiring.report import Change
from addnorm.rewiring.tracing.mean_terms import METADATA
from addnorm.rewiring.tracing.recorder import NORM, Op, live_ops, record


def merge_norms(module: nn.Module, batch: Batch) -> tuple[nn.Module, list[Change]]:
    """Return a float64 model with fewer norms.

    Models whose sites are known share the norms of one input, other modules merge norms in a row.

    Args:
        module: model in float64, which may be changed
        batch: inputs of one forward pass

    Raises:
        UserError: no norms can be merged
    """
    core = get_core(module)
    if core is not None:
        shared, changes = _share(core)
        return with_core(module, shared), changes
    return module, _merge_in_a_row(module, batch)


def _share(core: Model) -> tuple[Model, list[Change]]:
    reason = describe_sharing(core)
    if reason:
        raise UserError(f"merge_norms: expected norms that can be shared, got {reason}")
    return share_norms(core)


def _merge_in_a_row(module: nn.Module, batch: Batch) -> list[Change]:
    changes: list[Change] = []
    while True:  # three in a row become one in two passes
        sites = {site.path: site for site in find_all_sites(module, batch)}
        pair, reasons = _find_pair(module, batch, sites)
        if pair is None:
            break
        first, second, law = pair
        set_module(module, second.path, _make_norm(law))
        set_module(module, first.path, nn.Identity())
        text = f"merged with {second.path}"
        changes.append(Change(first.path, first.kind, "none", "exact", text))
        text = f"merged with {first.path}, eps {law.eps:.3g}"
        changes.append(Change(second.path, second.kind, law.kind, "exact", text))
    if not changes:
        found = reasons[0] if reasons else f"none in {type(module).__name__}"
        raise UserError(f"merge_norms: expected two norms in a row that can be one, got {found}")
    return changes


def _find_pair(
    module: nn.Module, batch: Batch, sites: dict[str, NormSite]
) -> tuple[tuple[NormSite, NormSite, NormLaw] | None, list[str]]:
    """Return two norms in a row and their product, or reasons against those that are in a row."""
    recorder = record(module, batch, sites)
    live, reasons = live_ops(recorder), []
    for op in recorder.ops:
        before = op.args[0].op if op.name == NORM else None
        if not isinstance(before, Op) or before.name != NORM:
            continue
        uses = [each for each in before.outputs[0].uses if id(each) in live]
        others = [each for each in uses if each is not op and each.name not in METADATA]
        if others or id(before.outputs[0]) in recorder.outputs:
            reasons.append(f"the output of {before.path} is used elsewhere, too")
            continue
        first, second = sites[before.path], sites[op.path]
        law = merge_laws(first.law, second.law)
        if isinstance(law, NormLaw):
            return (first, second, law), []
        reasons.append(f"{first.path} before {second.path}: {law}")
    return None, reasons


def merge_laws(first: NormLaw, second: NormLaw) -> NormLaw | str:
    """Return the norm that equals `second` behind `first`, or why there is none."""
    if not first.has_constant_gain:
        return "its gains differ between features"
    if (first.kind, second.kind) == ("rms", "layer"):
        return "a LayerNorm behind an RMSNorm subtracts another mean"
    if "outside" in (first.eps_mode, second.eps_mode):
        return "an eps outside of the root"
    # A LayerNorm does not see a bias that is the same for all features.
    visible = first.bias - first.bias.mean() if second.kind == "layer" else first.bias
    if float(visible.abs().max()) > 0:
        return "its bias"
    square = float(first.gain[0]) ** 2
    scale = math.copysign(1 / math.sqrt(1 + second.eps / square), float(first.gain[0]))
    eps = first.eps * second.eps / (square + second.eps)
    return dataclasses.replace(first, gain=second.gain * scale, bias=second.bias, eps=eps)


def _make_norm(law: NormLaw) -> Norm:
    norm = make_norm(law.to_call(law.kind), law.dim).double()
    with torch.no_grad():
        norm.get_parameter("weight").copy_(law.gain)
        if getattr(norm, "bias", None) is not None:
            norm.get_parameter("bias").copy_(law.bias)
    return norm
