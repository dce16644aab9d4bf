"""Detection of the batch axis of the inputs where their shape is ambiguous."""

from torch import Tensor

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand
from addnorm.doctor.graph.ops import ATTENTION, CONVOLUTION, FOURIER, PRODUCT, RECURRENT
from addnorm.doctor.rule_context import RuleContext

TOKEN_MIXING_OPS = (
    ATTENTION | CONVOLUTION | FOURIER | RECURRENT | {"cumsum", "index_add", "scatter_add"}
)
"""Operations that mix tokens. Products of two activations mix them as well."""
RIGHT_CONTRACTIONS = frozenset({"matmul", "mm", "bmm", "addmm", "baddbmm"})
"""Products that sum over the rows of their last operand."""


def is_single_example(context: RuleContext, tensor: Tensor, *, out: Tensor) -> bool:
    """Return whether an input is one example without a batch axis.

    Such inputs are ids of shape (L), vectors of shape (L, D), or the nodes of a graph. The stream
    has no further axis, and an operation of the model mixes the positions of this one. A norm or a
    statistic over the axis alone does not make its positions tokens.
    """
    if tensor.dim() > 1 + tensor.is_floating_point():
        return False
    last = context.blocks[-1] if context.blocks else None
    shape = context.graph[last.add.node].shape if last else tuple(out.shape)
    sizes = [size for size in shape if size > 1]
    is_flat = len(sizes) <= 2 and tensor.shape[0] in sizes
    return is_flat and (
        any(_mixes_tokens(context.graph, node) for node in context.graph)
        or any(r.kind == "mixer" for r in context.blocks)
    )


def _mixes_tokens(graph: Graph, node: Node) -> bool:
    """Return whether an operation mixes tokens, for example as rows of the right operand."""
    if node.op not in PRODUCT:
        return node.active and node.op in TOKEN_MIXING_OPS
    is_activation = [o.kind == "node" and graph[o.node].depends_on_input for o in node.operands]
    return sum(is_activation) > 1 or (is_activation[-1] and node.op in RIGHT_CONTRACTIONS)


def has_position_table(context: RuleContext, sizes: tuple[int, ...]) -> bool:
    """Return whether a position table is added along the second axis of the inputs.

    Then that axis holds tokens.

    Args:
        context: the traced model
        sizes: sizes of the first two axes of the inputs
    """
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
    """Return whether a table has one row per token of the second input axis.

    The model may have transposed that axis to the front, which is recognized if the two sizes
    differ.
    """
    if len(table) < 2 or table[-1] != node.shape[-1]:
        return False
    if table[-2] == sizes[1] and set(table[:-2]) <= {1}:
        return True
    is_transposed = sizes[0] != sizes[1] and node.shape[0] == sizes[1]
    return is_transposed and table[-3:-1] == (sizes[1], 1)
