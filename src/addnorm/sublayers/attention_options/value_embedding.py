"""Value embeddings: a table of values per token, added to those of attention."""

import torch
from torch import Tensor, nn

from addnorm.kernels.linear import linear

GATE_FEATURES, MAX_GATE = 12, 2.0


class ValueEmbedding(nn.Module):
    """Values that depend on the token alone, with a gate from a few features.

    v <- v + 2 sigmoid(W h[:12]) * table[token]

    v: (B, kv_heads, L, K) values
    table: (vocab, kv_heads * K), drawn like an embedding
    W: (kv_heads, 12 or dim), starts at 0, so that the gate starts at 1

    modded-nanogpt; nanochat has the factor 3 and a random W.
    """

    def __init__(self, vocab: int, dim: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.kv_heads = kv_heads
        self.table = nn.Parameter(torch.empty(vocab, kv_heads * head_dim))
        self.gate = nn.Parameter(torch.empty(kv_heads, min(GATE_FEATURES, dim)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the start value of the gate; the table has a role and is drawn with the weights."""
        nn.init.zeros_(self.gate)
        if not self.table.is_meta:
            nn.init.normal_(self.table, std=self.table.shape[1] ** -0.5)

    def forward(self, h: Tensor, ids: Tensor) -> Tensor:
        """Return what is added to the values, (B, kv_heads, L, K).

        Args:
            h: (B, L, dim) input of attention
            ids: (B, L) token ids
        """
        gate = MAX_GATE * torch.sigmoid(linear(h[..., : self.gate.shape[1]], self.gate))
        rows = nn.functional.embedding(ids, self.table).unflatten(-1, (self.kv_heads, -1))
        return (gate.unsqueeze(-1) * rows).transpose(1, 2).to(h.dtype)
