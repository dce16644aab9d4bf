"""Classification of the residual adds of a recorded graph: the passes of the analysis in order.

    graph, residual adds
      find_norms              Norm             every norm: named, opaque or written by hand
      refine_adds             ResidualAdd      adds that hold for the whole graph
      _place_adds             PlacedAdd        norms on each branch; link to the add before
      _classify_branches      BranchKind       self-attention, feed-forward, ...
      nest_adds               NestedAdd        adds inside a branch, long skips, duals
      assign_post_norms       PostNorms        norm after each sum: own, final, or of the next block
      number_streams          AddAnalysis      stream of each add
    ModelAnalysis

Example: two blocks of `x = x + f(norm(x))` and a final norm.

    residual adds   {5: ResidualAdd(fork=1, branch=4), 9: ResidualAdd(fork=5, branch=8)}
    placed          entry_norms=(2,) and (6,); link.previous=None and 5
    result          entry_norms set, exit_norm and post_norm None, final_norms=(10,): Pre-LN

No pass changes the result of another. `labels.py` turns a finished `AddAnalysis` into words.
"""

from collections.abc import Mapping
from dataclasses import replace

from addnorm.doctor.analysis.branch_kinds import (
    BranchKind,
    classify_branch,
    find_token_mixing,
    has_parallel_branches,
    walk_branch,
)
from addnorm.doctor.analysis.nesting import nest_adds
from addnorm.doctor.analysis.norm_placement import place_norms
from addnorm.doctor.analysis.norms import Norm, find_norms
from addnorm.doctor.analysis.post_norms import assign_post_norms
from addnorm.doctor.analysis.results import (
    AddAnalysis,
    ModelAnalysis,
    NestedAdd,
    PlacedAdd,
    extend,
)
from addnorm.doctor.analysis.streams import find_stream_link, number_streams
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.residual.refine import refine_adds
from addnorm.doctor.residual.residual_adds import Adds, ResidualAdd
from addnorm.doctor.residual.reversible import is_merge
from addnorm.doctor.residual.shortcut_steps import find_sliced_stream


def classify(graph: Graph, adds: Adds) -> ModelAnalysis:
    """Analyze every residual add of a recorded graph.

    Args:
        graph: graph of one forward pass.
        adds: residual adds as the recorder found them, by the node of their sum.
    """
    norms = find_norms(graph)
    placed = _place_adds(graph, norms, adds=refine_adds(graph, adds))
    kinds = _classify_branches(graph, norms, placed=placed)
    parallel = {p.add.node for p in placed if _is_parallel(graph, norms, placed=p)}
    nested = nest_adds(graph, norms, placed=placed, kinds=kinds, parallel=parallel)
    return ModelAnalysis(graph, norms, _finish(graph, norms, nested=nested))


def _place_adds(graph: Graph, norms: Mapping[int, Norm], *, adds: Adds) -> list[PlacedAdd]:
    """Find the norms on each branch and the add before it, in the order of execution."""
    corrected = dict(adds)  # later adds see the corrected forks of earlier ones
    placed = []
    for index in sorted(adds):
        fed_by = _find_fed_branch(graph, corrected, add=adds[index])
        placement = place_norms(graph, norms, adds=corrected, add=adds[index], fed_by=fed_by)
        # A normalized shortcut is expected where the branch reads the output of another branch.
        add = replace(
            placement.add,
            has_normed_shortcut=placement.add.has_normed_shortcut and fed_by is None,
        )
        corrected[index] = add
        is_apart = add.crossing == "streams" or find_sliced_stream(graph, add.shortcut) == add.fork
        start = add.shortcut if is_apart or fed_by is not None else add.fork
        feeds_softmax = any(graph[i].op == "softmax" for i in graph.forward_reach(index))
        placed.append(
            extend(
                PlacedAdd,
                placement,
                add=add,
                fed_by=fed_by,
                link=find_stream_link(graph, corrected, norms=norms, add=add, start=start),
                is_attention_score=feeds_softmax and not placement.entry_norms,
            )
        )
    return placed


def _find_fed_branch(graph: Graph, adds: Adds, *, add: ResidualAdd) -> int | None:
    """Return the output of the parallel branch before, if this branch reads it and not the sum."""
    first = None if add.parallel_to is None else adds.get(add.parallel_to)
    if first is None:
        return None
    origin, own = (graph.trace_back(branch)[-1][0] for branch in (first.branch, add.branch))
    if origin not in add.path or origin in (first.fork, own):
        return None
    return origin if graph.has_path_avoiding(origin, add.branch, blocked=set(adds)) else None


def _classify_branches(
    graph: Graph, norms: Mapping[int, Norm], *, placed: list[PlacedAdd]
) -> dict[int, BranchKind]:
    """Return the kind of each branch, by the node of its add.

    Which axis holds features depends on the axes along which the matrices of all branches work, so
    all branches are walked first.
    """
    walks = [walk_branch(graph, p.add, norms=norms, start=p.fed_by) for p in placed]
    matrix_axes = frozenset[int]().union(*(walk.matrix_axes for walk in walks))
    kinds = {}
    for p, walk in zip(placed, walks, strict=True):
        steps = tuple(find_token_mixing(walk, matrix_axes=matrix_axes))
        kind = classify_branch(graph, p.add, steps=steps, start=p.fed_by)
        kinds[p.add.node] = BranchKind(kind, steps)
    return kinds


def _is_parallel(graph: Graph, norms: Mapping[int, Norm], *, placed: PlacedAdd) -> bool:
    """Whether another branch reads the same fork: added before, or inside this branch."""
    is_second = placed.add.parallel_to is not None and placed.fed_by is None
    return is_second or has_parallel_branches(graph, norms, add=placed.add)


def _finish(
    graph: Graph, norms: Mapping[int, Norm], *, nested: list[NestedAdd]
) -> tuple[AddAnalysis, ...]:
    """Add the norms after each sum and the number of each stream."""
    post_norms = assign_post_norms(graph, norms, adds=nested)
    adds = {n.add.node: n.add for n in nested}
    streams = number_streams(adds.values(), {n.add.node: n.link for n in nested})
    crossed = {streams[n.add.node] for n in nested if n.add.is_crossed}
    finished = []
    for n in nested:
        stream, merges = streams[n.add.node], is_merge(graph, adds, add=n.add)
        finished.append(
            extend(
                AddAnalysis,
                n,
                post_norms[n.add.node],
                stream=stream,
                is_merge=merges,
                is_reversible=stream in crossed and not merges,
            )
        )
    return tuple(finished)
