"""Rule `detached_layers`: layers that the gradient does not reach."""

from collections.abc import Iterator, Sequence

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

DETACHING_OPS = ("detach", "__get__")
"""`x.detach()` and `x.data`."""


@rule("detached_layers")
def detached_layers(context: RuleContext) -> Iterator[Finding]:
    """Report trainable layers without a gradient behind which others are trained.

    Frozen weights (`requires_grad=False`) are not trainable. A part that runs under `no_grad` from
    its first operation on is taken as a teacher or a feature extractor, unless layers of the same
    shapes follow on the same stream. So is a stream that is detached at its end only: what follows
    may be a probe of its features.
    """
    if any("backward pass failed" in note for note in context.trace.notes):
        return
    if _leaves_torch(context):
        yield Finding(
            "detached_layers", "error", context.module_path(context.blocks[-1]),
            "the output is not computed from the layers by operations of PyTorch, and the layers "
            "get no gradient; do not pass activations through numpy, tolist() or torch.tensor()",
            {"adds": len(context.blocks), "gradients": len(context.trace.weight_gradients)},
        )  # fmt: skip
        return
    streams: dict[int, list[AddAnalysis]] = {}
    for block in context.blocks:
        streams.setdefault(block.stream, []).append(block)
    for blocks in streams.values():
        yield from _check_skips(context, blocks)
        yield from _check_stream(context, blocks)


def _check_stream(context: RuleContext, blocks: list[AddAnalysis]) -> Iterator[Finding]:
    """Yield a finding if branches of a stream are cut off from the gradient."""
    states = [_is_trained(context, block) for block in blocks]
    cut_off = [block for block, state in zip(blocks, states, strict=True) if state is False]
    if not cut_off:
        return
    first, last = blocks[0].add.fork, blocks[-1].add.node
    cut = _find_cut(context, first, last)
    if cut is not None:
        yield _make_finding(context, cut_off, cut=cut, count=len(blocks))
        return
    frozen, others = blocks[: len(cut_off)], blocks[len(cut_off) :]
    if cut_off == frozen and others and _are_alike(context, frozen, others):
        yield Finding(
            "detached_layers", "warning", context.module_path(cut_off[0]),
            f"{len(cut_off)} of {len(blocks)} branches of this stream run under no_grad, so their "
            "weights never train, although equal layers behind them do; remove no_grad, or freeze "
            "the weights with requires_grad_(False) if that is intended",
            {"branches": len(cut_off), "of": len(blocks)},
        )  # fmt: skip


def _make_finding(
    context: RuleContext, cut_off: Sequence[AddAnalysis], *, cut: Node, count: int
) -> Finding:
    names = [name for block in cut_off for name in _trainable(context, block)]
    return Finding(
        "detached_layers", "error", cut.path or context.module_path(cut_off[0]),
        f"the weights of {len(cut_off)} of {count} branches of this stream get no gradient, "
        f"because the stream or the branches are detached (operation {cut.op}); remove detach(), "
        ".data or no_grad between the layers",
        {"branches": len(cut_off), "of": count, "weight without gradient": names[0]},
    )  # fmt: skip


def _leaves_torch(context: RuleContext) -> bool:
    """Whether weights behind the layers train, but no operation connects the output to them."""
    if context.trace.recorder.outputs or not context.trace.weight_gradients:
        return False
    states = [_is_trained(context, block) for block in context.blocks]
    return bool(states) and all(state is False for state in states)


def _check_skips(context: RuleContext, blocks: list[AddAnalysis]) -> Iterator[Finding]:
    """Yield a finding if the skips of a stream are detached: x.detach() + f(x)."""
    graph = context.graph
    detached = [
        block
        for block in blocks
        if graph[block.add.fork].grad
        and graph[block.add.branch].grad
        and not graph[block.add.shortcut].grad
        and any(graph[i].op in DETACHING_OPS for i, _ in graph.trace_back(block.add.shortcut))
    ]
    if detached:
        yield Finding(
            "detached_layers", "error", context.module_path(detached[0]),
            "the skip connection is detached, x.detach() + f(x), so the gradient reaches earlier "
            "layers through the branches only; add the branch to x itself",
            {"skips": len(detached), "of": len(blocks)},
        )  # fmt: skip


def _trainable(context: RuleContext, block: AddAnalysis) -> list[str]:
    names = context.branch_weights(block)
    return [name for name in names if context.is_trainable(name)]


def _is_trained(context: RuleContext, block: AddAnalysis) -> bool | None:
    """Whether some weight of a branch gets a gradient; None if it has no trainable weight."""
    names = _trainable(context, block)
    return any(name in context.trace.weight_gradients for name in names) if names else None


def _find_cut(context: RuleContext, start: int, end: int) -> Node | None:
    """Return the first node between two others that loses the gradient of its inputs."""
    graph = context.graph
    path = graph.nodes_between(start, end)
    for node in (graph[i] for i in sorted(path - {start})):
        if not node.grad and any(graph[i].grad for i in node.inputs if i in path):
            return node
    return None


def _are_alike(context: RuleContext, one: list[AddAnalysis], other: list[AddAnalysis]) -> bool:
    """Whether two groups of branches have matrices of the same shapes: layers of one stack."""
    shapes = [
        {tuple(tuple(context.weights[n].shape) for n in context.branch_weights(b)) for b in blocks}
        for blocks in (one, other)
    ]
    return shapes[0] == shapes[1]
