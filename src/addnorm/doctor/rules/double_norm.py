"""Rules `double_norm` and `doubled_final_norm`: a norm applied to the output of another norm."""

from collections.abc import Callable, Iterator

from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

TOKEN_NORMS = ("layer", "rms")


def find_next_norm(context: RuleContext, norm: Norm) -> Norm | None:
    """Return the norm that is the only reader of another norm's output, or None.

    Gains, biases, casts and positive scales between the two are skipped.
    """
    graph = context.graph
    index = norm.node
    gains = find_gain_nodes(graph, norm)
    for _ in range(12):
        users = graph[index].users
        direct = [n for n in context.norms.values() if n.source == index and n.node != norm.node]
        if direct:
            exclusive = all(_is_part_of_norm(graph, user, norm=direct[0]) for user in users)
            return direct[0] if exclusive else None
        if len(users) != 1:
            return None
        node = graph[users[0]]
        passes = graph.parent_through_scale(users[0]) is not None and node.op != "neg"
        if not (
            passes or users[0] in gains or (node.op in ("add", "sub") and len(node.inputs) == 1)
        ):
            return None
        index = users[0]
    return None


def _is_part_of_norm(graph: Graph, user: int, *, norm: Norm) -> bool:
    """Return whether a reader of the norm's input is part of the norm, such as its mean."""
    return user == norm.node or (
        norm.by_hand and norm.node in _find_descendants(graph, user, end=norm.node)
    )


def _find_descendants(graph: Graph, start: int, *, end: int) -> set[int]:
    visited, pending = {start}, [start]
    while pending:
        for user in graph[pending.pop()].users:
            if user <= end and user not in visited:
                visited.add(user)
                pending.append(user)
    return visited


@rule("double_norm")
def double_norm(context: RuleContext) -> Iterator[Finding]:
    """Report two norms in a row with nothing but gains and biases between them."""
    own = {r.post_norm for r in context.blocks}
    yield from _find_pairs(context, lambda norm: norm.node not in own, name="double_norm")


@rule("doubled_final_norm")
def doubled_final_norm(context: RuleContext) -> Iterator[Finding]:
    """Report a final norm after Post-LN, whose last norm already normalizes the output."""
    own = {r.post_norm for r in context.blocks if r.has_post_norm and r.post_norm is not None}
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
        message = (
            "a final norm follows a Post-LN block, whose own norm already normalizes the output; "
            "remove one of the two"
            if name == "doubled_final_norm"
            else "two norms follow each other directly, and the second cancels all of the first "
            "but its gain and bias; remove one of the two"
        )
        yield Finding(
            name, "warning", second.path, message,
            {"first": norm.path, "second": second.path, "kinds": [norm.kind, second.kind]},
        )  # fmt: skip
