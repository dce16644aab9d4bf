"""Shared norms around torch's attention."""

import pytest
import torch
from torch import nn

from tests.doctor.models.tiny import DIM, rules, vectors


class Decoder(nn.Module):
    """torch layers; the norm before cross-attention may be used before other sub-layers, too."""

    def __init__(self, shared):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.TransformerDecoderLayer(DIM, 3, 48, batch_first=True, norm_first=True)
                for _ in range(2)
            ]
        )
        for layer in self.layers if shared else ():
            layer.norm3 = layer.norm2
        self.final = nn.LayerNorm(DIM)

    def forward(self, x, memory):
        for layer in self.layers:
            x = layer(x, memory)
        return self.final(x)


@pytest.mark.parametrize("shared", [False, True])
def test_norm_before_torch_attention_is_not_a_query_norm(shared):
    torch.manual_seed(0)
    found = rules(Decoder(shared), (vectors(), vectors()[:, :5] * 2))
    assert found == ({"shared_norm"} if shared else set())
