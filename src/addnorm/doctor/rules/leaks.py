"""Leaks: between examples, from the future, from padding. Found by changing an input a little."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.analysis.results import Reading
from addnorm.doctor.graph.ops import ATTENTION, mixes
from addnorm.doctor.report import Finding, few
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.rules.probing.input_masks import hiding, is_mask, masks
from addnorm.doctor.rules.probing.open_gates import closed
from addnorm.doctor.rules.probing.output_layout import valid, without_last
from addnorm.doctor.rules.probing.perturb import (
    NOTICEABLE,
    Probe,
    examples,
    first_moved,
    moved_by,
    named,
    named_inputs,
    other_than,
    probed,
    replaced,
    run,
)
from addnorm.doctor.trace.causal_masks import taken


@rule("batch_leak")
def batch_leak(case: Case) -> Iterator[Finding]:
    """One example changes another."""
    across = [
        norm.path
        for norm in case.each_norm()
        if norm.kind == "batch" and len(case.graph[norm.source].shape) == 3
    ]
    if across:
        case.visit.notes.append(
            f"leaks between examples in training: the batch norms at {few(across)} take their "
            "statistics over the batch there; probes ran in eval mode, with those that are kept"
        )
    probe = probed(case)
    if probe is None:
        case.visit.notes.append("leaks between examples were not tried: no input or output fits")
    elif probe.alone:
        case.visit.notes.append(
            "leaks between examples were not tried: the first axis of the inputs was taken for the "
            "tokens of one example, since they look at one another; if it holds examples, these do"
        )
    elif probe.before.shape[0] < 2:
        case.visit.notes.append("leaks between examples were not tried: one example was given")
    elif probe.still:
        case.visit.notes.append("leaks: no output moved at all when an input changed")
    elif probe.leaks:
        yield Finding(
            "batch_leak", "error", "",
            "changing one example changes the output of another: something normalizes or looks "
            "across the batch; take statistics within each example",
            {"change": probe.others, **_filled(case)},
        )  # fmt: skip


@rule("future_leak")
def future_leak(case: Case) -> Iterator[Finding]:
    """A later token changes an earlier one, in a model that is meant to be causal."""
    masks = _triangles(case)
    if not masks and not _causal(case):
        return
    probe = probed(case)
    why = _unseen(probe)
    if probe is None or why:
        case.visit.notes.append(f"leaks from the future were not tried: {why}")
        return
    axis = probe.before.shape[1:-1].index(probe.length)
    before, after = (without_last(t[0], probe.length) for t in (probe.before, probe.after))
    moved = moved_by(before, after)
    if moved > NOTICEABLE:
        first = first_moved(before, after, axis=axis)
        seen = {"change": moved, "first token": first, **_filled(case)}
        yield Finding("future_leak", "error", "", *_why(case, masks, seen=seen))


def _unseen(probe: Probe | None) -> str:
    """Why a probe cannot tell earlier tokens from the last one; nothing if it can."""
    if probe is None:
        return "no input or output fits"
    if probe.length < 2:
        return "no last token of several moves the output"
    there = probe.length in probe.before.shape[1:-1]
    return "" if there else "the output has no axis as long as the tokens"


def _filled(case: Case) -> dict[str, Any]:
    """Evidence of what was done to see through closed gates."""
    names = closed(case)
    return {"filled for the probe": names[:4]} if names else {}


def _why(case: Case, masks: dict[str, int], *, seen: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What is to be changed, and the evidence for it. masks: as _triangles returns them."""
    if _causal(case):
        attentions = case.visit.recorder.signs.attentions
        open_ones = [a.path for a in attentions if a.square and not a.causal]
        return (
            "some attention is causal, yet changing the last token changes earlier ones: a mask is "
            "missing or something else looks ahead, such as a norm over tokens",
            {**seen, "attention without mask": open_ones[:4]},
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
        {**seen, "mask": list(late or masks)[:4], "begins ahead by": max(masks.values())},
    )


@rule("padding_leak")
def padding_leak(case: Case) -> Iterator[Finding]:
    """What stands at padding changes valid tokens, however the mask is read."""
    names = named_inputs(case)
    for name, mask in masks(case, names):
        if mask.shape[1] < 3:
            continue
        told = [n for n, t in names.items() if n != name and not is_mask(case, t)]
        changes: list[float | None] = []
        for example in examples(case, mask.shape[1]):
            marks = named(example)[name]
            changes = [
                _hidden_change(case, example, mask_name=name, told=told, pair=pair)
                for pair in hiding(marks)
            ]
            if changes and None not in changes:
                break
        if not changes or None in changes:
            case.visit.notes.append(f"whether {name} hides its tokens could not be tried")
            continue
        moved = min(change for change in changes if change is not None)
        if moved > NOTICEABLE:
            yield Finding(
                "padding_leak", "error", "",
                "a token that the mask hides changes the output of valid tokens; apply the mask "
                "wherever tokens meet: attention, norms over tokens, pooling",
                {"change": moved, "mask": name, **_filled(case)},
            )  # fmt: skip
        return


def _hidden_change(
    case: Case, example: Any, *, mask_name: str, told: list[str], pair: tuple[Tensor, Tensor]
) -> float | None:
    """How far valid tokens move when hidden ones change; None if that cannot be tried.

    told: names of inputs that may hold the tokens.
    """
    mask, hidden = pair
    given = named(example)
    for name in told:
        tensor = given[name]
        if tensor.dim() < 2 or tensor.shape[:2] not in (mask.shape, mask.mT.shape):
            continue
        there = hidden if tensor.shape[:2] == mask.shape else hidden.mT
        there = there.reshape(*there.shape, *[1] * (tensor.dim() - 2))
        with_mask = replaced(example, {mask_name: mask})
        changed = torch.where(there, other_than(tensor), tensor)
        before = run(case, with_mask)
        after = run(case, replaced(with_mask, {name: changed}))
        if before is None or after is None or before.shape != after.shape:
            return None
        return moved_by(*(valid(t, hidden) for t in (before, after)))
    return None


def _main_stream(case: Case) -> list[Reading]:
    """Blocks of the stream that reaches the output, but for those that look at another one."""
    last = case.blocks[-1].stream if case.blocks else -1
    return [r for r in case.blocks if r.stream == last and r.kind != "cross-attention"]


def _causal(case: Case) -> bool:
    """Whether an attention on the main stream hides the future."""
    mine = [r for r in _main_stream(case) if r.kind == "self-attention"]
    spans = [(r.join.fork, r.join.node) for r in mine]
    return any(
        a.causal and any(start <= a.node <= end for start, end in spans)
        for a in case.visit.recorder.signs.attentions
    )


def _triangles(case: Case) -> dict[str, int]:
    """Masks of the future on the main stream, whatever they do: who applies each, and how many
    tokens ahead it begins."""
    graph, found = case.graph, dict[str, int]()
    for reading in _main_stream(case):
        tokens = graph[reading.join.node].shape[:-1]
        for node in (graph[i] for i in sorted(reading.join.path - {reading.join.fork})):
            pairs = node.shape[-2:]
            over = len(pairs) == 2 and pairs[0] == pairs[1] in tokens and not mixes(node.op)
            if node.op in ATTENTION or over:
                begin = max(taken(graph, node.index), default=0)
                found |= {node.path or "the model itself": begin} if begin else {}
    return found
