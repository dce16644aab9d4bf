"""Rule `dropout_on_stream`: dropout of the residual stream instead of the branch."""

from collections.abc import Iterator
from itertools import takewhile

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.model_runs import trace_in_train_mode

MIN_DROPPED_SUMS = 2
"""Smallest number of sums with dropout; a single one counts only inside a list of layers, because
it may separate two parts of a model."""
LAYER_KINDS = {"self-attention", "cross-attention", "feed-forward"}
MAX_ADDS_PER_LAYER = 4
"""Largest number of adds of which one has dropout, if every layer has the mistake once."""


@rule("dropout_on_stream")
def dropout_on_stream(context: RuleContext) -> Iterator[Finding]:
    """Report Transformers that apply dropout to sums between their layers: x = dropout(x + f(x)).

    The features that all earlier layers have written are then dropped again. Graph and
    convolutional networks do so on purpose; dropout of the embedding and of the branch, and a
    single dropout between two parts of a model, are common.
    """
    context = trace_in_train_mode(context) or context  # in eval mode some models skip dropout
    attentions = context.trace.recording.stats.attentions
    streams: dict[int, list[AddAnalysis]] = {}
    for block in context.blocks:
        streams.setdefault(block.stream, []).append(block)
    for blocks in streams.values():
        if not any(a.node in block.add.path for a in attentions for block in blocks):
            continue
        rates = {block.add.node: _dropout_rate(context, block) for block in blocks}
        dropped = [rate for rate in rates.values() if rate]
        links = sum(block.link.previous is not None for block in blocks)
        is_regular = MAX_ADDS_PER_LAYER * len(dropped) >= links
        is_inside = any(rates[b.add.node] and _is_inside_stack(context, b) for b in blocks)
        if (len(dropped) >= MIN_DROPPED_SUMS and is_regular) or is_inside:
            yield Finding(
                "dropout_on_stream", "warning", context.module_path(blocks[0]),
                f"dropout with rate {max(dropped):g} acts on the whole stream, x = dropout(x + "
                "f(x)), so what earlier layers wrote is lost again; apply it to the branch: "
                "x + dropout(f(x))",
                {"sums": len(dropped) + 1, "rate": max(dropped)},
            )  # fmt: skip


def _is_inside_stack(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether the add before is in the same layer, or in another layer of the same list.

    Layers of one list are built alike, so no two parts of a model meet between them.
    """
    before = next((b for b in context.blocks if b.add.node == block.link.previous), None)
    if before is None or not {before.kind, block.kind} <= LAYER_KINDS:
        return False
    if before.kind == "cross-attention" and before.link.previous is None:
        return False  # the sum of two branches, as of attention and a memory, starts the stream
    one, other = (each.add.module.split(".") for each in (before, block))
    shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    prefix, ends = [name for name, _ in shared], (one[len(shared) :], other[len(shared) :])
    if not all(end and end[0].isdigit() for end in ends):
        return any(name.isdigit() for name in prefix)
    layers = [".".join([*prefix, end[0]]) for end in ends]
    sizes = [sum(f"{b.add.module}.".startswith(f"{p}.") for b in context.blocks) for p in layers]
    kinds = {type(context.trace.model.get_submodule(path)) for path in layers}
    return len(kinds) == 1 and max(sizes) <= MAX_ADDS_PER_LAYER


def _dropout_rate(context: RuleContext, block: AddAnalysis) -> float:
    """Return the rate of the dropout between the add before and a block; 0 without one."""
    graph, previous = context.graph, block.link.previous
    if previous is None:
        return 0.0
    node, start = graph[block.add.fork], graph[previous]
    rate = 0.0
    while node.index > start.index and node.inputs:
        if node.op in DROPOUT and node.size == start.size:
            rate = max(rate, float(node.detail.get("rate", 0.0)))
        norm = context.norms.get(node.index)
        node = graph[norm.source if norm is not None else node.inputs[0]]
    return rate
