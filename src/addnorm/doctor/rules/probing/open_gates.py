"""Opening of closed gates for a probe.

A branch whose gate or last matrix starts at 0 (ReZero, LayerScale, zero-initialized outputs) adds
nothing, so that a probe cannot see a leak inside it. Whether one token can reach another does not
depend on the values of trainable weights. The probes therefore run with such weights filled with
ordinary values, and the state guard of the trace restores them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.trace.recorder import GraphRecorder

NEGLIGIBLE_SIZE = 1e-3
"""Weights below this size block a branch; so do branches below this fraction of the stream."""


def zero_gates(context: RuleContext) -> list[str]:
    """Return the trainable weights that may close a branch, the most certain first.

    These are matrices close to 0. If a branch adds nothing, vectors and scalars of any value are
    included, because a gate may be `1 + w`. The result is cached in the context.
    """
    if "closed" not in context.cache:
        guard = context.trace.guard
        has_inactive = any(negligible_branches(context))
        gates = [
            name
            for name, weight in context.weights.items()
            if guard
            and guard.is_trainable(name)
            and (has_inactive if _is_vector(weight) else _is_near_zero(weight))
        ]
        gates.sort(
            key=lambda name: (
                _is_vector(context.weights[name]),
                not _is_near_zero(context.weights[name]),
            )
        )
        context.cache["closed"] = gates
    names: list[str] = context.cache["closed"]
    return names


def negligible_branches(context: RuleContext) -> Iterator[ResidualAdd]:
    """Iterate over the adds whose branch is negligible beside the stream."""
    adds = (block.add for block in context.blocks)
    return (add for add in adds if _is_negligible(context.add_stats(add)))


def _is_negligible(stats: Mapping[str, float]) -> bool:
    branch, shortcut = (stats.get(f"{s}_variance") for s in ("branch", "shortcut"))
    return branch is not None and bool(shortcut) and branch < NEGLIGIBLE_SIZE**2 * (shortcut or 0.0)


def inactive_branches(context: RuleContext, example: Any) -> list[str]:
    """Return the paths of branches that stay negligible even with all gates opened."""
    guard, before = context.trace.guard, list(negligible_branches(context))
    if not before or guard is None:
        return []
    guard.restore()
    recorder = GraphRecorder(context.trace.model, guard, skip_dropout=context.trace.training)
    try:
        open_gates(context)
        with torch.no_grad():
            recording = recorder.run(*example)
    except Exception:  # user code: a probe that cannot run shows nothing
        return []
    finally:
        guard.restore()
    if len(recording.graph) != len(context.graph):
        return []  # other operations ran for fewer tokens, so nodes cannot be compared
    stats = recording.stats.add_stats
    after = {node for node in recording.residual_adds if not _is_negligible(stats.get(node, {}))}
    return [add.module or "the model itself" for add in before if add.node not in after]


def open_gates(context: RuleContext) -> None:
    """Fill closed weights with ordinary values; the state guard of the trace restores them."""
    guard = context.trace.guard
    names = zero_gates(context)
    if guard is None or not names:
        return
    generator = torch.Generator().manual_seed(0)
    for name in names:
        weight = context.weights[name]
        guard.save(weight)
        weight.data.copy_(_fill_weight(weight.detach(), generator))


def _is_vector(weight: Tensor) -> bool:
    """Return whether a weight has at most one axis longer than 1."""
    return weight.numel() == max(weight.shape, default=1)


def _is_near_zero(weight: Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return False
    values = weight.detach()
    sample = values[len(values) // 2] if values.dim() else values  # decides most weights at once
    return all(
        max(map(abs, map(float, each.aminmax()))) < NEGLIGIBLE_SIZE for each in (sample, values)
    )


def _fill_weight(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Return ordinary values for a closed weight.

    Vectors and scalars are increased by about 1. Matrices get the standard deviation that keeps a
    variance, and keep their direction unless they are all 0.
    """
    if _is_vector(weight):
        return weight.cpu() + torch.rand(weight.shape, generator=generator) + 0.5
    size = 1 / math.sqrt(math.prod(weight.shape[1:]))
    if not bool(weight.any()):
        return torch.randn(weight.shape, generator=generator) * size
    values = weight.float()
    return values * (size / float(values.square().mean().sqrt()))
