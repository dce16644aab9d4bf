"""Rule `unused_in_layer`: parts that one layer ignores, although the other layers use theirs.

layers.0.drop  layers.1.drop  layers.2.drop      of one list, so the same part of three layers
called         called         not called         layers.2 ignores it
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.nn.modules.dropout import _DropoutNd

from addnorm.doctor.report import Finding, join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.model_runs import trace_in_train_mode
from addnorm.doctor.trace.opaque_modules import behaves_as_norm


@dataclass(frozen=True, slots=True)
class _Part:
    """A weight or a dropout of one layer."""

    path: str
    layer: str
    """Path of the innermost element of a list around it."""
    is_matrix: bool = False

    @property
    def name(self) -> str:
        """Path with `*` for the index of the layer: equal for the same part of other layers."""
        return re.sub(r"\d+$", "*", self.layer) + self.path.removeprefix(self.layer)


@rule("unused_in_layer")
def unused_in_layer(context: RuleContext) -> Iterator[Finding]:
    """Report weights and dropouts that one layer does not use while equal layers use theirs.

    Layers that did not run at all are reported if the others are consecutive layers of a residual
    stream: experts and heads that the inputs do not select are not. Several matrices that a layer
    leaves out together are at most a remark, unless they are a whole sub-module: layers may share
    keys and values. So is a part of a layer whose weights have other sizes: it may have another
    stride, or another task.
    """
    counts = count_uses(context)
    groups: dict[str, list[_Part]] = {}
    for part in _iter_parts(context):
        groups.setdefault(part.name, []).append(part)
    ignored: dict[str, list[_Part]] = {}
    equals: defaultdict[str, set[str]] = defaultdict(set)
    for parts in groups.values():
        for part in parts:
            others = [p for p in parts if p.path != part.path and _are_alike(context, part, p)]
            uses = [counts.get(other.path, 0) for other in others]
            is_unused = part.path not in counts and any(uses)
            # A dropout or scale with several uses in all layers but one.
            is_partial = not part.is_matrix and len(uses) > 1 and len(set(uses)) == 1
            if is_unused or (is_partial and 0 < counts.get(part.path, 0) < uses[0]):
                ignored.setdefault(part.layer, []).append(part)
                using = {p.layer for p, n in zip(others, uses, strict=True) if n}
                equals[part.layer] |= _find_equal(context, part.layer, using)
    for layer, parts in ignored.items():
        if not any(path.startswith(f"{layer}.") for path in counts):
            if _are_consecutive(context, layer):
                yield _make_finding(layer, [layer], is_certain=True)
            continue
        paths = list(_outermost(context, parts, counts))  # unused norms have a rule of their own
        matrices = {p.path.rpartition(".")[0] for p in parts if p.is_matrix}
        if paths:
            is_whole = _is_whole_child(context, layer, matrices, counts)
            is_certain = (len(matrices) < 2 or is_whole) and bool(equals[layer])
            yield _make_finding(layer, paths, is_certain=is_certain)


def _make_finding(layer: str, paths: list[str], *, is_certain: bool) -> Finding:
    is_whole = paths == [layer]
    what = "this layer is never run" if is_whole else f"this layer ignores {join_paths(paths)}"
    return Finding(
        "unused_in_layer", "warning" if is_certain else "info", layer,
        f"{what}, although the other layers of the list use theirs; use it in forward, or do not "
        "build it",
        {"unused": paths[:4]},
    )  # fmt: skip


def count_uses(context: RuleContext) -> Counter[str]:
    """Return how often weights are read and modules are called, in the mode that uses them more."""
    others = (*context.trace.gradients.weights, *context.trace.recording.no_grad_weights)
    counts = Counter(dict.fromkeys(others, 1))  # those of opaque kernels
    for each in (context, trace_in_train_mode(context)):
        if each is not None:
            counts |= Counter(o.name for node in each.graph for o in node.operands if o.name)
            counts |= Counter(dict(each.trace.recording.call_counts))
    return counts


def _iter_parts(context: RuleContext) -> Iterator[_Part]:
    """Yield the trainable weights and the dropouts of the elements of lists."""
    for path, module in context.trace.model.named_modules():
        layer = _find_layer(path)
        if not layer:
            continue
        if isinstance(module, _DropoutNd) and module.p and layer != path:
            yield _Part(path, layer)
        for name, weight in module.named_parameters(recurse=False):
            whole = f"{path}.{name}"
            if whole in context.weights and context.is_trainable(whole):
                yield _Part(whole, layer, is_matrix=weight.dim() > 1)


def _is_whole_child(
    context: RuleContext, layer: str, matrices: set[str], counts: Counter[str]
) -> bool:
    """Return whether unused matrices are all those of one child of a layer."""
    children = {path.removeprefix(f"{layer}.").partition(".")[0] for path in matrices}
    if len(children) != 1:
        return False
    child = f"{layer}.{children.pop()}."
    return not any(
        name in counts
        for name, weight in context.weights.items()
        if weight.dim() > 1 and name.startswith(child)
    )


def _are_alike(context: RuleContext, one: _Part, other: _Part) -> bool:
    """Return whether two parts belong to layers of one class."""
    layers = [context.trace.model.get_submodule(part.layer) for part in (one, other)]
    return type(layers[0]) is type(layers[1])


def _find_equal(context: RuleContext, layer: str, others: set[str]) -> set[str]:
    """Return the other layers whose weights have the names and sizes of this one's."""
    sizes = _weight_sizes(context, layer)
    return {other for other in others if _weight_sizes(context, other) == sizes}


def _weight_sizes(context: RuleContext, layer: str) -> dict[str, torch.Size]:
    module = context.trace.model.get_submodule(layer)
    return {name: weight.shape for name, weight in module.named_parameters()}


def _find_layer(path: str) -> str:
    """Return the path up to the last index of a list; empty without one."""
    match = re.match(r"(?:.*\.)?\d+(?=\.|$)", path)
    return match.group() if match else ""


def _outermost(
    context: RuleContext, parts: list[_Part], counts: Mapping[str, int]
) -> Iterator[str]:
    """Yield the paths of unused parts: a module instead of its weights if none of them is used."""
    sizes = {shape[-1] for b in context.blocks if (shape := context.graph[b.add.node].shape)}
    visited: set[str] = set()
    for part in parts:
        parent = part.path.rpartition(".")[0]
        is_whole = part.path in context.weights and not any(
            path == parent or path.startswith(f"{parent}.") for path in counts
        )
        path = parent if is_whole else part.path
        module = context.trace.model.get_submodule(parent)
        if path not in visited and not (is_whole and behaves_as_norm(module, sizes)):
            yield path
        visited.add(path)


def _are_consecutive(context: RuleContext, layer: str) -> bool:
    """Return whether the other elements of a list all add to a residual stream of the output."""
    container = layer.rpartition(".")[0]
    others = [
        f"{container}.{name}" if container else name
        for name, _ in context.trace.model.get_submodule(container).named_children()
    ]
    running = [o for o in others if context.trace.recording.call_counts.get(o)]
    return len(running) > 1 and all(
        any(f"{b.add.module}.".startswith(f"{path}.") for b in context.blocks) for path in running
    )
