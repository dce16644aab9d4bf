"""Single steps back along a stream, through operations that change it but keep its identity.

Each function takes the node of a result and returns the node of the stream in it, or None:

    gate * x                   find_gated_stream       -> x
    x[:, 1:], cat([cls, x])    find_sliced_stream      -> x
    x / x.norm(), norm(x)      find_normalized_input   -> x
"""

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import NAMED_NORMS, SLICES, is_mixing

MAX_HOPS = 4
"""Maximum number of sums, norms or biases that a search passes."""
MAX_NORM_NODES = 40
"""Maximum number of nodes of a norm written out by hand."""
MAX_GATE_STEPS = 6
"""Steps from a factor back to the activation that makes it a gate."""
GATE_OPS = frozenset({"sigmoid", "hardsigmoid", "tanh", "softmax"})


def is_sublayer_output(graph: Graph, index: int) -> bool:
    """Return whether a node is the output of a sub-layer.

    That is an operation that mixes, followed only by norms, biases and scales.
    """
    for _ in range(MAX_HOPS):
        index = graph.trace_back(index)[-1][0]
        node = graph[index]
        if is_mixing(node.op):
            return True
        if not (node.op in NAMED_NORMS or (node.op in ("add", "sub") and len(node.inputs) == 1)):
            return False
        index = node.inputs[0]
    return False


def find_sliced_stream(graph: Graph, index: int) -> int | None:
    """Return the stream that a node takes tokens from, or prepends a few tokens to."""
    node = graph[index]
    if node.op in SLICES and len(node.inputs) == 1:
        return node.inputs[0]
    if node.op == "cat" and len(node.inputs) == 2:
        large = max(node.inputs, key=lambda i: graph[i].size)
        return large if graph[large].size * 3 > node.size * 2 else None
    return None


def find_normalized_input(graph: Graph, index: int) -> int | None:
    """Return the input of a norm, or of a step that uses a statistic of the same tensor."""
    node = graph[index]
    if node.op in NAMED_NORMS:
        return node.inputs[0]
    if node.op not in ("mul", "div", "sub") or len(node.inputs) != 2:
        return None
    small, large = sorted(node.inputs, key=lambda i: graph[i].size)
    if graph[small].size * 2 > graph[large].size:
        return None
    floor = max(0, index - MAX_NORM_NODES)
    return large if graph.ancestors(large, floor) & graph.ancestors(small, floor) else None


def find_gated_stream(graph: Graph, index: int) -> int | None:
    """Return the stream in `gate * stream`, where exactly one factor is a gate."""
    node = graph[index]
    if node.op != "mul" or len(node.inputs) != 2:
        return None
    are_gates = [_is_gate(graph, i) for i in node.inputs]
    if are_gates[0] == are_gates[1]:
        return None
    return node.inputs[are_gates.index(False)]


def _is_gate(graph: Graph, index: int) -> bool:
    """Return whether a node is a bounded activation, up to scales and `1 - gate`."""
    for _ in range(MAX_GATE_STEPS):
        node = graph[index]
        if node.op in GATE_OPS:
            return True
        if node.op in ("rsub", "sub", "add") and len(node.inputs) == 1:
            index = node.inputs[0]
            continue
        step = graph.parent_through_scale(index)
        if step is None:
            return False
        index = step[0]
    return False
