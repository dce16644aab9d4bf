"""Signature of a model: wirings and tags of its blocks, without sizes or numbers of layers.

Two models with the same arrangement have the same signature, whatever their depth and width. For a
Pre-LN decoder with a final norm:

    ((("feed-forward", ((("pre_ln",), 1.0),)),
      ("self-attention", ((("pre_ln",), 1.0),))), True)

Per kind of branch: each combination of wiring, tags and variants, with the fraction of blocks that
have it; then whether there is a final norm. `matching.py` compares signatures.
"""

from collections import Counter
from typing import Any

import torch
from torch import nn

from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.analysis.labels import find_entry_scales, list_tags, wiring_label
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.model_trace import set_train_mode
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.state_guard import preserve_model_state

MAX_INNER_NORMS = 3
"""Inner norms of a branch that a signature distinguishes."""

Signature = tuple[Any, ...]


def forward_signature(model: nn.Module, args: tuple[Any, ...]) -> Signature:
    """Return the signature of a model from one forward pass, without measurements or rules."""
    with preserve_model_state(model) as guard, torch.enable_grad():
        set_train_mode(model, False)
        recording = GraphRecorder(model, guard, skip_dropout=False).run(args, {})
        return build_signature(classify(recording.graph, recording.residual_adds))


def build_signature(analysis: ModelAnalysis) -> Signature:
    """Return the signature of an analyzed model."""
    blocks = analysis.blocks()
    kinds: dict[str, Counter[tuple[str, ...]]] = {}
    for block in blocks:
        label = (
            wiring_label(analysis, block),
            *sorted(list_tags(analysis, block)),
            *_list_variants(analysis, block),
        )
        kinds.setdefault(block.kind, Counter())[label] += 1
    has_final_norm = any(block.final_norms for block in blocks)
    fractions = sorted((kind, _count_fractions(counts)) for kind, counts in kinds.items())
    return tuple(fractions), has_final_norm


def _count_fractions(counts: Counter[tuple[str, ...]]) -> tuple[tuple[tuple[str, ...], float], ...]:
    total = sum(counts.values())
    return tuple(sorted(((label, round(c / total, 2)) for label, c in counts.items()), key=str))


def _list_variants(analysis: ModelAnalysis, block: AddAnalysis) -> tuple[str, ...]:
    """Return finer differences: inner norms, and initial values of learned scales."""
    variants = []
    if block.inner_norms:
        variants.append(f"inner {min(len(block.inner_norms), MAX_INNER_NORMS)}")
    has_shifts = _has_scalar_shifts(analysis, block)
    variants += ["scalar shifts"] if has_shifts else []
    for scale in block.scales:
        if scale.kind == "weight" and not (has_shifts and scale.size == 1):
            variants.append(f"starts at {_initial_value(scale)}")
    if any(s.kind == "weight" for s in block.add.shortcut_scales):
        variants.append("learned shortcut")
    if find_entry_scales(analysis, block):
        variants.append("shrinking")
    if block.add.is_mixed and _has_softmax_mixing(analysis, block):
        variants.append("balanced")
    return tuple(variants)


def _initial_value(scale: Scale) -> str:
    """Return the likely initial value of a learned scale.

    A scalar other than 1 counts as zero: it started there and was trained.
    """
    if scale.value is None:
        return "unknown"
    if scale.size == 1:
        return "one" if scale.value == 1 else "zero"
    return "zero" if scale.value == 0 else "some"


def _has_scalar_shifts(analysis: ModelAnalysis, block: AddAnalysis) -> bool:
    """Return whether learned scalars are added inside the branch, as in Fixup."""
    graph = analysis.graph
    return any(
        graph[i].op in ("add", "sub")
        and graph.make_scale(o, i).kind == "weight"
        and graph.make_scale(o, i).size == 1
        for i in block.add.path - {block.add.fork}
        for o in graph[i].operands
        if len(graph[i].inputs) == 1 and o.node not in graph[i].inputs and o.kind != "number"
    )


def _has_softmax_mixing(analysis: ModelAnalysis, block: AddAnalysis) -> bool:
    """Return whether a softmax computes the matrix that mixes the streams, as in mHC."""
    graph, fork = analysis.graph, block.add.fork
    ancestors = graph.ancestors(block.add.shortcut, fork)
    return any(graph[index].op == "softmax" for index in ancestors if index != fork)
