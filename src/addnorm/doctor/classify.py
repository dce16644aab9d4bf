"""Classes of joins: where norms stand around each branch, and how shortcut and branch are scaled."""

from dataclasses import dataclass, field

from addnorm.doctor.graph import Graph, Scale
from addnorm.doctor.joins import Join, gate_of
from addnorm.doctor.kinds import kind_of, parallel_inside
from addnorm.doctor.norms import Norm, find_norms, is_query_key, own_gain
from addnorm.doctor.ops import CLEAR, NONLINEAR, mixes
from addnorm.doctor.streams import Link, grouped, link

CLASSES = {
    (False, False, True): "post_ln",
    (True, False, False): "pre_ln",
    (False, True, False): "res_post",
    (True, True, False): "sandwich",
    (True, False, True): "pre_post",
    (False, True, True): "res_post_post",
    (True, True, True): "sandwich_post",
    (False, False, False): "none",
}


@dataclass(slots=True)
class Reading:
    """What was understood of one join."""

    join: Join
    link: Link
    entry: list[int] = field(default_factory=list)
    """Norms through which every way into the branch leads; empty if some way has none."""
    partial: list[int] = field(default_factory=list)
    """Norms on some ways into the branch only."""
    exit: int = -1
    """The norm at the end of the branch."""
    scales: tuple[Scale, ...] = ()
    """Factors on the branch."""
    inner: list[int] = field(default_factory=list)
    """Norms inside the branch."""
    post: bool = False
    post_norm: int = -1
    final_norms: list[int] = field(default_factory=list)
    """Norms behind the last join of a stream that belong to no class."""
    after: str = ""
    """An activation behind the sum."""
    kind: str = "other"
    parallel: bool = False
    score: bool = False
    inside: int = -1
    """The join in whose branch this one stands."""
    around: int = 0
    """Joins of its own stream that this one leaps over."""
    stream: int = 0
    false: bool = False
    dual: bool = False

    @property
    def pre(self) -> bool:
        """Whether the branch reads a normalized stream."""
        return bool(self.entry)

    def gated_or_mixed(self) -> bool:
        """Whether the shortcut is more than a shortcut."""
        return self.join.gated or self.join.mixed


@dataclass(slots=True)
class Anatomy:
    """Everything found in one graph."""

    graph: Graph
    norms: dict[int, Norm]
    readings: list[Reading]

    def blocks(self) -> list[Reading]:
        """Joins of the main streams: no scores of attention, nothing inside a branch."""
        return [r for r in self.readings if not r.score and r.inside < 0]


def classify(graph: Graph, joins: dict[int, Join]) -> Anatomy:
    """Read every join."""
    norms = find_norms(graph)
    joins = _without_recurrences(graph, joins)
    order = sorted(joins)
    readings = []
    for index in order:
        join = joins[index]
        reading = Reading(join, Link())
        _entry(graph, norms, reading)
        _exit(graph, norms, reading)
        reading.link = link(graph, joins, norms, join)
        known = {*reading.entry, *reading.partial, reading.exit, join.fork}
        reading.inner = [i for i in join.path if i in norms and i not in known]
        reading.kind = kind_of(graph, join)
        reading.parallel = join.via >= 0 or parallel_inside(graph, norms, join)
        reading.score = any(
            graph[i].op == "softmax" for i in graph.onward(index)
        ) and not reading.pre
        readings.append(reading)
    _nest(readings)
    _duals(graph, readings)
    by_node = {r.join.node: r for r in readings}
    for reading in readings:
        if reading.join.via in by_node and not reading.dual:
            by_node[reading.join.via].parallel = True
    anatomy = Anatomy(graph, norms, readings)
    _behind(anatomy)
    _false_ones(anatomy)
    numbers = grouped(order, {r.join.node: r.link for r in readings})
    for reading in readings:
        reading.stream = numbers[reading.join.node]
    return anatomy


def _without_recurrences(graph: Graph, joins: dict[int, Join]) -> dict[int, Join]:
    """Gated joins that use one set of weights again and again are the steps of a recurrent cell."""
    users: dict[frozenset[str], int] = {}
    sets: dict[int, frozenset[str]] = {}
    for index, join in joins.items():
        if join.gated and join.op not in ("gru_cell", "lerp"):
            names = (
                o.name for i in join.path for o in graph[i].operands if o.kind == "weight" and o.name
            )
            sets[index] = frozenset(names)
            users[sets[index]] = users.get(sets[index], 0) + 1
    return {i: j for i, j in joins.items() if i not in sets or users[sets[i]] == 1 or not sets[i]}


def _entry(graph: Graph, norms: dict[int, Norm], reading: Reading) -> None:
    """Follow every way from the fork into the branch up to a norm or something that mixes."""
    join = reading.join
    path = join.path
    seen: set[int] = set()
    waiting = [i for i in graph[join.fork].kids if i in path]
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
        elif index == join.branch:
            bare = True
        elif mixes(node.op) and not _statistic(graph, norms, index):
            bare = True
        elif node.op in NONLINEAR and not any(n.source == join.fork and index in _feeding(graph, n)
                                              for n in norms.values() if n.node in path):
            bare = True
        else:
            waiting += [i for i in node.kids if i in path]
    if not bare and met:
        reading.entry = met
    else:
        reading.partial = met
        if join.projection and not met:
            _shared_entry(graph, norms, reading)


def _statistic(graph: Graph, norms: dict[int, Norm], index: int) -> bool:
    """Whether a product is only a norm's way to its mean or length."""
    return any(
        norm.by_hand and index in _feeding(graph, norm)
        for norm in norms.values()
        if index < norm.node < index + 40
    )


def _feeding(graph: Graph, norm: Norm) -> set[int]:
    """The nodes between a norm's source and its result."""
    return graph.between(norm.source, norm.node) - {norm.source, norm.node}


def _shared_entry(graph: Graph, norms: dict[int, Norm], reading: Reading) -> None:
    """A norm in front of both a branch and its projected shortcut (pre-activation networks)."""
    join, index = reading.join, reading.join.fork
    for _ in range(6):
        if index in norms:
            if graph[index].path.startswith(f"{join.module}.") and join.module:
                reading.entry = [index]
                join.fork = norms[index].source
                join.path = graph.between(join.fork, join.branch)
            return
        node = graph[index]
        if len(node.ins) != 1 or not (node.op in CLEAR or node.op in NONLINEAR):
            return
        index = node.ins[0]


def _exit(graph: Graph, norms: dict[int, Norm], reading: Reading) -> None:
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
            break
        node = graph[index]
        gate = gate_of(graph, index)
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
    reading.scales = tuple(scales)


def _nest(readings: list[Reading]) -> None:
    """Joins inside the branch of another: small ones are inner, chains mean a long skip."""
    by_node = {r.join.node: r for r in readings}
    for reading in readings:
        inside = [
            by_node[i] for i in reading.join.path
            if i in by_node and i not in (reading.join.node, reading.join.fork)
        ]  # fmt: skip
        inside = [r for r in inside if not r.score]
        nodes = {r.join.node for r in inside}
        chained = [r for r in inside if r.link.before in nodes and r.join.via < 0]
        if chained:
            reading.around = len(inside)
        else:
            for inner in inside:
                if inner.join.fork != reading.join.fork or inner.join.via >= 0:
                    inner.inside = reading.join.node


def _duals(graph: Graph, readings: list[Reading]) -> None:
    """A branch that is added to two streams: the second is a dual of the first."""
    first: dict[int, int] = {}
    for reading in readings:
        origin = graph.chain(reading.join.branch)[-1][0]
        if origin in first:
            reading.dual = True
        first.setdefault(origin, reading.join.node)


def _behind(anatomy: Anatomy) -> None:
    """Norms behind each sum: its own (post), or final ones."""
    graph, norms = anatomy.graph, anatomy.norms
    followers: dict[int, list[Reading]] = {}
    for reading in anatomy.readings:
        if reading.link.before >= 0:
            followers.setdefault(reading.link.before, []).append(reading)
    by_node = {r.join.node: r for r in anatomy.readings}
    for reading in anatomy.readings:
        node = reading.join.node
        after = followers.get(node, [])
        plain = [r for r in after if not r.score and not r.around and r.inside < 0]
        after = plain or after
        if after:
            between = after[0].link
            found = between.norms()
            reading.post = bool(found)
            reading.post_norm = found[-1] if found else -1
            acts = [m.node for m in between.met if m.what == "activation"]
            reading.after = graph[acts[-1]].op if acts else ""
            continue
        reached = graph.onward(node, also=frozenset({"getitem", "select", "cat", "index"}))
        found = sorted(n.node for n in norms.values() if n.source == node or n.source in reached)
        found = [i for i in found if i in reached or norms[i].source == node or i > node]
        inner = [i for i in reading.inner if not is_query_key(graph, norms[i])]
        inner = [i for i in inner if norms[i].kind != "l2"]
        tail = bool(found) and not reading.pre and reading.exit < 0 and not inner
        before = by_node.get(reading.link.before)
        if before is not None:
            tail = bool(found) and before.post
        reading.post = tail
        reading.post_norm = found[0] if tail else -1
        reading.final_norms = found[1:] if tail else found
        reading.after = next(
            (graph[i].op for i in graph[node].kids if graph[i].op in NONLINEAR), ""
        )


def _false_ones(anatomy: Anatomy) -> None:
    """Blocks whose skip carries the normalized stream: N(x) is both read and added to."""
    by_node = {r.join.node: r for r in anatomy.readings}
    blocks = anatomy.blocks()
    for reading in blocks:
        if reading.pre or not reading.link.norms() or reading.exit >= 0:
            continue
        before = by_node.get(reading.link.before)
        if before is not None and before.pre and before.post:
            reading.false, before.post = True, False
    streams: dict[int, list[Reading]] = {}
    for reading in blocks:
        root = reading
        while root.link.before in by_node:
            root = by_node[root.link.before]
        streams.setdefault(root.join.node, []).append(reading)
    for rows in streams.values():
        if _shifted(anatomy, rows):
            for reading in rows:
                reading.false, reading.post = True, False


def _shifted(anatomy: Anatomy, rows: list[Reading]) -> bool:
    """Post-LN moved by half a block: a norm before the first sum, none of its own after the last."""
    first, last = rows[0], rows[-1]
    if any(r.pre or r.exit >= 0 or r.gated_or_mixed() for r in rows):
        return False
    if not first.link.norms() or not all(r.link.norms() for r in rows):
        return False
    ends = last.final_norms + ([last.post_norm] if last.post_norm >= 0 else [])
    if not ends:
        return True
    return _stands_with(anatomy, rows, ends)


def _stands_with(anatomy: Anatomy, rows: list[Reading], ends: list[int]) -> bool:
    """Whether each norm lives with the branch behind it rather than with the one before it."""
    graph = anatomy.graph
    votes = 0
    for before, after in zip(rows, rows[1:], strict=False):
        found = after.link.norms()
        if not found:
            continue
        place = graph[found[0]].path
        votes += _kin(place, _home(graph, after)) - _kin(place, _home(graph, before))
    end = graph[ends[0]].path
    outside = _kin(end, _home(graph, rows[-1])) < max(
        (_kin(graph[r.link.norms()[0]].path, _home(graph, r)) for r in rows), default=0
    )
    return votes > 0 and outside


def _home(graph: Graph, reading: Reading) -> str:
    paths = [graph[i].path for i in reading.join.path if mixes(graph[i].op)]
    return common(paths)


def _kin(one: str, other: str) -> int:
    return len(common([one, other]).split(".")) if common([one, other]) else 0


def common(paths: list[str]) -> str:
    """The longest path that all of these begin with."""
    found: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return ".".join(found)


def label(anatomy: Anatomy, reading: Reading) -> str:
    """The class of a join."""
    if reading.score:
        return "attention_score"
    if reading.false:
        return "false_pre_ln"
    named = CLASSES[(reading.pre, reading.exit >= 0, reading.post)]
    if named == "none":
        graph, norms = anatomy.graph, anatomy.norms
        inner = [i for i in (*reading.inner, *reading.partial) if not is_query_key(graph, norms[i])]
        if any(i not in reading.partial for i in inner):
            return "mid-norm"
    return named


def tags(anatomy: Anatomy, reading: Reading) -> tuple[str, ...]:
    """What else is to be said of a join."""
    join = reading.join
    found: list[str] = []
    if reading.inside >= 0:
        found.append("inner")
    for scale in reading.scales:
        if scale.kind == "weight":
            found.append("rezero" if scale.size == 1 else "layer-scale")
        elif scale.value is not None and abs(scale.value - 1) > 1e-6 and scale.kind == "constant":
            found.append("scaled-branch")
    for scale in join.scales:
        if scale.kind == "weight" or (
            scale.value is not None and abs(scale.value - 1) > 1e-6 and scale.kind == "constant"
        ):
            found.append("scaled-shortcut")
    said = {
        "gated": join.gated, "hyper-connections": join.mixed, "parallel": reading.parallel,
        "projection-shortcut": join.projection, "long-skip": reading.around > 0,
        "activation-after-add": bool(reading.after), "dual": reading.dual,
    }  # fmt: skip
    found += [name for name, true in said.items() if true]
    return tuple(dict.fromkeys(found))


