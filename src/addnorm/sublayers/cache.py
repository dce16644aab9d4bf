"""Key-value cache for incremental decoding.

`KVCache` holds one `LayerCache` per site of a stack. Without gradients, a layer cache writes new
keys into a buffer with spare capacity, which doubles when it is full, so that a step does not copy
the tokens before it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx._pytree import register_pytree_flatten_spec
from torch.utils._pytree import SequenceKey, register_pytree_node

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_positive_int
from addnorm.sublayers.beam_groups import BeamGroups


class LayerCache:
    """Keys and values of one attention sub-layer.

    keys, values: (B, key heads, S, K), after norm and rotation; None while empty
    valid: (B, S), False at padding; None while no token was padding
    is_memory: whether they belong to an encoder's output, stored once, not to the stack's tokens
    beam_groups: how rows share keys and values during beam search; B is then the number of groups,
        while `valid` of the stack's own tokens has a row for every beam
    recent: (B, 3, features) last inputs of Canon layers, by name; a row for every beam
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.valid: Tensor | None = None
        self.is_memory = False
        self.beam_groups: BeamGroups | None = None
        self.recent: dict[str, Tensor] = {}
        self._buffers: list[Tensor] = []  # (B, key heads, capacity, K) of keys and of values

    @property
    def length(self) -> int:
        """Number of tokens that a row has seen."""
        if self.keys is None:
            return 0
        return (
            self.keys.shape[2]
            if self.beam_groups is None or self.is_memory
            else self.beam_groups.num_tokens
        )

    def check_batch_size(self, expected: int) -> int:
        """Return the batch size of the cache; raise a UserError if it is not the expected one."""
        assert self.keys is not None
        rows = self.keys.shape[0] * (1 if self.beam_groups is None else self.beam_groups.size)
        if rows != expected:
            raise UserError(
                f"cache: expected a batch of {rows}, got {expected}; reorder the cache or create a "
                "new one"
            )
        return rows

    def extend(
        self, keys: Tensor, values: Tensor, valid: Tensor | None, *, shared: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append new tokens and return keys, values and mask of all tokens so far.

        Args:
            keys: (B, key heads, L, K) of the new tokens
            values: likewise
            valid: (B, L), False at padding
            shared: whether beams may keep sharing keys; they can only if L is 1
        """
        if self.keys is None or self.values is None:
            self.keys, self.values, self.valid = keys, values, valid
            return keys, values, valid
        if not shared or keys.shape[2] != 1:
            self.materialize()
        rows = self.check_batch_size(keys.shape[0])
        if valid is not None or self.valid is not None:
            new = keys.new_ones(rows, keys.shape[2], dtype=torch.bool) if valid is None else valid
            old = new.new_ones(rows, self.length) if self.valid is None else self.valid
            self.valid = torch.cat((old, new), 1)
        if self.beam_groups is not None:
            keys, values = (
                self.beam_groups.beams_as_tokens(keys),
                self.beam_groups.beams_as_tokens(values),
            )
            self.beam_groups = self.beam_groups.append_token()
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.keys = torch.cat((self.keys, keys), 2)
            self.values = torch.cat((self.values, values), 2)
            self._buffers = []
        else:
            held, total = self.keys.shape[2], self.keys.shape[2] + keys.shape[2]
            if self._needs_growth(total):
                self._copy_to_buffers(self.keys, self.values, size=2 * total)
            for buffer, new in zip(self._buffers, (keys, values), strict=True):
                buffer[:, :, held:total] = new
            self.keys, self.values = (buffer[:, :, :total] for buffer in self._buffers)
        return self.keys, self.values, self.valid

    def _needs_growth(self, total: int) -> bool:
        """Return whether the buffers cannot take `total` keys."""
        if not self._buffers or self._buffers[0].shape[2] < total:
            return True
        # An inference tensor cannot be written outside inference mode.
        return self._buffers[0].is_inference() and not torch.is_inference_mode_enabled()

    def store_memory(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """Store the keys and values of a memory; later calls read them."""
        self.keys, self.values, self.valid, self.is_memory = keys, values, valid, True

    def reorder(self, index: Tensor) -> None:
        """Replace row i by row index[i]."""
        self.materialize()
        self._select_rows(index)
        self._select_recent(index)
        self.valid = None if self.valid is None else self.valid.index_select(0, index)

    def expand_beams(self, size: int) -> None:
        """Turn every row into a group of `size` beams that share its tokens."""
        self.materialize()
        self.recent = {name: x.repeat_interleave(size, 0) for name, x in self.recent.items()}
        if self.keys is None:
            return
        self.beam_groups = (
            BeamGroups(size) if self.is_memory else BeamGroups.from_keys(size, self.keys)
        )
        if self.valid is not None and not self.is_memory:
            self.valid = self.valid.repeat_interleave(size, 0)

    def reorder_beams(self, parents: Tensor) -> None:
        """Let beam i of each group continue from beam parents[i]."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
        rows = (first + parents).flatten()
        if self.beam_groups is not None:
            self.beam_groups = self.beam_groups.reorder(parents)
            self._select_recent(rows)
        else:
            self.reorder(rows)

    def select_groups(self, groups: Tensor, size: int) -> None:
        """Keep the groups of `size` rows with the given indices."""
        rows = (groups[:, None] * size + torch.arange(size, device=groups.device)).flatten()
        if self.beam_groups is None:
            self.reorder(rows)
            return
        self._select_rows(groups)
        self._select_recent(rows)
        self.beam_groups = self.beam_groups.select(groups)
        if self.valid is not None:
            self.valid = self.valid.index_select(0, groups if self.is_memory else rows)

    def materialize(self) -> None:
        """Give every beam its own keys and values; afterwards no rows share any."""
        groups, self.beam_groups = self.beam_groups, None
        if groups is not None and self.keys is not None and self.values is not None:
            self.keys = groups.gather_history(self.keys)
            self.values = groups.gather_history(self.values)
            self._buffers = []
            if self.is_memory and self.valid is not None:
                self.valid = self.valid.repeat_interleave(groups.size, 0)

    def _select_recent(self, rows: Tensor) -> None:
        self.recent = {name: x.index_select(0, rows) for name, x in self.recent.items()}

    def _select_rows(self, index: Tensor) -> None:
        if self.keys is None or self.values is None:
            return
        keys, values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self._buffers:
            self._copy_to_buffers(keys, values, size=self._buffers[0].shape[2])
        else:
            self.keys, self.values = keys, values

    def _copy_to_buffers(self, keys: Tensor, values: Tensor, *, size: int) -> None:
        """Copy keys and values into new buffers with a capacity of `size` tokens."""
        held, self._buffers = keys.shape[2], []
        for tensor in (keys, values):
            buffer = tensor.new_empty(*tensor.shape[:2], size, tensor.shape[3])
            buffer[:, :, :held] = tensor
            self._buffers.append(buffer)
        self.keys, self.values = (buffer[:, :, :held] for buffer in self._buffers)

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`; a memory is not changed."""
        if self.is_memory:
            return
        self.materialize()
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        self.valid = None if self.valid is None else self.valid[:, :length]


class KVCache:
    """Keys and values of the tokens that a stack has seen, one `LayerCache` per site.

    A stack called with `cache` takes only the L new tokens and returns what one pass over all
    tokens would return for them. Self-attention appends to its layer cache. Cross-attention fills
    its layer cache at the first call, from that call's memory and memory_mask, and only reads it
    afterwards. The layer caches of feed-forwards stay empty, unless they have Canon layers.

    The `mask` of a call is (B, L), of the new tokens; the cache stores which old ones were padding.
    Pad prompts of different lengths on the left and pass their mask once; later tokens need none.

    >>> from addnorm import Decoder
    >>> decoder, x = Decoder(dim=8, depth=2, heads=2).eval(), torch.randn(1, 5, 8)
    >>> cache = KVCache(len(decoder.plan.sites))
    >>> steps = [decoder(x[:, :3], cache=cache), decoder(x[:, 3:], cache=cache)]
    >>> torch.testing.assert_close(torch.cat(steps, 1), decoder(x))
    >>> cache.length
    5
    """

    def __init__(self, sites: int) -> None:
        check_positive_int("sites", sites)
        self._layer_caches = [LayerCache() for _ in range(sites)]
        self._positions: Tensor | None = None
        self._beam_size = 1

    def __getitem__(self, site: int) -> LayerCache:
        return self._layer_caches[site]

    def __len__(self) -> int:
        return len(self._layer_caches)

    @property
    def length(self) -> int:
        """Number of tokens seen."""
        layer = self._first_used_cache()
        return 0 if layer is None else layer.length

    @property
    def num_valid(self) -> int | Tensor:
        """Number of valid tokens seen; (B, 1) if some tokens were padding."""
        layer = self._first_used_cache()
        if layer is None or layer.valid is None:
            return self.length
        return layer.valid.sum(1, keepdim=True)

    def append_positions(self, index: Tensor) -> Tensor:
        """Store the positions of the new tokens, (L) or (B, L); return those of all tokens."""
        if self.length and self._positions is not None:
            old = self._positions[..., : self.length]
            rows = max(old, index, key=Tensor.dim).shape[:-1]  # one of them may lack a batch
            index = torch.cat((old.expand(*rows, -1), index.expand(*rows, -1)), -1)
        self._positions = index
        return index

    def reorder(self, index: Tensor) -> None:
        """Replace row i by row index[i]; rows may be dropped or repeated."""
        for layer in self._layer_caches:
            layer.reorder(index)
        self._map_positions(lambda rows: rows.index_select(0, index))

    def expand_beams(self, size: int) -> None:
        """Turn every row into a group of `size` adjacent rows, the beams of a sentence.

        Keys and values are not copied, neither here nor in `reorder_beams`.
        """
        check_positive_int("size", size)
        self._beam_size = size
        for layer in self._layer_caches:
            layer.expand_beams(size)
        self._map_positions(lambda rows: rows.repeat_interleave(size, 0))

    def reorder_beams(self, parents: Tensor) -> None:
        """Let beam i of group b continue from beam parents[b, i]."""
        for layer in self._layer_caches:
            layer.reorder_beams(parents)

    def select_groups(self, groups: Tensor) -> None:
        """Keep the groups with the given indices and drop the others."""
        size = self._beam_size
        for layer in self._layer_caches:
            layer.select_groups(groups, size)
        self._map_positions(lambda rows: rows.view(-1, size, rows.shape[1])[groups].flatten(0, 1))

    def _map_positions(self, transform: Callable[[Tensor], Tensor]) -> None:
        """Transform the positions if each row has its own."""
        if self._positions is not None and self._positions.ndim == 2:
            self._positions = transform(self._positions)

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise UserError(
                f"length: expected 0 to {self.length}, the tokens in the cache, got {length}"
            )
        if length != self.length and any(layer.recent for layer in self._layer_caches):
            raise UserError(
                f"length: expected {self.length}, because Canon layers keep only the last inputs, "
                f"got {length}; run the tokens again"
            )
        for layer in self._layer_caches:
            layer.truncate(length)

    def _first_used_cache(self) -> LayerCache | None:
        """Return a layer cache with the stack's own tokens; all of them hold the same tokens."""
        used = (each for each in self._layer_caches if each.keys is not None and not each.is_memory)
        return next(used, None)


LAYER_FIELDS = ("keys", "values", "valid", "is_memory", "beam_groups", "recent")
BEAM_FIELDS = ("size", "visible", "token")


def _flatten_cache(cache: KVCache) -> tuple[list[Tensor], Any]:
    """Split a cache into its tensors and a nested tuple of everything else, with None for them."""
    leaves: list[Tensor] = []

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            leaves.append(value)
            return None
        if isinstance(value, BeamGroups):
            return tuple(_pack(value, BEAM_FIELDS, take))
        if isinstance(value, dict):
            leaves.extend(value.values())
            return ("recent", *value)
        return (value,)

    layers = tuple(tuple(_pack(layer, LAYER_FIELDS, take)) for layer in cache._layer_caches)
    return leaves, (layers, take(cache._positions), cache._beam_size)


def _pack(item: Any, names: tuple[str, ...], take: Callable[[Any], Any]) -> Iterable[Any]:
    return (take(getattr(item, name)) for name in names)


def _unflatten_cache(leaves: Iterable[Any], context: Any) -> KVCache:
    """Rebuild a cache; the leaves may be anything that stands for its tensors."""
    tensors = iter(leaves)

    def give(packed: Any) -> Any:
        if packed is None:
            return next(tensors)
        if packed[0] == "recent":
            return {name: next(tensors) for name in packed[1:]}
        if len(packed) == len(BEAM_FIELDS):
            return BeamGroups(*map(give, packed))
        return packed[0]

    layers, positions, beam_size = context
    cache = KVCache(len(layers))
    for layer, packed in zip(cache._layer_caches, layers, strict=True):
        for name, each in zip(LAYER_FIELDS, packed, strict=True):
            setattr(layer, name, give(each))
    cache._positions, cache._beam_size = give(positions), beam_size
    return cache


# A cache passes through torch.export, and through wrappers that move or split all tensors.
register_pytree_node(
    KVCache,
    _flatten_cache,
    _unflatten_cache,
    serialized_type_name="addnorm/KVCache",
    to_dumpable_context=lambda context: context,
    from_dumpable_context=lambda context: _as_tuples(context),
    flatten_with_keys_fn=lambda cache: _flatten_with_keys(cache),
)
# Exported programs of torch before 2.7 flatten their inputs by this second registry.
register_pytree_flatten_spec(KVCache, lambda cache, spec: _flatten_cache(cache)[0])


# An exported program stores its example inputs; torch loads known classes only.
torch.serialization.add_safe_globals([KVCache, LayerCache, BeamGroups])


def _flatten_with_keys(cache: KVCache) -> tuple[list[tuple[Any, Tensor]], Any]:
    leaves, context = _flatten_cache(cache)
    return [(SequenceKey(index), leaf) for index, leaf in enumerate(leaves)], context


def _as_tuples(value: Any) -> Any:
    """Restore the tuples of a context that JSON stores as lists."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
