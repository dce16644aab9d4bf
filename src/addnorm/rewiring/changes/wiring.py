"""Another wiring around the same sub-layers.

Sub-layers keep their weights. Norms move to their new places, gates start at values that change
nothing, and norms without a counterpart are fitted to pass on what they get:

    from x + f(N(x))            to
    layer_scale, skip_init      gates 1: the same function
    hyper, denseformer, gpas    their own start values: the same function
    sandwich, keel, ...         new norms fitted to the identity on the data
    post_ln, deepnorm, ...      N of a site becomes the norm behind the site before it
"""

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.plan import Site
from addnorm.exporters.folding import fold, laws
from addnorm.models import Model
from addnorm.norms.base import Norm
from addnorm.norms.none import NoNorm
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.changes.share_norms import fold_own_norms
from addnorm.rewiring.core_models import (
    get_state,
    named_stacks,
    rebuild,
    stack_prefix,
    start_tensors,
)
from addnorm.rewiring.fitting import fit_norm, record_inputs
from addnorm.rewiring.report import Change
from addnorm.stacks.transformer import TransformerStack
from addnorm.wirings.base import registry as wirings
from addnorm.wirings.post_norm_base import PostNorm

NEUTRAL_GATES = {"layer_scale": "gamma", "skip_init": "a", "rezero": "alpha"}
"""Gates that are 1 in a rewired model, and leave its function unchanged then."""
FOLDED_FIRST = ("layer_scale", "rezero", "skip_init", "fixup", "t_fixup", "deepnorm", "admin")
"""Wirings whose terms are moved into weights before their sub-layers get another wiring."""


def change_wiring(core: Model, call: str, *, fit: bool) -> tuple[Model, list[Change], list[str]]:
    """Return a model with another wiring, in float64.

    Args:
        core: the addnorm model
        call: the new wiring
        fit: False keeps every norm where its name is, as a naive change does

    Returns:
        The model, its changes, and the paths of norms that have no counterpart in the old one.
    """
    target = wirings.resolve(call)
    before = {name: stack.wiring_call for name, stack in named_stacks(core).items()}
    if all(each == target for each in before.values()):
        return core, [], []
    if any(each.name in FOLDED_FIRST for each in before.values()):
        core = fold(core)[0].double()
    if fit and target.name == "parallel":
        core = fold_own_norms(core)  # norms of the same input can be one then
    fields: dict[str, object] = {"wiring": str(target)}
    if core.config.encoder_wiring is not None:
        fields["encoder_wiring"] = None
    moves = fit and _has_post_norms(core, target)
    if moves and core.config.embed_norm == "none":
        fields["embed_norm"] = str(next(iter(named_stacks(core).values())).plan.norm)
    new, tensors = start_tensors(core, **fields)
    old = get_state(core)
    result, unmatched = {}, []
    for name, value in tensors.items():
        source = _source_name(core, new, name, moves)
        if source in old and old[source].shape == value.shape:
            result[name] = old[source]
        else:
            result[name] = _start_value(new, name, value) if fit else value
            unmatched.append(name)
    if fit:
        _scale_branches(new, result)
    paths = [
        path
        for path, each in new.named_modules()
        if isinstance(each, Norm)
        and not isinstance(each, NoNorm)
        and any(name.startswith(f"{path}.") for name in unmatched)
    ]
    changes = [
        Change(name, str(each), str(target), "equal_at_start" if unmatched else "exact")
        for name, each in before.items()
    ]
    return rebuild(core, result, **fields), changes, paths


def _has_post_norms(core: Model, target: Call) -> bool:
    """Return whether norms move from before a sub-layer to behind an add."""
    for stack in named_stacks(core).values():
        wiring = wirings.make(target, stack.plan)
        sites = stack.plan.sites
        becomes_post = all(wiring.has_post_norm(site) for site in sites)
        has_inner = hasattr(wiring, "inner_norms")  # keel: pre-norms stay
        was_pre = not any(stack.wiring.has_post_norm(site) for site in sites)
        if becomes_post and was_pre and not has_inner and hasattr(stack.wiring, "norms"):
            return True
    return False


def _source_name(core: Model, new: Model, name: str, moves: bool) -> str:
    """Return the tensor of the old model that belongs to a tensor of the new one."""
    name = name.replace("wiring.inner.", "wiring.") if ".inner." in name else name
    for stack_name, stack in named_stacks(core).items():
        prefix = stack_prefix(core, stack_name)
        if not name.startswith(prefix):
            continue
        own = name.removeprefix(prefix)
        if moves:
            return prefix + _moved_name(stack, own)
        # KEEL's norms before sub-layers have another name, and its norms are new ones.
        target = named_stacks(new)[stack_name].wiring
        if hasattr(target, "inner_norms") and own.startswith("wiring."):
            if own.startswith("wiring.inner_norms."):
                return prefix + own.replace("inner_norms", "norms", 1)
            last = f"wiring.norms.{len(stack.plan.sites) - 1}."
            if own.startswith(last):  # the last norm is the final one
                return prefix + own.replace(last, "wiring.final_norm.", 1)
            return "" if own.startswith("wiring.norms.") else name
        return prefix + _counted_name(stack, named_stacks(new)[stack_name], own)
    return name


def _counted_name(old: TransformerStack, new: TransformerStack, own: str) -> str:
    """Return the old name of a norm where one wiring has norms per layer, the other per site."""
    counts = [len(getattr(each.wiring, "norms", ())) for each in (old, new)]
    sites, layers = len(old.plan.sites), old.plan.depth
    if not own.startswith("wiring.norms.") or set(counts) != {sites, layers}:
        return own
    parts = own.split(".")
    number, per_layer = int(parts[2]), old.plan.per_layer
    source = number // per_layer if counts[0] == layers else number * per_layer
    return ".".join((*parts[:2], str(source), *parts[3:]))


def _moved_name(stack: TransformerStack, own: str) -> str:
    """Return where a norm behind an add was, as a norm before the next sub-layer."""
    parts = own.split(".")
    if parts[0] == "embed_norm":
        return ".".join(("wiring", "norms", "0", *parts[1:]))
    if own.startswith("wiring.norms."):
        following = int(parts[2]) + 1
        if following < len(stack.plan.sites):
            return ".".join(("wiring", "norms", str(following), *parts[3:]))
        return ".".join(("wiring", "final_norm", *parts[3:]))
    return own


def _start_value(new: Model, name: str, value: Tensor) -> Tensor:
    """Return the value of a new tensor that changes nothing, where there is one."""
    for stack_name, stack in named_stacks(new).items():
        gate = NEUTRAL_GATES.get(stack.wiring_call.name)
        if gate and name == f"{stack_prefix(new, stack_name)}wiring.{gate}":
            return torch.ones_like(value)
    return value


def get_skip_scale(stack: TransformerStack, site: Site) -> float:
    """Return the constant by which a wiring multiplies the stream before it adds a branch."""
    wiring = stack.wiring
    scale = wiring.scale(site) if isinstance(wiring, PostNorm) else getattr(wiring, "alpha", 1.0)
    return float(scale) if isinstance(scale, int | float) else 1.0


def _scale_branches(new: Model, tensors: dict[str, Tensor]) -> None:
    """Scale branches like the skip: N(alpha x + alpha f) = N(x + f), but for eps."""
    for name, stack in named_stacks(new).items():
        prefix = stack_prefix(new, name)
        names = {id(weight): each for each, weight in stack.named_parameters()}
        for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
            alpha, linear = get_skip_scale(stack, site), laws.writer(sublayer)
            for weight in (linear.weight, linear.bias):
                if alpha != 1.0 and weight is not None:
                    each = prefix + names[id(weight)]
                    tensors[each] = tensors[each] * alpha


def fit_wiring(module: nn.Module, core: Model, paths: list[str], batches: list[Batch]) -> None:
    """Fit new norms to the identity, one after the other, in place; see `Model.calibrate`.

    Args:
        module: the model that the data are for; it contains `core`
        core: the addnorm model
        paths: paths of the new norms in `core`
        batches: data
    """
    prefix = "" if module is core else "model."
    scales = _output_scales(core)
    for path in paths:
        norm = core.get_submodule(path)
        assert isinstance(norm, Norm)
        x = record_inputs(module, prefix + path, batches)
        fit_norm(norm, x, x / scales.get(path, 1.0))


def _output_scales(core: Model) -> dict[str, float]:
    """Return the scale of the stream that each norm behind an add takes away, by path."""
    scales = {}
    for name, stack in named_stacks(core).items():
        prefix = stack_prefix(core, name)
        for site in stack.plan.sites:
            if stack.wiring.has_post_norm(site):
                scales[f"{prefix}wiring.norms.{site.index}"] = get_skip_scale(stack, site)
    return scales
