"""Cache: keys and values of tokens already seen, for decoding step by step."""

from collections.abc import Callable

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_count
from addnorm.sublayers.beams import Kin


class Slot:
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
        self.fixed = False
        self.kin: Kin | None = None
        self._rooms: list[Tensor] = []  # (B, key heads, more than S, K): of keys and of values

    @property
    def length(self) -> int:
        """Tokens that a row has seen."""
        if self.keys is None:
            return 0
        return self.keys.shape[2] if self.kin is None or self.fixed else self.kin.tokens

    def rows(self, wanted: int) -> int:
        """Rows of the batch it holds, if they are as many as wanted."""
        assert self.keys is not None
        rows = self.keys.shape[0] * (1 if self.kin is None else self.kin.size)
        if rows != wanted:
            raise UserError(
                f"the cache holds a batch of {rows}, got one of {wanted}; reorder the cache, or "
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
            self.settle()
        rows = self.rows(keys.shape[0])
        if valid is not None or self.valid is not None:
            new = keys.new_ones(rows, keys.shape[2], dtype=torch.bool) if valid is None else valid
            old = new.new_ones(rows, self.length) if self.valid is None else self.valid
            self.valid = torch.cat((old, new), 1)
        if self.kin is not None:
            keys, values = self.kin.together(keys), self.kin.together(values)
            self.kin = self.kin.longer()
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.keys = torch.cat((self.keys, keys), 2)
            self.values = torch.cat((self.values, values), 2)
            self._rooms = []
        else:
            held, total = self.keys.shape[2], self.keys.shape[2] + keys.shape[2]
            if self._full(total):
                self._move(self.keys, self.values, size=2 * total)
            for room, new in zip(self._rooms, (keys, values), strict=True):
                room[:, :, held:total] = new
            self.keys, self.values = (room[:, :, :total] for room in self._rooms)
        return self.keys, self.values, self.valid

    def _full(self, total: int) -> bool:
        """Whether so many keys cannot be written into the rooms."""
        if not self._rooms or self._rooms[0].shape[2] < total:
            return True
        return self._rooms[0].is_inference() and not torch.is_inference_mode_enabled()

    def hold(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        """Keep the keys and values of a memory; later calls read them."""
        self.keys, self.values, self.valid, self.fixed = keys, values, valid, True

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was."""
        self.settle()
        self._take(index)
        self.valid = None if self.valid is None else self.valid.index_select(0, index)

    def fork(self, size: int) -> None:
        """Every row becomes a family of so many, that share all they have seen."""
        self.settle()
        if self.keys is None:
            return
        self.kin = Kin(size) if self.fixed else Kin.of(size, self.keys)
        if self.valid is not None and not self.fixed:
            self.valid = self.valid.repeat_interleave(size, 0)

    def follow(self, parents: Tensor) -> None:
        """Row i of a family becomes what row parents[i] of it was."""
        if self.kin is not None:
            self.kin = self.kin.follow(parents)
        else:
            first = torch.arange(len(parents), device=parents.device)[:, None] * parents.shape[1]
            self.reorder((first + parents).flatten())

    def keep(self, families: Tensor, size: int) -> None:
        """Some of the families of so many rows, by their numbers."""
        rows = (families[:, None] * size + torch.arange(size, device=families.device)).flatten()
        if self.kin is None:
            self.reorder(rows)
            return
        self._take(families)
        self.kin = self.kin.keep(families)
        if self.valid is not None:
            self.valid = self.valid.index_select(0, families if self.fixed else rows)

    def settle(self) -> None:
        """Rows of families get keys and values of their own."""
        kin, self.kin = self.kin, None
        if kin is not None and self.keys is not None and self.values is not None:
            self.keys, self.values = kin.own(self.keys), kin.own(self.values)
            self._rooms = []
            if self.fixed and self.valid is not None:
                self.valid = self.valid.repeat_interleave(kin.size, 0)

    def _take(self, index: Tensor) -> None:
        """Some rows of keys and values, with as much room as before."""
        if self.keys is None or self.values is None:
            return
        keys, values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self._rooms:
            self._move(keys, values, size=self._rooms[0].shape[2])
        else:
            self.keys, self.values = keys, values

    def _move(self, keys: Tensor, values: Tensor, *, size: int) -> None:
        """Keys and values into rooms for `size` of them."""
        held, self._rooms = keys.shape[2], []
        for kept in (keys, values):
            room = kept.new_empty(*kept.shape[:2], size, kept.shape[3])
            room[:, :, :held] = kept
            self._rooms.append(room)
        self.keys, self.values = (room[:, :, :held] for room in self._rooms)

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`; a memory is kept whole."""
        if self.fixed:
            return
        self.settle()
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
        check_count("sites", sites)
        self._slots = [Slot() for _ in range(sites)]
        self._index: Tensor | None = None
        self._size = 1  # rows of a family

    def __getitem__(self, site: int) -> Slot:
        return self._slots[site]

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def length(self) -> int:
        """Tokens seen."""
        slot = self._first()
        return 0 if slot is None else slot.length

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
        """Row i of the batch becomes what row index[i] was; rows may leave or be doubled."""
        for slot in self._slots:
            slot.reorder(index)
        self._place(lambda lines: lines.index_select(0, index))

    def fork(self, size: int) -> None:
        """Every row becomes a family of so many rows next to each other: beams of a sentence.

        Nothing is copied, then or when a row goes on from another one of its family.
        """
        check_count("size", size)
        self._size = size
        for slot in self._slots:
            slot.fork(size)
        self._place(lambda lines: lines.repeat_interleave(size, 0))

    def follow(self, parents: Tensor) -> None:
        """Row i of each family goes on from what row parents[i] of it has seen. parents: (B, n)"""
        for slot in self._slots:
            slot.follow(parents)

    def keep(self, families: Tensor) -> None:
        """Some of the families, by their numbers; the others leave."""
        size = self._size
        for slot in self._slots:
            slot.keep(families, size)
        self._place(lambda lines: lines.view(-1, size, lines.shape[1])[families].flatten(0, 1))

    def _place(self, change: Callable[[Tensor], Tensor]) -> None:
        """Positions follow their rows, where rows have their own."""
        if self._index is not None and self._index.ndim == 2:
            self._index = change(self._index)

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
