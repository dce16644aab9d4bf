"""Padding that leaks through masks of the wrong shape or order, or that are ignored."""

import math
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, padded

LEAK = (
    "error or warning: the outputs of real tokens depend on padding, the padding "
    "mask is missing, ignored or wrong"
)


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k, self.w_v, self.w_concat = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def forward(self, q, k, v, mask=None):
        q, k, v = (
            heads_of(self.w_q(q), self.n_head),
            heads_of(self.w_k(k), self.n_head),
            heads_of(self.w_v(v), self.n_head),
        )
        score = (q @ k.transpose(2, 3)) / math.sqrt(q.size(-1))
        if mask is not None:
            score = score.masked_fill(mask == 0, -10000)
        return self.w_concat((score.softmax(-1) @ v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, attention):
        super().__init__()
        self.attention, self.norm1 = attention, nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, d_model)
        )
        self.norm2, self.dropout1, self.dropout2 = (
            nn.LayerNorm(d_model),
            nn.Dropout(0.1),
            nn.Dropout(0.1),
        )

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout1(self.attention(x, x, x, mask=mask)))
        return self.norm2(x + self.dropout2(self.ffn(x)))


class Tagger(nn.Module):
    """Token classifier whose mask and attention are given."""

    def __init__(self, attention, make_mask, dim=64, layers=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(12, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, attention()) for _ in range(layers)])
        self.linear = nn.Linear(dim, 9)
        self.make_mask = make_mask

    def forward(self, src):
        mask = self.make_mask(src)
        x = self.emb(src) + self.pos.weight[: src.size(1)]
        for layer in self.layers:
            x = layer(x, mask)
        return self.linear(x)


@bug("padding", "https://github.com/hyunwoongko/transformer/pull/40", LEAK, padded)
def hyunwoongko_query_mask(broken):
    axis = 3 if broken else 2
    return Tagger(
        lambda: MultiHeadAttention(64), lambda src: (src != 0).unsqueeze(1).unsqueeze(axis)
    )


@bug(
    "padding",
    "https://github.com/ArrowLuo/CLIP4Clip/issues/22",
    LEAK,
    lambda: (torch.randn(4, 12, 64), (padded() != 0).long()),
)
def clip4clip_mask_repeat(broken):
    class QuickGELU(nn.Module):
        def forward(self, x):
            return x * torch.sigmoid(1.702 * x)

    class ResidualAttentionBlock(nn.Module):
        def __init__(self, d_model, n_head):
            super().__init__()
            self.attn, self.ln_1, self.n_head = (
                nn.MultiheadAttention(d_model, n_head),
                nn.LayerNorm(d_model),
                n_head,
            )
            layers = [
                ("c_fc", nn.Linear(d_model, d_model * 4)),
                ("gelu", QuickGELU()),
                ("c_proj", nn.Linear(d_model * 4, d_model)),
            ]
            self.mlp, self.ln_2 = nn.Sequential(OrderedDict(layers)), nn.LayerNorm(d_model)

        def attention(self, x, attn_mask):
            if broken:
                attn_mask = attn_mask.repeat(self.n_head, 1, 1)
            else:
                attn_mask = attn_mask.repeat_interleave(self.n_head, dim=0)
            return self.attn(x, x, x, need_weights=False, attn_mask=attn_mask)[0]

        def forward(self, x, attn_mask):
            x = x + self.attention(self.ln_1(x), attn_mask)
            return x + self.mlp(self.ln_2(x))

    class CrossModel(nn.Module):
        def __init__(self, width=64):
            super().__init__()
            self.frame_position_embeddings = nn.Embedding(12, width)
            self.resblocks = nn.ModuleList([ResidualAttentionBlock(width, 4) for _ in range(2)])
            self.ln_post = nn.LayerNorm(width)

        def forward(self, visual, video_mask):
            extended = (1.0 - video_mask.unsqueeze(1)) * -1000000.0
            extended = extended.expand(-1, video_mask.size(1), -1)
            x = (visual + self.frame_position_embeddings.weight).permute(1, 0, 2)
            for block in self.resblocks:
                x = block(x, extended)
            return self.ln_post(x.permute(1, 0, 2))

    return CrossModel()


@bug(
    "padding", "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36", LEAK, padded
)
def keras_repeat_elements(broken):
    class MultiHead(nn.Module):
        def __init__(self, d_model=64, n_head=4):
            super().__init__()
            self.n_head = n_head
            self.qs_layer, self.ks_layer, self.vs_layer, self.w_o = (
                nn.Linear(d_model, d_model, bias=False) for _ in range(4)
            )

        def reshape1(self, x):
            b, n, d = x.shape
            return (
                x.view(b, n, self.n_head, d // self.n_head)
                .permute(2, 0, 1, 3)
                .reshape(-1, n, d // self.n_head)
            )

        def forward(self, q, k, v, mask):
            b, n, d = q.shape
            qs, ks, vs = (
                self.reshape1(self.qs_layer(q)),
                self.reshape1(self.ks_layer(k)),
                self.reshape1(self.vs_layer(v)),
            )
            mask = (
                mask.repeat_interleave(self.n_head, 0) if broken else mask.repeat(self.n_head, 1, 1)
            )
            attn = (
                torch.bmm(qs, ks.transpose(1, 2)) / (d // self.n_head) ** 0.5 + (1 - mask) * -1e10
            ).softmax(-1)
            head = (
                torch.bmm(attn, vs).view(self.n_head, b, n, -1).permute(1, 2, 0, 3).reshape(b, n, d)
            )
            return self.w_o(head)

    return Tagger(
        MultiHead, lambda src: (src != 0).float().unsqueeze(1).expand(-1, src.size(1), -1)
    )


@bug("padding", "https://github.com/opendilab/DI-engine/issues/333", LEAK, padded)
def di_engine_masked_fill(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, head_num=4):
            super().__init__()
            self.head_num = head_num
            self.attention_pre, self.project = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x, _k, _v, mask=None):
            query, key, value = (
                heads_of(y, self.head_num) for y in torch.chunk(self.attention_pre(x), 3, dim=2)
            )
            score = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(query.size(-1))
            if mask is not None:
                if broken:
                    score.masked_fill(~mask, value=-1e9)
                else:
                    score.masked_fill_(~mask, value=-1e9)
            return self.project(
                torch.matmul(F.softmax(score, dim=-1), value).transpose(1, 2).flatten(2)
            )

    return Tagger(Attention, lambda src: (src != 0)[:, None, None, :])


@bug(
    "padding",
    "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
    LEAK,
    lambda: (torch.randn(4, 12, 64), padded() != 0),
)
def graph_transformer_mask_over_heads(broken):
    class Attention(nn.Module):
        def __init__(self, dim, heads=4):
            super().__init__()
            self.heads, self.scale = heads, (dim // heads) ** -0.5
            self.to_q, self.to_kv, self.to_out = (
                nn.Linear(dim, dim),
                nn.Linear(dim, dim * 2),
                nn.Linear(dim, dim),
            )

        def forward(self, nodes, mask):
            q, k, v = (
                heads_of(t, self.heads)
                for t in (self.to_q(nodes), *self.to_kv(nodes).chunk(2, dim=-1))
            )
            sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
            mask = mask[:, :, None] & mask[:, None, :]
            if not broken:
                mask = mask[:, None]
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            return self.to_out(
                torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v).transpose(1, 2).flatten(2)
            )

    class GraphTransformer(nn.Module):
        def __init__(self, dim=64, depth=3):
            super().__init__()
            self.layers = nn.ModuleList(
                [
                    nn.ModuleList(
                        [
                            nn.LayerNorm(dim),
                            Attention(dim),
                            nn.LayerNorm(dim),
                            nn.Sequential(
                                nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
                            ),
                        ]
                    )
                    for _ in range(depth)
                ]
            )
            self.norm = nn.LayerNorm(dim)

        def forward(self, nodes, mask):
            for attn_norm, attn, ff_norm, ff in self.layers:
                nodes = attn(attn_norm(nodes), mask) + nodes
                nodes = ff(ff_norm(nodes)) + nodes
            return self.norm(nodes)

    return GraphTransformer()
