"""Blind spots: what a trace could not show, as notes of the report."""

from collections.abc import Iterator

from addnorm.doctor.analysis.branch_kinds import attention_nodes
from addnorm.doctor.analysis.results import ModelAnalysis
from addnorm.doctor.graph.graph import MAX_NEAR_NODES
from addnorm.doctor.graph.ops import ADDS, is_mixing
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import join_paths


def list_blind_spots(trace: ModelTrace) -> Iterator[str]:
    """Yield a note for each part of the model that could not be traced or restored."""
    graph = trace.analysis.graph
    yield from _explain_missing_blocks(trace.analysis)
    opaque = [node.path for node in graph if node.op == "opaque"]
    if opaque:
        yield f"operations inside {join_paths(opaque)}: a custom kernel does not show them"
    if graph.over_budget:
        yield (
            f"distant residual adds: the graph of {len(graph)} operations exceeded the search "
            f"budget; later searches covered at most {MAX_NEAR_NODES} operations"
        )
    if trace.training:
        yield "eval mode: the model runs in train mode only; dropout was disabled"
    unsaved = trace.guard.unsaved_writes() if trace.guard is not None else []
    if unsaved:
        yield (
            f"writes to {join_paths(unsaved)}: a kernel changed these weights without a visible "
            "operation, so they were not restored"
        )


def _explain_missing_blocks(analysis: ModelAnalysis) -> Iterator[str]:
    """Explain why there is no block, or none around an attention."""
    graph = analysis.graph
    if not analysis.blocks():
        yield f"a residual add: {_explain_no_blocks(analysis)}"
        return
    inside = set[int]().union(*(block.add.path for block in analysis.add_analyses))
    # Outputs of one call share their operands: an attention may return its weights as well.
    calls = {id(graph[i].operands) for i in inside}
    outside = {node.index for node in graph if id(node.operands) not in calls}
    alone = [graph[i].path for i in sorted(attention_nodes(graph, outside))]
    if alone:
        yield (
            f"a residual add around the attention in {join_paths(alone)}: its output is not added "
            "to its input"
        )


def _explain_no_blocks(analysis: ModelAnalysis) -> str:
    graph = analysis.graph
    sums = [node for node in graph if node.op in ADDS and len(node.inputs) > 1]
    mixing = [node for node in graph if is_mixing(node.op)]
    if not mixing:
        return "no operation mixes features or tokens of the inputs"
    if not any(node.active for node in mixing):
        first = mixing[0].path or "the model itself"
        return (
            f"the operations that mix features or tokens, from {first!r} on, could not be traced "
            "back to the inputs, as inside torch.vmap"
        )
    if not sums:
        return "no two activations are added"
    last = sums[-1].path or "the model itself"
    return (
        f"none of {len(sums)} additions, the last one in {last!r}, adds a branch to the stream "
        "that the branch reads"
    )
