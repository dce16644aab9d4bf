"""Rule `detached_layers`: layers that the gradient does not reach."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.report import Finding, Severity, join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

DETACHING_OPS = ("detach", "__get__")
"""`x.detach()` and `x.data`."""


@rule("detached_layers")
def detached_layers(context: RuleContext) -> Iterator[Finding]:
    """Report trainable layers without a gradient that are followed by trained ones.

    Frozen weights (`requires_grad=False`) are not trainable. A part that runs under `no_grad` from
    its first operation on is taken as a teacher or a feature extractor, unless layers of the same
    shapes follow on the same stream. A stream that is detached at its end only, outside of the
    module that computes it, may be read by a probe of its features: that is a remark.
    """
    if any("backward pass failed" in note for note in context.trace.notes):
        return
    if _leaves_torch(context):
        yield Finding(
            "detached_layers", "error", context.module_path(context.blocks[-1]),
            "the output is not computed from the layers by operations of PyTorch, and the layers "
            "get no gradient; do not pass activations through numpy, tolist() or torch.tensor()",
            {"adds": len(context.blocks), "gradients": len(context.trace.gradients.weights)},
        )  # fmt: skip
        return
    yield from _check_weights(context)
    streams: dict[int, list[AddAnalysis]] = {}
    for block in context.blocks:
        streams.setdefault(block.stream, []).append(block)
    for blocks in streams.values():
        yield from _check_skips(context, blocks)
        yield from _check_stream(context, blocks)


def _check_weights(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding if a trainable weight itself is read without its gradient only.

    Gains and biases of norms are those of `inert_norm`.
    """
    of_norms = {
        name
        for norm in context.iter_norms()
        for name in context.norm_weights(norm) or context.weight_names(norm.node)
    }
    graph, gradients = context.graph, context.trace.gradients.weights
    readers: dict[str, list[Node]] = {}
    for node in graph:
        for operand in node.operands:
            if operand.kind == "weight" and operand.name:
                readers.setdefault(operand.name, []).append(node)
    names = [
        name
        for name, nodes in readers.items()
        if name not in gradients
        and name in context.weights
        and context.is_trainable(name)
        and context.weights[name].numel() > 1
        and name not in of_norms
        and all(node.op in DETACHING_OPS for node in nodes)
    ]
    if names and gradients:
        yield Finding(
            "detached_layers", "warning", names[0].rpartition(".")[0],
            f"parameters are read as .data or detach(): {join_paths(names)}; they get no gradient "
            "and never train; read the parameter itself, or register it as a buffer",
            {"weights without gradient": names[:4]},
        )  # fmt: skip


def _check_stream(context: RuleContext, blocks: list[AddAnalysis]) -> Iterator[Finding]:
    """Yield a finding if branches of a stream are cut off from the gradient."""
    states = [_gets_gradient(context, block) for block in blocks]
    cut_off = [block for block, state in zip(blocks, states, strict=True) if state is False]
    if not cut_off:
        yield from _check_start(context, blocks[0])
        return
    first, last = blocks[0].add.fork, blocks[-1].add.node
    cut = _find_cut(context, first, last)
    if cut is not None:
        yield _make_finding(context, cut_off, cut=cut, count=len(blocks))
        return
    if len(cut_off) == len(states) - states.count(None) and context.trace.gradients.weights:
        yield from _check_end(context, blocks)
    frozen, others = blocks[: len(cut_off)], blocks[len(cut_off) :]
    if cut_off == frozen and others and _are_alike(context, frozen, others):
        yield Finding(
            "detached_layers", "warning", context.module_path(cut_off[0]),
            f"{len(cut_off)} of {len(blocks)} branches of this stream run under no_grad, so their "
            "weights never train, although equal layers after them do; remove no_grad, or freeze "
            "the weights with requires_grad_(False) if that is intended",
            {"branches": len(cut_off), "of": len(blocks)},
        )  # fmt: skip


def _check_start(context: RuleContext, first: AddAnalysis) -> Iterator[Finding]:
    """Yield a finding if an embedding is detached before the first layer, which does train."""
    graph, start = context.graph, first.add.fork
    if start > min(block.add.node for block in context.blocks):
        return  # other layers come before: their own end is checked
    for node in (graph[i] for i in sorted(graph.data_ancestors(start) | {start})):
        lost = [i for i in node.inputs if graph[i].grad]
        if node.op not in DETACHING_OPS or not lost or not node.active:
            continue
        before = graph.data_ancestors(*lost) | set(lost)
        names = {name for i in before for name in context.weight_names(i)}
        names = {name for name in names if context.is_trainable(name)}
        if names and not names & context.trace.gradients.weights.keys():
            yield Finding(
                "detached_layers", "warning", node.path or context.module_path(first),
                f"the input of the first layer is detached (operation {node.op}), so "
                f"{join_paths(sorted(names))} get no gradient; remove the detach, or freeze them "
                "with requires_grad_(False) if that is intended",
                {"weights without gradient": sorted(names)[:4]},
            )  # fmt: skip
            return


def _check_end(context: RuleContext, blocks: list[AddAnalysis]) -> Iterator[Finding]:
    """Yield a finding if a stream is detached behind its last layer, before what does train."""
    last = blocks[-1].add.node
    cuts = (_find_cut(context, last, end) for end in context.trace.recording.outputs)
    cut = next((node for node in cuts if node is not None), None)
    if not context.graph[last].grad or cut is None or not cut.active:
        return
    names = [name for block in blocks for name in _trainable(context, block)]
    trunk = _find_trunk(context, blocks)
    is_outside = trunk and not f"{cut.path}.".startswith(f"{trunk}.")
    is_in_layer = any(f"{cut.path}.".startswith(f"{block.add.module}.") for block in blocks)
    severity: Severity = "info" if is_outside else "error" if is_in_layer else "warning"
    yield Finding(
        "detached_layers", severity, cut.path or context.module_path(blocks[-1]),
        f"the stream is detached behind its last layer (operation {cut.op}), so none of its "
        f"{len(blocks)} branches gets a gradient and only what follows trains; remove the detach, "
        "or freeze the layers with requires_grad_(False) if that is intended",
        {"branches": len(blocks), "of": len(blocks), "weight without gradient": names[0]},
    )  # fmt: skip


def _find_trunk(context: RuleContext, blocks: list[AddAnalysis]) -> str:
    """Return the path of the innermost called module around all blocks; empty if there is none."""
    paths = [block.add.module.split(".") for block in blocks]
    common = [
        parts[0] for parts in takewhile(lambda p: len(set(p)) == 1, zip(*paths, strict=False))
    ]
    while common and not context.trace.recording.call_counts.get(".".join(common)):
        common.pop()
    return ".".join(common)


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
    """Return whether only weights after the layers train, without a connection to the output."""
    if context.trace.recording.outputs or not context.trace.gradients.weights:
        return False
    states = [_gets_gradient(context, block) for block in context.blocks]
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


def _gets_gradient(context: RuleContext, block: AddAnalysis) -> bool | None:
    """Return whether a weight of a branch gets a gradient; None if it has no trainable weight."""
    names = _trainable(context, block)
    return any(name in context.trace.gradients.weights for name in names) if names else None


def _find_cut(context: RuleContext, start: int, end: int) -> Node | None:
    """Return the first node between two others that loses the gradient of its inputs."""
    graph = context.graph
    path = graph.nodes_between(start, end)
    for node in (graph[i] for i in sorted(path - {start})):
        if not node.grad and any(graph[i].grad for i in node.inputs if i in path):
            return node
    return None


def _are_alike(context: RuleContext, one: list[AddAnalysis], other: list[AddAnalysis]) -> bool:
    """Return whether two groups of branches have matrices of equal shapes: layers of one stack."""
    shapes = [
        {tuple(tuple(context.weights[n].shape) for n in context.branch_weights(b)) for b in blocks}
        for blocks in (one, other)
    ]
    return shapes[0] == shapes[1]
