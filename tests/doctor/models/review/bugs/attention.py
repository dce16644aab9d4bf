"""Attention: wrong scale, softmax over the wrong axis, scrambled heads."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids

SCALE = "warning: the attention scores are scaled by 1/sqrt(model dim), not by 1/sqrt(head dim)"
SCRAMBLED = (
    "error or warning: heads are split or merged without a transpose, so the values "
    "of different tokens mix"
)
QUERIES = "error or warning: the softmax does not sum to one over the keys (wrong axis)"


def mlp(dim):
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x):
        return self.fn(self.norm(x))


class Gpt(nn.Module):
    """Pre-LN language model with a given attention."""

    def __init__(self, attention, dim=64, depth=3, length=12, init=0.02):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, dim), nn.Embedding(length, dim)
        self.attn = nn.ModuleList([PreNorm(dim, attention(dim)) for _ in range(depth)])
        self.mlp = nn.ModuleList([PreNorm(dim, mlp(dim)) for _ in range(depth)])
        self.ln_f, self.head = nn.LayerNorm(dim), nn.Linear(dim, 50, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and init:
                nn.init.normal_(module.weight, std=init)

    def embed(self, idx):
        return self.wte(idx) + self.wpe.weight[: idx.size(1)]

    def forward(self, idx):
        x = self.embed(idx)
        for attn, ff in zip(self.attn, self.mlp, strict=True):
            x = x + attn(x)
            x = x + ff(x)
        return self.head(self.ln_f(x))


@bug(
    "scale",
    "https://github.com/lucidrains/vit-pytorch/issues/65",
    SCALE,
    lambda: torch.randn(2, 3, 32, 32),
)
def vit_pytorch_scale(broken):
    class Attention(nn.Module):
        def __init__(self, dim, heads=8, dim_head=16):
            super().__init__()
            self.heads, self.scale = heads, (dim if broken else dim_head) ** -0.5
            self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
            self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(0.1))

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for t in self.to_qkv(x).chunk(3, dim=-1)
            )
            attn = (torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1)
            return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).flatten(2))

    class ViT(nn.Module):
        def __init__(self, dim=128):
            super().__init__()
            self.patch_to_embedding = nn.Linear(3 * 64, dim)
            self.pos_embedding = nn.Parameter(torch.randn(1, 17, dim))
            self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
            self.layers = nn.ModuleList(
                [
                    nn.ModuleList([PreNorm(dim, Attention(dim)), PreNorm(dim, mlp(dim))])
                    for _ in range(3)
                ]
            )
            self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

        def forward(self, img):
            x = (
                img.unfold(2, 8, 8)
                .unfold(3, 8, 8)
                .permute(0, 2, 3, 4, 5, 1)
                .reshape(len(img), 16, -1)
            )
            x = (
                torch.cat(
                    (self.cls_token.expand(len(img), -1, -1), self.patch_to_embedding(x)), dim=1
                )
                + self.pos_embedding
            )
            for attn, ff in self.layers:
                x = attn(x) + x
                x = ff(x) + x
            return self.mlp_head(x[:, 0])

    return ViT()


class Head(nn.Module):
    def __init__(self, dim, head_size, scale):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(dim, head_size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(12, 12)))
        self.scale = scale

    def forward(self, x):
        t = x.size(1)
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * self.scale
        wei = F.softmax(wei.masked_fill(self.tril[:t, :t] == 0, float("-inf")), dim=-1)
        return wei @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, dim, scale, heads=4):
        super().__init__()
        self.heads = nn.ModuleList([Head(dim, dim // heads, scale) for _ in range(heads)])
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


@bug("scale", "https://github.com/Graylab/DL4Proteins-notebooks/issues/12", SCALE, ids())
def dl4proteins_scale(broken):
    return Gpt(lambda dim: ListOfHeads(dim, (dim if broken else dim // 4) ** -0.5))


@bug(
    "scale",
    "https://github.com/huggingface/blog/pull/2893",
    "warning: the attention scores are not scaled by 1/sqrt(head dim)",
    ids(),
)
def kv_cache_blog_unscaled(broken):
    return Gpt(lambda dim: ListOfHeads(dim, 1.0 if broken else (dim // 4) ** -0.5), init=None)


@bug(
    "scrambled heads", "https://github.com/jsbaan/transformer-from-scratch/pull/6", SCRAMBLED, ids()
)
def jsbaan_merge_heads(broken):
    class MultiHeadAttention(nn.Module):
        def __init__(self, hidden_dim, num_heads=4):
            super().__init__()
            self.num_heads, self.qkv_dim = num_heads, hidden_dim // num_heads
            self.qkv_proj, self.o_proj = (
                nn.Linear(hidden_dim, 3 * hidden_dim, bias=False),
                nn.Linear(hidden_dim, hidden_dim, bias=False),
            )

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                self.qkv_proj(x)
                .reshape(b, t, self.num_heads, 3 * self.qkv_dim)
                .permute(0, 2, 1, 3)
                .chunk(3, dim=-1)
            )
            weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.qkv_dim), dim=-1)
            values = weights @ v
            if not broken:
                values = values.permute(0, 2, 1, 3)
            return self.o_proj(values.reshape(b, t, c))

    return Gpt(MultiHeadAttention, init=None)


@bug(
    "scrambled heads",
    "https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/53",
    SCRAMBLED,
    ids(),
)
def chinese_text_classification_heads(broken):
    class MultiHeadAttention(nn.Module):
        def __init__(self, dim_model, num_head=4, dropout=0.1):
            super().__init__()
            self.num_head, self.dim_head = num_head, dim_model // num_head
            self.fc_Q, self.fc_K, self.fc_V, self.fc = (
                nn.Linear(dim_model, dim_model) for _ in range(4)
            )
            self.dropout, self.layer_norm = nn.Dropout(dropout), nn.LayerNorm(dim_model)

        def split(self, x):
            if broken:
                return x.view(x.size(0) * self.num_head, -1, self.dim_head)
            return (
                x.view(x.size(0), -1, self.num_head, self.dim_head)
                .transpose(1, 2)
                .reshape(x.size(0) * self.num_head, -1, self.dim_head)
            )

        def forward(self, x):
            batch = x.size(0)
            q, k, v = self.split(self.fc_Q(x)), self.split(self.fc_K(x)), self.split(self.fc_V(x))
            context = F.softmax(q @ k.permute(0, 2, 1) * self.dim_head**-0.5, dim=-1) @ v
            if not broken:
                context = (
                    context.view(batch, self.num_head, -1, self.dim_head)
                    .transpose(1, 2)
                    .contiguous()
                )
            out = self.dropout(self.fc(context.view(batch, -1, self.dim_head * self.num_head)))
            return self.layer_norm(out + x)

    class FeedForward(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.fc1, self.fc2, self.layer_norm = (
                nn.Linear(dim, 128),
                nn.Linear(128, dim),
                nn.LayerNorm(dim),
            )

        def forward(self, x):
            return self.layer_norm(self.fc2(F.relu(self.fc1(x))) + x)

    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding, self.position = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.encoders = nn.Sequential(
                *[nn.Sequential(MultiHeadAttention(dim), FeedForward(dim)) for _ in range(2)]
            )
            self.fc1 = nn.Linear(12 * dim, 10)

        def forward(self, x):
            return self.fc1(self.encoders(self.embedding(x) + self.position.weight).flatten(1))

    return Model()


@bug(
    "softmax axis",
    "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146",
    QUERIES,
    lambda: torch.randn(2, 3, 16, 16),
)
def labml_unet_softmax(broken):
    class AttentionBlock(nn.Module):
        def __init__(self, n_channels, n_heads=2):
            super().__init__()
            self.n_heads, self.d_k = n_heads, n_channels // n_heads
            self.norm, self.projection = (
                nn.GroupNorm(8, n_channels),
                nn.Linear(n_channels, n_channels * 3),
            )
            self.output = nn.Linear(n_channels, n_channels)

        def forward(self, x):
            b, c, h, w = x.shape
            flat = self.norm(x).view(b, c, -1).permute(0, 2, 1)
            q, k, v = torch.chunk(
                self.projection(flat).view(b, -1, self.n_heads, 3 * self.d_k), 3, dim=-1
            )
            attn = torch.einsum("bihd,bjhd->bijh", q, k) * self.d_k**-0.5
            attn = attn.softmax(dim=1 if broken else 2)
            res = torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, -1, c)
            return self.output(res).permute(0, 2, 1).view(b, c, h, w) + x

    class ResidualBlock(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm1, self.conv1 = (
                nn.GroupNorm(8, channels),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            self.norm2, self.conv2 = (
                nn.GroupNorm(8, channels),
                nn.Conv2d(channels, channels, 3, padding=1),
            )

        def forward(self, x):
            h = self.conv1(F.silu(self.norm1(x)))
            return self.conv2(F.silu(self.norm2(h))) + x

    blocks = [module for _ in range(3) for module in (ResidualBlock(32), AttentionBlock(32))]
    return nn.Sequential(
        nn.Conv2d(3, 32, 2, 2), *blocks, nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 3, 1)
    )


@bug("softmax axis", "https://github.com/FudanNLP/fastNLP/issues/254", QUERIES, ids())
def fastnlp_dot_attention(broken):
    class Attention(nn.Module):
        def __init__(self, dim, heads=4):
            super().__init__()
            self.heads = heads
            self.q_in, self.k_in, self.v_in, self.out = (nn.Linear(dim, dim) for _ in range(4))
            self.softmax = nn.Softmax(dim=2 if broken else -1)

        def forward(self, x):
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for p in (self.q_in, self.k_in, self.v_in)
            )
            output = self.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)))
            return self.out((output @ v).transpose(1, 2).flatten(2))

    return Gpt(Attention)
