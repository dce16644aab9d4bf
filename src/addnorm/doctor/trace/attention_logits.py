"""Logits of an attention, read from the arguments of the call that computes it.

A softmax has its logits as an argument. Fused attentions compute them inside a kernel, so they are
computed here from queries, keys and masks:

    softmax(scores, -1)                        scores
    scaled_dot_product_attention(q, k, v)      q @ k.mT / sqrt(head_dim), masked
    multi_head_attention_forward(x, x, x)      the same, after its projections
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, multi_head_attention_forward

MAX_QUERIES = 64
"""Queries of the first example that the doctor reads."""
MASKED_LOGIT_GAP = 500.0
"""Distance below the maximum of its row at which a logit counts as masked."""
MAX_FILL = -9e3
"""Logit below which it is a fill value; the smallest in use is -1e4, to which scores are added."""


@dataclass(frozen=True, slots=True)
class LogitSelection:
    """Examples and queries whose logits are computed for a fused attention."""

    examples: int | None = 1
    """Number of examples; None for all."""
    max_logits: int | None = None
    """Maximum number of logits, kept by reading every n-th query only; None reads the first
    `MAX_QUERIES` queries."""

    def queries(self, count: int, keys: int, *, rows: int) -> slice:
        """Return which of `count` queries to read, for `rows` pairs of an example and a head."""
        if self.max_logits is None:
            return slice(MAX_QUERIES)
        return slice(None, None, max(1, -(-count * keys * rows // self.max_logits)))


FIRST_EXAMPLE = LogitSelection()


@dataclass(frozen=True, slots=True)
class LogitReading:
    """Logits of an attention call, and what its arguments show."""

    logits: Tensor
    """(..., queries, keys) masked logits; a softmax shows those of all examples."""
    query_count: int
    key_count: int
    is_declared_causal: bool = False

    @property
    def is_square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.query_count == self.key_count


def read_logits(
    op: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    selection: LogitSelection = FIRST_EXAMPLE,
) -> LogitReading | None:
    """Return the logits of a call that is about to run; None if it is not an attention.

    Args:
        op: canonical name of the function
        args: positional arguments of the call
        kwargs: keyword arguments of the call
        selection: part of the logits to compute for a fused attention
    """
    reader = _READERS.get(op)
    return None if reader is None else reader(args, kwargs, selection)


def _softmax_logits(
    args: tuple[Any, ...], kwargs: dict[str, Any], _selection: LogitSelection
) -> LogitReading | None:
    logits = args[0] if args else kwargs.get("input")
    if not isinstance(logits, Tensor) or logits.dim() < 3:
        return None
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    rows = logits.detach().movedim(axis if isinstance(axis, int) else -1, -1)
    return LogitReading(rows, rows.shape[-2], rows.shape[-1])


def _sdpa_logits(
    args: tuple[Any, ...], kwargs: dict[str, Any], selection: LogitSelection
) -> LogitReading | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    query, key = arguments["query"].detach(), arguments["key"].detach()
    length, keys = query.shape[-2], key.shape[-2]
    mask, examples = arguments.get("attn_mask"), slice(selection.examples)
    query, key = query[examples], key[examples].float()
    queries = selection.queries(length, keys, rows=query.shape[:-2].numel())
    query = query[..., queries, :].float()
    if query.dim() == 4 and key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scale = arguments.get("scale") or query.shape[-1] ** -0.5
    logits = query @ key.mT * scale
    if isinstance(mask, Tensor):
        rows = mask.detach()
        rows = rows[examples] if rows.dim() == 4 else rows
        rows = rows[..., queries, :] if rows.shape[-2] > 1 else rows
        logits = logits.masked_fill(~rows, -math.inf) if rows.dtype == torch.bool else logits + rows
    elif arguments.get("is_causal"):
        later = torch.ones(length, keys, dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later[queries], -math.inf)
    return LogitReading(logits, length, keys, bool(arguments.get("is_causal")))


def _mha_logits(
    args: tuple[Any, ...], kwargs: dict[str, Any], selection: LogitSelection
) -> LogitReading | None:
    """Compute the logits of `multi_head_attention_forward`, which projects queries and keys."""
    arguments = signature(multi_head_attention_forward).bind(*args, **kwargs).arguments
    query, key, heads, bias = (arguments[n] for n in ("query", "key", "num_heads", "in_proj_bias"))
    dim, mask, in_proj = query.shape[-1], arguments.get("attn_mask"), arguments["in_proj_weight"]
    length, keys, examples = query.shape[0], key.shape[0], slice(selection.examples)
    count = len(range(query.shape[1])[examples]) if query.dim() == 3 else 1
    queries = selection.queries(length, keys, rows=count * heads)
    projected = []
    for position, (tensor, name) in enumerate(((query, "q_proj_weight"), (key, "k_proj_weight"))):
        rows = slice(position * dim, (position + 1) * dim)
        weight = arguments[name] if in_proj is None else in_proj[rows]
        tokens = tensor.detach()[slice(None) if position else queries, examples].float()
        flat = linear(tokens, weight.float(), None if bias is None else bias[rows].float())
        projected.append(flat.view(*flat.shape[:-1], heads, -1).permute(1, 2, 0, 3))
    logits = projected[0] @ projected[1].mT / math.sqrt(dim // heads)
    padding = arguments.get("key_padding_mask")
    if isinstance(mask, Tensor):  # (queries, keys), or one per example and head
        mask = mask.view(-1, heads, *mask.shape[1:])[examples] if mask.dim() == 3 else mask
        logits = _apply_mask(logits, mask[..., queries, :])
    if isinstance(padding, Tensor):
        padding = padding[examples, None, None] if padding.dim() == 2 else padding
        logits = _apply_mask(logits, padding)
    return LogitReading(logits, length, keys, bool(arguments.get("is_causal")))


def _apply_mask(logits: Tensor, mask: Tensor) -> Tensor:
    """Apply a mask of `multi_head_attention_forward`, where True hides."""
    if mask.dtype == torch.bool:
        return logits.masked_fill(mask, -math.inf)
    return logits + mask.detach().float()


_READERS: dict[str, Callable[..., LogitReading | None]] = {
    "softmax": _softmax_logits,
    "scaled_dot_product_attention": _sdpa_logits,
    "multi_head_attention_forward": _mha_logits,
}


def hides_later(logits: Tensor) -> bool:
    """Return whether the masked logits of a square attention, or its first queries, are causal."""
    square = logits[..., : logits.shape[-2]]
    return not is_exploding(square) and is_causal(find_masked(square))


def find_masked(logits: Tensor) -> Tensor:
    """Return which logits are masked: far below the maximum of their row.

    A row is masked as a whole if its maximum is a fill value itself, such as -1e4 or -inf. Where
    -inf is the fill value, finite values are scores, however small: those of a model without norms
    can be anything.
    """
    largest = logits.amax(-1, keepdim=True)
    has_infinite_fill = (logits == -math.inf).any(-1, keepdim=True) & largest.isfinite()
    largest = largest.masked_fill((largest < MAX_FILL) & ~has_infinite_fill, 0.0)
    return logits < largest - MASKED_LOGIT_GAP


def is_exploding(logits: Tensor) -> bool:
    """Return whether logits are so large that small ones cannot be told from masked ones."""
    return bool((logits.isfinite() & (logits > MASKED_LOGIT_GAP / 2)).any())


def is_causal(hidden: Tensor) -> bool:
    """Return whether everything above the diagonal is hidden, but not the whole diagonal."""
    length = hidden.shape[-1]
    if length < 2 or hidden.shape[-2] != length:
        return False
    above = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
    diagonal = hidden.diagonal(dim1=-2, dim2=-1)
    return bool(hidden[..., above].all()) and not bool(diagonal.all())
