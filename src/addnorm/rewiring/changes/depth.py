"""More layers that do nothing at the start.

A new layer is a copy of its neighbor whose output matrices are 0 (LLaMA Pro), or, in wirings whose
branches have a learned scalar and no norm, a copy behind a scalar of 0 (ReZero). Not both: then no
parameter would ever get a gradient.

Wu et al., LLaMA Pro: Progressive LLaMA with Block Expansion, 2024, arXiv 2401.02415.
"""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.models import Model, Seq2Seq
from addnorm.rewiring.core_models import (
    get_state,
    named_stacks,
    rebuild,
    site_numbers,
    stack_prefix,
    start_tensors,
)
from addnorm.rewiring.report import Change

GATES = {"rezero": "alpha", "skip_init": "a"}
"""Wirings without norms, and the name of the scalar on their branches."""
WRITERS = ("out_proj.weight", "out_proj.bias", "down_proj.weight", "down_proj.bias")
"""Weights of sub-layers that write to the stream."""


def spread_layers(depth: int, new_depth: int) -> list[tuple[int, bool]]:
    """Return (old layer, whether it is a new copy) of each layer; copies are spread evenly.

    >>> spread_layers(2, 4)
    [(0, False), (0, True), (1, False), (1, True)]
    >>> spread_layers(3, 4)
    [(0, False), (1, False), (2, False), (2, True)]
    """
    added, layers = new_depth - depth, []
    for index in range(depth):
        copies = (index + 1) * added // depth - index * added // depth
        layers += [(index, False)] + [(index, True)] * copies
    return layers


def grow_depth(core: Model, depth: int, *, fit: bool = True) -> tuple[Model, list[Change]]:
    """Return a model with more layers, in float64.

    Args:
        core: the model, which is not changed
        depth: number of layers
        fit: False leaves the copies as they are, as a naive growth does

    Raises:
        UserError: there are more layers already, or the wiring has tensors of another kind
    """
    config = core.config
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < config.depth:
        raise UserError(
            f"depth: expected a whole number from {config.depth}, the number of layers, got "
            f"{depth!r}; layers cannot be removed"
        )
    if depth == config.depth:
        return core, []
    fields: dict[str, object] = {"depth": depth}
    if isinstance(config.window, tuple):
        repeated = config.window * config.depth
        fields["window"] = tuple(repeated[old] for old, _ in spread_layers(config.depth, depth))
    new, tensors = start_tensors(core, **fields)
    old = get_state(core)
    result = {name: old[name] for name in tensors if name in old}
    changes = []
    for name, stack in named_stacks(core).items():
        if stack.plan.depth == named_stacks(new)[name].plan.depth:
            continue
        layers = spread_layers(stack.plan.depth, depth)
        prefix, per_layer = stack_prefix(core, name), stack.plan.per_layer
        sites = [(i * per_layer + s, copy) for i, copy in layers for s in range(per_layer)]
        names = [each for each in tensors if each.startswith(prefix)]
        gate = GATES.get(stack.wiring_call.name)
        counts = _count_entries(names)
        for each in names:
            result[each] = _map_tensor(
                each, tensors[each], old, prefix, sites, layers, counts, gate, fit
            )
        start = f"behind {gate} = 0" if gate else "with output matrices 0"
        count = depth - stack.plan.depth
        copies = "a copy of its neighbor" if count == 1 else f"{count} copies of their neighbors"
        text = f"{copies} {start}"
        change = Change(name, f"depth {stack.plan.depth}", f"depth {depth}", "equal_at_start", text)
        changes.append(change)
    if isinstance(core, Seq2Seq) and not changes:
        raise UserError("depth: expected stacks to grow, got none")
    return rebuild(core, result, **fields), changes


def _map_tensor(
    name: str,
    start: Tensor,
    old: dict[str, Tensor],
    prefix: str,
    sites: list[tuple[int, bool]],
    layers: list[tuple[int, bool]],
    counts: dict[str, int],
    gate: str | None,
    fit: bool,
) -> Tensor:
    """Return a tensor of the deeper stack; `counts` has the lengths of its lists by prefix."""
    own = name.removeprefix(prefix)
    for number, begin, end in site_numbers(name):
        if begin < len(prefix):
            continue
        # Lists have one entry per site, or one per layer, such as the norms of `parallel`.
        groups = layers if counts.get(name[:begin]) == len(layers) != len(sites) else sites
        source, is_copy = groups[number] if number < len(groups) else (number, False)
        before = f"{name[:begin]}{source}{name[end:]}"
        if before not in old or old[before].shape != start.shape:
            raise _unknown_error(own)
        is_idle = fit and is_copy and gate is None and name.endswith(WRITERS)
        return torch.zeros_like(old[before]) if is_idle else old[before]
    if name not in old:
        raise _unknown_error(own)
    value = old[name]
    if value.shape == start.shape:
        return value
    for groups in (sites, layers):
        if start.ndim and start.shape[0] == len(groups) and value.shape[1:] == start.shape[1:]:
            rows = value[[source for source, _ in groups]].clone()
            if fit and own.rpartition(".")[2] == gate:
                rows[[copy for _, copy in groups]] = 0.0
            return rows
    raise _unknown_error(own)


def _count_entries(names: list[str]) -> dict[str, int]:
    """Return the number of entries of each list of modules, by what precedes their numbers."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        for number, begin, _ in site_numbers(name):
            numbers.setdefault(name[:begin], set()).add(number)
    return {prefix: max(found) + 1 for prefix, found in numbers.items()}


def _unknown_error(name: str) -> UserError:
    return UserError(
        f"depth: expected a wiring with the same tensors for every layer, got {name}, which has no "
        "counterpart for new layers; change the wiring to pre_ln first"
    )
