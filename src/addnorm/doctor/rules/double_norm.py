"""A norm right behind another norm."""

from collections.abc import Callable, Iterator

from addnorm.doctor.analysis.norms import Norm, own_gain
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule

TOKEN_NORMS = ("layer", "rms")


def again(case: Case, norm: Norm) -> Norm | None:
    """The norm that alone reads this norm's result."""
    graph = case.graph
    index = norm.node
    gains = own_gain(graph, norm)
    for _ in range(12):
        kids = graph[index].kids
        direct = [n for n in case.norms.values() if n.source == index and n.node != norm.node]
        if direct:
            alone = all(_within(graph, kid, norm=direct[0]) for kid in kids)
            return direct[0] if alone else None
        if len(kids) != 1:
            return None
        node = graph[kids[0]]
        passes = graph.back(kids[0]) is not None and node.op != "neg"
        if not (passes or kids[0] in gains or (node.op in ("add", "sub") and len(node.ins) == 1)):
            return None
        index = kids[0]
    return None


def _within(graph: Graph, kid: int, *, norm: Norm) -> bool:
    """Whether a reader of the source is part of the norm itself: its mean, its square."""
    return kid == norm.node or (norm.by_hand and norm.node in _ahead(graph, kid, end=norm.node))


def _ahead(graph: Graph, start: int, *, end: int) -> set[int]:
    seen, waiting = {start}, [start]
    while waiting:
        for kid in graph[waiting.pop()].kids:
            if kid <= end and kid not in seen:
                seen.add(kid)
                waiting.append(kid)
    return seen


@rule("double_norm")
def double_norm(case: Case) -> Iterator[Finding]:
    """Applied twice in a row, with nothing between."""
    own = {r.post_norm for r in case.blocks}
    yield from _pairs(case, lambda norm: norm.node not in own, name="double_norm")


@rule("doubled_final_norm")
def doubled_final_norm(case: Case) -> Iterator[Finding]:
    """A final norm behind Post-LN, whose last norm is final already."""
    own = {r.post_norm for r in case.blocks if r.post and r.post_norm >= 0}
    yield from _pairs(case, lambda norm: norm.node in own, name="doubled_final_norm")


def _pairs(case: Case, chosen: Callable[[Norm], bool], *, name: str) -> Iterator[Finding]:
    for norm in case.each_norm():
        if norm.kind not in TOKEN_NORMS or not chosen(norm):
            continue
        second = again(case, norm)
        if second is None or second.kind not in TOKEN_NORMS or second.axes != norm.axes:
            continue
        words = (
            "a final norm follows Post-LN, whose last norm is the final one already; take one out"
            if name == "doubled_final_norm"
            else "two norms in a row; the second undoes all of the first but its gain: take one out"
        )
        yield Finding(
            name, "warning", second.path, words,
            {"first": norm.path, "second": second.path, "kinds": [norm.kind, second.kind]},
        )  # fmt: skip
