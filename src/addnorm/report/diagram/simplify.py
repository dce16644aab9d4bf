"""Making a graph readable: long computations become one box, sums of sums one sum."""

from collections import defaultdict
from dataclasses import replace

from addnorm.report.diagram.graph import ROUND_KINDS, Edge, Graph, Node
from addnorm.report.diagram.symbols import SIGMOID

_MERGEABLE_KINDS = ("op", "add", "mul", "scale")
"""Kinds that may vanish inside a box; norms and sub-layers never do."""


def simplify(graph: Graph) -> Graph:
    """The same flow in as few nodes as tell it; what leads nowhere is left out."""
    graph = _flatten_sums(prune_unused(graph))
    return _join_scales(_merge_boxes(graph))


def consumers(graph: Graph) -> dict[int, list[int]]:
    """Who reads each node, in order, once for every time it is read."""
    readers: dict[int, list[int]] = defaultdict(list)
    for node in graph.values():
        for edge in node.inputs:
            readers[edge.source].append(node.id)
    return readers


def prune_unused(graph: Graph) -> Graph:
    """Only what reaches an output."""
    wanted = {node.id for node in graph.values() if node.kind == "output"}
    for node in reversed(graph.values()):
        if node.id in wanted:
            wanted |= {edge.source for edge in node.inputs}
    return {id: node for id, node in graph.items() if id in wanted}


def _flatten_sums(graph: Graph) -> Graph:
    """A sum that only another sum of the same verb reads becomes part of it."""
    readers = consumers(graph)
    result: Graph = {}
    for node in graph.values():
        inputs: list[Edge] = []
        for edge in node.inputs:
            below = result[edge.source]
            alone = len(readers[below.id]) == 1 and below.layer == node.layer
            alone = alone and (below.phase == node.phase or not below.slot)
            if node.kind == below.kind == "add" and alone and not edge.wide:
                inputs += [replace(e, minus=e.minus != edge.minus) for e in below.inputs]
                del result[below.id]
            else:
                inputs.append(edge)
        result[node.id] = replace(node, inputs=tuple(inputs))
    return result


def _join_scales(graph: Graph) -> Graph:
    """Two scales in a row are one."""
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
            label = f"{below.label} {node.label}"
            learned = node.learned or below.learned
            neutral = node.neutral and below.neutral
            label = (
                label
                if neutral
                else " ".join(part.label for part in (below, node) if not part.neutral)
            )
            node = replace(node, label=label, inputs=below.inputs, learned=learned, neutral=neutral)
            del result[below.id]
        result[node.id] = node
    return result


def _merge_boxes(graph: Graph) -> Graph:
    """Functions that are no arithmetic, and the arithmetic between them, become one box each."""
    member: dict[int, int] = {}
    for group in _find_groups(graph):
        for part in (parts := _expand_group(graph, group)):
            member[part] = min(parts)
    return _contract(graph, member)


def _find_groups(graph: Graph) -> list[set[int]]:
    """Functions of one verb with no norm between them, and what lies on the ways between them."""
    place, readers = _find_group_keys(graph), consumers(graph)
    after: set[int] = set()  # functions, and what comes after one in the same place
    before: set[int] = set()
    for id in place:
        sources = (edge.source for edge in graph[id].inputs)
        if graph[id].kind == "op" or any(s in after and place[s] == place[id] for s in sources):
            after.add(id)
    for id in reversed(place):
        if graph[id].kind == "op" or any(
            reader in before and place[reader] == place[id] for reader in readers[id]
        ):
            before.add(id)
    groups: list[set[int]] = []
    for id in (id for id in place if id in after & before):
        joined = {edge.source for edge in graph[id].inputs if place.get(edge.source) == place[id]}
        touching = [group for group in groups if group & joined]
        groups = [group for group in groups if not group & joined]
        groups.append({id}.union(*touching))
    return groups


def _find_group_keys(graph: Graph) -> dict[int, tuple[int, str, int]]:
    """Layer, verb, and how many norms of that verb stand below."""
    place: dict[int, tuple[int, str, int]] = {}
    level: dict[int, int] = {}
    for node in graph.values():
        sources = [graph[edge.source] for edge in node.inputs]
        same = [s for s in sources if (s.layer, s.phase) == (node.layer, node.phase)]
        level[node.id] = max(
            (level[s.id] + (s.kind not in _MERGEABLE_KINDS) for s in same), default=0
        )
        if node.kind in _MERGEABLE_KINDS:
            place[node.id] = (node.layer, node.phase, level[node.id])
    return place


def _expand_group(graph: Graph, group: set[int]) -> set[int]:
    """Take in arithmetic of the same verb until one result leaves, where that can be had.

    Sinks that feed the same sum would otherwise look like one line that splits.
    """
    place, readers = _find_group_keys(graph), consumers(graph)
    home = place[min(group)]
    grown = set(group)
    while len(leaving := {n for n in grown if any(r not in grown for r in readers[n])}) > 1:
        more = {r for n in leaving for r in readers[n]} - grown
        if not all(place.get(r) == home for r in more):
            return group
        grown |= more
    return grown


def _contract(graph: Graph, member: dict[int, int]) -> Graph:
    """One node for each group, standing where its last part stood."""
    last: dict[int, int] = {}
    for part, group in member.items():
        last[group] = max(last.get(group, 0), part)
    result: Graph = {}
    for node in graph.values():
        if node.id not in member:
            edges = [replace(e, source=_remap_source(e.source, member, last)) for e in node.inputs]
            kept = edges if node.kind in ROUND_KINDS else dict.fromkeys(edges)
            result[node.id] = replace(node, inputs=tuple(kept))
        elif last[member[node.id]] == node.id:
            parts = [graph[part] for part in sorted(member) if member[part] == member[node.id]]
            result[node.id] = _merge_nodes(node, parts, member, last)
    return _sort_topologically(result)


def _sort_topologically(graph: Graph) -> Graph:
    """Every node after what it reads, else in the order in which things happened."""
    waiting, result = dict(sorted(graph.items())), Graph()
    while waiting:
        ready = next(
            node
            for node in waiting.values()
            if not any(edge.source in waiting for edge in node.inputs)
        )
        result[ready.id] = waiting.pop(ready.id)
    return result


def _remap_source(source: int, member: dict[int, int], last: dict[int, int]) -> int:
    return last[member[source]] if source in member else source


def _merge_nodes(
    node: Node, nodes: list[Node], member: dict[int, int], last: dict[int, int]
) -> Node:
    inside = {part.id for part in nodes}
    outer = [edge for part in nodes for edge in part.inputs if edge.source not in inside]
    wide: dict[int, bool] = {}  # one line from each source, however often it is read
    for edge in outer:
        source = _remap_source(edge.source, member, last)
        wide[source] = wide.get(source, False) or edge.wide
    names = dict.fromkeys(name for part in nodes for name in _parameter_names(part))
    slot = next((part.slot for part in nodes if part.slot is not None), None)
    return replace(
        node,
        kind="mix",
        label=_title(nodes),
        note=", ".join(names),
        inputs=tuple(Edge(source, wide=several) for source, several in wide.items()),
        slot=slot,
        learned=any(part.learned for part in nodes),
    )


def _parameter_names(node: Node) -> list[str]:
    """Names of the parameters in a part."""
    if node.kind == "scale" and node.learned:
        return [node.label.split(" ", 1)[1]]
    return node.note.split(", ") if node.note else []


def _title(nodes: list[Node]) -> str:
    labels = [part.label for part in nodes if part.kind == "op"]
    if len(nodes) == 1:
        return labels[0]
    streams = any(edge.wide for part in nodes for edge in part.inputs)
    return "Gate" if SIGMOID in labels and not streams else "Mix"


def remove_neutral(graph: Graph) -> Graph:
    """Factors of exactly one and terms of exactly zero left out."""
    result: Graph = {}
    instead: dict[int, int] = {}
    for node in graph.values():
        edges = tuple(replace(e, source=instead.get(e.source, e.source)) for e in node.inputs)
        if node.neutral:
            instead[node.id] = edges[0].source
        else:
            result[node.id] = replace(node, inputs=edges)
    return result
