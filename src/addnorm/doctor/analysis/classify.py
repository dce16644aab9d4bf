"""Classes of joins: where norms stand around each branch, and what the branch is."""

from addnorm.doctor.analysis.branch_kinds import (
    classify_branch,
    find_token_mixing,
    has_parallel_branches,
    walk_branch,
)
from addnorm.doctor.analysis.nesting import mark_duals, mark_nested_adds
from addnorm.doctor.analysis.norms import Norm, find_gain_nodes, find_norms
from addnorm.doctor.analysis.post_norms import assign_post_norms
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.streams import StreamLink, find_stream_link, number_streams
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import NONLINEAR, PASS_THROUGH, is_mixing
from addnorm.doctor.residual.mixtures import find_read_mixture
from addnorm.doctor.residual.residual_adds import (
    GATE_OPS,
    ResidualAdd,
    find_gated_stream,
    find_sliced_stream,
)
from addnorm.doctor.residual.reversible import is_merge, mark_crossed_adds


def classify(graph: Graph, adds: dict[int, ResidualAdd]) -> ModelAnalysis:
    """Read every join."""
    norms = find_norms(graph)
    adds = _drop_gates(graph, _drop_recurrences(graph, adds))
    steps = {join.difference_node for join in adds.values()}
    adds = {index: join for index, join in adds.items() if index not in steps}
    adds = _merge_parallel_writes(graph, adds)
    mark_crossed_adds(graph, adds)
    order = sorted(adds)
    readings = []
    for index in order:
        join = adds[index]
        reading = AddAnalysis(join, StreamLink(), fed_by=_find_fed_branch(graph, adds, add=join))
        join.has_normed_shortcut &= reading.fed_by < 0
        _find_entry_norms(graph, norms, reading=reading)
        _find_exit_norm(graph, norms, reading=reading)
        if join.has_projection and not reading.entry_norms and not reading.partial_norms:
            _find_shared_entry_norm(graph, norms, adds=adds, reading=reading)
        apart = (join.is_crossed and not join.is_half) or find_sliced_stream(
            graph, join.shortcut
        ) == join.fork
        start = join.shortcut if apart or reading.fed_by >= 0 else join.fork
        reading.link = find_stream_link(graph, adds, norms=norms, add=join, start=start)
        known = {*reading.entry_norms, *reading.partial_norms, reading.exit_norm, join.fork}
        reading.inner_norms = [i for i in join.path if i in norms and i not in known]
        beside = join.parallel_to >= 0 and reading.fed_by < 0
        reading.is_parallel = beside or has_parallel_branches(graph, norms, add=join)
        scored = any(graph[i].op == "softmax" for i in graph.forward_reach(index))
        reading.is_attention_score = scored and not reading.has_pre_norm
        readings.append(reading)
    _classify_branches(graph, norms, readings=readings)
    anatomy = ModelAnalysis(graph, norms, readings)
    mark_nested_adds(anatomy, adds)
    mark_duals(graph, readings)
    by_node = {r.add.node: r for r in readings}
    for reading in readings:
        if reading.add.parallel_to in by_node and not reading.is_dual and reading.fed_by < 0:
            by_node[reading.add.parallel_to].is_parallel = True
    assign_post_norms(anatomy)
    numbers = number_streams([r.add for r in readings], {r.add.node: r.link for r in readings})
    crossed = {numbers[r.add.node] for r in readings if r.add.is_crossed}
    for reading in readings:
        reading.stream = numbers[reading.add.node]
        reading.is_merge = is_merge(graph, adds, add=reading.add)
        reading.is_reversible = reading.stream in crossed and not reading.is_merge
    return anatomy


def _classify_branches(
    graph: Graph, norms: dict[int, Norm], *, readings: list[AddAnalysis]
) -> None:
    """What each branch is, once the matrices of all are known."""
    walks = [walk_branch(graph, r.add, norms=norms, start=r.fed_by) for r in readings]
    along = frozenset[int]().union(*(walk.matrix_axes for walk in walks))
    for reading, walk in zip(readings, walks, strict=True):
        reading.steps = find_token_mixing(walk, matrix_axes=along)
        reading.kind = classify_branch(
            graph, reading.add, steps=reading.steps, start=reading.fed_by
        )


def _find_fed_branch(graph: Graph, adds: dict[int, ResidualAdd], *, add: ResidualAdd) -> int:
    """The branch before, where this one reads it without what the skip carries; -1 elsewhere."""
    first = adds.get(add.parallel_to)
    if first is None:
        return -1
    origin, own = (graph.trace_back(branch)[-1][0] for branch in (first.branch, add.branch))
    if origin not in add.path or origin in (first.fork, own):
        return -1
    return origin if graph.has_path_avoiding(origin, add.branch, blocked=set(adds)) else -1


def _drop_recurrences(graph: Graph, adds: dict[int, ResidualAdd]) -> dict[int, ResidualAdd]:
    """Gated joins that use one set of weights again and again are the steps of a recurrent cell."""
    users: dict[frozenset[str], int] = {}
    sets: dict[int, frozenset[str]] = {}
    for index, join in adds.items():
        if join.is_gated and join.op != "gru_cell":
            operands = (o for i in join.path for o in graph[i].operands)
            sets[index] = frozenset(o.name for o in operands if o.kind == "weight" and o.name)
            users[sets[index]] = users.get(sets[index], 0) + 1
    return {i: j for i, j in adds.items() if i not in sets or users[sets[i]] == 1 or not sets[i]}


def _drop_gates(graph: Graph, adds: dict[int, ResidualAdd]) -> dict[int, ResidualAdd]:
    """W y + U x in front of a sigmoid makes a gate, not a stream."""

    def squashed(index: int) -> bool:
        kids = [graph[i] for i in graph[index].users]
        while len(kids) == 1 and kids[0].op in ("add", "sub") and len(kids[0].inputs) == 1:
            kids = [graph[i] for i in kids[0].users]
        return bool(kids) and all(kid.op in GATE_OPS for kid in kids)

    return {i: j for i, j in adds.items() if not (j.has_projection and squashed(i))}


def _merge_parallel_writes(graph: Graph, adds: dict[int, ResidualAdd]) -> dict[int, ResidualAdd]:
    """Parallel streams to which one branch is written one by one: the last sum stands for all."""
    written: dict[int, list[int]] = {}
    for index, join in sorted(adds.items()):
        written.setdefault(graph.trace_back(join.branch)[-1][0], []).append(index)
    kept = dict(adds)
    for group in written.values():
        last = adds[group[-1]]
        if len(group) > 1 and not last.is_mixed and last.parallel_to < 0:
            found = find_read_mixture(graph, adds, fork=last.fork, branch=last.branch)
            if found is not None:
                last.is_mixed, last.mixing_nodes, last.width = True, found.mixing_nodes, found.width
        if last.is_mixed:
            for index in group[:-1]:
                del kept[index]
    return kept


def _find_entry_norms(graph: Graph, norms: dict[int, Norm], *, reading: AddAnalysis) -> None:
    """Follow every way from the fork into the branch up to a norm or something that mixes."""
    join = reading.add
    path = join.path
    seen: set[int] = set()
    start = max(join.fork, reading.fed_by)
    waiting = [i for i in graph[start].users if i in path]
    met: list[int] = []
    bare = False
    while waiting:
        index = waiting.pop()
        if index in seen or index not in path:
            continue
        seen.add(index)
        node = graph[index]
        if index in norms:
            met.append(index)
        elif index == join.branch or _is_branch_start(graph, norms, add=join, index=index):
            bare = True
        else:
            waiting += [i for i in node.users if i in path]
    if met and (not bare or join.is_gated or join.is_mixed):
        reading.entry_norms = met  # gates and coefficients may read the stream as it is
    else:
        reading.partial_norms = met


def _is_branch_start(graph: Graph, norms: dict[int, Norm], *, add: ResidualAdd, index: int) -> bool:
    """Whether the branch proper begins at a node, and not just a norm's own arithmetic."""
    node = graph[index]
    if is_mixing(node.op):
        return index not in add.mixing_nodes and not _is_norm_statistic(graph, norms, index=index)
    if node.op not in NONLINEAR:
        return False
    own = (n for n in norms.values() if n.source == add.fork and n.node in add.path)
    return not any(index in _norm_inner_nodes(graph, norm) for norm in own)


def _is_norm_statistic(graph: Graph, norms: dict[int, Norm], *, index: int) -> bool:
    """Whether a product is only a norm's way to its mean or length."""
    return any(
        norm.by_hand and index in _norm_inner_nodes(graph, norm)
        for norm in norms.values()
        if index < norm.node < index + 40
    )


def _norm_inner_nodes(graph: Graph, norm: Norm) -> set[int]:
    """The nodes between a norm's source and its result."""
    return graph.nodes_between(norm.source, norm.node) - {norm.source, norm.node}


def _find_shared_entry_norm(
    graph: Graph, norms: dict[int, Norm], *, adds: dict[int, ResidualAdd], reading: AddAnalysis
) -> None:
    """A norm in front of both a branch and its projected shortcut (pre-activation networks): it
    reads the stream, or the branch has none at its end, as where a stem has its own norm."""
    join, index = reading.add, reading.add.fork
    for _ in range(6):
        if index in norms:
            if graph.trace_back(norms[index].source)[-1][0] in adds or reading.exit_norm < 0:
                reading.entry_norms = [index]
                join.fork = norms[index].source
                join.path = graph.nodes_between(join.fork, join.branch)
            return
        node = graph[index]
        if len(node.inputs) != 1 or not (node.op in PASS_THROUGH or node.op in NONLINEAR):
            return
        index = node.inputs[0]


def _find_exit_norm(graph: Graph, norms: dict[int, Norm], *, reading: AddAnalysis) -> None:
    """Walk back from the branch's end over scales and biases to a norm."""
    join, index = reading.add, reading.add.branch
    scales: list[Scale] = list(join.branch_scales)
    for _ in range(40):
        if index in norms:
            gains = find_gain_nodes(graph, norms[index])
            inside = index in join.path and graph.has_mixing(
                graph.nodes_between(join.fork, index), exclude=join.fork
            )
            if inside and index not in reading.entry_norms:
                reading.exit_norm = index
            last = max((i for i, s in enumerate(scales) if s.node in gains), default=-1)
            if last >= 0:
                del scales[last]
            scales = [s for s in scales if not _is_unit_rms_scale(graph, norms[index], scale=s)]
            break
        node = graph[index]
        gate = find_gated_stream(graph, index)
        gate = _find_conditioned_branch(graph, join, index=index) if gate is None else gate
        if gate is not None and gate in join.path and not is_mixing(node.op):
            join.is_gated = True
            index = gate
            continue
        if node.op in ("add", "sub") and len(node.inputs) == 1:
            index = node.inputs[0]
            continue
        step = graph.parent_through_scale(index)
        if step is None:
            break
        if step[1] is not None:
            scales.append(step[1])
        index = step[0]
    reading.scales = tuple(s for s in scales if s.node not in join.mixing_nodes)


def _find_conditioned_branch(graph: Graph, add: ResidualAdd, *, index: int) -> int | None:
    """What a branch is in gate * branch, where a matrix makes the gate of something else than the
    stream (adaLN-zero)."""
    node = graph[index]
    if node.op != "mul" or len(node.inputs) != 2 or index in add.mixing_nodes:
        return None
    own = [i for i in node.inputs if i in add.path]
    gates = [i for i in node.inputs if i not in add.path and graph[i].last_mixing >= 0]
    return own[0] if len(own) == len(gates) == 1 else None


def _is_unit_rms_scale(graph: Graph, norm: Norm, *, scale: Scale) -> bool:
    """sqrt(dim) behind a unit vector, which makes it a root mean square norm."""
    width = graph[norm.source].shape[-1] if graph[norm.source].shape else 1
    value = scale.value or 0
    return norm.kind == "rms" and scale.kind == "constant" and abs(value**2 - width) < 1e-2 * width
