"""Norms without effect, and dropout in the wrong place."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.options import attend
from tests.doctor.models.review.case import bug, ids, stream


@bug(
    "unused norm",
    "https://github.com/Cerebras/modelzoo/pull/85",
    "warning: the norms of queries and keys are never called",
    ids(),
)
def cerebras_qk_norm(broken):
    class Layer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.proj_qkv, self.proj_output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.q_norm, self.k_norm = nn.LayerNorm(dim // 4), nn.LayerNorm(dim // 4)
            self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def forward(self, x):
            norms = {} if broken else {"q_norm": self.q_norm, "k_norm": self.k_norm}
            x = x + attend(self.norm1(x), self.proj_qkv, self.proj_output, causal=True, **norms)
            return x + self.ffn(self.norm2(x))

    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding, self.position = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.transformer_decoder = nn.ModuleList([Layer(dim) for _ in range(3)])
            self.ln_f, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, 50, bias=False)

        def forward(self, input_ids):
            x = self.embedding(input_ids) + self.position.weight
            for layer in self.transformer_decoder:
                x = layer(x)
            return self.lm_head(self.ln_f(x))

    return Model()


@bug(
    "unused norm",
    "https://github.com/agentdr1/LA_MIL/issues/3",
    "warning: the norms of the layers are declared but never called",
    stream(1, 30, 48),
)
def la_mil_unused_norm(broken):
    class TransformerLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 96), nn.ReLU(), nn.Linear(96, dim))

        def forward(self, x):
            x = x + attend(x if broken else self.norm1(x), self.qkv, self.out)
            return x + self.mlp(x if broken else self.norm2(x))

    return nn.Sequential(
        *[TransformerLayer(48) for _ in range(2)], nn.LayerNorm(48), nn.Linear(48, 2)
    )


@bug(
    "dropout",
    "https://github.com/rixwew/pytorch-fm/issues/21",
    "error or warning: dropout is active in eval mode",
    lambda: torch.randint(0, 100, (8, 10)),
)
def pytorch_fm_functional_dropout(broken):
    class Layer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
            self.norm = nn.LayerNorm(dim)

        def forward(self, x):
            y = self.attention(x, x, x, need_weights=False)[0]
            y = F.dropout(y, p=0.1) if broken else F.dropout(y, p=0.1, training=self.training)
            return self.norm(x + y)

    class AutoInt(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embedding = nn.Embedding(1000, dim)
            self.register_buffer("offsets", torch.arange(10) * 100)
            self.self_attns = nn.Sequential(*[Layer(dim) for _ in range(3)])
            self.attn_fc = nn.Linear(10 * dim, 1)

        def forward(self, x):
            return self.attn_fc(
                self.self_attns(self.embedding(x + self.offsets)).flatten(1)
            ).sigmoid()

    return AutoInt()


@bug(
    "dropout",
    "https://github.com/taoyang1122/adapt-image-models/issues/50",
    "warning: the drop path drops tokens (first axis), not samples",
    lambda: torch.randn(2, 3, 32, 32),
)
def adapt_image_models_drop_path(broken):
    class DropPath(nn.Module):
        def __init__(self, drop_prob):
            super().__init__()
            self.drop_prob = drop_prob

        def forward(self, x):
            if not self.training:
                return x
            shape = (x.shape[0], 1, 1) if broken else (1, x.shape[1], 1)
            return x / (1 - self.drop_prob) * x.new_empty(shape).bernoulli_(1 - self.drop_prob)

    class ResidualAttentionBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.attn, self.ln_1, self.ln_2 = (
                nn.MultiheadAttention(dim, 4),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            self.drop_path = DropPath(0.2)

        def forward(self, x):
            y = self.ln_1(x)
            x = x + self.drop_path(self.attn(y, y, y, need_weights=False)[0])
            return x + self.drop_path(self.mlp(self.ln_2(x)))

    class ViT(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.conv1, self.positional_embedding = (
                nn.Conv2d(3, dim, 8, 8, bias=False),
                nn.Parameter(torch.randn(16, dim) * dim**-0.5),
            )
            self.ln_pre, self.ln_post = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.resblocks = nn.Sequential(*[ResidualAttentionBlock(dim) for _ in range(3)])
            self.head = nn.Linear(dim, 10)

        def forward(self, x):
            x = self.conv1(x).flatten(2).transpose(1, 2) + self.positional_embedding
            x = self.resblocks(self.ln_pre(x).permute(1, 0, 2))
            return self.head(self.ln_post(x).mean(0))

    return ViT()
