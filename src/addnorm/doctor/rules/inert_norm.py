"""Norms that were built and do nothing."""

from collections.abc import Iterator
from itertools import chain

from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import EMBEDDINGS, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule
from addnorm.doctor.trace.opaque_modules import behaves_as_norm


@rule("inert_norm")
def inert_norm(context: RuleContext) -> Iterator[Finding]:
    """A norm that is never used, whose result no output depends on, or that cannot learn."""
    graph, visit = context.graph, context.trace
    used = {o.name for node in graph for o in node.operands if o.kind == "weight"}
    sizes = {graph[r.add.node].shape[-1] for r in context.blocks if graph[r.add.node].shape}
    tried: dict[tuple[type, str], bool] = {}
    for path, module in visit.model.named_modules():
        if any(True for _ in module.children()) or visit.recorder.call_counts.get(path):
            continue
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        if any(name in used for name in names):
            continue
        # What keeps nothing does the same wherever it stands: the dropouts of all layers, say.
        keeps = any(True for _ in chain(module.parameters(), module.buffers()))
        twins = (type(module), path if keeps else repr(module))
        if twins not in tried:
            tried[twins] = behaves_as_norm(module, sizes)
        if not tried[twins]:
            continue
        if _is_in_unused_part(context, path, used=used):
            continue  # nothing around it ran: another input would have used all of it
        beside = _find_unused_sibling(context, path, used=used)
        yield Finding(
            "inert_norm", "info" if beside else "error", path,
            f"this norm was not used, nor was {beside} beside it; if other inputs use both, all is "
            "well" if beside else
            "this norm was built and never used; call it where it belongs or take it out",
            {"calls": 0, "weights": names},
        )  # fmt: skip
    yield from _find_untrained_norms(context)


def _is_in_unused_part(context: RuleContext, path: str, *, used: set[str]) -> bool:
    """Whether a norm stands in a part of the model that did not run at all."""
    while path:
        path = path.rpartition(".")[0]
        if not path or context.trace.recorder.call_counts.get(path):
            return False
        inside = [n for n, w in context.weights.items() if n.startswith(f"{path}.") and w.dim() > 1]
        if inside:
            return not any(name in used for name in inside)
    return False


def _find_unused_sibling(context: RuleContext, path: str, *, used: set[str]) -> str:
    """A sub-layer with matrices beside a norm that did not run either; empty if there is none."""
    parent, _, own = path.rpartition(".")
    for name, module in context.trace.model.get_submodule(parent).named_children():
        whole = f"{parent}.{name}" if parent else name
        weights = [f"{whole}.{n}" for n, w in module.named_parameters() if w.dim() > 1]
        idle = weights and not context.trace.recorder.call_counts.get(whole)
        if name != own and idle and not any(weight in used for weight in weights):
            return whole
    return ""


def _find_untrained_norms(context: RuleContext) -> Iterator[Finding]:
    """Norms whose result was thrown away, and norms that nothing can be learned for."""
    graph, ends = context.graph, context.trace.recorder.outputs
    if not ends:
        return
    heard, taught = _find_ancestors(graph, ends), _find_ancestors(graph, ends, requires_grad=True)
    told: set[str] = set()
    for norm in context.iter_norms():
        names = context.norm_weights(norm) or tuple(context.weight_names(norm.node))
        arrived = any(name in context.trace.weight_gradients for name in names)
        if arrived or norm.path in told or (norm.by_hand and not names):
            continue
        if norm.node in heard and not _is_cut_off(context, norm, names=names, trained=taught):
            continue
        told.add(norm.path)
        why = (
            "the weights of this norm get no gradient, though what it reads and what reads it "
            "learn; take away the detach, no_grad or .data around it, or freeze its weights"
            if norm.node in heard else
            "the result of this norm reaches no output, and its weights get no gradient; use what "
            "it returns"
        )  # fmt: skip
        seen = {"gradient": None, "weights": list(names)}
        yield Finding("inert_norm", "error", norm.path, why, seen)


def _find_ancestors(graph: Graph, ends: list[int], *, requires_grad: bool = False) -> set[int]:
    """Everything that some nodes are made of; or only what autograd follows back."""
    found = {i for i in ends if graph[i].grad or not requires_grad}
    waiting = list(found)
    while waiting:
        for operand in graph[waiting.pop()].operands:
            known = operand.kind != "node" or operand.node in found
            if not known and (graph[operand.node].grad or not requires_grad):
                found.add(operand.node)
                waiting.append(operand.node)
    return found


def _is_cut_off(
    context: RuleContext, norm: Norm, *, names: tuple[str, ...], trained: set[int]
) -> bool:
    """Whether weights of a norm are to learn and cannot, in the midst of others that do.

    Where its neighbours do not learn either, a whole branch was stopped, and that was meant.
    """
    if not any(context.weights[name].requires_grad for name in names):
        return False
    graph, gradients = context.graph, context.trace.weight_gradients
    if norm.node in trained and _are_weights_reached(graph, norm):
        return False  # what follows it is no part of this loss

    def learns(nodes: set[int]) -> list[bool]:
        mine = [(i, context.weight_names(i)) for i in nodes]
        return [i in trained and any(n in gradients for n in used) for i, used in mine if used]

    before, behind = (
        learns(_mixing_ancestors(graph, norm.source)),
        learns(_mixing_users(graph, norm.node)),
    )
    return any(behind) and (not before or any(before))


def _are_weights_reached(graph: Graph, norm: Norm) -> bool:
    """Whether gradients of a norm's result reach its weights: used as they are, not as a copy."""
    places = (norm.node, *find_gain_nodes(graph, norm))
    used = [graph[o.node] for i in places for o in graph[i].operands if o.kind == "node"]
    return not any(node.learned and not node.grad for node in used)


def _mixing_ancestors(graph: Graph, index: int) -> set[int]:
    """The nearest nodes behind one that mix, or look something up."""
    found, seen, waiting = set[int](), {index}, [index]
    while waiting:
        node = graph[waiting.pop()]
        if is_mixing(node.op) or node.op in EMBEDDINGS:
            found.add(node.index)
            continue
        new = [i for i in node.inputs if i not in seen]
        seen.update(new)
        waiting += new
    return found


def _mixing_users(graph: Graph, index: int) -> set[int]:
    """The nearest nodes that mix what a node made."""
    found, seen, waiting = set[int](), {index}, [index]
    while waiting:
        for kid in graph[waiting.pop()].users:
            if kid in seen:
                continue
            seen.add(kid)
            if is_mixing(graph[kid].op):
                found.add(kid)
            else:
                waiting.append(kid)
    return found
