"""Rules `double_norm` and `doubled_final_norm`: a norm applied to the output of another norm.

n2(n1(x))                       directly, or with gains, casts and slices between
n2(n1(x).mean(1))               before and after pooling: a final norm and a norm in the head
n2(m), n3(m) with m = n1(x)     every reader of the first norm normalizes again
m + f(n2(m)) with m = n1(x)     a stack that ends with a norm, followed by a Pre-LN stack
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from addnorm.doctor.analysis.norms import Norm, find_gain_nodes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.contractions import is_activation_product, tensor_operands
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import ATTENTION, POOLING, SLICES
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

TOKEN_NORMS = ("layer", "rms")
MAX_STEPS_BETWEEN = 12
"""Most operations between two norms in a row, such as gains, casts, slices and pooling."""
POOLED_BY = frozenset({"mean", "sum", "amax", "max"})
LAYER_KINDS = ({"self-attention", "feed-forward"}, {"cross-attention", "feed-forward"})


@dataclass(frozen=True, slots=True)
class _Repetition:
    """A norm whose output is read by norms only."""

    first: Norm
    seconds: tuple[Norm, ...]
    is_pooled: bool = False
    """Whether tokens are pooled in between."""


def _find_repetition(context: RuleContext, norm: Norm) -> _Repetition | None:
    """Return the norms that are the only readers of another norm's output, or None.

    Gains, biases, casts, positive scales, slices of tokens and pooling between them are skipped.
    """
    graph, is_pooled = context.graph, False
    index = norm.node
    gains = find_gain_nodes(graph, norm)
    for _ in range(MAX_STEPS_BETWEEN):
        users = [user for user in graph[index].users if context.is_used(user)]
        direct = [n for n in context.norms.values() if n.source == index and n.node != norm.node]
        if direct:
            is_exclusive = _is_read_by_norms_only(context, index, norms=direct)
            return _Repetition(norm, tuple(direct), is_pooled) if is_exclusive else None
        if len(users) != 1:
            return None
        node = graph[users[0]]
        passes = graph.parent_through_scale(users[0]) is not None and node.op != "neg"
        is_bias = node.op in ("add", "sub") and len(node.inputs) == 1
        keeps_features = node.shape[-1:] == graph[index].shape[-1:] and len(node.inputs) == 1
        is_reduced = keeps_features and node.op in POOLED_BY and node.size < graph[index].size
        pools = is_reduced or node.op in POOLING
        selects = keeps_features and node.op in SLICES
        if not (passes or users[0] in gains or is_bias or pools or selects):
            return None
        index, is_pooled = users[0], is_pooled or pools
    return None


def _is_read_by_norms_only(context: RuleContext, index: int, *, norms: list[Norm]) -> bool:
    """Return whether all readers of a node are parts of norms of it, such as their means.

    The source of a norm written by hand may lie before the gain of the norm before, so what reads
    the nodes in between counts, too.
    """
    graph = context.graph
    ends = {norm.node for norm in norms}
    inside = {i for norm in norms for i in graph.nodes_between(index, norm.node)} | {index}
    return all(
        user in inside for i in inside - ends for user in graph[i].users if context.is_used(user)
    )


@rule("double_norm")
def double_norm(context: RuleContext) -> Iterator[Finding]:
    """Report two norms in a row with nothing but gains and biases between them."""
    own = {r.post_norm for r in context.blocks}
    yield from _find_pairs(context, lambda norm: norm.node not in own, name="double_norm")
    yield from _find_norms_between_stacks(context)


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
        repetition = _find_repetition(context, norm)
        if repetition is None or not all(
            _has_same_statistics(context.graph, norm, other=n) for n in repetition.seconds
        ):
            continue
        if all(_is_norm_of_keys(context, n, before=norm) for n in repetition.seconds):
            continue
        yield _make_finding(name, repetition)


def _has_same_statistics(graph: Graph, norm: Norm, *, other: Norm) -> bool:
    """Return whether two norms reduce over the same axes of the same length."""
    if other.kind not in TOKEN_NORMS or other.axes != norm.axes:
        return False
    sizes = [math.prod(graph[n.source].shape[axis] for axis in n.axes or ()) for n in (norm, other)]
    return sizes[0] == sizes[1]


def _is_norm_of_keys(context: RuleContext, norm: Norm, *, before: Norm) -> bool:
    """Return whether a norm belongs to an attention to the output of another module.

    Only its keys and values read the norm. Such a module cannot know whether what it attends to is
    normalized. The final norm of an encoder belongs to the encoder.
    """
    graph, reach = context.graph, {norm.node}
    for node in graph.nodes[norm.node + 1 :]:
        if any(index in reach for index in node.inputs):
            reach.add(node.index)
    for attention in sorted(context.trace.recording.stats.attentions, key=lambda a: a.node):
        if attention.node not in reach:
            continue
        node = graph[attention.node]
        while node.op not in ATTENTION and not is_activation_product(graph, node):
            if not node.inputs:
                return False
            node = graph[max(node.inputs, key=lambda index: graph[index].size)]
        reads = [o.node in reach for o in tensor_operands(node)[:2]]
        owner = norm.path.rpartition(".")[0]
        is_own = bool(owner) and f"{attention.path}.".startswith(f"{owner}.")
        return reads == [False, True] and is_own and not before.path.startswith(f"{owner}.")
    return False


def _make_finding(name: str, repetition: _Repetition) -> Finding:
    first, second = repetition.first, repetition.seconds[0]
    message = (
        "a norm before pooling is followed by a norm after it; keep the one before, as for a class "
        "token, or the one after, as for pooled tokens"
        if repetition.is_pooled
        else "a final norm follows a Post-LN block, whose own norm already normalizes the output; "
        "remove one of the two"
        if name == "doubled_final_norm"
        else "two norms follow each other directly, and the second cancels all of the first "
        "but its gain and bias; remove one of the two"
    )
    paths = [n.path for n in repetition.seconds]
    evidence = {
        "first": first.path,
        "second": paths[0] if len(paths) == 1 else paths,
        "kinds": [first.kind, second.kind],
    }
    return Finding(name, "warning", second.path, message, evidence)


def _find_norms_between_stacks(context: RuleContext) -> Iterator[Finding]:
    """Yield the norms that end a Pre-LN stack although another Pre-LN stack follows.

    The branch after such a norm reads `n2(n1(x))`. A layer that ends with a norm by design, such as
    that of a Conformer, has other blocks than one attention and one feed-forward.
    """
    by_node = {block.add.node: block for block in context.blocks}
    for block in context.blocks:
        before = None if block.link.previous is None else by_node.get(block.link.previous)
        between = block.link.norms()
        if before is None or len(between) != 1 or not block.has_pre_norm:
            continue
        stack = _find_stack_before(by_node, before)
        kinds = [row.kind for row in stack]
        pairs = [set(kinds[i : i + 2]) for i in range(0, len(kinds), 2)]
        if len(kinds) % 2 or not all(pair in LAYER_KINDS for pair in pairs):
            continue
        if not all(row.has_pre_norm and row.exit_norm is None for row in stack):
            continue
        first = context.norms[between[0]]
        seconds = tuple(context.norms[i] for i in block.entry_norms)
        if all(
            first.node in {i for i, _ in context.graph.trace_back(n.source)}
            and _has_same_statistics(context.graph, first, other=n)
            for n in seconds
        ):
            yield _make_finding("double_norm", _Repetition(first, seconds))


def _find_stack_before(by_node: dict[int, AddAnalysis], last: AddAnalysis) -> list[AddAnalysis]:
    """Return the blocks that end with `last` and have no norm on the stream between them."""
    stack, block = [last], last
    while not block.link.norms() and block.link.previous in by_node:
        block = by_node[block.link.previous]
        stack.insert(0, block)
    return stack
