"""Positions that do not count, and masks in the wrong place or convention."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.attention import Gpt, ListOfHeads
from tests.doctor.models.review.case import bug, ids

POSITIONS = "warning: all tokens get the same position, the order of the tokens has no effect"


@bug(
    "positions",
    "https://github.com/mlfoundations/open_lm/issues/4",
    "warning: the rotary embedding runs over the heads, not over the sequence",
    ids(),
)
def open_lm_rotary_axis(broken):
    def rotary(x, axis):
        n, d = x.shape[axis], x.shape[-1]
        angles = torch.outer(
            torch.arange(n).float(), 10000 ** (-torch.arange(0, d, 2).float() / d)
        ).repeat(1, 2)
        shape = [1, 1, 1, d]
        shape[axis] = n
        cos, sin = angles.cos().view(shape), angles.sin().view(shape)
        x1, x2 = x.chunk(2, -1)
        return x * cos + torch.cat((-x2, x1), -1) * sin

    class CustomAttn(nn.Module):
        def __init__(self, dim, heads=4):
            super().__init__()
            self.heads = heads
            self.in_proj, self.out_proj = (
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim, bias=False),
            )

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.in_proj(x).chunk(3, dim=-1))
            q, k = rotary(q, 2 if broken else 1), rotary(k, 2 if broken else 1)
            out = F.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
            )
            return self.out_proj(out.transpose(1, 2).flatten(2))

    class OpenLM(Gpt):
        def __init__(self):
            super().__init__(CustomAttn)
            del self.wpe

        def embed(self, idx):
            return self.wte(idx)

    return OpenLM()


@bug("positions", "https://github.com/cmu-l3/anlp-fall2025-code/issues/1", POSITIONS, ids(3, 12))
def anlp_position_of_the_batch(broken):
    class Model(Gpt):
        def embed(self, idx):
            if broken:
                pos = torch.arange(idx.size(0)).unsqueeze(1)
            else:
                pos = torch.arange(idx.size(1)).unsqueeze(0)
            return self.wte(idx) + self.wpe(pos)

    return Model(lambda dim: ListOfHeads(dim, (dim // 4) ** -0.5))


@bug(
    "positions",
    "https://github.com/DiffPoseTalk/DiffPoseTalk/issues/20",
    POSITIONS,
    lambda: torch.randn(2, 20, 32),
)
def diffposetalk_single_position(broken):
    class PositionalEncoding(nn.Module):
        def __init__(self, d_model, max_len=60):
            super().__init__()
            pe = torch.zeros(max_len, d_model)
            position = torch.arange(max_len).float().unsqueeze(1)
            div_term = torch.exp(
                torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model)
            )
            pe[:, 0::2], pe[:, 1::2] = (
                torch.sin(position * div_term),
                torch.cos(position * div_term),
            )
            self.register_buffer("pe", pe.unsqueeze(0))

        def forward(self, x):
            return x + (self.pe[:, x.shape[1], :] if broken else self.pe[:, : x.shape[1], :])

    layers = [
        nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
        for _ in range(3)
    ]
    return nn.Sequential(nn.Linear(32, 64), PositionalEncoding(64), *layers, nn.Linear(64, 32))


@bug(
    "mask after softmax",
    "https://github.com/huggingface/pytorch-image-models/pull/2236",
    "error: the mask is applied after the softmax, the output is not finite",
    lambda: (
        torch.randn(2, 10, 48),
        (torch.arange(10) < torch.tensor([[8], [6]]))[:, None, None, :],
    ),
)
def timm_eva_mask_after_softmax(broken):
    class EvaBlock(nn.Module):
        def __init__(self, dim, num_heads=4):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.norm1, self.qkv, self.proj = (
                nn.LayerNorm(dim),
                nn.Linear(dim, 3 * dim),
                nn.Linear(dim, dim),
            )
            self.norm2, self.fc1, self.fc2 = (
                nn.LayerNorm(dim),
                nn.Linear(dim, 4 * dim),
                nn.Linear(4 * dim, dim),
            )

        def attn(self, x, attn_mask):
            b, n, c = x.shape
            q, k, v = (
                self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            )
            attn = (q * self.scale) @ k.transpose(-2, -1)
            if broken:
                attn = attn.softmax(dim=-1)
                attn = attn.masked_fill(~attn_mask, float("-inf"))
            else:
                attn = attn.masked_fill(~attn_mask, float("-inf"))
                attn = attn.softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))

        def forward(self, x, attn_mask):
            x = x + self.attn(self.norm1(x), attn_mask)
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))

    class Eva(nn.Module):
        def __init__(self, dim=48):
            super().__init__()
            self.blocks = nn.ModuleList([EvaBlock(dim) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, x, attn_mask):
            for block in self.blocks:
                x = block(x, attn_mask)
            return self.head(self.norm(x)[:, 0])

    return Eva()


@bug(
    "causal mask",
    "https://github.com/harvard-edge/cs249r_book/pull/1785",
    "error or warning: the mask swallows the scores, the attention weights are "
    "uniform and queries and keys do not learn",
    ids(2, 12),
)
def tinytorch_mask_convention(broken):
    def apply_mask(scores, mask):
        return scores + (1 - mask) * -1e9

    class Attention(nn.Module):
        def __init__(self, dim, heads=4):
            super().__init__()
            self.heads = heads
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
                nn.Linear(dim, dim) for _ in range(4)
            )

        def forward(self, x, mask):
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = apply_mask(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), mask)
            return self.out_proj((F.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))

    class GPT(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.token_embedding, self.position_embedding = (
                nn.Embedding(50, dim),
                nn.Embedding(12, dim),
            )
            self.attention = nn.ModuleList([Attention(dim) for _ in range(3)])
            self.mlp = nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
                    for _ in range(3)
                ]
            )
            self.ln1, self.ln2 = (
                nn.ModuleList([nn.LayerNorm(dim) for _ in range(3)]) for _ in range(2)
            )
            self.ln_f, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, 50, bias=False)

        def forward(self, tokens):
            n = tokens.size(1)
            mask = (
                torch.triu(torch.full((n, n), float("-inf")), 1)
                if broken
                else torch.tril(torch.ones(n, n))
            )
            x = self.token_embedding(tokens) + self.position_embedding.weight
            for i in range(3):
                x = x + self.attention[i](self.ln1[i](x), mask)
                x = x + self.mlp[i](self.ln2[i](x))
            return self.lm_head(self.ln_f(x))

    return GPT()
