"""Norms that were built and do nothing."""

from collections.abc import Iterator

from addnorm.doctor.hidden import behaves_as_norm
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule


@rule("inert_norm")
def inert_norm(case: Case) -> Iterator[Finding]:
    """A norm that is never used, or whose result no output depends on."""
    graph, visit = case.graph, case.visit
    used = {o.name for node in graph for o in node.operands if o.kind == "weight"}
    sizes = {graph[r.join.node].shape[-1] for r in case.blocks if graph[r.join.node].shape}
    for path, module in visit.model.named_modules():
        if any(True for _ in module.children()) or visit.recorder.calls.get(path):
            continue
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        if any(name in used for name in names) or not behaves_as_norm(module, sizes):
            continue
        if _idle_part(case, path, used):
            continue  # nothing around it ran: another input would have used all of it
        beside = _idle_beside(case, path, used)
        yield Finding(
            "inert_norm", "info" if beside else "error", path,
            f"this norm was not used, nor was {beside} beside it; if other inputs use both, all is "
            "well" if beside else
            "this norm was built and never used; call it where it belongs or take it out",
            {"calls": 0, "weights": names},
        )  # fmt: skip
    yield from _unheard(case)


def _idle_part(case: Case, path: str, used: set[str]) -> bool:
    """Whether a norm stands in a part of the model that did not run at all."""
    while path:
        path = path.rpartition(".")[0]
        if not path or case.visit.recorder.calls.get(path):
            return False
        inside = [n for n, w in case.weights.items() if n.startswith(f"{path}.") and w.dim() > 1]
        if inside:
            return not any(name in used for name in inside)
    return False


def _idle_beside(case: Case, path: str, used: set[str]) -> str:
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
    """Norms that were computed and whose result was thrown away."""
    graph, ends = case.graph, case.visit.recorder.outputs
    if not ends:
        return
    heard, waiting = set(ends), list(ends)
    while waiting:
        for operand in graph[waiting.pop()].operands:
            if operand.kind == "node" and operand.node not in heard:
                heard.add(operand.node)
                waiting.append(operand.node)
    told: set[str] = set()
    for norm in case.each_norm():
        names = case.norm_weights(norm)
        arrived = any(name in case.visit.weight_gradients for name in names)
        if norm.node in heard or arrived or norm.path in told or (norm.by_hand and not names):
            continue
        told.add(norm.path)
        yield Finding(
            "inert_norm", "error", norm.path,
            "the result of this norm reaches no output, and its weights get no gradient; use what "
            "it returns",
            {"gradient": None, "weights": list(names)},
        )  # fmt: skip
