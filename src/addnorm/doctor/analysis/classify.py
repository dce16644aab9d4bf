"""Classes of joins: where norms stand around each branch, and what the branch is."""

from addnorm.doctor.analysis.branch_kinds import kind_of, parallel_inside, token_steps, walked
from addnorm.doctor.analysis.nesting import mark_duals, nest
from addnorm.doctor.analysis.norms import Norm, find_norms, own_gain
from addnorm.doctor.analysis.post_norms import look_behind
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.analysis.streams import Link, grouped, link
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import CLEAR, NONLINEAR, mixes
from addnorm.doctor.residual.mixtures import reads_mixture
from addnorm.doctor.residual.residual_adds import GATES, Join, gate_of, part_of
from addnorm.doctor.residual.reversible import cross, merges


def classify(graph: Graph, joins: dict[int, Join]) -> Anatomy:
    """Read every join."""
    norms = find_norms(graph)
    joins = _without_gates(graph, _without_recurrences(graph, joins))
    steps = {join.towards for join in joins.values()}
    joins = {index: join for index, join in joins.items() if index not in steps}
    joins = _as_one(graph, joins)
    cross(graph, joins)
    order = sorted(joins)
    readings = []
    for index in order:
        join = joins[index]
        reading = Reading(join, Link(), fed=_fed(graph, joins, join=join))
        join.normed &= reading.fed < 0
        _entry(graph, norms, reading=reading)
        _exit(graph, norms, reading=reading)
        if join.projection and not reading.entry and not reading.partial:
            _shared_entry(graph, norms, joins=joins, reading=reading)
        apart = (join.crossed and not join.half) or part_of(graph, join.shortcut) == join.fork
        start = join.shortcut if apart or reading.fed >= 0 else join.fork
        reading.link = link(graph, joins, norms=norms, join=join, start=start)
        known = {*reading.entry, *reading.partial, reading.exit, join.fork}
        reading.inner = [i for i in join.path if i in norms and i not in known]
        beside = join.via >= 0 and reading.fed < 0
        reading.parallel = beside or parallel_inside(graph, norms, join=join)
        scored = any(graph[i].op == "softmax" for i in graph.onward(index))
        reading.score = scored and not reading.pre
        readings.append(reading)
    _kinds(graph, norms, readings=readings)
    anatomy = Anatomy(graph, norms, readings)
    nest(anatomy, joins)
    mark_duals(graph, readings)
    by_node = {r.join.node: r for r in readings}
    for reading in readings:
        if reading.join.via in by_node and not reading.dual and reading.fed < 0:
            by_node[reading.join.via].parallel = True
    look_behind(anatomy)
    numbers = grouped([r.join for r in readings], {r.join.node: r.link for r in readings})
    crossed = {numbers[r.join.node] for r in readings if r.join.crossed}
    for reading in readings:
        reading.stream = numbers[reading.join.node]
        reading.merge = merges(graph, joins, join=reading.join)
        reading.reversible = reading.stream in crossed and not reading.merge
    return anatomy


def _kinds(graph: Graph, norms: dict[int, Norm], *, readings: list[Reading]) -> None:
    """What each branch is, once the matrices of all are known."""
    walks = [walked(graph, r.join, norms=norms, start=r.fed) for r in readings]
    along = frozenset[int]().union(*(walk.along for walk in walks))
    for reading, walk in zip(readings, walks, strict=True):
        reading.steps = token_steps(walk, along=along)
        reading.kind = kind_of(graph, reading.join, steps=reading.steps, start=reading.fed)


def _fed(graph: Graph, joins: dict[int, Join], *, join: Join) -> int:
    """The branch before, where this one reads it without what the skip carries; -1 elsewhere."""
    first = joins.get(join.via)
    if first is None:
        return -1
    origin, own = (graph.chain(branch)[-1][0] for branch in (first.branch, join.branch))
    if origin not in join.path or origin in (first.fork, own):
        return -1
    return origin if graph.avoids(origin, join.branch, closed=set(joins)) else -1


def _without_recurrences(graph: Graph, joins: dict[int, Join]) -> dict[int, Join]:
    """Gated joins that use one set of weights again and again are the steps of a recurrent cell."""
    users: dict[frozenset[str], int] = {}
    sets: dict[int, frozenset[str]] = {}
    for index, join in joins.items():
        if join.gated and join.op != "gru_cell":
            operands = (o for i in join.path for o in graph[i].operands)
            sets[index] = frozenset(o.name for o in operands if o.kind == "weight" and o.name)
            users[sets[index]] = users.get(sets[index], 0) + 1
    return {i: j for i, j in joins.items() if i not in sets or users[sets[i]] == 1 or not sets[i]}


def _without_gates(graph: Graph, joins: dict[int, Join]) -> dict[int, Join]:
    """W y + U x in front of a sigmoid makes a gate, not a stream."""

    def squashed(index: int) -> bool:
        kids = [graph[i] for i in graph[index].kids]
        while len(kids) == 1 and kids[0].op in ("add", "sub") and len(kids[0].ins) == 1:
            kids = [graph[i] for i in kids[0].kids]
        return bool(kids) and all(kid.op in GATES for kid in kids)

    return {i: j for i, j in joins.items() if not (j.projection and squashed(i))}


def _as_one(graph: Graph, joins: dict[int, Join]) -> dict[int, Join]:
    """Parallel streams to which one branch is written one by one: the last sum stands for all."""
    written: dict[int, list[int]] = {}
    for index, join in sorted(joins.items()):
        written.setdefault(graph.chain(join.branch)[-1][0], []).append(index)
    kept = dict(joins)
    for group in written.values():
        last = joins[group[-1]]
        if len(group) > 1 and not last.mixed and last.via < 0:
            found = reads_mixture(graph, joins, fork=last.fork, branch=last.branch)
            if found is not None:
                last.mixed, last.light, last.width = True, found.light, found.width
        if last.mixed:
            for index in group[:-1]:
                del kept[index]
    return kept


def _entry(graph: Graph, norms: dict[int, Norm], *, reading: Reading) -> None:
    """Follow every way from the fork into the branch up to a norm or something that mixes."""
    join = reading.join
    path = join.path
    seen: set[int] = set()
    start = max(join.fork, reading.fed)
    waiting = [i for i in graph[start].kids if i in path]
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
        elif index == join.branch or _goes_in(graph, norms, join=join, index=index):
            bare = True
        else:
            waiting += [i for i in node.kids if i in path]
    if met and (not bare or join.gated or join.mixed):
        reading.entry = met  # gates and coefficients may read the stream as it is
    else:
        reading.partial = met


def _goes_in(graph: Graph, norms: dict[int, Norm], *, join: Join, index: int) -> bool:
    """Whether the branch proper begins at a node, and not just a norm's own arithmetic."""
    node = graph[index]
    if mixes(node.op):
        return index not in join.light and not _statistic(graph, norms, index=index)
    if node.op not in NONLINEAR:
        return False
    own = (n for n in norms.values() if n.source == join.fork and n.node in join.path)
    return not any(index in _feeding(graph, norm) for norm in own)


def _statistic(graph: Graph, norms: dict[int, Norm], *, index: int) -> bool:
    """Whether a product is only a norm's way to its mean or length."""
    return any(
        norm.by_hand and index in _feeding(graph, norm)
        for norm in norms.values()
        if index < norm.node < index + 40
    )


def _feeding(graph: Graph, norm: Norm) -> set[int]:
    """The nodes between a norm's source and its result."""
    return graph.between(norm.source, norm.node) - {norm.source, norm.node}


def _shared_entry(
    graph: Graph, norms: dict[int, Norm], *, joins: dict[int, Join], reading: Reading
) -> None:
    """A norm in front of both a branch and its projected shortcut (pre-activation networks): it
    reads the stream, or the branch has none at its end, as where a stem has its own norm."""
    join, index = reading.join, reading.join.fork
    for _ in range(6):
        if index in norms:
            if graph.chain(norms[index].source)[-1][0] in joins or reading.exit < 0:
                reading.entry = [index]
                join.fork = norms[index].source
                join.path = graph.between(join.fork, join.branch)
            return
        node = graph[index]
        if len(node.ins) != 1 or not (node.op in CLEAR or node.op in NONLINEAR):
            return
        index = node.ins[0]


def _exit(graph: Graph, norms: dict[int, Norm], *, reading: Reading) -> None:
    """Walk back from the branch's end over scales and biases to a norm."""
    join, index = reading.join, reading.join.branch
    scales: list[Scale] = list(join.own)
    for _ in range(40):
        if index in norms:
            gains = own_gain(graph, norms[index])
            inside = index in join.path and graph.mixing(
                graph.between(join.fork, index), but=join.fork
            )
            if inside and index not in reading.entry:
                reading.exit = index
            last = max((i for i, s in enumerate(scales) if s.node in gains), default=-1)
            if last >= 0:
                del scales[last]
            scales = [s for s in scales if not _unit_root(graph, norms[index], scale=s)]
            break
        node = graph[index]
        gate = gate_of(graph, index)
        gate = _conditioned(graph, join, index=index) if gate is None else gate
        if gate is not None and gate in join.path and not mixes(node.op):
            join.gated = True
            index = gate
            continue
        if node.op in ("add", "sub") and len(node.ins) == 1:
            index = node.ins[0]
            continue
        step = graph.back(index)
        if step is None:
            break
        if step[1] is not None:
            scales.append(step[1])
        index = step[0]
    reading.scales = tuple(s for s in scales if s.node not in join.light)


def _conditioned(graph: Graph, join: Join, *, index: int) -> int | None:
    """What a branch is in gate * branch, where a matrix makes the gate of something else than the
    stream (adaLN-zero)."""
    node = graph[index]
    if node.op != "mul" or len(node.ins) != 2 or index in join.light:
        return None
    own = [i for i in node.ins if i in join.path]
    gates = [i for i in node.ins if i not in join.path and graph[i].mixed >= 0]
    return own[0] if len(own) == len(gates) == 1 else None


def _unit_root(graph: Graph, norm: Norm, *, scale: Scale) -> bool:
    """sqrt(dim) behind a unit vector, which makes it a root mean square norm."""
    width = graph[norm.source].shape[-1] if graph[norm.source].shape else 1
    value = scale.value or 0
    return norm.kind == "rms" and scale.kind == "constant" and abs(value**2 - width) < 1e-2 * width
