"""Rule `cloned_layers`: layers initialized as identical copies."""

from collections.abc import Iterator

import torch
from torch import Tensor

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("cloned_layers")
def cloned_layers(context: RuleContext) -> Iterator[Finding]:
    """Report branches of one stream whose random matrices are bitwise equal.

    `nn.TransformerEncoder` copies its layer with `copy.deepcopy`, so that all layers start equal
    unless the caller re-initializes them.
    """
    streams: dict[int, list[list[tuple[str, ...]]]] = {}
    for block in context.blocks:
        if block.skipped_adds or block.is_dual:
            continue
        names = tuple(n for n in context.branch_weights(block) if is_random(context.weights[n]))
        # Streams are compared separately: a teacher may be a copy of its student.
        groups = streams.setdefault(block.stream, [])
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
        f"{len(largest)} branches have bitwise identical weights, as copy.deepcopy leaves them, so "
        "the layers start as copies; re-initialize the weights of each layer",
        {"equal": [names[0] for names in largest], "kinds": len(copies)},
    )  # fmt: skip


def is_random(weight: Tensor) -> bool:
    """Return whether a matrix looks randomly initialized, not constant or patterned."""
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
