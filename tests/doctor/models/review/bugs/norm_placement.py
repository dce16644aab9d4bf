"""Norms on the skip path, wrong formulas of norms, and attention along the batch."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.norm_axes import Attention
from tests.doctor.models.review.case import bug, ids, stream

ON_SKIP = (
    "warning: the skip connection starts after the norm, so the norm lies on the "
    "stream instead of in the branch"
)


@bug(
    "norm on the skip",
    "https://github.com/pytorch/pytorch/issues/61165",
    ON_SKIP,
    stream(2, 12, 64),
)
def torch_first_norm_first(broken):
    class EncoderLayer(nn.Module):
        def __init__(self, d_model=64, nhead=4, norm_first=True):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)
            self.linear1 = nn.Linear(d_model, 128)
            self.linear2 = nn.Linear(128, d_model)
            self.norm1 = nn.LayerNorm(d_model)
            self.norm2 = nn.LayerNorm(d_model)
            self.dropout1 = nn.Dropout(0.1)
            self.dropout2 = nn.Dropout(0.1)

        def forward(self, src):
            if broken:
                src = self.norm1(src)
                src = src + self.dropout1(self.self_attn(src, src, src)[0])
                src = self.norm2(src)
                return src + self.dropout2(self.linear2(F.relu(self.linear1(src))))
            x = self.norm1(src)
            src = src + self.dropout1(self.self_attn(x, x, x)[0])
            return src + self.dropout2(self.linear2(F.relu(self.linear1(self.norm2(src)))))

    return nn.Sequential(*[EncoderLayer() for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 10))


@bug("norm on the skip", "https://github.com/lbcb-sci/RiNALMo/issues/9", ON_SKIP, ids())
def rinalmo_attention_skip(broken):
    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.attn_layer_norm = nn.LayerNorm(dim)
            self.mh_attn = nn.MultiheadAttention(dim, 4, bias=False, batch_first=True)
            self.out_layer_norm = nn.LayerNorm(dim)
            self.w1 = nn.Linear(dim, 96)
            self.w2 = nn.Linear(dim, 96)
            self.w3 = nn.Linear(96, dim)

        def forward(self, x):
            y = self.attn_layer_norm(x)
            x = (y if broken else x) + self.mh_attn(y, y, y)[0]
            y = self.out_layer_norm(x)
            return x + self.w3(F.silu(self.w1(y)) * self.w2(y))

    class RiNALMo(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding = nn.Embedding(50, dim)
            self.position = nn.Parameter(torch.randn(12, dim) * 0.1)
            self.blocks = nn.ModuleList([Block(dim) for _ in range(4)])
            self.final_layer_norm = nn.LayerNorm(dim)
            self.lm_head = nn.Linear(dim, 50)

        def forward(self, tokens):
            x = self.embedding(tokens) + self.position
            for block in self.blocks:
                x = block(x)
            return self.lm_head(self.final_layer_norm(x))

    return RiNALMo()


@bug(
    "attention axis",
    "https://github.com/IBM/TabFormer/pull/14",
    "error or warning: the attention runs over the batch axis, so the samples of a batch mix",
    lambda: torch.randint(0, 50, (6, 10)),
)
def tabformer_batch_axis(broken):
    class TabFormer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.word_embeddings = nn.Embedding(50, dim)
            self.transformer_encoder = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=not broken) for _ in range(2)]
            )
            self.lin_proj = nn.Linear(dim * 10, 32)

        def forward(self, tokens):
            x = self.word_embeddings(tokens)
            for layer in self.transformer_encoder:
                x = layer(x)
            return self.lin_proj(x.flatten(1))

    return TabFormer()


@bug(
    "norm formula",
    "https://github.com/mosaicml/llm-foundry/issues/371",
    "error or warning: the norm multiplies by the root mean square instead of "
    "dividing, so it does not normalize",
    ids(2, 16),
)
def mosaic_rms_norm_divides_by_rsqrt(broken):
    def rms_norm(x, weight, eps=1e-5):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return (x / scale if broken else x * scale) * weight

    class RMSNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return rms_norm(x.float(), self.weight).to(x.dtype)

    class MPTBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm_1, self.attn = RMSNorm(dim), Attention(dim, 4, True)
            self.norm_2, self.ffn = (
                RMSNorm(dim),
                nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)),
            )

        def forward(self, x):
            x = x + self.attn(self.norm_1(x))
            return x + self.ffn(self.norm_2(x))

    class MPT(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(50, dim), nn.Embedding(16, dim)
            self.blocks = nn.ModuleList([MPTBlock(dim) for _ in range(3)])
            self.norm_f = RMSNorm(dim)
            self.apply(self.init)

        @staticmethod
        def init(module):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight
            for block in self.blocks:
                x = block(x)
            return self.norm_f(x) @ self.wte.weight.T

    return MPT()
