"""Beam groups: rows of a batch that share a prefix in the key-value cache.

Beam search keeps n rows (beams) per sentence. They share all tokens up to the point where they
diverged, and after every step each beam continues from another one. Copying keys and values for
that is expensive, so they stay where they are, and a mask says which of them belong to which beam.

Example: two beams after a common prefix of three tokens. Each has written one token, keys 3 and 4.
Then both continue from the second beam; only the mask changes:

    before    beam 0 sees keys 0 1 2 3      beam 1 sees keys 0 1 2 4
    after     beam 0 sees keys 0 1 2 4      beam 1 sees keys 0 1 2 4
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class BeamGroups:
    """Groups of `size` adjacent rows, and the keys that each group shares.

    size: beams of a group, n
    visible: (B, n, M), True at the keys of a beam's history; None if all beams share all keys
    token: (M), index of the token that each key belongs to

    >>> groups = BeamGroups.from_keys(2, torch.ones(1, 2, 3, 4)).append_token()
    >>> groups.reorder(torch.tensor([[1, 1]])).visible.int()
    tensor([[[1, 1, 1, 0, 1],
             [1, 1, 1, 0, 1]]], dtype=torch.int32)
    """

    size: int
    visible: Tensor | None = None
    token: Tensor | None = None

    @classmethod
    def from_keys(cls, size: int, keys: Tensor) -> "BeamGroups":
        """Build groups whose beams share all keys, (B, key heads, S, K), so far."""
        visible = torch.ones(len(keys), size, keys.shape[2], dtype=torch.bool, device=keys.device)
        return cls(size, visible, torch.arange(keys.shape[2], device=keys.device))

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the history of a beam."""
        assert self.token is not None
        return int(self.token[-1]) + 1 if len(self.token) else 0

    def append_token(self) -> "BeamGroups":
        """Return the groups after each beam appended a token, which it alone sees."""
        assert self.visible is not None and self.token is not None
        own = torch.eye(self.size, dtype=torch.bool, device=self.visible.device)
        return replace(
            self,
            visible=torch.cat((self.visible, own.expand(len(self.visible), -1, -1)), 2),
            token=torch.cat((self.token, self.token.new_full((self.size,), self.num_tokens))),
        )

    def reorder(self, parents: Tensor) -> "BeamGroups":
        """Return the groups in which beam i of group b continues from beam parents[b, i]."""
        if self.visible is None:
            return self
        rows = parents[..., None].expand(-1, -1, self.visible.shape[2])
        return replace(self, visible=self.visible.gather(1, rows))

    def select(self, groups: Tensor) -> "BeamGroups":
        """Return the groups with the given indices."""
        return self if self.visible is None else replace(self, visible=self.visible[groups])

    def beams_as_tokens(self, x: Tensor) -> Tensor:
        """View (B * n, heads, 1, K) as (B, heads, n, K): the beams of a group as its tokens."""
        return x.view(-1, self.size, *x.shape[1:]).squeeze(3).transpose(1, 2)

    def tokens_as_beams(self, y: Tensor) -> Tensor:
        """View (B, n, dim) as (B * n, 1, dim): the inverse, after attention."""
        return y.reshape(-1, 1, y.shape[-1])

    def expand_masks(
        self, visible: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Convert mask and bias from beams and tokens to groups and keys.

        Args:
            visible: broadcastable to (B * n, heads, 1, S); per group if all keys are shared
            bias: likewise

        Returns:
            Both, broadcastable to (B, heads, n, M).
        """
        if self.visible is None or self.token is None:
            return visible, bias
        mask = self.visible[:, None]
        if visible is not None:
            mask = mask & self._expand(visible)
        return mask, None if bias is None else self._expand(bias)

    def _expand(self, x: Tensor) -> Tensor:
        """Map (1 or B * n, heads, 1, S), leading axes optional, to (1 or B, heads, n, M)."""
        assert self.token is not None
        x = x[(None,) * (4 - x.ndim)].index_select(-1, self.token)
        return x if len(x) == 1 else self.beams_as_tokens(x)

    def gather_history(self, keys: Tensor) -> Tensor:
        """Copy each beam's history: (B, heads, M, K) to (B * n, heads, S, K)."""
        if self.visible is None:
            return keys.repeat_interleave(self.size, 0)
        index = self.visible.nonzero()[:, 2].view(-1, 1, self.num_tokens, 1)  # (B * n, 1, S, 1)
        per_beam = keys.repeat_interleave(self.size, 0)
        return per_beam.gather(2, index.expand(-1, keys.shape[1], -1, keys.shape[3]))
