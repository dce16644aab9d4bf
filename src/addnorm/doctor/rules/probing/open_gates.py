"""Weights that start at 0 or next to it, filled for a probe: nothing shows through a closed gate.

Whether one token can reach another does not hang on the values of weights that learn, so that any
other values tell the same, and more.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.residual.residual_adds import ResidualAdd
from addnorm.doctor.rules.base import RuleContext
from addnorm.doctor.trace.recorder import GraphRecorder

NEGLIGIBLE_SIZE = 1e-3
"""Weights below it hide what comes through them, and branches below it in their stream."""


def zero_gates(context: RuleContext) -> list[str]:
    """Weights that learn and may let nothing through yet, the surest first; sought once a visit.

    Matrices next to 0; where a branch adds nothing, vectors and numbers too, whatever they are:
    a gate may be 1 + w.
    """
    if "closed" not in context.cache:
        guard = context.trace.guard
        quiet = any(negligible_branches(context))
        found = [
            name
            for name, weight in context.weights.items()
            if guard
            and guard.is_trainable(name)
            and (quiet if _is_vector(weight) else _is_near_zero(weight))
        ]
        found.sort(
            key=lambda name: (
                _is_vector(context.weights[name]),
                not _is_near_zero(context.weights[name]),
            )
        )
        context.cache["closed"] = found
    names: list[str] = context.cache["closed"]
    return names


def negligible_branches(context: RuleContext) -> Iterator[ResidualAdd]:
    """Branches that add next to nothing."""
    return (reading.add for reading in context.blocks if _is_negligible(reading.add))


def _is_negligible(add: ResidualAdd) -> bool:
    branch, shortcut = (add.stats.get(f"{s}_variance") for s in ("branch", "shortcut"))
    return branch is not None and bool(shortcut) and branch < NEGLIGIBLE_SIZE**2 * (shortcut or 0.0)


def inactive_branches(context: RuleContext, example: Any) -> list[str]:
    """Where branches stand that add next to nothing, even with every closed weight filled."""
    guard, before = context.trace.guard, list(negligible_branches(context))
    if not before or guard is None:
        return []
    guard.restore()
    recorder = GraphRecorder(context.trace.model, guard, skip_dropout=context.trace.training)
    try:
        open_gates(context)
        with torch.no_grad():
            recorder.run(*example)
    except Exception:  # a probe that cannot run says nothing
        return []
    finally:
        guard.restore()
    if len(recorder.graph) != len(context.graph):
        return []  # with fewer tokens it goes another way, and places do not compare
    after = {node for node, join in recorder.residual_adds.items() if not _is_negligible(join)}
    return [join.module or "the model itself" for join in before if join.node not in after]


def open_gates(context: RuleContext) -> None:
    """Give weights that let nothing through a common size; the guard of the visit undoes it."""
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
    """Whether it is a vector or a number, in whatever shape."""
    return weight.numel() == max(weight.shape, default=1)


def _is_near_zero(weight: Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return False
    values = weight.detach()
    some = values[len(values) // 2] if values.dim() else values  # mostly that is enough to know
    return all(
        max(map(abs, map(float, each.aminmax()))) < NEGLIGIBLE_SIZE for each in (some, values)
    )


def _fill_weight(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Vectors and numbers 1 above what they were, more or less; matrices as large as they are
    drawn to keep a variance, with the same directions where they have any."""
    if _is_vector(weight):
        return weight.cpu() + torch.rand(weight.shape, generator=generator) + 0.5
    size = 1 / math.sqrt(math.prod(weight.shape[1:]))
    if not bool(weight.any()):
        return torch.randn(weight.shape, generator=generator) * size
    values = weight.float()
    return values * (size / float(values.square().mean().sqrt()))
