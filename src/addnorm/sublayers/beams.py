"""Kin: rows of a batch that go on from the same tokens, such as the beams of a sentence."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class BeamGroups:
    """Families of `size` rows that stand next to each other, and the keys that each family shares.

    A token that was there before a family came to be has one key for all of its rows; each token
    behind it has one for every row that wrote it. Which of them are a row's own history is a mask:
    a row that goes on from another takes over a line of the mask, and no key is moved.

    size: rows of a family, n
    seen: (B, n, M), True at the keys of a row's history; None where all rows share all keys
    token: (M), the token that a key is of

    >>> kin = Kin.of(2, torch.ones(1, 2, 3, 4)).longer()  # two rows after three common tokens
    >>> kin.follow(torch.tensor([[1, 1]])).seen.int()  # both go on from what the second wrote
    tensor([[[1, 1, 1, 0, 1],
             [1, 1, 1, 0, 1]]], dtype=torch.int32)
    """

    size: int
    seen: Tensor | None = None
    token: Tensor | None = None

    @classmethod
    def from_keys(cls, size: int, keys: Tensor) -> "BeamGroups":
        """Families at their beginning. keys: (B, key heads, S, K), of what all rows have seen"""
        seen = torch.ones(len(keys), size, keys.shape[2], dtype=torch.bool, device=keys.device)
        return cls(size, seen, torch.arange(keys.shape[2], device=keys.device))

    @property
    def num_tokens(self) -> int:
        """Tokens that a row has seen."""
        assert self.token is not None
        return int(self.token[-1]) + 1 if len(self.token) else 0

    def append_token(self) -> "BeamGroups":
        """Each row has written a token, which it alone sees."""
        assert self.seen is not None and self.token is not None
        own = torch.eye(self.size, dtype=torch.bool, device=self.seen.device)
        return replace(
            self,
            seen=torch.cat((self.seen, own.expand(len(self.seen), -1, -1)), 2),
            token=torch.cat((self.token, self.token.new_full((self.size,), self.num_tokens))),
        )

    def reorder(self, parents: Tensor) -> "BeamGroups":
        """Row i of a family goes on from what row parents[i] of it has seen. parents: (B, n)"""
        if self.seen is None:
            return self
        lines = parents[..., None].expand(-1, -1, self.seen.shape[2])
        return replace(self, seen=self.seen.gather(1, lines))

    def select(self, groups: Tensor) -> "BeamGroups":
        """Some of the families, by their numbers."""
        return self if self.seen is None else replace(self, seen=self.seen[groups])

    def beams_as_tokens(self, x: Tensor) -> Tensor:
        """(B * n, heads, 1, K) as (B, heads, n, K): the rows of a family as tokens."""
        return x.view(-1, self.size, *x.shape[1:]).squeeze(3).transpose(1, 2)

    def tokens_as_beams(self, y: Tensor) -> Tensor:
        """(B, n, dim) as (B * n, 1, dim)."""
        return y.reshape(-1, 1, y.shape[-1])

    def expand_masks(
        self, visible: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """What holds for rows and tokens, as what holds for families and their keys.

        visible, bias: anything that broadcasts to (B * n, heads, 1, S); where all keys are shared,
        visible is that of the families
        """
        if self.seen is None or self.token is None:
            return visible, bias
        lines = self.seen[:, None]
        if visible is not None:
            lines = lines & self._expand(visible)
        return lines, None if bias is None else self._expand(bias)

    def _expand(self, x: Tensor) -> Tensor:
        """(1 or B * n, heads, 1, S), the first two perhaps absent, to (1 or B, heads, n, M)."""
        assert self.token is not None
        x = x[(None,) * (4 - x.ndim)].index_select(-1, self.token)
        return x if len(x) == 1 else self.beams_as_tokens(x)

    def gather_history(self, keys: Tensor) -> Tensor:
        """The keys of each row's history, copied: (B, heads, M, K) to (B * n, heads, S, K)."""
        if self.seen is None:
            return keys.repeat_interleave(self.size, 0)
        place = self.seen.nonzero()[:, 2].view(-1, 1, self.num_tokens, 1)  # (B * n, 1, S, 1)
        every = keys.repeat_interleave(self.size, 0)
        return every.gather(2, place.expand(-1, keys.shape[1], -1, keys.shape[3]))
