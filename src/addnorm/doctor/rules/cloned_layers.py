"""Layers that start as identical copies."""

from collections.abc import Iterator

import torch
from torch import Tensor

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule


@rule("cloned_layers")
def cloned_layers(context: RuleContext) -> Iterator[Finding]:
    """Different branches whose random matrices are equal to the last bit."""
    streams: dict[int, list[list[tuple[str, ...]]]] = {}
    for reading in context.blocks:
        if reading.skipped_adds or reading.is_dual:
            continue
        names = tuple(n for n in context.branch_weights(reading) if _is_random(context.weights[n]))
        # Only within one stream: a teacher is its student's copy on purpose.
        groups = streams.setdefault(reading.stream, [])
        if not names or any(names in group for group in groups):
            continue
        for group in groups:
            if _are_equal(context, group[0], other=names):
                group.append(names)
                break
        else:
            groups.append([names])
    copies = [group for groups in streams.values() for group in groups if len(group) > 1]
    if not copies:
        return
    largest = max(copies, key=len)
    yield Finding(
        "cloned_layers", "warning", largest[0][0].rpartition(".")[0],
        f"{len(largest)} branches start with identical weights, as copy.deepcopy leaves them; draw "
        "each layer's weights anew",
        {"equal": [names[0] for names in largest], "kinds": len(copies)},
    )  # fmt: skip


def _is_random(weight: Tensor) -> bool:
    """Whether a matrix looks drawn: no pattern that every layer may start with."""
    sample = weight.detach().flatten()[:: max(1, weight.numel() // 256)]
    if weight.device.type == "meta" or len(set(sample.tolist())) <= sample.numel() // 2:
        return False
    rows = weight.detach().flatten(1)
    return not torch.equal(rows[0], rows[-1])


def _are_equal(context: RuleContext, one: tuple[str, ...], *, other: tuple[str, ...]) -> bool:
    if len(one) != len(other) or set(one) & set(other):
        return False
    pairs = [(context.weights[a], context.weights[b]) for a, b in zip(one, other, strict=True)]
    return all(
        a.shape == b.shape
        and torch.equal(a.detach().flatten()[:16], b.detach().flatten()[:16])
        and torch.equal(a.detach(), b.detach())
        for a, b in pairs
    )
