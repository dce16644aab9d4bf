"""Rule `unused_weights`: matrices without effect beside an equal one that is used in their place.

value = self.k_proj(x)      v_proj is never read, k_proj twice
block(x)                    without the time: time_mlp is never read, that of equal blocks is
"""

import re
from collections.abc import Iterator, Mapping

from torch import nn

from addnorm.doctor.report import Finding, join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.unused_in_layer import count_uses


@rule("unused_weights")
def unused_weights(context: RuleContext) -> Iterator[Finding]:
    """Report unused sub-modules with matrices, if the model shows that they should be used.

    Either a sibling of the same sizes is used several times in one call, as after a mistyped
    name, or another module of the same class and sizes uses its own. Parts that nothing like them
    uses, such as a pooler or a cross-attention without a second input, are not reported.
    """
    counts = count_uses(context)
    modules = dict(context.trace.model.named_modules())
    mistyped: dict[str, str] = {}
    forgotten: dict[str, str] = {}
    for path, module in modules.items():
        if not counts.get(path):
            continue
        idle = [name for name in _children(module) if _is_idle(context, path, name, counts)]
        for name in idle:
            twin = _find_doubled_twin(context, path, name, counts)
            if twin:
                mistyped[_join(path, name)] = twin
        if len(idle) == 1 and _join(path, idle[0]) not in mistyped:
            other = _find_using_instance(context, path, idle[0], modules=modules, counts=counts)
            if other:
                forgotten[_join(path, idle[0])] = other
    if mistyped:
        first, twin = next(iter(mistyped.items()))
        yield Finding(
            "unused_weights", "warning", first,
            f"this module is never used, while its equal {twin} is used several times in one call "
            "of their parent; one of these calls probably means this one",
            {"unused": list(mistyped)[:4], "used instead": twin},
        )  # fmt: skip
    if forgotten:
        first, other = next(iter(forgotten.items()))
        yield Finding(
            "unused_weights", "warning", first,
            f"{join_paths(list(forgotten))} never used, although an equal module, {other}, uses "
            "its own; pass the input that it needs, or do not build it",
            {"unused": list(forgotten)[:4], "used": other},
        )  # fmt: skip
    yield from _check_discarded(context)


def _check_discarded(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding if every layer of a list computes something from a matrix and drops it.

    One layer may have no reader, as the last one of a second stream; norms and sums have rules of
    their own. What has no numbers, as the windows of inputs that are too short, is not counted.
    """
    readers: dict[str, list[int]] = {}
    for node in context.graph:
        for name in context.weight_names(node.index):
            readers.setdefault(name, []).append(node.index)
    reached = _find_reached(context)
    discarded: dict[str, list[str]] = {}
    for name, nodes in readers.items():
        is_matrix = context.weights[name].dim() > 1 and context.is_trainable(name)
        is_dead = name not in context.trace.gradients.weights and not reached & set(nodes)
        is_layer = is_matrix and is_dead and re.search(r"\d", name)
        if is_layer and not _ends_empty(context, nodes):
            discarded.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    if not context.trace.gradients.weights or not reached:
        return
    for pattern, names in discarded.items():
        alike = [n for n in context.weights if re.sub(r"\d+", "*", n) == pattern]
        if len(names) > 1 and len(names) == len(alike):
            yield Finding(
                "unused_weights", "warning", names[0].rpartition(".")[0],
                f"what {len(names)} layers compute from {join_paths(names)} is discarded, so that "
                "these weights get no gradient; use the result, or do not build them",
                {"discarded": names[:4], "layers": len(names)},
            )  # fmt: skip
            return


def _ends_empty(context: RuleContext, nodes: list[int]) -> bool:
    """Return whether nothing is left of what some nodes compute, as of too few windows."""
    visited, waiting = set(nodes), list(nodes)
    while waiting:
        node = context.graph[waiting.pop()]
        if node.size == 0:
            return True
        new = set(node.users) - visited
        visited |= new
        waiting += new
    return False


def _find_reached(context: RuleContext) -> set[int]:
    """Return the nodes that the outputs depend on, weights and masks included."""
    graph = context.graph
    return graph.data_ancestors(*context.trace.recording.outputs)


def _children(module: nn.Module) -> list[str]:
    """Return the names of the children with trainable matrices; elements of lists have a rule."""
    return [
        name
        for name, child in module.named_children()
        if not name.isdigit() and any(w.dim() > 1 and w.requires_grad for w in child.parameters())
    ]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_idle(context: RuleContext, path: str, name: str, counts: Mapping[str, int]) -> bool:
    """Return whether no part of a trainable child was called or read."""
    whole = _join(path, name)
    weights = [n for n in context.weights if n.startswith(f"{whole}.")]
    is_trainable = bool(weights) and all(map(context.is_trainable, weights))
    used = any(key == whole or key.startswith(f"{whole}.") for key in counts)
    return is_trainable and not used


def _find_doubled_twin(
    context: RuleContext, path: str, name: str, counts: Mapping[str, int]
) -> str:
    """Return the sibling of the same class and sizes that is called oftener than its parent."""
    module = context.trace.model.get_submodule(path)
    child = module.get_submodule(name)
    calls = context.trace.recording.call_counts
    for other, sibling in module.named_children():
        whole = _join(path, other)
        is_equal = type(sibling) is type(child) and _sizes(sibling) == _sizes(child)
        if other != name and is_equal and calls.get(whole, 0) > calls.get(path, 0) > 0:
            return whole
    return ""


def _find_using_instance(
    context: RuleContext,
    path: str,
    name: str,
    *,
    modules: Mapping[str, nn.Module],
    counts: Mapping[str, int],
) -> str:
    """Return a child of another module of the same class and sizes, outside its list, in use."""
    module, pattern = modules[path], re.sub(r"\d+", "*", path)
    for other, each in modules.items():
        if type(each) is not type(module) or re.sub(r"\d+", "*", other) == pattern:
            continue
        whole = _join(other, name)
        if counts.get(other) and counts.get(whole) and _sizes(each) == _sizes(module):
            return whole
    return ""


def _sizes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in module.named_parameters()}
