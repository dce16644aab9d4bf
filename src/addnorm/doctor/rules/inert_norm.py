"""Rule `inert_norm`: norms that are built but unused, or that cannot be trained."""

from collections.abc import Iterator
from itertools import chain

from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import EMBEDDINGS, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.trace.opaque_modules import behaves_as_norm


@rule("inert_norm")
def inert_norm(context: RuleContext) -> Iterator[Finding]:
    """Report norms that are never called, whose output is discarded, or that get no gradient."""
    graph, trace = context.graph, context.trace
    used = {o.name for node in graph for o in node.operands if o.name}
    sizes = {graph[r.add.node].shape[-1] for r in context.blocks if graph[r.add.node].shape}
    is_norm: dict[tuple[type, str], bool] = {}
    for path, module in trace.model.named_modules():
        if any(True for _ in module.children()) or trace.recording.call_counts.get(path):
            continue
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        if any(name in used for name in names):
            continue
        # Modules without state behave alike in every layer, so one test run covers all of them.
        has_state = any(True for _ in chain(module.parameters(), module.buffers()))
        key = (type(module), path if has_state else repr(module))
        if key not in is_norm:
            is_norm[key] = behaves_as_norm(module, sizes)
        if not is_norm[key]:
            continue
        if _is_in_unused_part(context, path, used=used):
            continue  # the enclosing part did not run either; other inputs may use it
        sibling = _find_unused_sibling(context, path, used=used)
        yield Finding(
            "inert_norm", "info" if sibling else "error", path,
            f"this norm was not called, and {sibling} next to it has no effect either; ignore this "
            "if other inputs use both" if sibling else
            "this norm is never called; call it in forward or remove it",
            {"calls": 0, "weights": names},
        )  # fmt: skip
    yield from _find_untrained_norms(context)


def _is_in_unused_part(context: RuleContext, path: str, *, used: set[str]) -> bool:
    """Return whether the part of the model around a norm did not run at all."""
    while path:
        path = path.rpartition(".")[0]
        if not path or context.trace.recording.call_counts.get(path):
            return False
        inside = [n for n, w in context.weights.items() if n.startswith(f"{path}.") and w.dim() > 1]
        if inside:
            return not any(name in used for name in inside)
    return False


def _find_unused_sibling(context: RuleContext, path: str, *, used: set[str]) -> str:
    """Return the path of a sub-layer with matrices next to a norm that has no effect, or "".

    It is not called, or its result is discarded, as a window that these inputs are too short for.
    """
    effective = {
        name for node in context.graph if context.is_used(node.index)
        for name in context.weight_names(node.index)
    }  # fmt: skip
    parent, _, own = path.rpartition(".")
    for name, module in context.trace.model.get_submodule(parent).named_children():
        whole = f"{parent}.{name}" if parent else name
        weights = [f"{whole}.{n}" for n, w in module.named_parameters() if w.dim() > 1]
        is_idle = not context.trace.recording.call_counts.get(whole) and not used & set(weights)
        if name != own and weights and (is_idle or not effective & set(weights)):
            return whole
    return ""


def _find_untrained_norms(context: RuleContext) -> Iterator[Finding]:
    """Yield norms whose output is discarded, and norms cut off from the gradient."""
    graph, ends = context.graph, context.trace.recording.outputs
    if not ends:
        return
    used, trained = _find_ancestors(graph, ends), _find_ancestors(graph, ends, requires_grad=True)
    reported: set[str] = set()
    for norm in context.iter_norms():
        names = context.norm_weights(norm) or tuple(context.weight_names(norm.node))
        has_gradient = any(name in context.trace.gradients.weights for name in names)
        if has_gradient or norm.path in reported or (norm.by_hand and not names):
            continue
        if norm.node in used and not _is_cut_off(context, norm, names=names, trained=trained):
            continue
        reported.add(norm.path)
        message = (
            "the weights of this norm get no gradient, although the layers before and after it do; "
            "remove the detach, no_grad or .data around it, or freeze its weights"
            if norm.node in used else
            "the output of this norm is discarded, so its weights get no gradient; use its return "
            "value"
        )  # fmt: skip
        evidence = {"gradient": None, "weights": list(names)}
        is_branch = norm.node not in used and _mixing_users(graph, norm.node)
        if is_branch:  # not the norm alone: the last layer of a second stream may have no reader
            message = (
                "what the sub-layer after this norm computes is discarded, so both get no "
                "gradient; ignore this if other outputs use it"
            )
        yield Finding("inert_norm", "info" if is_branch else "error", norm.path, message, evidence)


def _find_ancestors(
    graph: Graph, ends: tuple[int, ...], *, requires_grad: bool = False
) -> set[int]:
    """Return all nodes that `ends` depend on; with `requires_grad`, only along autograd's graph."""
    visited = {i for i in ends if graph[i].grad or not requires_grad}
    pending = list(visited)
    while pending:
        for operand in graph[pending.pop()].operands:
            known = operand.kind != "node" or operand.node in visited
            if not known and (graph[operand.node].grad or not requires_grad):
                visited.add(operand.node)
                pending.append(operand.node)
    return visited


def _is_cut_off(
    context: RuleContext, norm: Norm, *, names: tuple[str, ...], trained: set[int]
) -> bool:
    """Return whether trainable weights of a norm get no gradient while the layers around it do.

    If its neighbors get none either, a whole branch is frozen, which is taken as intended.
    """
    if not any(map(context.is_trainable, names)):
        return False
    graph, gradients = context.graph, context.trace.gradients.weights
    if norm.node in trained and _are_weights_reached(graph, norm):
        return False  # the loss does not depend on what follows the norm

    def get_gradients(nodes: set[int]) -> list[bool]:
        weights = [(i, context.weight_names(i)) for i in nodes]
        return [i in trained and any(n in gradients for n in used) for i, used in weights if used]

    before = get_gradients(_mixing_ancestors(graph, norm.source))
    after = get_gradients(_mixing_users(graph, norm.node))
    return any(after) and (not before or any(before))


def _are_weights_reached(graph: Graph, norm: Norm) -> bool:
    """Return whether a norm uses its weights themselves, not a detached copy of them."""
    nodes = (norm.node, *find_gain_nodes(graph, norm))
    used = [graph[o.node] for i in nodes for o in graph[i].operands if o.kind == "node"]
    return not any(node.learned and not node.grad for node in used)


def _mixing_ancestors(graph: Graph, index: int) -> set[int]:
    """Return the closest ancestors that mix features or look up an embedding."""
    found, visited, pending = set[int](), {index}, [index]
    while pending:
        node = graph[pending.pop()]
        if is_mixing(node.op) or node.op in EMBEDDINGS:
            found.add(node.index)
            continue
        new = [i for i in node.inputs if i not in visited]
        visited.update(new)
        pending += new
    return found


def _mixing_users(graph: Graph, index: int) -> set[int]:
    """Return the closest descendants that mix features."""
    found, visited, pending = set[int](), {index}, [index]
    while pending:
        for user in graph[pending.pop()].users:
            if user in visited:
                continue
            visited.add(user)
            if is_mixing(graph[user].op):
                found.add(user)
            else:
                pending.append(user)
    return found
