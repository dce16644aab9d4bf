"""Norms over the wrong axis."""

from collections.abc import Iterator

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import CONVOLUTION, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

TRANSFORMER_KINDS = ("self-attention", "cross-attention", "feed-forward")


@rule("wrong_axis")
def wrong_axis(context: RuleContext) -> Iterator[Finding]:
    """A norm of a token must look at the features of that token, all of them and nothing else.

    Judged around attentions and feed-forwards, in streams of two or three axes."""
    graph = context.graph
    told: set[str] = set()
    for reading in context.blocks:
        shape = graph[reading.add.node].shape
        if (
            reading.kind not in TRANSFORMER_KINDS
            or len(shape) not in (2, 3)
            or reading.add.is_mixed
        ):
            continue
        if any(step.kind == "weights" for step in reading.steps):
            continue  # the matrix has a row for each token: it does not tell what a feature is
        mine = [*reading.entry_norms, reading.exit_norm, reading.post_norm, *reading.final_norms]
        mine += reading.link.norms()
        for index in mine:
            norm = context.norms.get(index)
            if norm is None or norm.path in told:
                continue
            if graph[graph.trace_back(norm.source)[-1][0]].op in ("cat", "stack"):
                continue  # patches laid together: a token has more features than the stream
            wrong = _describe_wrong_axes(
                graph[norm.source].shape, _feature_count(context, reading), norm=norm
            )
            if wrong:
                told.add(norm.path)
                yield Finding(
                    "wrong_axis", "error", norm.path,
                    f"this norm takes its statistics over {wrong}; take them over the features of "
                    "each token alone",
                    {"axes": list(norm.axes or ()), "shape": list(graph[norm.source].shape)},
                )  # fmt: skip


def _feature_count(context: RuleContext, reading: AddAnalysis) -> int:
    """How many features a token has: what the branch's last matrix makes, where that is seen."""
    graph = context.graph
    shape = graph[reading.add.node].shape
    for index in sorted(reading.add.path, reverse=True):
        node = graph[index]
        if not is_mixing(node.op):
            continue
        for operand in node.operands:
            if operand.kind == "weight" and len(operand.shape) > 1:
                first = node.op == "linear" or node.op in CONVOLUTION
                made = operand.shape[0 if first else -1]
                return made if made in shape[1:] else shape[-1]
    return shape[-1]


def _describe_wrong_axes(source: tuple[int, ...], width: int, *, norm: Norm) -> str:
    """What a norm looks at that it should not, in words; empty if all is well."""
    places = [axis for axis in range(-1, -len(source), -1) if source[axis] == width]
    if not places or norm.axes is None or len(source) > 3:
        return ""
    features = places[0] if norm.axes != (places[-1],) or len(places) == 1 else places[-1]
    if norm.kind == "batch":
        alone = [axis for axis in range(-len(source), 0) if axis not in norm.axes]
        if len(alone) == 1 and alone[0] in places:  # as many points as features: either will do
            return ""
        return "the examples of the batch and features, one mean for each place of a token"
    if norm.kind not in ("layer", "rms", "l2") or norm.axes == (features,):
        return ""
    others = [axis for axis in norm.axes if axis != features]
    names = {-len(source): "examples of the batch"}
    words = sorted({names.get(axis, "tokens") for axis in others})
    mixed = " and ".join(words) or "a part of the features"
    return f"{mixed} as well as features" if features in norm.axes else f"{mixed}, not features"
