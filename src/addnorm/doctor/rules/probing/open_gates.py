"""Weights that start at 0 or next to it, filled for a probe: nothing shows through a closed gate.

Whether one token can reach another does not hang on the values of weights that learn, so that any
other values tell the same, and more.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.residual.residual_adds import Join
from addnorm.doctor.rules.base import Case
from addnorm.doctor.trace.recorder import Recorder

TINY = 1e-3
"""Weights below it hide what comes through them, and branches below it in their stream."""


def closed(case: Case) -> list[str]:
    """Weights that learn and may let nothing through yet, the surest first; sought once a visit.

    Matrices next to 0; where a branch adds nothing, vectors and numbers too, whatever they are:
    a gate may be 1 + w.
    """
    if "closed" not in case.cache:
        guard = case.visit.guard
        quiet = any(silent(case))
        found = [
            name
            for name, weight in case.weights.items()
            if guard and guard.learns(name) and (quiet if _flat(weight) else _tiny(weight))
        ]
        found.sort(key=lambda name: (_flat(case.weights[name]), not _tiny(case.weights[name])))
        case.cache["closed"] = found
    names: list[str] = case.cache["closed"]
    return names


def silent(case: Case) -> Iterator[Join]:
    """Branches that add next to nothing."""
    return (reading.join for reading in case.blocks if _silent(reading.join))


def _silent(join: Join) -> bool:
    branch, shortcut = (join.signs.get(f"{s}_variance") for s in ("branch", "shortcut"))
    return branch is not None and bool(shortcut) and branch < TINY**2 * (shortcut or 0.0)


def unheard(case: Case, example: Any) -> list[str]:
    """Where branches stand that add next to nothing, even with every closed weight filled."""
    guard, before = case.visit.guard, list(silent(case))
    if not before or guard is None:
        return []
    guard.restore()
    recorder = Recorder(case.visit.model, guard, still=case.visit.training)
    try:
        fill(case)
        with torch.no_grad():
            recorder.run(*example)
    except Exception:  # a probe that cannot run says nothing
        return []
    finally:
        guard.restore()
    if len(recorder.graph) != len(case.graph):
        return []  # with fewer tokens it goes another way, and places do not compare
    after = {node for node, join in recorder.joins.items() if not _silent(join)}
    return [join.module or "the model itself" for join in before if join.node not in after]


def fill(case: Case) -> None:
    """Give weights that let nothing through a common size; the guard of the visit undoes it."""
    guard = case.visit.guard
    names = closed(case)
    if guard is None or not names:
        return
    generator = torch.Generator().manual_seed(0)
    for name in names:
        weight = case.weights[name]
        guard.keep(weight)
        weight.data.copy_(_filled(weight.detach(), generator))


def _flat(weight: Tensor) -> bool:
    """Whether it is a vector or a number, in whatever shape."""
    return weight.numel() == max(weight.shape, default=1)


def _tiny(weight: Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel():
        return False
    values = weight.detach()
    some = values[len(values) // 2] if values.dim() else values  # mostly that is enough to know
    return all(max(map(abs, map(float, each.aminmax()))) < TINY for each in (some, values))


def _filled(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Vectors and numbers 1 above what they were, more or less; matrices as large as they are
    drawn to keep a variance, with the same directions where they have any."""
    if _flat(weight):
        return weight.cpu() + torch.rand(weight.shape, generator=generator) + 0.5
    size = 1 / math.sqrt(math.prod(weight.shape[1:]))
    if not bool(weight.any()):
        return torch.randn(weight.shape, generator=generator) * size
    values = weight.float()
    return values * (size / float(values.square().mean().sqrt()))
