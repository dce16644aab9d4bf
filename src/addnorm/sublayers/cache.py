"""Cache: keys and values of tokens already seen, for decoding step by step."""

from collections.abc import Callable

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_positive_int
from addnorm.sublayers.beams import BeamGroups


class LayerCache:
    """What one attention remembers.

    keys, values: (B, key heads, S, K), ready for the product, None as long as there are none
    valid: (B, S), False at padding; None while no token was padding
    fixed: whether they are an encoder's, kept once, and not tokens of the stack's own
    kin: how rows share keys and values, if they do; B is then that of the families, while `valid`
        of tokens of the stack's own has a line for every row

    Without gradients there is room behind the tokens for those to come, which are then written
    there: no step copies the tokens before it.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.valid: Tensor | None = None
        self.is_memory = False
        self.beam_groups: BeamGroups | None = None
        self._buffers: list[Tensor] = []  # (B, key heads, more than S, K): of keys and of values

    @property
    def length(self) -> int:
        """Tokens that a row has seen."""
        if self.keys is None:
            return 0
        return (
            self.keys.shape[2]
            if self.beam_groups is None or self.is_memory
            else self.beam_groups.num_tokens
        )

    def check_batch_size(self, expected: int) -> int:
        """Rows of the batch it holds, if they are as many as wanted."""
        assert self.keys is not None
        rows = self.keys.shape[0] * (1 if self.beam_groups is None else self.beam_groups.size)
        if rows != expected:
            raise UserError(
                f"the cache holds a batch of {rows}, got one of {expected}; reorder the cache, or "
                "begin with a new one"
            )
        return rows

    def extend(
        self, keys: Tensor, values: Tensor, valid: Tensor | None, *, shared: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append new tokens, (B, key heads, L, K) and (B, L); all tokens so far come back.

        shared: whether families may go on sharing keys, which they do for a token at a time
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
            for room, new in zip(self._buffers, (keys, values), strict=True):
                room[:, :, held:total] = new
            self.keys, self.values = (room[:, :, :total] for room in self._buffers)
        return self.keys, self.values, self.valid

    def _needs_growth(self, total: int) -> bool:
        """Whether so many keys cannot be written into the rooms."""
        if not self._buffers or self._buffers[0].shape[2] < total:
            return True
        return self._buffers[0].is_inference() and not torch.is_inference_mode_enabled()

    def store_memory(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """Keep the keys and values of a memory; later calls read them."""
        self.keys, self.values, self.valid, self.is_memory = keys, values, valid, True

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was."""
        self.materialize()
        self._select_rows(index)
        self.valid = None if self.valid is None else self.valid.index_select(0, index)

    def expand_beams(self, size: int) -> None:
        """Every row becomes a family of so many, that share all they have seen."""
        self.materialize()
        if self.keys is None:
            return
        self.beam_groups = (
            BeamGroups(size) if self.is_memory else BeamGroups.from_keys(size, self.keys)
        )
        if self.valid is not None and not self.is_memory:
            self.valid = self.valid.repeat_interleave(size, 0)

    def reorder_beams(self, parents: Tensor) -> None:
        """Row i of a family becomes what row parents[i] of it was."""
        if self.beam_groups is not None:
            self.beam_groups = self.beam_groups.reorder(parents)
        else:
            first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
            self.reorder((first + parents).flatten())

    def select_groups(self, groups: Tensor, size: int) -> None:
        """Some of the families of so many rows, by their numbers."""
        rows = (groups[:, None] * size + torch.arange(size, device=groups.device)).flatten()
        if self.beam_groups is None:
            self.reorder(rows)
            return
        self._select_rows(groups)
        self.beam_groups = self.beam_groups.select(groups)
        if self.valid is not None:
            self.valid = self.valid.index_select(0, groups if self.is_memory else rows)

    def materialize(self) -> None:
        """Rows of families get keys and values of their own."""
        kin, self.beam_groups = self.beam_groups, None
        if kin is not None and self.keys is not None and self.values is not None:
            self.keys, self.values = kin.gather_history(self.keys), kin.gather_history(self.values)
            self._buffers = []
            if self.is_memory and self.valid is not None:
                self.valid = self.valid.repeat_interleave(kin.size, 0)

    def _select_rows(self, index: Tensor) -> None:
        """Some rows of keys and values, with as much room as before."""
        if self.keys is None or self.values is None:
            return
        keys, values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self._buffers:
            self._copy_to_buffers(keys, values, size=self._buffers[0].shape[2])
        else:
            self.keys, self.values = keys, values

    def _copy_to_buffers(self, keys: Tensor, values: Tensor, *, size: int) -> None:
        """Keys and values into rooms for `size` of them."""
        held, self._buffers = keys.shape[2], []
        for kept in (keys, values):
            room = kept.new_empty(*kept.shape[:2], size, kept.shape[3])
            room[:, :, :held] = kept
            self._buffers.append(room)
        self.keys, self.values = (room[:, :, :held] for room in self._buffers)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`; a memory is kept whole."""
        if self.is_memory:
            return
        self.materialize()
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        self.valid = None if self.valid is None else self.valid[:, :length]


class KVCache:
    """What a stack remembers of the tokens it has seen: a slot for each of its sites.

    A stack called with `cache` sees the new tokens only, L of them, and computes what it would have
    computed for them in one pass over all. Self-attention appends to its slot. Cross-attention
    fills its slot at the first call, with that call's memory and memory_mask, and from then on
    reads the slot only. Feed-forwards leave theirs empty.

    The `mask` of a call is (B, L), of the new tokens: the cache remembers which of the old ones
    were padding. Prompts of several lengths are padded on the left and masked once; the tokens that
    follow need no mask.

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
        self._beam_size = 1  # rows of a family

    def __getitem__(self, site: int) -> LayerCache:
        return self._layer_caches[site]

    def __len__(self) -> int:
        return len(self._layer_caches)

    @property
    def length(self) -> int:
        """Tokens seen."""
        slot = self._first_used_cache()
        return 0 if slot is None else slot.length

    @property
    def num_valid(self) -> int | Tensor:
        """Valid tokens seen: one number, or (B, 1) where some were padding."""
        slot = self._first_used_cache()
        if slot is None or slot.valid is None:
            return self.length
        return slot.valid.sum(1, keepdim=True)

    def append_positions(self, index: Tensor) -> Tensor:
        """Remember the positions of the tokens to come, (L) or (B, L); those of all come back."""
        if self.length and self._positions is not None:
            old = self._positions[..., : self.length]
            rows = max(old, index, key=Tensor.dim).shape[:-1]  # one of them may lack a batch
            index = torch.cat((old.expand(*rows, -1), index.expand(*rows, -1)), -1)
        self._positions = index
        return index

    def reorder(self, index: Tensor) -> None:
        """Row i of the batch becomes what row index[i] was; rows may leave or be doubled."""
        for slot in self._layer_caches:
            slot.reorder(index)
        self._map_positions(lambda lines: lines.index_select(0, index))

    def expand_beams(self, size: int) -> None:
        """Every row becomes a family of so many rows next to each other: beams of a sentence.

        Nothing is copied, then or when a row goes on from another one of its family.
        """
        check_positive_int("size", size)
        self._beam_size = size
        for slot in self._layer_caches:
            slot.expand_beams(size)
        self._map_positions(lambda lines: lines.repeat_interleave(size, 0))

    def reorder_beams(self, parents: Tensor) -> None:
        """Row i of each family goes on from what row parents[i] of it has seen. parents: (B, n)"""
        for slot in self._layer_caches:
            slot.reorder_beams(parents)

    def select_groups(self, groups: Tensor) -> None:
        """Some of the families, by their numbers; the others leave."""
        size = self._beam_size
        for slot in self._layer_caches:
            slot.select_groups(groups, size)
        self._map_positions(
            lambda lines: lines.view(-1, size, lines.shape[1])[groups].flatten(0, 1)
        )

    def _map_positions(self, transform: Callable[[Tensor], Tensor]) -> None:
        """Positions follow their rows, where rows have their own."""
        if self._positions is not None and self._positions.ndim == 2:
            self._positions = transform(self._positions)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= self.length:
            raise UserError(f"the cache holds {self.length} tokens and cannot keep {length}")
        for slot in self._layer_caches:
            slot.truncate(length)

    def _first_used_cache(self) -> LayerCache | None:
        """A slot with tokens of the stack's own; they all hold the same ones."""
        used = (slot for slot in self._layer_caches if slot.keys is not None and not slot.is_memory)
        return next(used, None)
