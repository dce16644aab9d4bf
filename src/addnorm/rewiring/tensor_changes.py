"""Tensors of a model before and after a rewiring, and optimizer state that stays meaningful."""

from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.rewiring.core_models import is_arrangement
from addnorm.rewiring.report import RewireReport, TensorChanges


def compare_tensors(before: nn.Module, after: nn.Module) -> TensorChanges:
    """Return which tensors of a model were kept, transformed, added or removed.

    A tensor under a new name counts as kept if one of the old ones has its values and this name is
    gone or belongs to other values now, as with layers that moved to another number.
    """
    old, new = (_weights(each) for each in (before, after))
    names: dict[str, list[str]] = {"kept": [], "transformed": [], "new": []}
    sources: list[tuple[str, str]] = []
    by_value: dict[tuple[Any, ...], list[str]] = {}
    for name, value in old.items():
        by_value.setdefault(_fingerprint(value), []).append(name)
    used: set[str] = set()
    for name, value in new.items():
        if name in old and _equal(old[name], value):
            names["kept"].append(name)
            used.add(name)
    for name, value in new.items():
        if name in names["kept"]:
            continue
        candidates = [each for each in by_value.get(_fingerprint(value), ()) if each not in used]
        same_end = [
            each for each in candidates if each.rpartition(".")[2] == name.rpartition(".")[2]
        ]
        is_constant = value.numel() < 2 or bool((value == value.flatten()[0]).all())
        source = next((e for e in same_end if _equal(old[e], value)), None)
        if source is not None and not is_constant:
            names["kept"].append(name)
            sources.append((name, source))
            used.add(source)
        else:
            names["transformed" if name in old else "new"].append(name)
    gone = set(old) - set(new) - used
    return TensorChanges(
        tuple(names["kept"]), tuple(names["transformed"]), tuple(names["new"]),
        tuple(sorted(gone)), tuple(sources),
    )  # fmt: skip


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and not is_arrangement(name)
    }


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _fingerprint(value: Tensor) -> tuple[Any, ...]:
    flat = value.flatten()[:4]
    return (tuple(value.shape), *flat.tolist())


def carry_optimizer_state(
    optimizer: torch.optim.Optimizer,
    old: nn.Module,
    new_optimizer: torch.optim.Optimizer,
    new: nn.Module,
    report: RewireReport,
) -> list[str]:
    """Copy the state of an optimizer for all tensors that a rewiring kept.

    Moments of transformed and of new tensors belong to other gradients; they start from zero.

    Args:
        optimizer: optimizer of the old model
        old: the old model
        new_optimizer: optimizer of the new model, of the same class
        new: the new model
        report: report of the rewiring

    Returns:
        The names of parameters whose state was copied.
    """
    if type(optimizer) is not type(new_optimizer):
        raise UserError(
            f"new_optimizer: expected {type(optimizer).__name__}, as the old one, got "
            f"{type(new_optimizer).__name__}"
        )
    sources = dict(report.tensors.sources)
    before, after = dict(old.named_parameters()), dict(new.named_parameters())
    carried = []
    for name in report.tensors.kept:
        source = before.get(sources.get(name, name))
        target = after.get(name)
        if source is None or target is None or source not in optimizer.state:
            continue
        new_optimizer.state[target] = {
            key: _copy_to(value, source, target) if isinstance(value, Tensor) else value
            for key, value in optimizer.state[source].items()
        }
        carried.append(name)
    return carried


def _copy_to(value: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return a copy on the device of the new parameter; step counts may stay on the CPU."""
    device = target.device if value.device == source.device else value.device
    return value.detach().clone().to(device)
