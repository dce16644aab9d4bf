"""Second batch: residual connections, layers without effect, positions and heads."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

UNUSED = "error or warning: some layers have no effect on the output"


def feed_forward(dim):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


def future(x):
    return torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)


class Gpt(nn.Module):
    """Embedding, given blocks, final norm and head."""

    def __init__(self, blocks, dim=64, norm=nn.LayerNorm):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, dim), nn.Embedding(16, dim)
        self.h, self.ln_f, self.head = nn.ModuleList(blocks), norm(dim), nn.Linear(dim, 50)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


@bug(
    "wrong residual",
    "https://github.com/ChristophReich1996/MaxViT/issues/8",
    "error: the feed-forward multiplies the stream instead of being added to it",
    stream(2, 16, 64),
)
def maxvit_product_instead_of_sum(broken):
    class Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.mlp = feed_forward(dim)

        def forward(self, x):
            y = self.norm_1(x)
            output = x + self.attention(y, y, y, need_weights=False)[0]
            if broken:
                return output * self.mlp(self.norm_2(output))
            return output + self.mlp(self.norm_2(output))

    return nn.Sequential(*[Block() for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 10))


@bug(
    "missing residual",
    "https://github.com/facebookresearch/multimodal/pull/305",
    "error: the branches are added to themselves, the residual connections are missing",
    ids(),
)
def mugen_overridden_input(broken):
    class Layer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm_attn, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attention, self.mlp = (
                nn.MultiheadAttention(dim, 4, batch_first=True),
                feed_forward(dim),
            )
            self.dropout_attn, self.dropout_mlp = nn.Dropout(0.1), nn.Dropout(0.1)

        def forward(self, x):
            y = self.norm_attn(x)
            hidden = self.attention(y, y, y, attn_mask=future(x), need_weights=False)[0]
            x = (hidden if broken else x) + self.dropout_attn(hidden)
            hidden = self.mlp(self.norm_mlp(x))
            return (hidden if broken else x) + self.dropout_mlp(hidden)

    return Gpt([Layer() for _ in range(3)])


@bug(
    "wrong residual",
    "https://github.com/JanSchm/CapMarket/issues/8",
    "error or warning: the skip of the feed-forward starts at the layer's input",
    stream(2, 12, 32),
)
def capmarket_skip_of_the_input(broken):
    class TransformerEncoder(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.attn_multi, self.attn_normalize = (
                nn.MultiheadAttention(dim, 4, batch_first=True),
                nn.LayerNorm(dim, eps=1e-6),
            )
            self.ff_conv1d_1, self.ff_conv1d_2 = nn.Conv1d(dim, 64, 1), nn.Conv1d(64, dim, 1)
            self.ff_normalize = nn.LayerNorm(dim, eps=1e-6)

        def forward(self, x):
            attn = self.attn_normalize(x + self.attn_multi(x, x, x)[0])
            ff = self.ff_conv1d_2(F.relu(self.ff_conv1d_1(attn.transpose(1, 2)))).transpose(1, 2)
            return self.ff_normalize((x if broken else attn) + ff)

    return nn.Sequential(*[TransformerEncoder() for _ in range(3)], nn.Linear(32, 1))


@bug(
    "norm on the skip",
    "https://github.com/Modalities/modalities/pull/136",
    "error or warning: the skip connections carry the normalized input",
    ids(),
)
def modalities_pre_norm(broken):
    class GPT2Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.attention_norm, self.ffn_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attn, self.mlp = nn.MultiheadAttention(dim, 4, batch_first=True), feed_forward(dim)

        def forward(self, x):
            y = self.attention_norm(x)
            out = self.attn(y, y, y, attn_mask=future(x), need_weights=False)[0]
            x = (y if broken else x) + out
            y = self.ffn_norm(x)
            return (y if broken else x) + self.mlp(y)

    return Gpt([GPT2Block() for _ in range(4)])


@bug(
    "layers without effect", "https://github.com/huaxiuyao/Wild-Time/issues/10", UNUSED, ids(4, 10)
)
def wild_time_one_layer(broken):
    class Transformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embedding, self.position = nn.Embedding(50, dim), nn.Embedding(10, dim)
            self.layers = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(3)]
            )
            self.fc = nn.Linear(dim, 2)

        def forward(self, codes):
            emb = x = self.embedding(codes) + self.position.weight
            for layer in self.layers:
                x = layer(emb if broken else x)
            return self.fc(x[:, 0])

    return Transformer()


@bug(
    "detached",
    "https://github.com/lucidrains/CoCa-pytorch/issues/6",
    "error or warning: the image encoder is detached and gets no gradient",
    lambda: (torch.randint(1, 50, (2, 10)), torch.randn(2, 3, 32, 32)),
)
def coca_detached_image_encoder(broken):
    class Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
            self.attn, self.cross = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.ff = feed_forward(dim)

        def forward(self, x, image):
            y = self.norm1(x)
            x = x + self.attn(y, y, y, attn_mask=future(x), need_weights=False)[0]
            x = x + self.cross(self.norm2(x), image, image, need_weights=False)[0]
            return x + self.ff(self.norm3(x))

    class CoCa(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.patch, self.image_position = (
                nn.Conv2d(3, dim, 8, 8),
                nn.Parameter(torch.randn(16, dim)),
            )
            self.img_encoder = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.token_emb, self.pos_emb = nn.Embedding(50, dim), nn.Embedding(10, dim)
            self.layers = nn.ModuleList([Block() for _ in range(2)])
            self.to_logits = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 50))

        def forward(self, text, images):
            image = self.patch(images).flatten(2).transpose(1, 2) + self.image_position
            for layer in self.img_encoder:
                image = layer(image)
            if broken:
                image = image.clone().detach()
            x = self.token_emb(text) + self.pos_emb.weight
            for layer in self.layers:
                x = layer(x, image)
            return self.to_logits(x)

    return CoCa()


@bug(
    "unused layers",
    "https://github.com/oliverguhr/transformer-time-series-prediction/issues/13",
    "warning: the prototype layer is registered and never used",
    stream(2, 20, 16),
)
def time_series_prototype_layer(broken):
    class TransAm(nn.Module):
        def __init__(self, feature_size=64):
            super().__init__()
            self.input, self.position = (
                nn.Linear(16, feature_size),
                nn.Parameter(torch.randn(20, feature_size)),
            )
            layer = nn.TransformerEncoderLayer(feature_size, 4, 128, batch_first=True)
            if broken:
                self.encoder_layer = layer
            self.transformer_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            for weight in self.transformer_encoder.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)
            self.decoder = nn.Linear(feature_size, 1)

        def forward(self, src):
            return self.decoder(self.transformer_encoder(self.input(src) + self.position))

    return TransAm()


@bug(
    "scrambled heads",
    "https://github.com/reczoo/FuxiCTR/issues/30",
    "error or warning: heads are split without a transpose, so fields mix",
    lambda: torch.randint(0, 100, (8, 10)),
)
def fuxictr_split_heads(broken):
    class Layer(nn.Module):
        def __init__(self, dim=32, heads=4):
            super().__init__()
            self.heads, self.head_dim = heads, dim // heads
            self.w_q, self.w_k, self.w_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
            self.layer_norm = nn.LayerNorm(dim)

        def split(self, x):
            if broken:
                return x.view(x.size(0) * self.heads, -1, self.head_dim)
            return x.view(x.size(0), -1, self.heads, self.head_dim).transpose(1, 2)

        def forward(self, x):
            q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))
            weights = (q @ k.transpose(-2, -1) / self.head_dim**0.5).softmax(-1)
            out = weights @ v
            out = out.view(x.shape) if broken else out.transpose(1, 2).reshape(x.shape)
            return self.layer_norm(F.relu(out) + x)

    class AutoInt(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embedding_layer = nn.Embedding(1000, dim)
            self.register_buffer("offsets", torch.arange(10) * 100)
            self.self_attention, self.fc = (
                nn.Sequential(Layer(), Layer(), Layer()),
                nn.Linear(10 * dim, 1),
            )

        def forward(self, x):
            return self.fc(self.self_attention(self.embedding_layer(x + self.offsets)).flatten(1))

    return AutoInt()


@bug(
    "positions",
    "https://github.com/lucidrains/ring-attention-pytorch/issues/15",
    "warning: the rotary embedding counts heads instead of tokens",
    ids(),
)
def ring_attention_rotary_length(broken):
    class RingRotaryEmbedding(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.register_buffer("inv_freq", 10000 ** -(torch.arange(0, dim, 2).float() / dim))

        def forward(self, length):
            freqs = torch.arange(length).float()[:, None] * self.inv_freq
            return torch.cat((freqs, freqs), dim=-1)

    def rotate(freqs, t):
        x1, x2 = t.chunk(2, dim=-1)
        return t * freqs.cos() + torch.cat((-x2, x1), dim=-1) * freqs.sin()

    class Block(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.rotary_embed = heads, RingRotaryEmbedding(dim // heads)
            self.prenorm, self.ffnorm = nn.RMSNorm(dim), nn.RMSNorm(dim)
            self.to_qkv, self.to_out = (
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim, bias=False),
            )
            self.ff = feed_forward(dim)

        def attend(self, x):
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, -1))
            freqs = self.rotary_embed(q.shape[-2] if broken else q.shape[-3])
            freqs = freqs if broken else freqs[:, None]
            q, k = rotate(freqs, q), rotate(freqs, k)
            out = F.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
            )
            return self.to_out(out.transpose(1, 2).flatten(2))

        def forward(self, x):
            x = x + self.attend(self.prenorm(x))
            return x + self.ff(self.ffnorm(x))

    class Ring(Gpt):
        def __init__(self):
            super().__init__([Block() for _ in range(3)], norm=nn.RMSNorm)
            del self.wpe

        def forward(self, idx):
            x = self.wte(idx)
            for block in self.h:
                x = block(x)
            return self.head(self.ln_f(x))

    return Ring()
