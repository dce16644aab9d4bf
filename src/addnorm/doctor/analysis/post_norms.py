"""What stands behind each sum: a norm of its own, a final norm, or one that the skip carries on."""

from itertools import pairwise

from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.analysis.streams import own_copy
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import NONLINEAR, POOLING, mixes
from addnorm.doctor.residual.mixtures import mixed_onward

BLOCKS_BACK = 200
"""Blocks among which a layer is looked for that repeats."""
PASSES = POOLING | {"getitem", "select", "cat", "index", "stack", "sum", "mean"}


def look_behind(anatomy: Anatomy) -> None:
    """Fill in post, final norms and false ones, the last joins first."""
    followers: dict[int, list[Reading]] = {}
    for reading in anatomy.readings:
        if reading.link.before >= 0:
            followers.setdefault(reading.link.before, []).append(reading)
    beside = {r.join.via for r in anatomy.readings if r.join.via >= 0}
    for reading in reversed(anatomy.readings):
        after = followers.get(reading.join.node, [])
        plain = [r for r in after if not r.score and r.inside < 0 and not r.dual]
        after = plain or after
        if after:
            _followed(anatomy, reading, after=after[0])
        elif reading.join.node not in beside:
            _last(anatomy, reading)
    settled = _settle_tails(anatomy)
    _false_ones(anatomy)
    for reading, before in settled:
        if before is not None and not before.post and not reading.false:
            _give_back(reading)  # its norms were those of the next skips


def _followed(anatomy: Anatomy, reading: Reading, *, after: Reading) -> None:
    found = after.link.norms(behind_mixture=not reading.pre)
    acts = [m.node for m in after.link.met if m.what == "activation"]
    reading.after = anatomy.graph[acts[-1]].op if acts else ""
    if after.around and not found:  # a long skip joins in before the norm
        reading.post, reading.post_norm = after.post, after.post_norm
        reading.final_norms = list(after.final_norms)
        return
    reading.post = bool(found)
    reading.post_norm = found[-1] if found else -1


def _last(anatomy: Anatomy, reading: Reading) -> None:
    """The last join of a stream: is the norm behind it its own, or a final one?"""
    graph, norms = anatomy.graph, anatomy.norms
    node = reading.join.node
    reached = graph.onward(node, also=PASSES | set(NONLINEAR))
    together = (
        mixed_onward(graph, node, width=reading.join.width) if reading.join.mixed else set[int]()
    )
    for index in sorted(together):  # streams are read as one
        reached |= {index, *graph.onward(index, also=PASSES)}
    ends = {node, *together, *(i for i in reached if graph[i].op in PASSES or _passes(graph, i))}
    for index in list(reached):
        if index not in ends and own_copy(graph, index) is not None:
            ends |= {index, *(i for i in graph.onward(index) if _passes(graph, i))}
    read = {i for r in anatomy.readings if r.join.crossed for i in r.entry}  # by the other stream
    behind = (n.node for n in norms.values() if n.source in ends)
    reading.final_norms = sorted(set(behind) - read)
    kids = (graph[i].op for i in graph[node].kids)
    reading.after = next((op for op in kids if op in NONLINEAR), "")


def _passes(graph: Graph, index: int) -> bool:
    node = graph[index]
    return len(node.ins) == 1 and not mixes(node.op)


def _settle_tails(anatomy: Anatomy) -> list[tuple[Reading, Reading | None]]:
    """A last norm belongs to its join if the join before it has one too; or, alone, if the
    branch has no norm of another kind. Those that got one, with the join before."""
    settled: list[tuple[Reading, Reading | None]] = []
    graph, norms = anatomy.graph, anatomy.norms
    by_node = {r.join.node: r for r in anatomy.readings}
    for reading in anatomy.readings:
        if not reading.final_norms or reading.post:
            continue
        inner = [i for i in reading.inner if not is_query_key(graph, norms[i])]
        inner = [i for i in inner if norms[i].kind != "l2"]
        own = not reading.pre and reading.exit < 0 and not inner
        before = _counterpart(by_node, reading)
        if before is not None:
            own = before.post and not before.false and reading.pre <= before.pre
        if own:
            reading.post, reading.post_norm = True, reading.final_norms[0]
            reading.final_norms = reading.final_norms[1:]
            settled.append((reading, before))
    return settled


def _counterpart(by_node: dict[int, Reading], last: Reading) -> Reading | None:
    """The block that stands in the layer before where the last one stands in its own; or the
    block right before it, where layers do not repeat."""
    back: list[Reading] = []
    reading: Reading | None = last
    while reading is not None and len(back) < BLOCKS_BACK:
        if bool(reading.around) == bool(last.around):
            back.append(reading)
        reading = by_node.get(reading.link.before)
    kinds = [(r.kind, r.pre) for r in back]
    for period in range(1, len(kinds) // 2 + 1):
        if kinds[:period] == kinds[period : 2 * period]:
            return back[period]
    return back[1] if len(back) > 1 else None


# the skip carries a normalized stream


def _false_ones(anatomy: Anatomy) -> None:
    by_node = {r.join.node: r for r in anatomy.readings}
    blocks = anatomy.blocks()
    for reading in blocks:
        found = reading.link.norms(behind_mixture=False)
        if reading.pre or not found or reading.exit >= 0 or reading.around:
            continue
        before = by_node.get(reading.link.before)
        if before is None or not before.post or before.around:
            continue
        if before.pre or before.false or (before.inner and not reading.inner and not reading.post):
            reading.false, before.post = True, False
            if reading.post and reading.post_norm >= 0 and not before.pre:
                _give_back(reading)
    streams: dict[int, list[Reading]] = {}
    for reading in blocks:
        root = reading
        while root.link.before in by_node:
            root = by_node[root.link.before]
        streams.setdefault(root.join.node, []).append(reading)
    for rows in streams.values():
        _false_first(rows)
        first = _first_run(rows)
        for run in (rows, first):
            if run and _shifted(anatomy, run):
                for reading in run:
                    reading.false, reading.post = True, False


def _first_run(rows: list[Reading]) -> list[Reading]:
    """The blocks at the start of a stream that read what the skip carries, normalized, up to the
    first whose sum stays raw, if other blocks follow."""
    for count, reading in enumerate(rows, start=1):
        if reading.pre or not reading.link.norms():
            return []
        if not reading.post:
            return rows[:count] if 1 < count < len(rows) else []
    return []


def _false_first(rows: list[Reading]) -> None:
    """The first block is what its counterpart in the next layer is, if it reads the same way."""
    first = rows[0]
    later = next((r for r in rows[1:] if r.kind == first.kind), None)
    plain = not first.pre and not first.post and first.exit < 0 and not first.around
    if later is not None and later.false and plain and first.link.norms():
        first.false = True


def _give_back(reading: Reading) -> None:
    """What was taken for the norm of the last sum is a final norm."""
    if reading.post_norm not in reading.final_norms:
        reading.final_norms = [reading.post_norm, *reading.final_norms]
    reading.post, reading.post_norm = False, -1


def _shifted(anatomy: Anatomy, rows: list[Reading]) -> bool:
    """Post-LN moved by half a block: a norm before the first sum, none of its own after the
    last."""
    first, last = rows[0], rows[-1]
    if any(r.pre or r.exit >= 0 or r.gated_or_mixed() or r.around for r in rows):
        return False
    if not first.link.norms() or not all(r.link.norms() for r in rows):
        return False
    ends = last.final_norms + ([last.post_norm] if last.post_norm >= 0 else [])
    if not ends:
        return True
    moved = _stands_with_next(anatomy, rows, ends=ends)
    if moved:
        _give_back(last)
    return moved


def _stands_with_next(anatomy: Anatomy, rows: list[Reading], *, ends: list[int]) -> bool:
    """Whether each norm lives with the branch behind it rather than with the one before it."""
    graph = anatomy.graph
    votes = 0
    for before, after in pairwise(rows):
        place = graph[after.link.norms()[0]].path
        votes += _kin(place, _home(graph, after)) - _kin(place, _home(graph, before))
    nearest = max(_kin(graph[r.link.norms()[0]].path, _home(graph, r)) for r in rows)
    return votes > 0 and _kin(graph[ends[0]].path, _home(graph, rows[-1])) < nearest


def _home(graph: Graph, reading: Reading) -> str:
    return common([graph[i].path for i in reading.join.path if mixes(graph[i].op)])


def _kin(one: str, other: str) -> int:
    shared = common([one, other])
    return len(shared.split(".")) if shared else 0


def common(paths: list[str]) -> str:
    """The longest path that all of these begin with.

    >>> common(["layers.0.attention.query", "layers.0.attention.key"])
    'layers.0.attention'
    """
    found: list[str] = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return ".".join(found)
