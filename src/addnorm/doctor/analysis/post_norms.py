"""What stands behind each sum: a norm of its own, a final norm, or one that the skip carries on."""

from itertools import pairwise

from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.streams import find_own_copy
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import NONLINEAR, POOLING, is_mixing
from addnorm.doctor.residual.mixtures import find_later_mixtures

MAX_BLOCKS_BACK = 200
"""Blocks among which a layer is looked for that repeats."""
PASS_OPS = POOLING | {"getitem", "select", "cat", "index", "stack", "sum", "mean"}


def assign_post_norms(analysis: ModelAnalysis) -> None:
    """Fill in post, final norms and false ones, the last joins first."""
    followers: dict[int, list[AddAnalysis]] = {}
    for reading in analysis.add_analyses:
        if reading.link.previous >= 0:
            followers.setdefault(reading.link.previous, []).append(reading)
    beside = {r.add.parallel_to for r in analysis.add_analyses if r.add.parallel_to >= 0}
    for reading in reversed(analysis.add_analyses):
        after = followers.get(reading.add.node, [])
        plain = [r for r in after if not r.is_attention_score and r.outer_add < 0 and not r.is_dual]
        after = plain or after
        if after:
            _assign_from_next(analysis, reading, after=after[0])
        elif reading.add.node not in beside:
            _assign_last(analysis, reading)
    settled = _assign_tail_norms(analysis)
    _mark_false_pre_norms(analysis)
    for reading, before in settled:
        if before is not None and not before.has_post_norm and not reading.is_false_pre_norm:
            _make_final_norm(reading)  # its norms were those of the next skips


def _assign_from_next(analysis: ModelAnalysis, reading: AddAnalysis, *, after: AddAnalysis) -> None:
    found = after.link.norms(include_before_mixture=not reading.has_pre_norm)
    acts = [m.node for m in after.link.events if m.kind == "activation"]
    reading.activation_after = analysis.graph[acts[-1]].op if acts else ""
    if after.skipped_adds and not found:  # a long skip joins in before the norm
        reading.has_post_norm, reading.post_norm = after.has_post_norm, after.post_norm
        reading.final_norms = list(after.final_norms)
        return
    reading.has_post_norm = bool(found)
    reading.post_norm = found[-1] if found else -1


def _assign_last(analysis: ModelAnalysis, reading: AddAnalysis) -> None:
    """The last join of a stream: is the norm behind it its own, or a final one?"""
    graph, norms = analysis.graph, analysis.norms
    node = reading.add.node
    reached = graph.forward_reach(node, extra_ops=PASS_OPS | set(NONLINEAR))
    together = (
        find_later_mixtures(graph, node, width=reading.add.width)
        if reading.add.is_mixed
        else set[int]()
    )
    for index in sorted(together):  # streams are read as one
        reached |= {index, *graph.forward_reach(index, extra_ops=PASS_OPS)}
    ends = {
        node,
        *together,
        *(i for i in reached if graph[i].op in PASS_OPS or _is_pass_through(graph, i)),
    }
    for index in list(reached):
        if index not in ends and find_own_copy(graph, index) is not None:
            ends |= {index, *(i for i in graph.forward_reach(index) if _is_pass_through(graph, i))}
    read = {
        i for r in analysis.add_analyses if r.add.is_crossed for i in r.entry_norms
    }  # by the other stream
    behind = (n.node for n in norms.values() if n.source in ends)
    reading.final_norms = sorted(set(behind) - read)
    kids = (graph[i].op for i in graph[node].users)
    reading.activation_after = next((op for op in kids if op in NONLINEAR), "")


def _is_pass_through(graph: Graph, index: int) -> bool:
    node = graph[index]
    return len(node.inputs) == 1 and not is_mixing(node.op)


def _assign_tail_norms(analysis: ModelAnalysis) -> list[tuple[AddAnalysis, AddAnalysis | None]]:
    """A last norm belongs to its join if the join before it has one too; or, alone, if the
    branch has no norm of another kind. Those that got one, with the join before."""
    settled: list[tuple[AddAnalysis, AddAnalysis | None]] = []
    graph, norms = analysis.graph, analysis.norms
    by_node = {r.add.node: r for r in analysis.add_analyses}
    for reading in analysis.add_analyses:
        if not reading.final_norms or reading.has_post_norm:
            continue
        inner = [i for i in reading.inner_norms if not is_query_key(graph, norms[i])]
        inner = [i for i in inner if norms[i].kind != "l2"]
        own = not reading.has_pre_norm and reading.exit_norm < 0 and not inner
        before = _find_counterpart(by_node, reading)
        if before is not None:
            own = (
                before.has_post_norm
                and not before.is_false_pre_norm
                and reading.has_pre_norm <= before.has_pre_norm
            )
        if own:
            reading.has_post_norm, reading.post_norm = True, reading.final_norms[0]
            reading.final_norms = reading.final_norms[1:]
            settled.append((reading, before))
    return settled


def _find_counterpart(by_node: dict[int, AddAnalysis], last: AddAnalysis) -> AddAnalysis | None:
    """The block that stands in the layer before where the last one stands in its own; or the
    block right before it, where layers do not repeat."""
    back: list[AddAnalysis] = []
    reading: AddAnalysis | None = last
    while reading is not None and len(back) < MAX_BLOCKS_BACK:
        if bool(reading.skipped_adds) == bool(last.skipped_adds):
            back.append(reading)
        reading = by_node.get(reading.link.previous)
    kinds = [(r.kind, r.has_pre_norm) for r in back]
    for period in range(1, len(kinds) // 2 + 1):
        if kinds[:period] == kinds[period : 2 * period]:
            return back[period]
    return back[1] if len(back) > 1 else None


# the skip carries a normalized stream


def _mark_false_pre_norms(analysis: ModelAnalysis) -> None:
    by_node = {r.add.node: r for r in analysis.add_analyses}
    blocks = analysis.blocks()
    for reading in blocks:
        found = reading.link.norms(include_before_mixture=False)
        if reading.has_pre_norm or not found or reading.exit_norm >= 0 or reading.skipped_adds:
            continue
        before = by_node.get(reading.link.previous)
        if before is None or not before.has_post_norm or before.skipped_adds:
            continue
        if (
            before.has_pre_norm
            or before.is_false_pre_norm
            or (before.inner_norms and not reading.inner_norms and not reading.has_post_norm)
        ):
            reading.is_false_pre_norm, before.has_post_norm = True, False
            if reading.has_post_norm and reading.post_norm >= 0 and not before.has_pre_norm:
                _make_final_norm(reading)
    streams: dict[int, list[AddAnalysis]] = {}
    for reading in blocks:
        root = reading
        while root.link.previous in by_node:
            root = by_node[root.link.previous]
        streams.setdefault(root.add.node, []).append(reading)
    for rows in streams.values():
        _mark_first_false(rows)
        first = _find_first_run(rows)
        for run in (rows, first):
            if run and _is_shifted_post_norm(analysis, run):
                for reading in run:
                    reading.is_false_pre_norm, reading.has_post_norm = True, False


def _find_first_run(rows: list[AddAnalysis]) -> list[AddAnalysis]:
    """The blocks at the start of a stream that read what the skip carries, normalized, up to the
    first whose sum stays raw, if other blocks follow."""
    for count, reading in enumerate(rows, start=1):
        if reading.has_pre_norm or not reading.link.norms():
            return []
        if not reading.has_post_norm:
            return rows[:count] if 1 < count < len(rows) else []
    return []


def _mark_first_false(rows: list[AddAnalysis]) -> None:
    """The first block is what its counterpart in the next layer is, if it reads the same way."""
    first = rows[0]
    later = next((r for r in rows[1:] if r.kind == first.kind), None)
    plain = (
        not first.has_pre_norm
        and not first.has_post_norm
        and first.exit_norm < 0
        and not first.skipped_adds
    )
    if later is not None and later.is_false_pre_norm and plain and first.link.norms():
        first.is_false_pre_norm = True


def _make_final_norm(reading: AddAnalysis) -> None:
    """What was taken for the norm of the last sum is a final norm."""
    if reading.post_norm not in reading.final_norms:
        reading.final_norms = [reading.post_norm, *reading.final_norms]
    reading.has_post_norm, reading.post_norm = False, -1


def _is_shifted_post_norm(analysis: ModelAnalysis, rows: list[AddAnalysis]) -> bool:
    """Post-LN moved by half a block: a norm before the first sum, none of its own after the
    last."""
    first, last = rows[0], rows[-1]
    if any(
        r.has_pre_norm or r.exit_norm >= 0 or r.is_gated_or_mixed() or r.skipped_adds for r in rows
    ):
        return False
    if not first.link.norms() or not all(r.link.norms() for r in rows):
        return False
    ends = last.final_norms + ([last.post_norm] if last.post_norm >= 0 else [])
    if not ends:
        return True
    moved = _belongs_to_next(analysis, rows, ends=ends)
    if moved:
        _make_final_norm(last)
    return moved


def _belongs_to_next(analysis: ModelAnalysis, rows: list[AddAnalysis], *, ends: list[int]) -> bool:
    """Whether each norm lives with the branch behind it rather than with the one before it."""
    graph = analysis.graph
    votes = 0
    for before, after in pairwise(rows):
        place = graph[after.link.norms()[0]].path
        votes += _shared_depth(place, _branch_path(graph, after)) - _shared_depth(
            place, _branch_path(graph, before)
        )
    nearest = max(
        _shared_depth(graph[r.link.norms()[0]].path, _branch_path(graph, r)) for r in rows
    )
    return votes > 0 and _shared_depth(graph[ends[0]].path, _branch_path(graph, rows[-1])) < nearest


def _branch_path(graph: Graph, reading: AddAnalysis) -> str:
    return common_path([graph[i].path for i in reading.add.path if is_mixing(graph[i].op)])


def _shared_depth(one: str, other: str) -> int:
    shared = common_path([one, other])
    return len(shared.split(".")) if shared else 0


def common_path(paths: list[str]) -> str:
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
