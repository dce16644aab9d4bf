"""Skip connections that are missing or start in the wrong place."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

SKIP = (
    "error or warning: the skip connection of the feed-forward starts at the block's "
    "input and bypasses the attention"
)


def feed_forward(dim, hidden=128):
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Decoder(nn.Module):
    """Source and target embeddings, a small encoder and the given decoder layers."""

    def __init__(self, make_layer, dim=64, layers=2):
        super().__init__()
        self.src_embed, self.tgt_embed, self.pos = (
            nn.Embedding(50, dim),
            nn.Embedding(50, dim),
            nn.Embedding(12, dim),
        )
        self.encoder = nn.ModuleList(
            [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(layers)]
        )
        self.layers = nn.ModuleList([make_layer(dim) for _ in range(layers)])
        self.generator = nn.Linear(dim, 50)

    def forward(self, src, tgt):
        memory = self.src_embed(src) + self.pos.weight[: src.size(1)]
        for layer in self.encoder:
            memory = layer(memory)
        x = self.tgt_embed(tgt) + self.pos.weight[: tgt.size(1)]
        for layer in self.layers:
            x = layer(x, memory, causal(tgt.size(1)))
        return self.generator(x)


def two_sequences():
    return torch.randint(1, 50, (2, 10)), torch.randint(1, 50, (2, 10))


@bug(
    "missing residual",
    "https://github.com/kyegomez/BitNet/issues/32",
    "error: the attention has no residual connection",
    ids(),
)
def bitnet_x_plus_x(broken):
    class Transformer(nn.Module):
        def __init__(self, dim=64, depth=4):
            super().__init__()
            self.emb, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.layers = nn.ModuleList(
                [nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(depth)]
            )
            self.ffn_layers = nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(dim), feed_forward(dim)) for _ in range(depth)]
            )
            self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
            self.to_logits = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 50))

        def forward(self, idx):
            x = self.emb(idx) + self.pos.weight
            for norm, attn, ffn in zip(self.norms, self.layers, self.ffn_layers, strict=True):
                y = norm(x)
                y, _ = attn(y, y, y, attn_mask=causal(idx.size(1)), need_weights=False)
                x = y + y if broken else x + y
                x = ffn(x) + x
            return self.to_logits(x)

    return Transformer()


@bug(
    "wrong residual",
    "https://github.com/strutive07/transformer-tensorflow2.0/issues/14",
    SKIP,
    stream(),
)
def strutive_feed_forward_skip(broken):
    class EncoderLayer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.multi_head_attention = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.dropout_1, self.layer_norm_1 = nn.Dropout(0.1), nn.LayerNorm(dim, eps=1e-6)
            self.position_wise_feed_forward_layer = feed_forward(dim)
            self.dropout_2, self.layer_norm_2 = nn.Dropout(0.1), nn.LayerNorm(dim, eps=1e-6)

        def forward(self, inputs):
            output = self.dropout_1(self.multi_head_attention(inputs, inputs, inputs)[0])
            output = self.layer_norm_1(inputs + output)
            output_temp = output
            output = self.dropout_2(self.position_wise_feed_forward_layer(output))
            return self.layer_norm_2((inputs if broken else output_temp) + output)

    return nn.Sequential(*[EncoderLayer() for _ in range(3)], nn.Linear(64, 20))


@bug(
    "wrong residual",
    "https://github.com/georgepar/slp/pull/26",
    "error or warning: the skip connection of the cross-attention carries the "
    "encoder's output instead of the decoder's stream",
    two_sequences,
)
def slp_cross_attention_skip(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.self_attn, self.cross_attn = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.lnorm1, self.lnorm2, self.lnorm3 = (nn.LayerNorm(dim) for _ in range(3))
            self.ff = feed_forward(dim)

        def forward(self, targets, encoded, mask):
            targets = self.lnorm1(
                targets + self.self_attn(targets, targets, targets, attn_mask=mask)[0]
            )
            attended = self.cross_attn(targets, encoded, encoded)[0]
            out = self.lnorm2((encoded if broken else targets) + attended)
            return self.lnorm3(out + self.ff(out))

    return Decoder(DecoderLayer)


@bug(
    "wrong residual",
    "https://github.com/ml-explore/mlx/pull/3382",
    "warning: the query of the cross-attention is the raw output of the "
    "self-attention, without residual connection and norm",
    two_sequences,
)
def mlx_cross_attention_query(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.self_attention, self.cross_attention = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(dim) for _ in range(3))
            self.linear1, self.linear2 = nn.Linear(dim, 128), nn.Linear(128, dim)

        def forward(self, x, memory, mask):
            y = self.self_attention(x, x, x, attn_mask=mask)[0]
            x = self.ln1(x + y)
            y = self.cross_attention(y if broken else x, memory, memory)[0]
            x = self.ln2(x + y)
            return self.ln3(x + self.linear2(F.relu(self.linear1(x))))

    return Decoder(DecoderLayer)


@bug(
    "encoder without effect",
    "https://github.com/keitakurita/Practical_NLP_in_PyTorch/issues/1",
    "error or warning: the encoder has no effect on the output",
    two_sequences,
)
def keitakurita_decoder_ignores_encoder(broken):
    class DecoderBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.masked_attn_head, self.attn_head = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.position_wise_feed_forward = feed_forward(dim)
            self.layer_norm1, self.layer_norm2, self.layer_norm3 = (
                nn.LayerNorm(dim) for _ in range(3)
            )

        def forward(self, x, enc_out, mask):
            att = self.masked_attn_head(x, x, x, attn_mask=mask)[0]
            x = x + self.layer_norm1(att)
            if broken:
                att = self.attn_head(att, x, x, attn_mask=mask)[0]
            else:
                att = self.attn_head(x, enc_out, enc_out)[0]
            x = x + self.layer_norm2(att)
            return x + self.layer_norm3(self.position_wise_feed_forward(x))

    return Decoder(DecoderBlock)


@bug(
    "wrong residual",
    "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/145",
    "warning: the norm of DeepNorm is never used, alpha scales the branch instead of the skip",
    stream(),
)
def labml_deep_norm(broken):
    class DeepNorm(nn.Module):
        def __init__(self, alpha, dim):
            super().__init__()
            self.alpha, self.layer_norm = alpha, nn.LayerNorm(dim)

        def forward(self, x, gx):
            return x + self.alpha * gx if broken else self.layer_norm(self.alpha * x + gx)

    class Layer(nn.Module):
        def __init__(self, dim, alpha, beta):
            super().__init__()
            self.self_attn, self.feed_forward = (
                nn.MultiheadAttention(dim, 4, batch_first=True),
                feed_forward(dim),
            )
            self.attn_norm, self.ffn_norm = DeepNorm(alpha, dim), DeepNorm(alpha, dim)
            with torch.no_grad():
                for weight in (
                    self.feed_forward[0].weight,
                    self.feed_forward[2].weight,
                    self.self_attn.out_proj.weight,
                ):
                    nn.init.xavier_normal_(weight, gain=beta)
                nn.init.xavier_normal_(self.self_attn.in_proj_weight[: 2 * dim])
                nn.init.xavier_normal_(self.self_attn.in_proj_weight[2 * dim :], gain=beta)

        def forward(self, x):
            x = self.attn_norm(x, self.self_attn(x, x, x)[0])
            return self.ffn_norm(x, self.feed_forward(x))

    layers = 4
    blocks = [Layer(64, (2 * layers) ** 0.25, (8 * layers) ** -0.25) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(64, 20))
