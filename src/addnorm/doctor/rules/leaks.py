"""Leaks: between examples, from the future, from padding. Found by changing an input a little."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import ATTENTION, is_mixing
from addnorm.doctor.report import Finding, join_paths
from addnorm.doctor.rules.base import RuleContext, rule
from addnorm.doctor.rules.probing.input_masks import is_mask, iter_hidden_tokens, iter_masks
from addnorm.doctor.rules.probing.open_gates import zero_gates
from addnorm.doctor.rules.probing.output_layout import drop_hidden_tokens, drop_last_token
from addnorm.doctor.rules.probing.perturb import (
    NOTICEABLE_CHANGE,
    Probe,
    first_changed_index,
    iter_examples,
    named_inputs,
    perturb_last_token,
    perturbed_values,
    relative_change,
    replace_inputs,
    run_model,
    tensors_by_name,
)
from addnorm.doctor.trace.causal_masks import causal_offsets


@rule("batch_leak")
def batch_leak(context: RuleContext) -> Iterator[Finding]:
    """One example changes another."""
    across = [
        norm.path
        for norm in context.iter_norms()
        if norm.kind == "batch" and len(context.graph[norm.source].shape) == 3
    ]
    if across:
        context.trace.notes.append(
            f"leaks between examples in training: the batch norms at {join_paths(across)} take their "
            "statistics over the batch there; probes ran in eval mode, with those that are kept"
        )
    probe = perturb_last_token(context)
    if probe is None:
        context.trace.notes.append("leaks between examples were not tried: no input or output fits")
    elif probe.is_single_example:
        context.trace.notes.append(
            "leaks between examples were not tried: the first axis of the inputs was taken for the "
            "tokens of one example, since they look at one another; if it holds examples, these do"
        )
    elif probe.before.shape[0] < 2:
        context.trace.notes.append("leaks between examples were not tried: one example was given")
    elif probe.is_unchanged:
        context.trace.notes.append("leaks: no output moved at all when an input changed")
    elif probe.has_batch_leak:
        yield Finding(
            "batch_leak", "error", "",
            "changing one example changes the output of another: something normalizes or looks "
            "across the batch; take statistics within each example",
            {"change": probe.other_examples_change, **_gate_evidence(context)},
        )  # fmt: skip


@rule("future_leak")
def future_leak(context: RuleContext) -> Iterator[Finding]:
    """A later token changes an earlier one, in a model that is meant to be causal."""
    masks = _find_causal_masks(context)
    if not masks and not _is_causal(context):
        return
    probe = perturb_last_token(context)
    why = _explain_unusable_probe(probe)
    if probe is None or why:
        context.trace.notes.append(f"leaks from the future were not tried: {why}")
        return
    axis = probe.before.shape[1:-1].index(probe.length)
    before, after = (drop_last_token(t[0], probe.length) for t in (probe.before, probe.after))
    moved = relative_change(before, after)
    if moved > NOTICEABLE_CHANGE:
        first = first_changed_index(before, after, axis=axis)
        seen = {"change": moved, "first token": first, **_gate_evidence(context)}
        yield Finding(
            "future_leak", "error", "", *_explain_future_leak(context, masks, evidence=seen)
        )


def _explain_unusable_probe(probe: Probe | None) -> str:
    """Why a probe cannot tell earlier tokens from the last one; nothing if it can."""
    if probe is None:
        return "no input or output fits"
    if probe.length < 2:
        return "no last token of several moves the output"
    there = probe.length in probe.before.shape[1:-1]
    return "" if there else "the output has no axis as long as the tokens"


def _gate_evidence(context: RuleContext) -> dict[str, Any]:
    """Evidence of what was done to see through closed gates."""
    names = zero_gates(context)
    return {"filled for the probe": names[:4]} if names else {}


def _explain_future_leak(
    context: RuleContext, masks: dict[str, int], *, evidence: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What is to be changed, and the evidence for it. masks: as _triangles returns them."""
    if _is_causal(context):
        attentions = context.trace.recorder.stats.attentions
        open_ones = [a.path for a in attentions if a.is_square and not a.is_causal]
        return (
            "some attention is causal, yet changing the last token changes earlier ones: a mask is "
            "missing or something else looks ahead, such as a norm over tokens",
            {**evidence, "attention without mask": open_ones[:4]},
        )
    late = [path for path, begin in masks.items() if begin > 1]
    why = (
        "it begins one token too late; hide everything above the diagonal: triu(1)" if late else
        "its values do not hide, it comes after the softmax, or something beside it looks ahead; "
        "set the scores of later tokens to -inf before the softmax"
    )  # fmt: skip
    return (
        f"attention has a mask of later tokens, yet changing the last one changes earlier ones: "
        f"{why}",
        {**evidence, "mask": list(late or masks)[:4], "begins ahead by": max(masks.values())},
    )


@rule("padding_leak")
def padding_leak(context: RuleContext) -> Iterator[Finding]:
    """What stands at padding changes valid tokens, however the mask is read."""
    names = named_inputs(context)
    for name, mask in iter_masks(context, names):
        if mask.shape[1] < 3:
            continue
        told = [n for n, t in names.items() if n != name and not is_mask(context, t)]
        changes: list[float | None] = []
        for example in iter_examples(context, mask.shape[1]):
            marks = tensors_by_name(example)[name]
            changes = [
                _hidden_change(context, example, mask_name=name, input_names=told, pair=pair)
                for pair in iter_hidden_tokens(marks)
            ]
            if changes and None not in changes:
                break
        if not changes or None in changes:
            context.trace.notes.append(f"whether {name} hides its tokens could not be tried")
            continue
        moved = min(change for change in changes if change is not None)
        if moved > NOTICEABLE_CHANGE:
            yield Finding(
                "padding_leak", "error", "",
                "a token that the mask hides changes the output of valid tokens; apply the mask "
                "wherever tokens meet: attention, norms over tokens, pooling",
                {"change": moved, "mask": name, **_gate_evidence(context)},
            )  # fmt: skip
        return


def _hidden_change(
    context: RuleContext,
    example: Any,
    *,
    mask_name: str,
    input_names: list[str],
    pair: tuple[Tensor, Tensor],
) -> float | None:
    """How far valid tokens move when hidden ones change; None if that cannot be tried.

    told: names of inputs that may hold the tokens.
    """
    mask, hidden = pair
    given = tensors_by_name(example)
    for name in input_names:
        tensor = given[name]
        if tensor.dim() < 2 or tensor.shape[:2] not in (mask.shape, mask.mT.shape):
            continue
        there = hidden if tensor.shape[:2] == mask.shape else hidden.mT
        there = there.reshape(*there.shape, *[1] * (tensor.dim() - 2))
        with_mask = replace_inputs(example, {mask_name: mask})
        changed = torch.where(there, perturbed_values(tensor), tensor)
        before = run_model(context, with_mask)
        after = run_model(context, replace_inputs(with_mask, {name: changed}))
        if before is None or after is None or before.shape != after.shape:
            return None
        return relative_change(*(drop_hidden_tokens(t, hidden) for t in (before, after)))
    return None


def _main_stream(context: RuleContext) -> list[AddAnalysis]:
    """Blocks of the stream that reaches the output, but for those that look at another one."""
    last = context.blocks[-1].stream if context.blocks else -1
    return [r for r in context.blocks if r.stream == last and r.kind != "cross-attention"]


def _is_causal(context: RuleContext) -> bool:
    """Whether an attention on the main stream hides the future."""
    mine = [r for r in _main_stream(context) if r.kind == "self-attention"]
    spans = [(r.add.fork, r.add.node) for r in mine]
    return any(
        a.is_causal and any(start <= a.node <= end for start, end in spans)
        for a in context.trace.recorder.stats.attentions
    )


def _find_causal_masks(context: RuleContext) -> dict[str, int]:
    """Masks of the future on the main stream, whatever they do: who applies each, and how many
    tokens ahead it begins."""
    graph, found = context.graph, dict[str, int]()
    for reading in _main_stream(context):
        tokens = graph[reading.add.node].shape[:-1]
        for node in (graph[i] for i in sorted(reading.add.path - {reading.add.fork})):
            pairs = node.shape[-2:]
            over = len(pairs) == 2 and pairs[0] == pairs[1] in tokens and not is_mixing(node.op)
            if node.op in ATTENTION or over:
                begin = max(causal_offsets(graph, node.index), default=0)
                found |= {node.path or "the model itself": begin} if begin else {}
    return found
