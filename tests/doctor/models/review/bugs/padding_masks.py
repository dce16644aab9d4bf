"""Padding masks that are inverted, missing, ignored or those of another sequence."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.padding import LEAK, EncoderLayer, MultiHeadAttention, heads_of
from tests.doctor.models.review.case import bug, padded, pairs

SWAPPED = "error or warning: the padding mask is inverted, only padding is attended"


@bug(
    "padding",
    "https://github.com/InseeFrLab/torchTextClassifiers/pull/92",
    SWAPPED,
    lambda: (padded(), (padded() != 0).long()),
)
def label_attention_polarity(broken):
    class LabelAttention(nn.Module):
        def __init__(self, dim, n_head, num_classes):
            super().__init__()
            self.n_head = n_head
            self.label_embeds = nn.Embedding(num_classes, dim)
            self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.c_q, self.c_k, self.c_v, self.c_proj = (
                nn.Linear(dim, dim, bias=False) for _ in range(4)
            )

        def forward(self, token_embeddings, attention_mask):
            labels = self.norm_1(self.label_embeds.weight).expand(len(token_embeddings), -1, -1)
            tokens = self.norm_2(token_embeddings)
            q, k, v = (
                heads_of(self.c_q(labels), self.n_head),
                heads_of(self.c_k(tokens), self.n_head),
                heads_of(self.c_v(tokens), self.n_head),
            )
            mask = (attention_mask == 0 if broken else attention_mask != 0)[:, None, None, :]
            return self.c_proj(
                F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
            )

    class Classifier(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding, self.position = (
                nn.Embedding(50, dim, padding_idx=0),
                nn.Embedding(12, dim),
            )
            self.blocks = nn.ModuleList(
                [EncoderLayer(dim, MultiHeadAttention(dim)) for _ in range(2)]
            )
            self.label_attention = LabelAttention(dim, 4, 7)
            self.head = nn.Linear(dim, 1)

        def forward(self, input_ids, attention_mask):
            x = self.embedding(input_ids) + self.position.weight
            for block in self.blocks:
                x = block(x, attention_mask[:, None, None, :])
            return self.head(self.label_attention(x, attention_mask)).squeeze(-1)

    return Classifier()


@bug("padding", "https://github.com/DaoyuanLi2816/Molecule-Generator/pull/22", LEAK, padded)
def molecule_generator_without_mask(broken):
    class MoleculeEncoder(nn.Module):
        def __init__(self, vocab=50, dim=64):
            super().__init__()
            self.embedding, self.positions = (
                nn.Embedding(vocab, dim, padding_idx=0),
                nn.Parameter(torch.randn(12, dim) * 0.02),
            )
            self.encoder = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.fc_mu = nn.Linear(dim, 16)

        def forward(self, x):
            pad_mask = None if broken else x == 0
            h = self.embedding(x) + self.positions
            for layer in self.encoder:
                h = layer(h, src_key_padding_mask=pad_mask)
            return self.fc_mu(h[:, 0])

    return MoleculeEncoder()


@bug(
    "padding",
    "https://github.com/jingyaogong/minimind-v/issues/76",
    LEAK,
    lambda: {"input_ids": padded(), "attention_mask": (padded() != 0).long()},
)
def minimind_unused_attention_mask(broken):
    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embed_tokens, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.layers = nn.ModuleList(
                [EncoderLayer(dim, MultiHeadAttention(dim)) for _ in range(3)]
            )
            self.score = nn.Linear(dim, 5)

        def forward(self, input_ids, attention_mask=None):
            x = self.embed_tokens(input_ids) + self.pos.weight
            mask = None if broken else attention_mask[:, None, None, :]
            for layer in self.layers:
                x = layer(x, mask)
            return self.score(x[:, 0])

    return Model()


@bug("padding", "https://github.com/Kamichanw/SeekDeeper/issues/3", LEAK, pairs)
def seekdeeper_cross_attention_mask(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.self_attn, self.cross_attn = MultiHeadAttention(dim), MultiHeadAttention(dim)
            self.ffn = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))
            self.norm1, self.norm2, self.norm3 = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )

        def forward(self, x, memory, tgt_mask, src_mask):
            x = self.norm1(x + self.self_attn(x, x, x, tgt_mask))
            x = self.norm2(x + self.cross_attn(x, memory, memory, tgt_mask if broken else src_mask))
            return self.norm3(x + self.ffn(x))

    class Transformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.src_emb, self.tgt_emb, self.pos = (
                nn.Embedding(50, dim, 0),
                nn.Embedding(50, dim, 0),
                nn.Embedding(12, dim),
            )
            self.encoder = nn.ModuleList(
                [EncoderLayer(dim, MultiHeadAttention(dim)) for _ in range(2)]
            )
            self.decoder = nn.ModuleList([DecoderLayer(dim) for _ in range(2)])
            self.out = nn.Linear(dim, 50)

        def forward(self, src, tgt):
            src_mask = (src != 0)[:, None, None, :]
            tgt_mask = (tgt != 0)[:, None, None, :] & torch.ones(12, 12, dtype=torch.bool).tril()
            memory, x = self.src_emb(src) + self.pos.weight, self.tgt_emb(tgt) + self.pos.weight
            for layer in self.encoder:
                memory = layer(memory, src_mask)
            for layer in self.decoder:
                x = layer(x, memory, tgt_mask, src_mask)
            return self.out(x)

    return Transformer()


@bug(
    "padding",
    "https://github.com/dbiir/UER-py/pull/190",
    "warning: the mean over the sequence includes padding",
    padded,
)
def uer_mean_pooling(broken):
    class Features(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding, self.pos = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(12, dim)
            self.encoder = nn.ModuleList(
                [EncoderLayer(dim, MultiHeadAttention(dim)) for _ in range(2)]
            )
            self.output = nn.Linear(dim, 16)

        def forward(self, src):
            seg = (src != 0).float()
            x = self.embedding(src) + self.pos.weight
            for layer in self.encoder:
                x = layer(x, seg[:, None, None, :])
            pooled = (
                x.mean(1) if broken else (x * seg.unsqueeze(-1)).sum(1) / seg.sum(1, keepdim=True)
            )
            return self.output(pooled)

    return Features()
