"""Padding in the statistics of batch norms, which only training uses.

In eval mode a batch norm treats every token alike, so hidden tokens do not reach valid ones. In
train mode its mean and variance may include them.
"""

from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.input_masks import flat_mask, iter_hidden_tokens, iter_masks
from addnorm.doctor.rules.probing.model_runs import (
    get_inputs,
    named_inputs,
    replace_inputs,
    run_model,
    tensors_by_name,
)
from addnorm.doctor.rules.probing.output_layout import drop_hidden_tokens
from addnorm.doctor.rules.probing.padding import find_masked_tokens
from addnorm.doctor.rules.probing.padding_ids import MIN_TOKENS, cut_tokens
from addnorm.doctor.rules.probing.perturb import perturbed_values, relative_change


def batch_norm_changes(context: RuleContext) -> tuple[float, float] | None:
    """Return how much padding changes valid tokens through the statistics of batch norms.

    Returns:
        The change when hidden tokens get other values, and when there are fewer of them. None
        without batch norms, or without a mask.
    """
    if not any(norm.kind == "batch" for norm in context.iter_norms()):
        return None
    names = named_inputs(context)
    for name, mask in iter_masks(context, names):
        flat = flat_mask(mask)
        tokens = find_masked_tokens(context, names, mask_name=name)
        if flat is None or flat.shape[1] < MIN_TOKENS or tokens is None:
            continue
        readings = list(iter_hidden_tokens(mask, names[tokens]))
        if len(readings) == 1:  # otherwise it is not known which tokens are hidden
            changed, hidden = readings[0]
            example = replace_inputs(get_inputs(context), {name: changed})
            return (
                _changed_values(context, example, tokens=tokens, hidden=hidden),
                _changed_count(context, example, hidden=hidden),
            )
    return None


def _changed_values(context: RuleContext, example: Any, *, tokens: str, hidden: Tensor) -> float:
    """Return the change of valid tokens when the hidden ones get other values."""
    tensor = tensors_by_name(example)[tokens]
    if tensor.shape[:2] != hidden.shape:
        return 0.0
    positions = hidden.reshape(*hidden.shape, *[1] * (tensor.dim() - 2))
    other = torch.where(positions, perturbed_values(tensor), tensor)
    before = run_model(context, example, batch_statistics=True)
    after = run_model(context, replace_inputs(example, {tokens: other}), batch_statistics=True)
    if before is None or after is None or before.shape != after.shape:
        return 0.0
    return relative_change(*(drop_hidden_tokens(out, hidden) for out in (before, after)))


def _changed_count(context: RuleContext, example: Any, *, hidden: Tensor) -> float:
    """Return the change of valid tokens when padding that all examples end with is cut off.

    Only the examples that end with padding are run.
    """
    batch, length = hidden.shape
    rows = hidden[:, -1]
    count = length - int(hidden[rows].all(0).flip(0).long().cumprod(0).sum())
    if not bool(rows.any()) or not 0 < count < length:
        return 0.0
    tensors = tensors_by_name(example)
    some = {n: t[rows] for n, t in tensors.items() if t.dim() and t.shape[0] == batch}
    padded = replace_inputs(example, some)
    before = run_model(context, padded, batch_statistics=True)
    short = cut_tokens(padded, length, count=count)
    after = run_model(context, short, batch_statistics=True)
    if before is None or after is None or before.dim() != after.dim():
        return 0.0
    for axis, size in enumerate(after.shape):
        before = before.narrow(axis, 0, size) if size < before.shape[axis] else before
    if before.shape != after.shape:
        return 0.0
    valid = hidden[rows][:, :count]
    return relative_change(*(drop_hidden_tokens(out, valid) for out in (before, after)))
