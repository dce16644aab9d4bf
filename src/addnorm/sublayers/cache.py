"""Cache: keys and values of tokens already seen, for decoding step by step."""

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_count


class Slot:
    """What one attention remembers.

    keys, values: (B, key heads, S, K), ready for the product, None as long as there are none
    valid: (B, S), False at padding; None while no token was padding
    fixed: whether they are an encoder's, kept once, and not tokens of the stack's own

    Without gradients there is room behind the tokens for those to come, which are then written
    there: no step copies the tokens before it.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.valid: Tensor | None = None
        self.fixed = False
        self._rooms: list[Tensor] = []  # (B, key heads, more than S, K): of keys and of values

    def extend(
        self, keys: Tensor, values: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append new tokens, (B, key heads, L, K) and (B, L); all tokens so far come back."""
        if self.keys is None or self.values is None:
            self.keys, self.values, self.valid = keys, values, valid
            return keys, values, valid
        if keys.shape[0] != self.keys.shape[0]:
            raise UserError(
                f"the cache holds a batch of {self.keys.shape[0]}, got one of {keys.shape[0]}; "
                "reorder the cache, or begin with a new one"
            )
        if valid is not None or self.valid is not None:
            known = ((self.valid, self.keys), (valid, keys))
            self.valid = torch.cat([_or_true(part, of) for part, of in known], 1)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.keys = torch.cat((self.keys, keys), 2)
            self.values = torch.cat((self.values, values), 2)
        else:
            held, total = self.keys.shape[2], self.keys.shape[2] + keys.shape[2]
            if not self._rooms or self._rooms[0].shape[2] < total:
                self._move(torch.arange(len(keys), device=keys.device), 2 * total)
            for room, new in zip(self._rooms, (keys, values), strict=True):
                room[:, :, held:total] = new
            self.keys, self.values = (room[:, :, :total] for room in self._rooms)
        return self.keys, self.values, self.valid

    def hold(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """Keep the keys and values of a memory; later calls read them."""
        self.keys, self.values, self.valid, self.fixed = keys, values, valid, True

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was."""
        if self._rooms:
            self._move(index, self._rooms[0].shape[2])
        elif self.keys is not None and self.values is not None:
            self.keys, self.values = (x.index_select(0, index) for x in (self.keys, self.values))
        self.valid = None if self.valid is None else self.valid.index_select(0, index)

    def _move(self, index: Tensor, size: int) -> None:
        """Some rows of keys and values, into rooms for `size` tokens."""
        assert self.keys is not None and self.values is not None
        held, self._rooms = self.keys.shape[2], []
        for kept in (self.keys, self.values):
            room = kept.new_empty(len(index), kept.shape[1], size, kept.shape[3])
            torch.index_select(kept, 0, index, out=room[:, :, :held])
            self._rooms.append(room)
        self.keys, self.values = (room[:, :, :held] for room in self._rooms)

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`; a memory is kept whole."""
        if self.keys is None or self.values is None or self.fixed:
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
        check_count("sites", sites)
        self._slots = [Slot() for _ in range(sites)]
        self._index: Tensor | None = None

    def __getitem__(self, site: int) -> Slot:
        return self._slots[site]

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def length(self) -> int:
        """Tokens seen."""
        slot = self._first()
        return 0 if slot is None or slot.keys is None else slot.keys.shape[2]

    @property
    def counted(self) -> int | Tensor:
        """Valid tokens seen: one number, or (B, 1) where some were padding."""
        slot = self._first()
        if slot is None or slot.valid is None:
            return self.length
        return slot.valid.sum(1, keepdim=True)

    def place(self, index: Tensor) -> Tensor:
        """Remember the positions of the tokens to come, (L) or (B, L); those of all come back."""
        if self.length and self._index is not None:
            old = self._index[..., : self.length]
            rows = max(old, index, key=Tensor.dim).shape[:-1]  # one of them may lack a batch
            index = torch.cat((old.expand(*rows, -1), index.expand(*rows, -1)), -1)
        self._index = index
        return index

    def reorder(self, index: Tensor) -> None:
        """Row i of the batch becomes what row index[i] was: beams that go on."""
        for slot in self._slots:
            slot.reorder(index)
        if self._index is not None and self._index.ndim == 2:
            self._index = self._index.index_select(0, index)

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        if not 0 <= length <= self.length:
            raise UserError(f"the cache holds {self.length} tokens and cannot keep {length}")
        for slot in self._slots:
            slot.crop(length)

    def _first(self) -> Slot | None:
        """A slot with tokens of the stack's own; they all hold the same ones."""
        used = (slot for slot in self._slots if slot.keys is not None and not slot.fixed)
        return next(used, None)


def _or_true(valid: Tensor | None, keys: Tensor) -> Tensor:
    if valid is not None:
        return valid
    return torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)
