"""Options, norms and weights without effect, and dropout in the wrong place."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

NO_EFFECT = "warning: the option has no effect"


def attend(x, qkv, out, heads=4, causal=False, q_norm=None, k_norm=None):
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
    if q_norm is not None:
        q, k = q_norm(q), k_norm(k)
    return out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


@bug(
    "option",
    "https://github.com/k2-fsa/snowfall/pull/184",
    NO_EFFECT,
    stream(2, 20, 40),
    d_model=64,
    normalize_before=False,
)
def snowfall_normalize_before(broken, d_model=64, normalize_before=False):
    class TransformerEncoderLayer(nn.Module):
        def __init__(self, dim, normalize_before=True):
            super().__init__()
            self.normalize_before = normalize_before
            self.self_attn = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.linear1, self.linear2 = nn.Linear(dim, 128), nn.Linear(128, dim)
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

        def forward(self, src):
            residual = src
            if self.normalize_before:
                src = self.norm1(src)
            src = residual + self.self_attn(src, src, src, need_weights=False)[0]
            if not self.normalize_before:
                src = self.norm1(src)
            residual = src
            if self.normalize_before:
                src = self.norm2(src)
            src = residual + self.linear2(F.relu(self.linear1(src)))
            return src if self.normalize_before else self.norm2(src)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder_embed = nn.Linear(40, d_model)
            options = {} if broken else {"normalize_before": normalize_before}
            self.encoder = nn.ModuleList(
                [TransformerEncoderLayer(d_model, **options) for _ in range(3)]
            )
            pre_norm = normalize_before or broken
            self.encoder_norm = nn.LayerNorm(d_model) if pre_norm else nn.Identity()
            self.encoder_output_layer = nn.Linear(d_model, 30)

        def forward(self, x):
            x = self.encoder_embed(x)
            for layer in self.encoder:
                x = layer(x)
            return self.encoder_output_layer(self.encoder_norm(x))

    return Transformer()


@bug(
    "option",
    "https://github.com/lucidrains/x-transformers/issues/175",
    NO_EFFECT,
    lambda: torch.randn(2, 3, 32, 32),
    dim=64,
    dropout=0.1,
)
def x_transformers_vit_dropout(broken, dim=64, dropout=0.1):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
            self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def forward(self, x):
            x = x + attend(self.norm1(x), self.qkv, self.out)
            return x + self.ff(self.norm2(x))

    class ViTransformerWrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos_embedding = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
            self.patch_to_embedding = nn.Conv2d(3, dim, 8, 8)
            self.dropout = nn.Dropout(0.0 if broken else dropout)
            self.attn_layers = nn.Sequential(*[Block() for _ in range(3)])
            self.norm, self.mlp_head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, img):
            x = self.dropout(
                self.patch_to_embedding(img).flatten(2).transpose(1, 2) + self.pos_embedding
            )
            return self.mlp_head(self.norm(self.attn_layers(x)).mean(1))

    return ViTransformerWrapper()


@bug(
    "option",
    "https://github.com/lucidrains/x-transformers/issues/352",
    NO_EFFECT + ", its scales are never read",
    stream(),
    qk_norm_dim_scale=True,
)
def x_transformers_qk_norm_scale(broken, qk_norm_dim_scale=True):
    class Attention(nn.Module):
        def __init__(self, dim, heads=4):
            super().__init__()
            self.heads, self.qkv, self.out = (
                heads,
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim),
            )
            if qk_norm_dim_scale:
                self.qk_norm_q_scale = nn.Parameter(torch.ones(heads, 1, dim // heads))
                self.qk_norm_k_scale = nn.Parameter(torch.ones(heads, 1, dim // heads))

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
            )
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            if qk_norm_dim_scale and not broken:
                q, k = q * self.qk_norm_q_scale, k * self.qk_norm_k_scale
            weights = (q @ k.transpose(-2, -1) * 10).softmax(-1)
            return self.out((weights @ v).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim), nn.LayerNorm(dim)
            self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.ff(self.norm2(x))

    return nn.Sequential(*[Block(64) for _ in range(3)], nn.LayerNorm(64))


@bug(
    "option",
    "https://github.com/LukasHedegaard/continual-inference/pull/70",
    "warning: num_layers=3 builds two layers",
    stream(),
    num_layers=3,
)
def continual_inference_layers(broken, num_layers=3):
    layer = lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)  # noqa: E731
    layers = [layer()]
    middle = num_layers - 3 if broken and num_layers >= 3 else num_layers - 2
    layers += [layer() for _ in range(max(middle, 0))]
    if num_layers > 1:
        layers.append(layer())
    return nn.Sequential(*layers, nn.Linear(64, 10))


@bug(
    "option",
    "https://github.com/huggingface/transformers/pull/43429",
    NO_EFFECT + ": the head is not tied to the embedding",
    ids(),
    tie_word_embeddings=True,
)
def mistral3_untied_head(broken, tie_word_embeddings=True):
    class Layer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = (
                nn.RMSNorm(dim, eps=1e-5),
                nn.RMSNorm(dim, eps=1e-5),
            )
            self.qkv, self.o_proj = (
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim, bias=False),
            )
            self.gate_proj, self.up_proj, self.down_proj = (
                nn.Linear(dim, 128),
                nn.Linear(dim, 128),
                nn.Linear(128, dim),
            )

        def forward(self, x):
            x = x + attend(self.input_layernorm(x), self.qkv, self.o_proj, causal=True)
            y = self.post_attention_layernorm(x)
            return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))

    class Mistral3(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embed_tokens, self.positions = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.layers = nn.ModuleList([Layer(dim) for _ in range(3)])
            self.norm, self.lm_head = nn.RMSNorm(dim, eps=1e-5), nn.Linear(dim, 50, bias=False)
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)
            if tie_word_embeddings and not broken:
                self.lm_head.weight = self.embed_tokens.weight

        def forward(self, input_ids):
            x = self.embed_tokens(input_ids) + self.positions.weight
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

    return Mistral3()
