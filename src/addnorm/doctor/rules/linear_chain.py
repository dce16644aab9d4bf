"""Rule `linear_chain`: two matrices in series without an activation between them."""

from collections.abc import Iterator

from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import CASTS, DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

BETWEEN = DROPOUT | CASTS | {"contiguous", "clone", "alias", "identity"}


@rule("linear_chain")
def linear_chain(context: RuleContext) -> Iterator[Finding]:
    """Report a matrix that only another matrix reads, if one matrix could do the same.

    A narrow inner width is a factorization, as in LoRA. Both must be trainable, used once and parts
    of one module: the last matrix of an attention and the head that reads it are no mistake.
    """
    uses: dict[str, int] = {}
    for node in context.graph:
        for name in context.weight_names(node.index):
            uses[name] = uses.get(name, 0) + 1
    pairs = [
        (first, second)
        for node in context.graph
        if (first := _matrix(context, node)) is not None
        and (second := _next_matrix(context, node)) is not None
        and _is_redundant(context, first, second)
        and uses[first] == uses[second] == 1
    ]
    if pairs:
        first, second = pairs[0]
        shapes = [tuple(context.weights[name].shape) for name in pairs[0]]
        yield Finding(
            "linear_chain", "warning", first.rpartition(".")[0],
            f"{first} and {second} follow each other without an activation, so that one matrix "
            "could replace them; put an activation between them",
            {"shapes": shapes, "pairs": len(pairs)},
        )  # fmt: skip


def _matrix(context: RuleContext, node: Node) -> str | None:
    """Return the trainable matrix of a linear layer; None if there is none.

    A parameter without a layer of its own, as in LAuReL's low-rank skip, is a factor on purpose.
    """
    if node.op != "linear" or not context.is_used(node.index):
        return None
    names = [n for n in context.weight_names(node.index) if context.weights[n].dim() == 2]
    is_layer = len(names) == 1 and names[0].endswith(".weight")
    return names[0] if is_layer and context.is_trainable(names[0]) else None


def _next_matrix(context: RuleContext, node: Node) -> str | None:
    """Return the matrix that alone reads the result of a linear layer."""
    graph = context.graph
    while len(node.users) == 1:
        user = graph[node.users[0]]
        if user.op == "linear":
            return _matrix(context, user) if user.inputs == (node.index,) else None
        if user.op not in BETWEEN:
            return None
        node = user
    return None


def _is_redundant(context: RuleContext, first: str, second: str) -> bool:
    """Return whether two matrices of one module restrict nothing by their inner width."""
    if _owner(first) != _owner(second):
        return False
    inner, read = context.weights[first].shape
    written = context.weights[second].shape[0]
    return inner >= min(read, written)


def _owner(name: str) -> str:
    """Return the path of the module that holds the layer of a weight."""
    return ".".join(name.split(".")[:-2])
