"""Padding that the inputs declare, and how much of it reaches the outputs of valid tokens.

declared by   form                                        probe
a mask        (B, L), (B, 1, L) or (B, 1, 1, L)           change the tokens that it hides
lengths       (B), compared with positions                change the tokens beyond them
an id         the model masks tokens that equal it        compare with the example cut before it
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.input_masks import (
    find_derived_nodes,
    find_input_node,
    find_input_use,
    flat_mask,
    is_mask,
    iter_hidden_tokens,
    iter_masks,
)
from addnorm.doctor.rules.probing.model_runs import (
    get_inputs,
    iter_examples,
    named_inputs,
    replace_inputs,
    run_model,
    tensors_by_name,
)
from addnorm.doctor.rules.probing.output_layout import drop_hidden_tokens
from addnorm.doctor.rules.probing.padding_ids import (
    MIN_TOKENS,
    PaddingChange,
    cut_change,
    cut_tokens,
    iter_padding_ids,
    iter_unmasked_padding,
    row_change,
)
from addnorm.doctor.rules.probing.perturb import (
    NOTICEABLE_CHANGE,
    find_stream_input,
    perturbed_values,
    relative_change,
)


def iter_padding_changes(context: RuleContext) -> Iterator[PaddingChange]:
    """Iterate over the padding that the inputs declare, once for every input that holds tokens."""
    names = named_inputs(context)
    checked: set[str] = set()
    for name, mask in iter_masks(context, names):
        flat = flat_mask(mask)
        if flat is None or flat.shape[1] < MIN_TOKENS:
            continue
        tokens = find_masked_tokens(context, names, mask_name=name)
        if (tokens is None and checked) or tokens in checked:
            continue
        change = None if tokens is None else _mask_change(context, mask_name=name, tokens=tokens)
        if change is not None and tokens is not None:
            checked.add(tokens)
        yield PaddingChange(f"mask {name!r}", change)
    for name, tokens in _iter_lengths(context, names):
        if tokens not in checked:
            checked.add(tokens)
            change = _lengths_change(context, lengths_name=name, tokens=tokens)
            yield PaddingChange(f"lengths {name!r}", change)
    masked_ids: dict[str, int] = {}
    for name, padding_id in iter_padding_ids(context, names):
        if name not in checked:
            checked.add(name)
            masked_ids[name] = padding_id
            yield cut_change(context, name=name, padding_id=padding_id)
    for name, padding_id in iter_unmasked_padding(context, names):
        # A model may mask another id than the one its embedding declares.
        if name not in checked or masked_ids.get(name, padding_id) != padding_id:
            change = row_change(context, {name: names[name]}, padding_id=padding_id)
            source = f"padding index {padding_id} of the embedding of {name!r}"
            yield PaddingChange(source, change, is_masked=False)


# masks


def find_masked_tokens(
    context: RuleContext, names: dict[str, Tensor], *, mask_name: str
) -> str | None:
    """Return the input whose tokens a mask hides.

    If several have its shape, it is one that the mask is first applied to.
    """
    mask = flat_mask(names[mask_name])
    assert mask is not None
    candidates = [
        name
        for name, tensor in names.items()
        if name != mask_name
        and tensor.dim() >= 2
        and tensor.shape[:2] in (mask.shape, mask.mT.shape)
        and not is_mask(context, tensor)
    ]
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    derived = find_derived_nodes(context.graph, find_input_node(context, names[mask_name]))
    for node in context.graph:
        others = [i for i in node.inputs if i not in derived]
        if others and any(o.kind == "node" and o.node in derived for o in node.operands):
            ancestors = context.graph.data_ancestors(*others)
            nearest = [n for n in candidates if find_input_node(context, names[n]) in ancestors]
            return (nearest or candidates)[0]
    return candidates[0]


def _mask_change(context: RuleContext, *, mask_name: str, tokens: str) -> float | None:
    """Return the change of valid tokens when hidden ones change.

    Where it is not known whether True means valid or padding, both readings are tried and the
    smaller change counts.
    """
    changes: list[float | None] = []
    length = named_inputs(context)[tokens].shape[1]
    for example in iter_examples(context, length):
        tensors = tensors_by_name(example)
        changes = [
            _hidden_change(
                context, replace_inputs(example, {mask_name: mask}), tokens=tokens, hidden=hidden
            )
            for mask, hidden in iter_hidden_tokens(tensors[mask_name], tensors[tokens])
        ]
        if changes and None not in changes:
            break
    known = [change for change in changes if change is not None]
    return min(known) if known and len(known) == len(changes) else None


def _hidden_change(
    context: RuleContext, example: Any, *, tokens: str, hidden: Tensor
) -> float | None:
    """Return the change of valid tokens when hidden ones change; None if it cannot be told.

    Args:
        context: the traced model
        example: positional and keyword inputs, which hide the tokens
        tokens: name of the input that holds the tokens
        hidden: (B, L) True at hidden tokens
    """
    tensor = tensors_by_name(example)[tokens]
    positions = hidden if tensor.shape[:2] == hidden.shape else hidden.mT
    positions = positions.reshape(*positions.shape, *[1] * (tensor.dim() - 2))
    changed = torch.where(positions, perturbed_values(tensor), tensor)
    before = run_model(context, example)
    after = run_model(context, replace_inputs(example, {tokens: changed}))
    if before is None or after is None or before.shape != after.shape:
        return None
    kept = [drop_hidden_tokens(out, hidden) for out in (before, after)]
    change = relative_change(*kept)
    is_whole = kept[0].shape == before.shape and before.dim() > 2
    if change <= NOTICEABLE_CHANGE and before.dim() <= 2:
        return max(change, _pooled_change(context, example, hidden))
    if change > NOTICEABLE_CHANGE and is_whole and not _is_of_other_tokens(context, before, tokens):
        return _shortened_change(context, example, hidden=hidden, outputs=(before, after))
    return change


def _is_of_other_tokens(context: RuleContext, out: Tensor, tokens: str) -> bool:
    """Return whether an output has an entry for each token of another input than `tokens`."""
    names = named_inputs(context)
    target = find_stream_input(context, names)
    if target is None or target == tokens or names[target].dim() < 2:
        return False
    length = names[target].shape[1]
    return length in out.shape[1:-1] and length != names[tokens].shape[1]


def _pooled_change(context: RuleContext, example: Any, hidden: Tensor) -> float:
    """Return the change of a pooled output when padding at the end is cut off.

    A mean over all positions depends on their number even if hidden tokens count as zeros. Only the
    examples that end with padding are run.
    """
    batch, length = hidden.shape
    rows = hidden[:, -1]
    count = length - int(hidden[rows].all(0).flip(0).long().cumprod(0).sum())
    if not bool(rows.any()) or count == 0:
        return 0.0
    tensors = tensors_by_name(example)
    short = {n: t[rows] for n, t in tensors.items() if t.dim() and t.shape[0] == batch}
    example = replace_inputs(example, short)
    before = run_model(context, example)
    after = run_model(context, cut_tokens(example, length, count=count))
    if before is None or after is None or before.shape != after.shape:
        return 0.0
    change = relative_change(after, before)
    return change if change > 64 * torch.finfo(before.dtype).eps else 0.0


def _shortened_change(
    context: RuleContext, example: Any, *, hidden: Tensor, outputs: tuple[Tensor, Tensor]
) -> float | None:
    """Return the change of valid positions of an output that may be shorter than the input.

    The number of valid positions of an example is the length of the output for its valid tokens
    alone. None if the padding is not at the end.
    """
    before = outputs[0]
    length = hidden.shape[1]
    changes = [0.0]
    for row, is_hidden in enumerate(hidden):
        count = int((~is_hidden).sum())
        if count in (0, length):
            continue
        if bool(is_hidden[:count].any()) or before.shape[0] != len(hidden):
            return None
        short = run_model(context, cut_tokens(example, length, count=count))
        if short is None or short.dim() != before.dim():
            return None
        parts = [out[row] for out in outputs]
        for axis, size in enumerate(short.shape[1:]):
            parts = [p.narrow(axis, 0, size) if size < p.shape[axis] else p for p in parts]
        changes.append(relative_change(*parts))
    return max(changes)


# lengths


def _iter_lengths(context: RuleContext, names: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Iterate over the inputs that hold the lengths of the examples, and those of the tokens."""
    for name, lengths in names.items():
        if lengths.dim() != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
            continue
        for tokens, tensor in names.items():
            if tensor.dim() < 2 or tensor.shape[0] != len(lengths) < 2 or is_mask(context, tensor):
                continue
            length = tensor.shape[1]
            fits = length >= MIN_TOKENS and int(lengths.min()) > 0 and int(lengths.max()) == length
            if fits and _limits_positions(context, lengths, length):
                yield name, tokens
                break


def _limits_positions(context: RuleContext, lengths: Tensor, length: int) -> bool:
    """Return whether the model compares an input with positions, or reads it outside the graph."""
    start = find_input_node(context, lengths)
    if start is None or find_input_use(context, lengths) == "none":
        return True
    derived = find_derived_nodes(context.graph, start)
    shapes = (context.graph[i].shape for i in derived if context.graph[i].dtype == torch.bool)
    return any(length in shape and len(lengths) in shape for shape in shapes)


def _lengths_change(context: RuleContext, *, lengths_name: str, tokens: str) -> float | None:
    example = get_inputs(context)
    tensors = tensors_by_name(example)
    lengths, length = tensors[lengths_name].clone(), tensors[tokens].shape[1]
    if bool((lengths == length).all()):
        lengths[1:] = length - max(1, length // 3)  # the first example keeps its length
    hidden = torch.arange(length, device=lengths.device)[None] >= lengths[:, None]
    example = replace_inputs(example, {lengths_name: lengths})
    return _hidden_change(context, example, tokens=tokens, hidden=hidden)
