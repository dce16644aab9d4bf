"""Step 3: reduce a graph to as few nodes as describe it.

`simplify` applies four rewrites:

    prune_unused    drop nodes that reach no output
    _flatten_sums   (a + b) + c  ->  one sum of a, b and c
    _merge_boxes    functions of one phase, and the arithmetic between them  ->  one box
    _join_scales    two scales in a row  ->  one scale

For a gated residual, x + sigmoid(W x) * f, the merge gives

    x -> linear -> sigmoid -> mul <- f        x -> [Gate: W] -> mul <- f
                              mul -> add <- x                   mul -> add <- x

Norms and sub-layers are never merged, because they are what a diagram is about. `remove_neutral`
runs later, after factors that differ between layers have been labeled (see `blocks.py`).
"""

from collections import defaultdict
from dataclasses import replace

from addnorm.report.diagram.graph import ROUND_KINDS, Edge, Graph, Node
from addnorm.report.diagram.label_text import SIGMOID

_MERGEABLE_KINDS = ("op", "add", "mul", "scale")
"""Kinds that a box may absorb."""


def simplify(graph: Graph) -> Graph:
    """Return an equivalent graph with as few nodes as possible."""
    graph = _flatten_sums(prune_unused(graph))
    return _join_scales(_merge_boxes(graph))


def consumers(graph: Graph) -> dict[int, list[int]]:
    """Return the readers of each node, in order, once for each edge."""
    readers: dict[int, list[int]] = defaultdict(list)
    for node in graph.values():
        for edge in node.inputs:
            readers[edge.source].append(node.id)
    return readers


def prune_unused(graph: Graph) -> Graph:
    """Return the nodes from which an output can be reached."""
    reached = {node.id for node in graph.values() if node.kind == "output"}
    for node in reversed(graph.values()):
        if node.id in reached:
            reached |= {edge.source for edge in node.inputs}
    return {id: node for id, node in graph.items() if id in reached}


def _flatten_sums(graph: Graph) -> Graph:
    """Merge a sum into the only reader of its result, if that is a sum of the same layer.

    A sum that makes an entry of the state other than the stream stays visible, unless both sums
    belong to the same phase.
    """
    readers = consumers(graph)
    result: Graph = {}
    for node in graph.values():
        inputs: list[Edge] = []
        for edge in node.inputs:
            below = result[edge.source]
            is_only_reader = len(readers[below.id]) == 1 and below.layer == node.layer
            can_merge = is_only_reader and (below.phase == node.phase or not below.slot)
            if node.kind == below.kind == "add" and can_merge and not edge.wide:
                inputs += [replace(e, minus=e.minus != edge.minus) for e in below.inputs]
                del result[below.id]
            else:
                inputs.append(edge)
        result[node.id] = replace(node, inputs=tuple(inputs))
    return result


def _join_scales(graph: Graph) -> Graph:
    """Merge two scales in a row; a neutral one disappears from the label."""
    readers = consumers(graph)
    result: Graph = {}
    for node in graph.values():
        below = result.get(node.inputs[0].source) if node.inputs else None
        if (
            below is not None
            and node.kind == below.kind == "scale"
            and node.layer == below.layer
            and len(readers[below.id]) == 1
        ):
            neutral = node.neutral and below.neutral
            labels = [each.label for each in (below, node) if neutral or not each.neutral]
            learned = node.learned or below.learned
            node = replace(
                node,
                label=" ".join(labels),
                inputs=below.inputs,
                learned=learned,
                neutral=neutral,
            )
            del result[below.id]
        result[node.id] = node
    return result


def _merge_boxes(graph: Graph) -> Graph:
    """Replace each group of functions, with the arithmetic between them, by one box."""
    group_of: dict[int, int] = {}  # the smallest id of a group names it
    for group in _find_groups(graph):
        members = _expand_group(graph, group)
        group_of |= dict.fromkeys(members, min(members))
    return _contract(graph, group_of)


def _find_groups(graph: Graph) -> list[set[int]]:
    """Return connected sets of functions with the same key, and what lies on paths between them.

    A node lies on such a path if a function is among its ancestors and among its descendants; a
    function counts as its own ancestor and descendant.
    """
    keys, readers = _find_group_keys(graph), consumers(graph)
    after_function: set[int] = set()
    before_function: set[int] = set()
    for id in keys:
        sources = (edge.source for edge in graph[id].inputs)
        if graph[id].kind == "op" or any(
            source in after_function and keys[source] == keys[id] for source in sources
        ):
            after_function.add(id)
    for id in reversed(keys):
        if graph[id].kind == "op" or any(
            reader in before_function and keys[reader] == keys[id] for reader in readers[id]
        ):
            before_function.add(id)
    groups: list[set[int]] = []
    for id in (id for id in keys if id in after_function & before_function):
        neighbors = {edge.source for edge in graph[id].inputs if keys.get(edge.source) == keys[id]}
        touching = [group for group in groups if group & neighbors]
        groups = [group for group in groups if not group & neighbors]
        groups.append({id}.union(*touching))
    return groups


def _find_group_keys(graph: Graph) -> dict[int, tuple[int, str, int]]:
    """Return layer, phase, and number of norms below within the phase, of each mergeable node.

    Nodes with different keys are never merged, so a box does not reach across a norm, a sub-layer,
    a phase or a layer.
    """
    keys: dict[int, tuple[int, str, int]] = {}
    level: dict[int, int] = {}
    for node in graph.values():
        sources = [graph[edge.source] for edge in node.inputs]
        same = [s for s in sources if (s.layer, s.phase) == (node.layer, node.phase)]
        level[node.id] = max(
            (level[s.id] + (s.kind not in _MERGEABLE_KINDS) for s in same), default=0
        )
        if node.kind in _MERGEABLE_KINDS:
            keys[node.id] = (node.layer, node.phase, level[node.id])
    return keys


def _expand_group(graph: Graph, group: set[int]) -> set[int]:
    """Add readers with the same key until a single node of the group has outside readers.

    A box has one output line. If two different results left it, the diagram would show them as one
    line that splits. Returns the group unchanged if readers with another key prevent this.
    """
    keys, readers = _find_group_keys(graph), consumers(graph)
    key = keys[min(group)]
    grown = set(group)
    while len(exits := {n for n in grown if any(r not in grown for r in readers[n])}) > 1:
        outside = {r for n in exits for r in readers[n]} - grown
        if not all(keys.get(r) == key for r in outside):
            return group
        grown |= outside
    return grown


def _contract(graph: Graph, group_of: dict[int, int]) -> Graph:
    """Replace each group by one node, which takes the id of the group's last node."""
    last: dict[int, int] = {}
    for id, group in group_of.items():
        last[group] = max(last.get(group, 0), id)
    result: Graph = {}
    for node in graph.values():
        if node.id not in group_of:
            edges = [
                replace(e, source=_remap_source(e.source, group_of, last)) for e in node.inputs
            ]
            inputs = edges if node.kind in ROUND_KINDS else dict.fromkeys(edges)
            result[node.id] = replace(node, inputs=tuple(inputs))
        elif last[group_of[node.id]] == node.id:
            members = [graph[id] for id in sorted(group_of) if group_of[id] == group_of[node.id]]
            result[node.id] = _merge_nodes(node, members, group_of, last)
    return _sort_topologically(result)


def _sort_topologically(graph: Graph) -> Graph:
    """Order nodes after their inputs, and otherwise by id, which is the order of execution."""
    waiting, result = dict(sorted(graph.items())), Graph()
    while waiting:
        ready = next(
            node
            for node in waiting.values()
            if not any(edge.source in waiting for edge in node.inputs)
        )
        result[ready.id] = waiting.pop(ready.id)
    return result


def _remap_source(source: int, group_of: dict[int, int], last: dict[int, int]) -> int:
    return last[group_of[source]] if source in group_of else source


def _merge_nodes(
    node: Node, members: list[Node], group_of: dict[int, int], last: dict[int, int]
) -> Node:
    """Return the box of a group, with one edge from each source outside of it."""
    ids = {member.id for member in members}
    wide: dict[int, bool] = {}  # by source
    for edge in (edge for member in members for edge in member.inputs):
        if edge.source not in ids:
            source = _remap_source(edge.source, group_of, last)
            wide[source] = wide.get(source, False) or edge.wide
    names = dict.fromkeys(name for member in members for name in _parameter_names(member))
    slot = next((member.slot for member in members if member.slot is not None), None)
    return replace(
        node,
        kind="mix",
        label=_title(members),
        note=", ".join(names),
        inputs=tuple(Edge(source, wide=is_wide) for source, is_wide in wide.items()),
        slot=slot,
        learned=any(member.learned for member in members),
    )


def _parameter_names(node: Node) -> list[str]:
    if node.kind == "scale" and node.learned:
        return [node.label.split(" ", 1)[1]]  # without the operator
    return node.note.split(", ") if node.note else []


def _title(members: list[Node]) -> str:
    labels = [member.label for member in members if member.kind == "op"]
    if len(members) == 1:
        return labels[0]
    has_streams = any(edge.wide for member in members for edge in member.inputs)
    return "Gate" if SIGMOID in labels and not has_streams else "Mix"


def remove_neutral(graph: Graph) -> Graph:
    """Drop factors of exactly 1 and summands of exactly 0."""
    result: Graph = {}
    replacement: dict[int, int] = {}
    for node in graph.values():
        edges = tuple(replace(e, source=replacement.get(e.source, e.source)) for e in node.inputs)
        if node.neutral:
            replacement[node.id] = edges[0].source
        else:
            result[node.id] = replace(node, inputs=edges)
    return result
