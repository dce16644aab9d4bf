"""Rule `wrong_axis`: norms whose statistics cover more or less than one token's features."""

from collections.abc import Iterator

from addnorm.doctor.analysis.norms import FEATURE_NORMS, Norm
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import CONVOLUTION, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

TRANSFORMER_KINDS = ("self-attention", "cross-attention", "feed-forward")


@rule("wrong_axis")
def wrong_axis(context: RuleContext) -> Iterator[Finding]:
    """Report norms around attention and feed-forward sub-layers that reduce over a wrong axis.

    A norm must take its statistics over all features of one token and nothing else. Only streams
    of two or three axes are checked.
    """
    graph = context.graph
    reported: set[str] = set()
    for block in context.blocks:
        shape = graph[block.add.node].shape
        if block.kind not in TRANSFORMER_KINDS or len(shape) not in (2, 3) or block.add.is_mixed:
            continue
        if any(step.kind == "weights" for step in block.steps):
            continue  # a token-mixing matrix does not show which axis holds the features
        norms = [*block.entry_norms, block.exit_norm, block.post_norm, *block.final_norms]
        norms += block.link.norms()
        for index in norms:
            norm = None if index is None else context.norms.get(index)
            if norm is None or norm.path in reported:
                continue
            if graph[graph.trace_back(norm.source)[-1][0]].op in ("cat", "stack"):
                continue  # merged patches: a token has more features here than in the stream
            wrong = _describe_wrong_axes(
                graph[norm.source].shape, _feature_count(context, block), norm=norm
            )
            if wrong:
                reported.add(norm.path)
                yield Finding(
                    "wrong_axis", "error", norm.path,
                    f"this norm takes its statistics over {wrong}; normalize over the features of "
                    "each token only",
                    {"axes": list(norm.axes or ()), "shape": list(graph[norm.source].shape)},
                )  # fmt: skip


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
    if not candidates or norm.axes is None or len(source) > 3:
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
