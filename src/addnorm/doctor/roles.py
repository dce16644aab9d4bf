"""What each weight does, by its place in the graph: query key value out ffn_in ffn_out."""

from collections.abc import Iterable, Iterator

from addnorm.doctor.graph import Graph
from addnorm.doctor.kinds import looks, softmaxed
from addnorm.doctor.ops import PRODUCT, mixes
from addnorm.doctor.readings import Anatomy, Reading

TOGETHER = "qkv"
"""One matrix for queries, keys and values, or two of them."""


def roles(anatomy: Anatomy, reading: Reading) -> dict[str, str]:
    """The role of every matrix of a block's branch, by the weight's name."""
    graph, path = anatomy.graph, reading.join.path - {reading.join.fork}
    found: dict[str, str] = {}
    seen = sorted(looks(graph, path))
    for index in seen:
        for role, names in _around(graph, path, index=index):
            for name in names:
                found[name] = role if found.get(name, role) == role else TOGETHER
    if seen:
        later = (i for i in sorted(path) if i > seen[0])
        return {n: "out" for i in later for n in _matrices(graph, i) if n not in found} | found
    branch = "ffn" if reading.kind == "feed-forward" else "branch"
    for index in sorted(path):
        for name in _matrices(graph, index):
            found.setdefault(
                name, f"{branch}_{'in' if _first(graph, path, index=index) else 'out'}"
            )
    return found


def _around(graph: Graph, path: set[int], *, index: int) -> Iterator[tuple[str, Iterable[str]]]:
    """What made the queries, keys and values that meet at a node."""
    node = graph[index]
    if node.op == "multi_head_attention_forward":
        inside = list(_matrices(graph, index))
        if len(inside) == 4:
            yield from zip(("query", "key", "value", "out"), ([n] for n in inside), strict=True)
        else:
            yield TOGETHER, inside[:1]
            yield "out", inside[1:]
        return
    streams = [o.node for o in node.operands if o.kind == "node" and graph[o.node].active]
    if mixes(node.op) and node.op in PRODUCT:
        weights = next(i for i in streams if softmaxed(graph, i))
        product = _product(graph, weights)
        streams = [i for i in streams if i != weights]
        pair = [o.node for o in graph[product].operands if o.kind == "node"] if product else []
        streams = [*pair[:2], *streams] if len(pair) >= 2 else streams
    names = ("query", "key", "value") if len(streams) >= 3 else ("value",)
    for role, stream in zip(names, streams, strict=False):
        yield role, list(_behind(graph, path, index=stream))


def _product(graph: Graph, index: int) -> int | None:
    """The product of queries and keys behind the weights of an attention."""
    seen, waiting = {index}, [index]
    while waiting:
        node = graph[waiting.pop(0)]
        if node.op in PRODUCT and len(node.ins) > 1:
            return node.index
        new = [i for i in node.ins if i not in seen]
        seen.update(new)
        waiting += new
    return None


def _behind(graph: Graph, path: set[int], *, index: int) -> Iterator[str]:
    """The nearest matrices behind a node."""
    seen, waiting = {index}, [index]
    while waiting:
        step = waiting.pop()
        names = list(_matrices(graph, step))
        yield from names
        if not names:
            new = [i for i in graph[step].ins if i not in seen and (i in path or step not in path)]
            seen.update(new)
            waiting += new


def _first(graph: Graph, path: set[int], *, index: int) -> bool:
    """Whether no other matrix stands between the fork and this one."""
    behind = graph.ancestors(index, min(path)) & path
    return not any(True for i in behind if i != index for _ in _matrices(graph, i))


def _matrices(graph: Graph, index: int) -> Iterator[str]:
    if mixes(graph[index].op):
        yield from _named(graph, index)


def _named(graph: Graph, index: int) -> Iterator[str]:
    for operand in graph[index].operands:
        if operand.kind == "weight" and operand.name and len(operand.shape) > 1:
            yield operand.name
        elif operand.kind == "node" and graph[operand.node].learned:
            yield from _named(graph, operand.node)
