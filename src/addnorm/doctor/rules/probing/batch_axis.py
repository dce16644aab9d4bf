"""Which axis of the inputs holds the examples, where their shape does not tell."""

from torch import Tensor

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand
from addnorm.doctor.graph.ops import ATTENTION, CONVOLUTION, FOURIER, PRODUCT, RECURRENT
from addnorm.doctor.rules.base import RuleContext

TOKEN_MIXING_OPS = (
    ATTENTION | CONVOLUTION | FOURIER | RECURRENT | {"cumsum", "index_add", "scatter_add"}
)
"""Operations by which tokens see one another; as do products of two things that flow."""
RIGHT_CONTRACTIONS = frozenset({"matmul", "mm", "bmm", "addmm", "baddbmm"})
"""Products that sum over rows of what stands last."""


def is_single_example(context: RuleContext, tensor: Tensor, *, out: Tensor) -> bool:
    """Whether an input is one example without an axis of its own: ids of shape (tokens), vectors of
    shape (tokens, features), the nodes of a graph.

    Its stream has no other axis, and what stands on that one is made to meet: only a norm across
    it, or a statistic, would be no reason to call these tokens.
    """
    if tensor.dim() > 1 + tensor.is_floating_point():
        return False
    last = context.blocks[-1] if context.blocks else None
    shape = context.graph[last.add.node].shape if last else tuple(out.shape)
    beside = [size for size in shape if size > 1]
    flat = len(beside) <= 2 and tensor.shape[0] in beside
    return flat and (
        any(_mixes_tokens(context.graph, node) for node in context.graph)
        or any(r.kind == "mixer" for r in context.blocks)
    )


def _mixes_tokens(graph: Graph, node: Node) -> bool:
    """Whether tokens see one another: by what an operation is, or as rows of a product's right
    side, whatever the left is."""
    if node.op not in PRODUCT:
        return node.active and node.op in TOKEN_MIXING_OPS
    flows = [o.kind == "node" and graph[o.node].depends_on_input for o in node.operands]
    return sum(flows) > 1 or (flows[-1] and node.op in RIGHT_CONTRACTIONS)


def has_position_table(context: RuleContext, sizes: tuple[int, ...]) -> bool:
    """Whether a table of positions is added along the second axis of the inputs: there the tokens
    are. sizes: of their first two axes."""
    graph = context.graph
    for node in graph:
        if node.op == "add" and len(node.inputs) == 1 and len(node.shape) == 3:
            for operand in node.operands:
                if operand.node not in node.inputs and _is_position_table(
                    _operand_shape(context, operand), node, sizes
                ):
                    return True
    return False


def _operand_shape(context: RuleContext, operand: Operand) -> tuple[int, ...]:
    return context.graph[operand.node].shape if operand.kind == "node" else operand.shape


def _is_position_table(table: tuple[int, ...], node: Node, sizes: tuple[int, ...]) -> bool:
    """Whether a table has one row for each token, where the second axis of the inputs holds them;
    that may be the first one of the stream, if sizes tell the two apart."""
    if len(table) < 2 or table[-1] != node.shape[-1]:
        return False
    if table[-2] == sizes[1] and set(table[:-2]) <= {1}:
        return True
    turned = sizes[0] != sizes[1] and node.shape[0] == sizes[1]
    return turned and table[-3:-1] == (sizes[1], 1)
