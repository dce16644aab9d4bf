"""A norm right behind another norm."""

from collections.abc import Callable, Iterator

from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

TOKEN_NORMS = ("layer", "rms")


def find_next_norm(context: RuleContext, norm: Norm) -> Norm | None:
    """The norm that alone reads this norm's result."""
    graph = context.graph
    index = norm.node
    gains = find_gain_nodes(graph, norm)
    for _ in range(12):
        kids = graph[index].users
        direct = [n for n in context.norms.values() if n.source == index and n.node != norm.node]
        if direct:
            alone = all(_is_part_of_norm(graph, kid, norm=direct[0]) for kid in kids)
            return direct[0] if alone else None
        if len(kids) != 1:
            return None
        node = graph[kids[0]]
        passes = graph.parent_through_scale(kids[0]) is not None and node.op != "neg"
        if not (
            passes or kids[0] in gains or (node.op in ("add", "sub") and len(node.inputs) == 1)
        ):
            return None
        index = kids[0]
    return None


def _is_part_of_norm(graph: Graph, kid: int, *, norm: Norm) -> bool:
    """Whether a reader of the source is part of the norm itself: its mean, its square."""
    return kid == norm.node or (
        norm.by_hand and norm.node in _find_descendants(graph, kid, end=norm.node)
    )


def _find_descendants(graph: Graph, start: int, *, end: int) -> set[int]:
    seen, waiting = {start}, [start]
    while waiting:
        for kid in graph[waiting.pop()].users:
            if kid <= end and kid not in seen:
                seen.add(kid)
                waiting.append(kid)
    return seen


@rule("double_norm")
def double_norm(context: RuleContext) -> Iterator[Finding]:
    """Applied twice in a row, with nothing between."""
    own = {r.post_norm for r in context.blocks}
    yield from _find_pairs(context, lambda norm: norm.node not in own, name="double_norm")


@rule("doubled_final_norm")
def doubled_final_norm(context: RuleContext) -> Iterator[Finding]:
    """A final norm behind Post-LN, whose last norm is final already."""
    own = {r.post_norm for r in context.blocks if r.has_post_norm and r.post_norm >= 0}
    yield from _find_pairs(context, lambda norm: norm.node in own, name="doubled_final_norm")


def _find_pairs(
    context: RuleContext, predicate: Callable[[Norm], bool], *, name: str
) -> Iterator[Finding]:
    for norm in context.iter_norms():
        if norm.kind not in TOKEN_NORMS or not predicate(norm):
            continue
        second = find_next_norm(context, norm)
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
