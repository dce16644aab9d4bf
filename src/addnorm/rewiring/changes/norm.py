"""Change of the norms of a model: exactly where centering allows it, fitted elsewhere."""

import dataclasses
from typing import Any

import torch
from torch import nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.norms.base import registry as norms
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.changes.fitted_norms import check_target, merge_options, replace_norms
from addnorm.rewiring.changes.fold_gains import fold_gains
from addnorm.rewiring.changes.layer_to_rms import layer_to_rms
from addnorm.rewiring.changes.prepare_centering import prepare_centering
from addnorm.rewiring.checks import find_shared_norms
from addnorm.rewiring.core_models import get_core, get_state, inner_prefix, rebuild, with_core
from addnorm.rewiring.norm_laws import NormSite, find_all_sites, find_norm_sites
from addnorm.rewiring.report import Change
from addnorm.rewiring.tracing.centering import (
    CenteringPlan,
    apply_centering,
    describe_ties,
    plan_centering,
    untie_weights,
)
from addnorm.stacks.stack import Stack

SQUASHING = ("dyt", "derf")
"""Norms without statistics, which profit from a stream without a mean."""


@dataclasses.dataclass
class NormChange:
    """Result of a change of norms."""

    module: nn.Module
    changes: list[Change]
    notes: list[str]
    new_paths: list[str]
    """Norms whose parameters a refinement may change: those that were fitted."""


def change_norms(
    module: nn.Module, text: str, batches: list[Batch], *, fit: bool, max_length: int
) -> NormChange:
    """Return a float64 model with other norms.

    Args:
        module: model in float64, which may be changed
        text: call string of the new norm
        batches: data
        fit: whether to center and to fit; False replaces every norm naively
        max_length: positions of a table that replaces sinusoids

    Raises:
        UserError: a norm cannot be replaced
    """
    call = norms.resolve(text)
    check_target(call)
    sites = _find_sites(module, batches[0], call)
    if not sites:
        return NormChange(module, [], ["no norm had to be changed"], [])
    notes: list[str] = []
    plan = CenteringPlan()
    if fit and (call.name == "rms" or call.name in SQUASHING):
        module, sites, plan, notes = _plan(module, batches[0], sites, call, max_length)
    folded: dict[str, str] = {}
    if fit and call.name in ("rms", "layer") and call.options.get("affine") is False:
        untie_weights(module, plan)
        sites, folded, ties = fold_gains(module, batches[0], sites)
        notes += ties
        laws = {site.path: site for site in sites}
        plan.exact = [laws.get(site.path, site) for site in plan.exact]
        if len(folded) < len(sites):
            notes.append("gains and biases moved into the matrices that read them")
    calls = _choose_calls(module, sites, call)
    targets = [site for site in sites if site.path in calls]
    changes: list[Change] = []
    if call.name == "rms":
        kept = {site.path for site in plan.exact if _keeps_law(site, calls[site.path])}
        plan.exact = [site for site in plan.exact if site.path in kept]
        changes, more = layer_to_rms(module, plan, calls)
        notes += more
        targets = [site for site in targets if site.path not in kept]
    elif plan.writers:
        apply_centering(module, plan)
        targets = [_centered_site(site, plan) for site in targets]
        notes += ["writers of the stream were centered first", *describe_ties(plan)]
    reasons = {
        site.path: folded.get(site.path, plan.refused.get(site.path, "")) for site in targets
    }
    for site in targets:
        changes += replace_norms(
            module, [site], calls[site.path], batches, fit=fit, reasons=reasons, order=sites
        )
    _disable_fast_paths(module)
    _record_arrangement(module, calls)
    core = get_core(module)
    if core is not None:
        module = with_core(module, _rebuild_core(core, calls, _core_prefix(module)))
    order = {site.path: index for index, site in enumerate(sites)}
    changes.sort(key=lambda change: order[change.site])
    return NormChange(module, changes, notes, [site.path for site in targets])


def _find_sites(module: nn.Module, batch: Batch, call: Call) -> list[NormSite]:
    """Return the norms to look at; raise `UserError` if some are shared."""
    if call.name == "rms":
        found = find_all_sites(module, batch)
    else:
        found = find_norm_sites(module, batch, ("layer", "rms"))
    core = get_core(module)
    if core is not None:
        found = [site for site in found if ".qk_norm." not in f".{site.path}."]
    elif call.name != "rms":  # a centered LayerNorm of queries is an RMSNorm, too
        found = [site for site in found if not site.is_query_key]
    if not found:
        raise UserError(
            f"norm: expected a model with LayerNorm or RMSNorm, got {type(module).__name__} "
            "without any of them"
        )
    shared = find_shared_norms(module, [site.path for site in found])
    if shared is not None:
        raise UserError(
            f"{shared[1]}: expected a norm of one site, got the one of {shared[0]}; give every "
            "site a norm of its own"
        )
    return [site for site in found if _differs(module, site, call)]


def _differs(module: nn.Module, site: NormSite, call: Call) -> bool:
    """Return whether a norm is of another kind, or lacks the gain that a call asks for."""
    is_bare = not any(True for _ in module.get_submodule(site.path).parameters())
    return site.law.kind != call.name or bool(call.options) or is_bare


def _plan(
    module: nn.Module, batch: Batch, sites: list[NormSite], call: Call, max_length: int
) -> tuple[nn.Module, list[NormSite], CenteringPlan, list[str]]:
    """Return the plan of centering, of a prepared model if that allows more."""
    plan = plan_centering(module, batch, find_all_sites(module, batch))
    core = get_core(module)
    if core is None or not plan.refused:
        return module, sites, plan, []
    prepared, notes = prepare_centering(core, max_length)
    if not notes:
        return module, sites, plan, []
    other = with_core(module, prepared)
    other_plan = plan_centering(other, batch, find_all_sites(other, batch))
    if len(other_plan.exact) <= len(plan.exact):
        return module, sites, plan, []
    return other, sites, other_plan, notes


def _choose_calls(module: nn.Module, sites: list[NormSite], call: Call) -> dict[str, Call]:
    """Return the new norm of each site; norms of one field of a config get the same."""
    calls = {site.path: merge_options(call, site) for site in sites}
    if get_core(module) is None:
        return calls
    prefix = _core_prefix(module)
    groups: dict[str, list[str]] = {}
    for path in calls:
        groups.setdefault(_config_field(path.removeprefix(prefix)), []).append(path)
    for paths in groups.values():
        options: dict[str, Any] = {}
        for path in paths:
            for name, value in calls[path].options.items():
                options[name] = max(options.get(name, value), value) if value is True else value
        for path in paths:
            calls[path] = norms.resolve(Call(call.name, options))
    return calls


def _core_prefix(module: nn.Module) -> str:
    core = get_core(module)
    assert core is not None
    return ("" if module is core else "model.") + inner_prefix(core)


def _config_field(path: str) -> str:
    """Return the field of a config that describes the norm at a path of its model."""
    if ".embed_norm" in f".{path}":
        return "embed_norm"
    return "encoder_norm" if path.startswith("encoder.") else "norm"


def _keeps_law(site: NormSite, call: Call) -> bool:
    """Return whether an RMSNorm of a call can have gain, bias and eps of a norm."""
    options = call.options
    is_affine = options.get("affine", True)
    has_bias = bool((site.law.bias != 0).any())
    same_eps = options.get("eps", 1e-6) == site.law.eps
    same_mode = options.get("eps_mode", "inside") == site.law.eps_mode
    whole = options.get("share", 1.0) == 1.0
    is_one = bool((site.law.gain == 1).all())
    return (
        same_eps
        and same_mode
        and whole
        and (is_affine or is_one)
        and (bool(options.get("bias", False)) or not has_bias)
    )


def _centered_site(site: NormSite, plan: CenteringPlan) -> NormSite:
    """Return a site whose norm need not subtract the mean any more."""
    if site.path not in {each.path for each in plan.exact}:
        return site
    law = dataclasses.replace(site.law, kind="rms")
    return dataclasses.replace(site, law=law, before=site.kind)


def _disable_fast_paths(module: nn.Module) -> None:
    """Keep nn.TransformerEncoderLayer from reading the weights of its norms past them."""
    for each in module.modules():
        if isinstance(each, nn.TransformerEncoderLayer):
            each.activation_relu_or_gelu = 0  # its forward then calls the modules
        if isinstance(each, nn.TransformerEncoder):
            each.use_nested_tensor = each.enable_nested_tensor = False


def _record_arrangement(module: nn.Module, calls: dict[str, Call]) -> None:
    """Tell stacks inside other modules which norm they have now."""
    if get_core(module) is not None:
        return
    for name, stack in module.named_modules():
        own = {
            str(c): c for p, c in calls.items() if p.startswith(f"{name}.wiring." if name else "")
        }
        if isinstance(stack, Stack) and len(own) == 1:
            stack.plan = dataclasses.replace(stack.plan, norm=next(iter(own.values())))
            stack.wiring.plan = stack.plan


def _rebuild_core(core: Model, calls: dict[str, Call], prefix: str) -> Model:
    """Return the model of a config that describes the new norms."""
    fields: dict[str, Any] = {}
    for path, call in calls.items():
        fields[_config_field(path.removeprefix(prefix))] = str(call)
    config = core.config
    if "encoder_norm" in fields and (config.kind != "seq2seq" or config.encoder_norm is None):
        encoder = fields.pop("encoder_norm")
        if fields.setdefault("norm", encoder) != encoder:
            fields["encoder_norm"] = encoder
    with torch.no_grad():
        return rebuild(core, get_state(core), **fields)
