"""Norms that were built and do nothing."""

from collections.abc import Iterator
from itertools import chain

from addnorm.doctor.analysis.norms import Norm, own_gain
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import EMBEDDINGS, mixes
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.trace.opaque_modules import behaves_as_norm


@rule("inert_norm")
def inert_norm(case: Case) -> Iterator[Finding]:
    """A norm that is never used, whose result no output depends on, or that cannot learn."""
    graph, visit = case.graph, case.visit
    used = {o.name for node in graph for o in node.operands if o.kind == "weight"}
    sizes = {graph[r.join.node].shape[-1] for r in case.blocks if graph[r.join.node].shape}
    tried: dict[tuple[type, str], bool] = {}
    for path, module in visit.model.named_modules():
        if any(True for _ in module.children()) or visit.recorder.calls.get(path):
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
        if _idle_part(case, path, used=used):
            continue  # nothing around it ran: another input would have used all of it
        beside = _idle_beside(case, path, used=used)
        yield Finding(
            "inert_norm", "info" if beside else "error", path,
            f"this norm was not used, nor was {beside} beside it; if other inputs use both, all is "
            "well" if beside else
            "this norm was built and never used; call it where it belongs or take it out",
            {"calls": 0, "weights": names},
        )  # fmt: skip
    yield from _unheard(case)


def _idle_part(case: Case, path: str, *, used: set[str]) -> bool:
    """Whether a norm stands in a part of the model that did not run at all."""
    while path:
        path = path.rpartition(".")[0]
        if not path or case.visit.recorder.calls.get(path):
            return False
        inside = [n for n, w in case.weights.items() if n.startswith(f"{path}.") and w.dim() > 1]
        if inside:
            return not any(name in used for name in inside)
    return False


def _idle_beside(case: Case, path: str, *, used: set[str]) -> str:
    """A sub-layer with matrices beside a norm that did not run either; empty if there is none."""
    parent, _, own = path.rpartition(".")
    for name, module in case.visit.model.get_submodule(parent).named_children():
        whole = f"{parent}.{name}" if parent else name
        weights = [f"{whole}.{n}" for n, w in module.named_parameters() if w.dim() > 1]
        idle = weights and not case.visit.recorder.calls.get(whole)
        if name != own and idle and not any(weight in used for weight in weights):
            return whole
    return ""


def _unheard(case: Case) -> Iterator[Finding]:
    """Norms whose result was thrown away, and norms that nothing can be learned for."""
    graph, ends = case.graph, case.visit.recorder.outputs
    if not ends:
        return
    heard, taught = _behind(graph, ends), _behind(graph, ends, followed=True)
    told: set[str] = set()
    for norm in case.each_norm():
        names = case.norm_weights(norm) or tuple(case.named_operands(norm.node))
        arrived = any(name in case.visit.weight_gradients for name in names)
        if arrived or norm.path in told or (norm.by_hand and not names):
            continue
        if norm.node in heard and not _cut_off(case, norm, names=names, taught=taught):
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


def _behind(graph: Graph, ends: list[int], *, followed: bool = False) -> set[int]:
    """Everything that some nodes are made of; or only what autograd follows back."""
    found = {i for i in ends if graph[i].grad or not followed}
    waiting = list(found)
    while waiting:
        for operand in graph[waiting.pop()].operands:
            known = operand.kind != "node" or operand.node in found
            if not known and (graph[operand.node].grad or not followed):
                found.add(operand.node)
                waiting.append(operand.node)
    return found


def _cut_off(case: Case, norm: Norm, *, names: tuple[str, ...], taught: set[int]) -> bool:
    """Whether weights of a norm are to learn and cannot, in the midst of others that do.

    Where its neighbours do not learn either, a whole branch was stopped, and that was meant.
    """
    if not any(case.weights[name].requires_grad for name in names):
        return False
    graph, gradients = case.graph, case.visit.weight_gradients
    if norm.node in taught and _reached(graph, norm):
        return False  # what follows it is no part of this loss

    def learns(nodes: set[int]) -> list[bool]:
        mine = [(i, case.named_operands(i)) for i in nodes]
        return [i in taught and any(n in gradients for n in used) for i, used in mine if used]

    before, behind = learns(_makers(graph, norm.source)), learns(_readers(graph, norm.node))
    return any(behind) and (not before or any(before))


def _reached(graph: Graph, norm: Norm) -> bool:
    """Whether gradients of a norm's result reach its weights: used as they are, not as a copy."""
    places = (norm.node, *own_gain(graph, norm))
    used = [graph[o.node] for i in places for o in graph[i].operands if o.kind == "node"]
    return not any(node.learned and not node.grad for node in used)


def _makers(graph: Graph, index: int) -> set[int]:
    """The nearest nodes behind one that mix, or look something up."""
    found, seen, waiting = set[int](), {index}, [index]
    while waiting:
        node = graph[waiting.pop()]
        if mixes(node.op) or node.op in EMBEDDINGS:
            found.add(node.index)
            continue
        new = [i for i in node.ins if i not in seen]
        seen.update(new)
        waiting += new
    return found


def _readers(graph: Graph, index: int) -> set[int]:
    """The nearest nodes that mix what a node made."""
    found, seen, waiting = set[int](), {index}, [index]
    while waiting:
        for kid in graph[waiting.pop()].kids:
            if kid in seen:
                continue
            seen.add(kid)
            if mixes(graph[kid].op):
                found.add(kid)
            else:
                waiting.append(kid)
    return found
