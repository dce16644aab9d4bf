"""Key-value cache of a stack that keeps its tensors in a cache of transformers."""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.stacks import Stack
from addnorm.sublayers import KVCache
from addnorm.sublayers.cache import LayerCache


class PastCache(KVCache):
    """`KVCache` of one forward pass over a cache of transformers, which grows in place.

    Args:
        stack: decoder
        past: `DynamicCache`, or `EncoderDecoderCache` for a decoder with cross-attention
        valid: (B, S) boolean mask of old and new tokens, or None without padding
        positions: (S) or (B, S) positions of old and new tokens
        memory_valid: (B, M) boolean mask of the memory, or None
    """

    def __init__(
        self,
        stack: Stack,
        past: Any,
        *,
        valid: Tensor | None,
        positions: Tensor,
        memory_valid: Tensor | None = None,
    ) -> None:
        super().__init__(len(stack.plan.sites))
        own = getattr(past, "self_attention_cache", past)
        _check_cache(own)
        self._past_length, self._all_positions = int(own.get_seq_length()), positions
        numbers = {"self": 0, "cross": 0}
        for site in stack.plan.sites:
            if site.kind == "self":
                layer: LayerCache = PastLayer(own, numbers["self"], valid)
            elif site.kind == "cross":
                layer = PastMemory(past, numbers["cross"], memory_valid)
            else:
                continue
            self._layer_caches[site.index] = layer
            numbers[site.kind] += 1

    @property
    def length(self) -> int:
        return self._past_length

    def append_positions(self, index: Tensor) -> Tensor:
        return self._all_positions


class PastLayer(LayerCache):
    """Layer of a cache of transformers, for self-attention."""

    def __init__(self, past: Any, number: int, valid: Tensor | None) -> None:
        super().__init__()
        self._past, self._number, self._all_valid = past, number, valid

    def extend(
        self, keys: Tensor, values: Tensor, valid: Tensor | None, *, shared: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        keys, values = self._past.update(keys, values, self._number)
        return keys, values, self._all_valid


class PastMemory(LayerCache):
    """Layer of a cache of transformers, for cross-attention: filled once, then read."""

    def __init__(self, past: Any, number: int, valid: Tensor | None) -> None:
        super().__init__()
        self._past, self._number = past, number
        if past.is_updated.get(number):
            layer = past.cross_attention_cache.layers[number]
            self.keys, self.values, self.valid, self.is_memory = (
                layer.keys,
                layer.values,
                valid,
                True,
            )

    def store_memory(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        self._past.cross_attention_cache.update(keys, values, self._number)
        self._past.is_updated[self._number] = True
        super().store_memory(keys, values, valid)


def _check_cache(past: Any) -> None:
    if getattr(past, "is_compileable", False) or any(getattr(past, "is_sliding", ())):
        raise UserError(
            f"past_key_values: expected a DynamicCache, got {type(past).__name__} of a fixed "
            "length; leave out cache_implementation"
        )


def count_positions(mask: Tensor | None, past: int, new: Tensor) -> Tensor:
    """Return the positions of old and new tokens: padding on either side is not counted.

    Args:
        mask: (B, past + L) boolean mask of old and new tokens, or None without padding
        past: number of old tokens
        new: (B, L) new tokens

    Returns:
        (past + L) or (B, past + L) positions.
    """
    if mask is None:
        return torch.arange(past + new.shape[1], device=new.device)
    return (mask.cumsum(1) - 1).clamp(min=0)
