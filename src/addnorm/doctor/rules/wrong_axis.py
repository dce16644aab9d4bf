"""Rule `wrong_axis`: norms whose statistics cover more or less than one token's features.

norm of                        must reduce over
the stream, (B, L, D)          D: the axis that the matrices of the branch read
the stream, (B, C, H, W)       more than one side of the image; channels are the second axis
queries and keys               the axis that their product sums over
"""

import math
from collections.abc import Iterator

from addnorm.doctor.analysis.axis_mixing import trace_axes
from addnorm.doctor.analysis.norms import FEATURE_NORMS, Norm
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.axis_layout import collect_origins
from addnorm.doctor.graph.contractions import find_operand_axes
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import (
    ATTENTION,
    CONVOLUTION,
    PRODUCT,
    SLICES,
    TRANSPOSES,
    is_mixing,
)
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

TRANSFORMER_KINDS = ("self-attention", "cross-attention", "feed-forward")


@rule("wrong_axis")
def wrong_axis(context: RuleContext) -> Iterator[Finding]:
    """Report norms around attention and feed-forward sub-layers that reduce over a wrong axis.

    A norm must take its statistics over all features of one token and nothing else. Streams of two
    to four axes are checked.
    """
    graph = context.graph
    reported: set[str] = set()
    for norms in (*(_iter_wrong_norms(context, b) for b in context.blocks),
                  _iter_wrong_batch_norms(context)):  # fmt: skip
        for norm, wrong in norms:
            if norm.path not in reported:
                reported.add(norm.path)
                yield Finding(
                    "wrong_axis", "error", norm.path,
                    f"this norm takes its statistics over {wrong}; normalize over the features of "
                    "each token only",
                    {"axes": list(norm.axes or ()), "shape": list(graph[norm.source].shape)},
                )  # fmt: skip


def _iter_wrong_norms(context: RuleContext, block: AddAnalysis) -> Iterator[tuple[Norm, str]]:
    """Yield the norms of a block that reduce over a wrong axis, with a description of it."""
    graph = context.graph
    shape = graph[block.add.node].shape
    if block.add.is_mixed:
        return
    own = [*block.entry_norms, block.exit_norm, block.post_norm]
    own += block.link.norms()
    norms = [context.norms[i] for i in [*own, *block.final_norms] if i in context.norms]
    if len(shape) == 4:
        if block.kind in TRANSFORMER_KINDS:
            yield from ((n, w) for n in norms if (w := _describe_image_axis(graph, block, norm=n)))
        elif block.kind == "convolution":
            inner = [context.norms[i] for i in sorted(block.add.path) if i in context.norms]
            yield from (
                (n, w) for n in inner if (w := _describe_channel_axis(context, block, norm=n))
            )
    elif len(shape) == 3 and block.kind == "convolution":
        yield from ((n, w) for n in norms if (w := _describe_time_axis(context, block, norm=n)))
    elif len(shape) in (2, 3) and block.kind in TRANSFORMER_KINDS:
        # A token-mixing matrix does not show which axis holds the features.
        norms = [] if any(step.kind == "weights" for step in block.steps) else norms
        for norm in norms:
            if graph[graph.trace_back(norm.source)[-1][0]].op in ("cat", "stack"):
                continue  # merged patches: a token has more features here than in the stream
            width = _feature_count(context, block)
            wrong = _describe_wrong_axes(graph[norm.source].shape, width, norm=norm)
            if not wrong and norm.node in own:
                wrong = _describe_flattened_axes(graph, norm, stream=shape, width=width)
            if wrong:
                yield norm, wrong
    if block.kind in TRANSFORMER_KINDS:
        yield from _iter_wrong_query_key_norms(context, block)


def _iter_wrong_batch_norms(context: RuleContext) -> Iterator[tuple[Norm, str]]:
    """Yield batch norms of a convolution whose axes were exchanged, so that others are channels."""
    graph = context.graph
    for norm in context.iter_norms():
        index, moved = norm.source, False
        while graph[index].op in TRANSPOSES | {"contiguous"} and len(graph[index].inputs) == 1:
            moved |= graph[index].op in TRANSPOSES
            (index,) = graph[index].inputs
        rank = len(graph[index].shape)
        if norm.kind != "batch" or norm.by_hand or not moved or graph[index].op not in CONVOLUTION:
            continue
        layouts, _ = trace_axes(graph, graph.nodes_between(index, norm.source), starts=[index])
        layout = layouts.get(norm.source, ())
        own = collect_origins(layout[1:2])
        if rank == len(layout) == 4 and own and 1 - rank not in own:
            yield norm, "each row or column of the image, not channels"


def _describe_image_axis(graph: Graph, block: AddAnalysis, *, norm: Norm) -> str:
    """Describe a norm over one side of an image with channels first."""
    rank = len(graph[norm.source].shape)
    has_channels_first = any(
        graph[i].op in CONVOLUTION and graph[norm.source].shape in _shapes_around(graph, i)
        for i in block.add.path
    )
    one_side = norm.axes in ((-1,), (-2,))
    if rank != 4 or not has_channels_first or norm.kind not in FEATURE_NORMS or not one_side:
        return ""
    return "one side of the image, not features"


def _describe_channel_axis(context: RuleContext, block: AddAnalysis, *, norm: Norm) -> str:
    """Describe a norm in a convolutional branch that takes one side of the image for channels."""
    graph = context.graph
    layouts, steps = trace_axes(graph, block.add.path, starts=[block.add.fork])
    channels = {origin for step in steps if step.kind == "channels" for origin in step.origins}
    layout = layouts.get(norm.source, ())
    if len(channels) != 1 or len(layout) != 4 or norm.by_hand:
        return ""
    if norm.kind == "batch":
        own = collect_origins([layout[1]])
        is_side = own and not own & channels and len(own) == 1
        return "each row or column of the image, not channels" if is_side else ""
    if norm.kind in ("layer", "rms") and norm.axes == (-1,) and norm.weights:
        own = collect_origins([layout[-1]])
        is_side = own and not own & channels and len(own) == 1
        return "one side of the image, not features" if is_side else ""
    return ""


def _shapes_around(graph: Graph, index: int) -> set[tuple[int, ...]]:
    return {graph[index].shape, *(graph[i].shape for i in graph[index].inputs)}


def _describe_time_axis(context: RuleContext, block: AddAnalysis, *, norm: Norm) -> str:
    """Describe a built-in norm over time whose weights belong to positions, not to channels."""
    source = context.graph[norm.source].shape
    width = _feature_count(context, block)
    is_over_time = norm.axes == (-1,) and len(source) == 3 and source[1] == width != source[2]
    is_built_in = norm.kind in ("layer", "rms") and not norm.by_hand and bool(norm.weights)
    return "tokens, not features" if is_over_time and is_built_in else ""


def _describe_flattened_axes(
    graph: Graph, norm: Norm, *, stream: tuple[int, ...], width: int
) -> str:
    """Describe a norm of a stream whose tokens and features were flattened into one axis."""
    source = graph[norm.source].shape
    tokens = stream[1] if len(stream) == 3 and stream[-1] == width else 0
    is_flat = norm.axes == (-1,) and tokens > 1 and source[-1] == tokens * width
    return "tokens as well as features" if is_flat and norm.kind in FEATURE_NORMS else ""


def _iter_wrong_query_key_norms(
    context: RuleContext, block: AddAnalysis
) -> Iterator[tuple[Norm, str]]:
    """Yield norms of queries and keys that reduce over an axis that their product keeps."""
    graph = context.graph
    inner = [
        norm
        for i in sorted(block.add.path)
        if (norm := context.norms.get(i)) and norm.kind in FEATURE_NORMS and norm.axes is not None
    ]
    reached = {n.node: {n.node, *graph.forward_reach(n.node, extra_ops=SLICES)} for n in inner}
    for index in sorted(block.add.path):
        operands = _score_operands(graph, index)
        sources = [[n for n in inner if i in reached[n.node]][-1:] for i in operands]
        if len(operands) != 2 or not all(sources) or sources[0] == sources[1]:
            continue
        summed = _summed_size(graph, index)
        for (norm,), operand in zip(sources, operands, strict=True):
            # The result has the shape that is reduced; heads may be split after the source.
            sizes = [graph[norm.node].shape[axis] for axis in norm.axes or ()]
            if summed < 2:
                continue
            if len(sizes) == 1 and sizes[0] % summed:
                yield norm, "heads or tokens of queries and keys, not features"
            elif len(sizes) > 1 and _has_token_axis(graph, index, sizes=sizes, summed=summed):
                yield norm, "tokens as well as features of queries and keys"
            elif math.prod(sizes) > summed and _has_gain_per_head(
                context, norm, operand=operand, size=summed
            ):
                yield norm, "all heads, although its gain has the features of one head"


def _has_token_axis(graph: Graph, index: int, *, sizes: list[int], summed: int) -> bool:
    """Return whether a norm of queries or keys over several axes includes that of the tokens.

    Axes are known by their sizes here; those of the other axes of the scores may be heads.
    """
    shape = graph[index].shape
    queries = graph[_score_operands(graph, index)[0]].shape
    tokens = {queries[-2]} if graph[index].op in ATTENTION else set(shape[-2:])
    rest = list(sizes)
    if summed in rest:
        rest.remove(summed)
    heads = set(queries[:-2])
    return any(size in tokens and size not in heads for size in rest)


def _has_gain_per_head(context: RuleContext, norm: Norm, *, operand: int, size: int) -> bool:
    """Return whether the result of a norm is multiplied by a gain with the features of one head."""
    graph = context.graph
    between = graph.nodes_between(norm.node, operand) if operand != norm.node else {norm.node}
    return any(
        graph[i].op == "mul" and context.weights[name].numel() == size
        for i in between
        for name in context.weight_names(i, include_slices=False)
    )


def _score_operands(graph: Graph, index: int) -> list[int]:
    """Return queries and keys of an attention, or both operands of a product of activations."""
    node = graph[index]
    active = [o.node for o in node.operands if o.kind == "node" and graph[o.node].active]
    if node.op in ATTENTION - {"multi_head_attention_forward"}:
        return active[:2]
    return active if node.op in PRODUCT and len(active) == 2 else []


def _summed_size(graph: Graph, index: int) -> int:
    """Return the number of entries that a product of queries and keys sums over; 0 if unknown."""
    node = graph[index]
    if node.op in ATTENTION:
        return graph[_score_operands(graph, index)[0]].shape[-1]
    axes = find_operand_axes(graph, index, position=0)
    first = graph[_score_operands(graph, index)[0]].shape
    return first[axes.summed[0]] if axes is not None and len(axes.summed) == 1 else 0


def _feature_count(context: RuleContext, block: AddAnalysis) -> int:
    """Return the features of a token: the output size of the branch's last matrix if known."""
    graph = context.graph
    shape = graph[block.add.node].shape
    for index in sorted(block.add.path, reverse=True):
        node = graph[index]
        if not is_mixing(node.op):
            continue
        for operand in node.operands:
            if operand.kind == "weight" and len(operand.shape) > 1:
                first = node.op == "linear" or node.op in CONVOLUTION
                size = operand.shape[0 if first else -1]
                return size if size in shape[1:] else shape[-1]
    return shape[-1]


def _describe_wrong_axes(source: tuple[int, ...], width: int, *, norm: Norm) -> str:
    """Describe the axes that a norm should not reduce over; empty if its axes are right."""
    candidates = [axis for axis in range(-1, -len(source), -1) if source[axis] == width]
    if not candidates or len(source) > 3:
        return ""
    if norm.kind == "group" and len(source) == 3 and candidates == [-1]:
        return "groups of tokens, with one gain per position"
    if norm.axes is None:
        return ""
    only_last = norm.axes == (candidates[-1],) and len(candidates) > 1
    features = candidates[-1] if only_last else candidates[0]
    if norm.kind == "batch":
        kept = [axis for axis in range(-len(source), 0) if axis not in norm.axes]
        if len(kept) == 1 and kept[0] in candidates:  # any axis as long as the features may be them
            return ""
        return "the examples of the batch and the features, with one mean per position"
    if norm.kind not in FEATURE_NORMS or norm.axes == (features,):
        return ""
    others = [axis for axis in norm.axes if axis != features]
    names = {-len(source): "examples of the batch"}
    labels = sorted({names.get(axis, "tokens") for axis in others})
    reduced = " and ".join(labels) or "a part of the features"
    return f"{reduced} as well as features" if features in norm.axes else f"{reduced}, not features"
