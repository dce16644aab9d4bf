"""Rule `missing_residual`: a sub-layer that replaces the stream instead of adding to it.

    x = x + attention(norm(x))
    x = ffn(norm(x))                 # without x +

The residual stream ends at such a sub-layer and another one begins after it. What lies between
the two is a *section*. It is a mistake if its matrices have the shapes of a branch that is added
elsewhere in the model, or if equal sections stand between the adds of several layers. A change of
size, a projection by one matrix, or a convolution between two stages is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from addnorm.doctor.analysis.branch_kinds import attention_nodes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import CONVOLUTION, NONLINEAR, POOLING, RECURRENT, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

SUBLAYER_KINDS = ("self-attention", "cross-attention", "feed-forward")
NON_TRANSFORMER_OPS = CONVOLUTION | POOLING | RECURRENT | {"opaque"}
"""Operations of stems and of transitions between stages, not of a plain sub-layer."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Section:
    """Operations between the end of one stream and the start of the next."""

    shapes: Shapes
    """Shapes of the matrices in the order of use."""
    nodes: frozenset[int]
    path: str
    is_attention: bool
    is_complete: bool
    """Whether it lies between two adds; otherwise the embedding or the head is part of it."""

    @property
    def kind(self) -> str:
        return "self-attention" if self.is_attention else "feed-forward"


@rule("missing_residual")
def missing_residual(context: RuleContext) -> Iterator[Finding]:
    """Report attentions and feed-forwards whose input is not added to their output."""
    yield from _check_self_adds(context)
    blocks = [b for b in context.blocks if b.kind in SUBLAYER_KINDS]
    if not blocks:
        yield from _check_without_adds(context)
        return
    branches = {_branch_shapes(context, b) for b in blocks if len(_branch_shapes(context, b)) > 1}
    inner = [section for b in blocks if (section := _section_before(context, b)) is not None]
    complete = [section for section in inner if section.is_complete]
    edges = [section for section in inner if not section.is_complete]
    edges += [s for s in [_section_after(context, blocks[-1])] if s is not None]
    for section in complete:
        twins = [s for s in complete if s.shapes == section.shapes]
        at_edges = [s for s in edges if _contains(s.shapes, section.shapes)]
        is_added = section.shapes in branches
        if not is_added and len(twins) + len(at_edges) < 2:
            continue
        if section is not twins[0]:
            continue
        yield Finding(
            "missing_residual", "error", section.path,
            f"the {section.kind} replaces the stream instead of adding to it, x = f(N(x)) instead "
            "of x = x + f(N(x)), so the gradient has no direct path to earlier layers; add its "
            "input to its output",
            {
                "sub-layers": [s.path for s in twins][:4],
                "added elsewhere": is_added,
                "adds": len(blocks),
            },
        )  # fmt: skip
    if not complete:
        yield from _check_edges(context, blocks, edges=edges)


def _check_self_adds(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding if the result of a sub-layer is added to itself: y + y instead of x + y."""
    graph = context.graph
    sums = []
    for node in graph:
        operands = [o.node for o in node.operands if o.kind == "node"]
        is_double = node.op == "add" and len(operands) == 2 and operands[0] == operands[1]
        if is_double and len(node.shape) > 2 and node.active and context.is_used(node.index):
            source = graph[graph.trace_back(operands[0])[-1][0]]
            if is_mixing(source.op) and context.weight_names(source.index):
                sums.append(node)
    if sums:
        yield Finding(
            "missing_residual", "error", sums[0].path,
            f"{len(sums)} sub-layers add their output to itself, y + y, not to their input; add "
            "the input, x + y, so that the gradient has a direct path to earlier layers",
            {"sums": [node.path for node in sums][:4]},
        )  # fmt: skip


def _check_edges(
    context: RuleContext, blocks: Sequence[AddAnalysis], *, edges: Sequence[_Section]
) -> Iterator[Finding]:
    """Yield a finding if the first or last sub-layer lacks its add.

    The adds then alternate between two kinds, but begin or end with the wrong one.
    """
    kinds = [b.kind for b in blocks]
    if len(kinds) < 3 or len(kinds) % 2 == 0 or len(set(kinds)) != 2 or kinds[0] != kinds[-1]:
        return
    if any(kind == following for kind, following in pairwise(kinds)):
        return
    missing = {_branch_shapes(context, b) for b in blocks if b.kind != kinds[0]}
    for section in edges:
        if any(len(shapes) > 1 and _contains(section.shapes, shapes) for shapes in missing):
            yield Finding(
                "missing_residual", "error", section.path,
                f"the {section.kind} at this end of the stack replaces the stream instead of "
                "adding to it, although those of the other layers add; add its input to its output",
                {"adds": len(blocks), "kinds": kinds[:4]},
            )  # fmt: skip
            return


def _check_without_adds(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding if a Transformer with norms has no residual add at all."""
    graph = context.graph
    every = {node.index for node in graph if node.active}
    attentions = attention_nodes(graph, every)
    norms = [n for n in context.iter_norms() if len(graph[n.source].shape) == 3]
    if len(attentions) < 2 or len(norms) < 2 * len({graph[i].path for i in attentions}):
        return
    if context.blocks or _shapes_attention(context, every):
        return
    yield Finding(
        "missing_residual", "warning", graph[attentions[0]].path,
        "no attention and no feed-forward of this model is added to its input, so the gradient has "
        "no direct path to early layers; use x = x + f(N(x)) for each sub-layer",
        {"attentions": len(attentions), "norms": len(norms), "adds": 0},
    )  # fmt: skip


def _branch_shapes(context: RuleContext, block: AddAnalysis) -> Shapes:
    return _shapes(context, block.add.path - {block.add.fork})


def _shapes(context: RuleContext, nodes: "frozenset[int] | set[int]") -> Shapes:
    """Return the shapes of the matrices that some nodes multiply by, in the order of use."""
    shapes = []
    for index in sorted(nodes):
        if is_mixing(context.graph[index].op):
            names = context.weight_names(index)
            shapes += [
                tuple(context.weights[n].shape) for n in names if context.weights[n].dim() > 1
            ]
    return tuple(shapes)


def _section_before(context: RuleContext, block: AddAnalysis) -> _Section | None:
    """Return the sub-layer between the end of another stream and a block that starts one."""
    if block.link.previous is not None:
        return None
    graph, end = context.graph, block.link.start
    sums = {b.add.node for b in context.blocks}
    visited, waiting, reached = {end}, [end], set[int]()
    while waiting:
        for index in graph[waiting.pop()].inputs:
            if index in sums:
                reached.add(index)
            elif index not in visited:
                visited.add(index)
                waiting.append(index)
    has_sources = any(not graph[i].inputs for i in visited)
    if len(reached) > 1 or (reached and has_sources):
        return None
    is_complete = bool(reached)
    # The axes may be permuted: nn.MultiheadAttention has the tokens first.
    if is_complete and sorted(graph[min(reached)].shape) != sorted(graph[end].shape):
        return None
    return _make_section(context, visited, is_complete=is_complete)


def _section_after(context: RuleContext, block: AddAnalysis) -> _Section | None:
    """Return the operations between the last add and the outputs."""
    graph = context.graph
    visited, waiting = set[int](), [block.add.node]
    while waiting:
        for index in graph[waiting.pop()].users:
            if index not in visited:
                visited.add(index)
                waiting.append(index)
    return _make_section(context, visited, is_complete=False)


def _make_section(context: RuleContext, nodes: set[int], *, is_complete: bool) -> _Section | None:
    """Return a section if it contains an attention or a feed-forward with two matrices."""
    graph = context.graph
    if is_complete and any(graph[i].op in NON_TRANSFORMER_OPS for i in nodes):
        return None
    shapes = _shapes(context, nodes)
    attentions = attention_nodes(graph, nodes)
    is_nonlinear = any(graph[i].op in NONLINEAR for i in nodes)
    if len(shapes) < 2 or not (attentions or is_nonlinear) or _shapes_attention(context, nodes):
        return None
    first = next(i for i in sorted(nodes) if is_mixing(graph[i].op))
    return _Section(shapes, frozenset(nodes), graph[first].path, bool(attentions), is_complete)


def _contains(shapes: Shapes, part: Shapes) -> bool:
    """Return whether some matrices begin or end with the given ones."""
    return shapes[: len(part)] == part or shapes[len(shapes) - len(part) :] == part


def _shapes_attention(context: RuleContext, nodes: set[int]) -> bool:
    """Return whether attention weights are mixed with a constant matrix, which replaces the skip.

    Networks without skips add the identity to the weights of each attention (He et al., Deep
    Transformers without shortcuts, 2023).
    """
    graph = context.graph
    for index in nodes:
        if graph[index].op != "softmax":
            continue
        for user in graph.forward_reach(index):
            node = graph[user]
            others = [o for o in node.operands if o.node not in node.inputs and o.kind != "number"]
            shapes = (o.shape or graph[o.node].shape for o in others if o.kind != "weight")
            if node.op in ("add", "sub") and any(
                len(s) > 1 and s[-1] == s[-2] == node.shape[-1] for s in shapes
            ):
                return True
    return False
