"""Rules `batch_leak`, `future_leak` and `padding_leak`: information that crosses a boundary.

Each rule changes a part of the input and runs the model again. If an output moves that must not
depend on this part, there is a leak: another example of the batch, an earlier token of a causal
model, or a valid token when padding changes.
"""

from collections.abc import Iterator
from typing import Any

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import ATTENTION, is_mixing
from addnorm.doctor.report import Finding, join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.batch_norm_padding import batch_norm_changes
from addnorm.doctor.rules.probing.open_gates import zero_gates
from addnorm.doctor.rules.probing.output_layout import drop_last_token
from addnorm.doctor.rules.probing.padding import iter_padding_changes
from addnorm.doctor.rules.probing.perturb import (
    NOTICEABLE_CHANGE,
    Probe,
    first_changed_index,
    leaks_through_mask,
    perturb_last_token,
    reads_probed_input,
    relative_change,
)
from addnorm.doctor.rules.wrong_mask import reads_both_directions
from addnorm.doctor.trace.causal_masks import causal_offsets


@rule("batch_leak")
def batch_leak(context: RuleContext) -> Iterator[Finding]:
    """Report models in which one example of the batch changes the output of another."""
    batch_norms = [
        norm.path
        for norm in context.iter_norms()
        if norm.kind == "batch" and len(context.graph[norm.source].shape) == 3
    ]
    if batch_norms:
        context.notes.append(
            "leaks between examples in train mode: the batch norms at "
            f"{join_paths(batch_norms)} use statistics of the batch there; the probes ran in eval "
            "mode, with running statistics"
        )
    probe = perturb_last_token(context)
    if probe is None:
        context.notes.append("leaks between examples were not checked: no suitable input or output")
    elif probe.is_single_example:
        context.notes.append(
            "leaks between examples were not checked: the positions of the first input axis see "
            "each other and were taken as tokens of one example; if they are examples, they leak"
        )
    elif probe.before.shape[0] < 2:
        context.notes.append("leaks between examples were not checked: the batch has one example")
    elif probe.is_unchanged:
        context.notes.append("leaks were not checked: no output depends on the changed input")
    elif probe.has_batch_leak:
        cause = (
            "changing the padding of one example changes the output of another, so the mask of one "
            "is applied to the other; repeat masks for the heads in the order in which the scores "
            "hold examples and heads, by repeat or repeat_interleave"
            if leaks_through_mask(context)
            else "changing one example changes the output of another, so a norm or an attention "
            "reduces over the batch; compute statistics within each example"
        )
        yield Finding(
            "batch_leak", "error", "", cause,
            {"change": probe.other_examples_change, **_gate_evidence(context)},
        )  # fmt: skip


@rule("future_leak")
def future_leak(context: RuleContext) -> Iterator[Finding]:
    """Report causal models in which a later token changes the output of an earlier one."""
    masks = _find_causal_masks(context)
    if (not masks and not _is_causal(context)) or reads_both_directions(context):
        return
    probe = perturb_last_token(context)
    reason = _explain_unusable_probe(probe) or _explain_encoder(context)
    if probe is None or reason:
        context.notes.append(f"leaks from the future were not checked: {reason}")
        return
    axis = probe.before.shape[1:-1].index(probe.length)
    before, after = (drop_last_token(t[0], probe.length) for t in (probe.before, probe.after))
    change = relative_change(before, after)
    if change > NOTICEABLE_CHANGE:
        first = first_changed_index(before, after, axis=axis)
        evidence = {"change": change, "first token": first, **_gate_evidence(context)}
        yield Finding(
            "future_leak", "error", "", *_explain_future_leak(context, masks, evidence=evidence)
        )


def _explain_unusable_probe(probe: Probe | None) -> str:
    """Return why a probe cannot separate the last token from earlier ones; empty if it can."""
    if probe is None:
        return "no suitable input or output"
    if probe.length < 2:
        return "the output does not depend on the last token"
    has_token_axis = probe.length in probe.before.shape[1:-1]
    return "" if has_token_axis else "no axis of the output has the length of the input"


def _explain_encoder(context: RuleContext) -> str:
    """Return why later tokens may be seen: an encoder reads the same input; empty if none does.

    A causal stream then starts from, or attends to, a stream that is not causal at all.
    """
    main = _main_stream(context)
    if not main or not all(a.is_causal for a in context.square_attentions(main)):
        return ""
    for stream in {block.stream for block in context.blocks} - {main[0].stream}:
        blocks = [block for block in context.blocks if block.stream == stream]
        attentions = context.square_attentions(blocks)
        is_open = attentions and not any(a.is_causal for a in attentions)
        if is_open and reads_probed_input(context, blocks[0].link.start):
            return "an encoder of the same input sees all tokens"
    return ""


def _gate_evidence(context: RuleContext) -> dict[str, Any]:
    """Return the evidence entry for weights that were filled to open closed gates."""
    names = zero_gates(context)
    return {"filled for the probe": names[:4]} if names else {}


def _explain_future_leak(
    context: RuleContext, masks: dict[str, int], *, evidence: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the message and the evidence of a leak from the future.

    Args:
        context: the traced model
        masks: result of `_find_causal_masks`
        evidence: entries that every message shares
    """
    if _is_causal(context):
        attentions = context.trace.recording.stats.attentions
        open_ones = [a.path for a in attentions if a.is_square and not a.is_causal]
        return (
            "the model has causal attention, but changing the last token changes earlier ones; add "
            "the missing mask, or remove an operation across tokens such as a norm over them",
            {**evidence, "attention without mask": open_ones[:4]},
        )
    late = [path for path, begin in masks.items() if begin > 1]
    cause = (
        "it starts one token too late; mask everything above the diagonal with triu(1)" if late else
        "its values do not hide scores, it is applied after the softmax, or another operation "
        "looks ahead; set the scores of later tokens to -inf before the softmax"
    )  # fmt: skip
    return (
        f"attention has a causal mask, but changing the last token changes earlier ones: {cause}",
        {**evidence, "mask": list(late or masks)[:4], "begins ahead by": max(masks.values())},
    )


@rule("padding_leak")
def padding_leak(context: RuleContext) -> Iterator[Finding]:
    """Report padding that changes the output of valid tokens."""
    leaks = False
    for padding in iter_padding_changes(context):
        if padding.change is None:
            context.notes.append(f"leaks from padding were not checked for the {padding.source}")
        elif padding.change > padding.threshold:
            yield Finding(
                "padding_leak", "error", "",
                "padding changes the output of valid tokens; apply the mask in every operation "
                "across tokens: attention, norms over tokens, pooling"
                if padding.is_masked
                else "padding changes the output of valid tokens, because no mask hides it: the "
                "inputs contain the padding index of the embedding; mask it in the attention",
                {"change": padding.change, "mask": padding.source, **_gate_evidence(context)},
            )  # fmt: skip
            leaks = True
    values, count = (0.0, 0.0) if leaks else batch_norm_changes(context) or (0.0, 0.0)
    if max(values, count) > NOTICEABLE_CHANGE:
        reason = "the values" if values > NOTICEABLE_CHANGE else "the number"
        yield Finding(
            "padding_leak", "warning" if values > NOTICEABLE_CHANGE else "info", "",
            f"in train mode, {reason} of masked tokens change the output of valid tokens through "
            "the statistics of a batch norm; normalize the valid tokens only, or use another norm",
            {"change": max(values, count), "mode": "train"},
        )  # fmt: skip


def _main_stream(context: RuleContext) -> list[AddAnalysis]:
    """Return the blocks of the stream that ends at the output, without cross-attention."""
    last = context.blocks[-1].stream if context.blocks else -1
    return [r for r in context.blocks if r.stream == last and r.kind != "cross-attention"]


def _is_causal(context: RuleContext) -> bool:
    """Return whether a self-attention of the main stream masks later tokens."""
    blocks = [r for r in _main_stream(context) if r.kind == "self-attention"]
    spans = [(r.add.fork, r.add.node) for r in blocks]
    return any(
        a.is_causal and any(start <= a.node <= end for start, end in spans)
        for a in context.trace.recording.stats.attentions
    )


def _find_causal_masks(context: RuleContext) -> dict[str, int]:
    """Return the triangular masks of the main stream, whether or not they take effect.

    Returns:
        Path of the module that applies a mask, and its offset: the number of tokens ahead at which
        it starts to hide.
    """
    graph, offsets = context.graph, dict[str, int]()
    for block in _main_stream(context):
        tokens = graph[block.add.node].shape[:-1]
        for node in (graph[i] for i in sorted(block.add.path - {block.add.fork})):
            pairs = node.shape[-2:]
            over = len(pairs) == 2 and pairs[1] <= pairs[0] in tokens and not is_mixing(node.op)
            if node.op in ATTENTION or over:
                offset = max(causal_offsets(graph, node.index), default=0)
                offsets |= {node.path or "the model itself": offset} if offset else {}
    return offsets
