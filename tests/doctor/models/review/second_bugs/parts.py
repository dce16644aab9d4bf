"""Second batch: options, dropout, initial values and activations without effect."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

NO_EFFECT = "warning: the option has no effect"


class Block(nn.Module):
    """Pre-LN block whose attention and activation can be exchanged."""

    def __init__(self, dim=64, heads=4, act=nn.GELU, attend=None, norm=nn.LayerNorm):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm1, self.norm2 = norm(dim), norm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), act(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attend = self.attend or F.scaled_dot_product_attention
        out = attend(self, q, k, v) if self.attend else attend(q, k, v)
        x = x + self.proj(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


@bug(
    "dropout",
    "https://github.com/huggingface/pytorch-image-models/pull/1978",
    "warning: the attention drops in eval mode",
    lambda: torch.randn(2, 3, 32, 32),
)
def timm_sdpa_dropout(broken):
    def attend(block, q, k, v):
        rate = 0.1 if broken or block.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate)

    class ViT(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.patch, self.pos = (
                nn.Conv2d(3, dim, 8, 8),
                nn.Parameter(torch.randn(16, dim) * 0.02),
            )
            self.blocks = nn.Sequential(*[Block(attend=attend) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
            return self.head(self.norm(self.blocks(x)).mean(1))

    return ViT()


@bug(
    "dropout",
    "https://github.com/wenwenyu/PICK-pytorch/issues/77",
    "warning: a dropout that is built in forward drops in eval mode",
    stream(2, 12, 64),
)
def pick_dropout_in_forward(broken):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(3)]), nn.LayerNorm(64)
            self.out = nn.Linear(64, 10)
            if not broken:
                self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            x = self.out(self.norm(self.blocks(x)))
            return nn.Dropout(0.1)(x) if broken else self.dropout(x)

    return Encoder()


@bug(
    "option",
    "https://github.com/layer6ai-labs/TabDPT-inference/issues/4",
    NO_EFFECT,
    stream(2, 12, 16),
    dropout=0.1,
    nlayers=2,
)
def tabdpt_dropout(broken, dropout=0.1, nlayers=2):
    rate = 0.0 if broken else dropout

    class TabDPT(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.encoder = nn.Linear(16, dim)
            self.transformer_encoder = nn.ModuleList(
                [
                    nn.TransformerEncoderLayer(
                        dim,
                        4,
                        128,
                        dropout=rate,
                        activation="gelu",
                        batch_first=True,
                        norm_first=True,
                    )
                    for _ in range(nlayers)
                ]
            )
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, x):
            x = self.encoder(x)
            for layer in self.transformer_encoder:
                x = layer(x)
            return self.head(self.norm(x))

    return TabDPT()


@bug(
    "option",
    "https://github.com/NVlabs/Forecasting-Model-Search/pull/6",
    NO_EFFECT,
    stream(2, 12, 64),
    activation="gelu",
)
def forecasting_activation(broken, activation="gelu"):
    act = nn.ReLU if broken else {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    return nn.Sequential(*[Block(act=act) for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 4))


@bug(
    "option",
    "https://github.com/lucidrains/x-transformers/issues/202",
    NO_EFFECT,
    stream(2, 12, 64),
    pre_norm_has_final_norm=True,
)
def x_transformers_final_norm_option(broken, pre_norm_has_final_norm=True):
    has_norm = True if broken else pre_norm_has_final_norm
    norm = nn.LayerNorm(64) if has_norm else nn.Identity()
    return nn.Sequential(*[Block() for _ in range(3)], norm, nn.Linear(64, 4))


@bug(
    "norm initialization",
    "https://github.com/google/objax/pull/94",
    "error or warning: gains start at zero and biases at one, so the norms return a constant",
    ids(),
)
def objax_swapped_gain_and_bias(broken):
    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.emb, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.blocks = nn.Sequential(*[Block() for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 50)
            for module in self.modules():
                if broken and isinstance(module, nn.LayerNorm):
                    nn.init.zeros_(module.weight)
                    nn.init.ones_(module.bias)

        def forward(self, idx):
            return self.head(self.norm(self.blocks(self.emb(idx) + self.pos.weight)))

    return Model()


@bug(
    "activation",
    "https://github.com/Nota-NetsPresso/netspresso-trainer/issues/320",
    "warning: two matrices of the head follow each other without an activation",
    stream(2, 12, 64),
)
def netspresso_linear_head(broken):
    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(3)]), nn.LayerNorm(dim)
            self.fc1, self.fc2 = nn.Linear(dim, 256), nn.Linear(256, 10)

        def forward(self, x):
            x = self.fc1(self.norm(self.blocks(x)).mean(1))
            return self.fc2(x if broken else F.relu(x))

    return Model()


@bug(
    "wrong residual",
    "https://github.com/rexrex9/nlp_torchtext/pull/2",
    "error or warning: queries come from the encoder and keys and values from the decoder",
    lambda: (torch.randint(1, 50, (2, 10)), torch.randint(1, 50, (2, 10))),
)
def torchtext_encoder_as_query(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.self_attn, self.cross = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
            self.ff = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

        def forward(self, x, memory):
            mask = torch.ones(10, 10, dtype=torch.bool).triu(1)
            x = self.norm1(x + self.self_attn(x, x, x, attn_mask=mask)[0])
            query, keys = (memory, x) if broken else (x, memory)
            x = self.norm2(x + self.cross(query, keys, keys)[0])
            return self.norm3(x + self.ff(x))

    class Transformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.src, self.tgt, self.pos = (nn.Embedding(50, dim) for _ in range(3))
            self.encoder = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.decoder, self.out = (
                nn.ModuleList([DecoderLayer() for _ in range(2)]),
                nn.Linear(dim, 50),
            )

        def forward(self, src, tgt):
            memory, x = (e(t) + self.pos.weight[:10] for e, t in ((self.src, src), (self.tgt, tgt)))
            for layer in self.encoder:
                memory = layer(memory)
            for layer in self.decoder:
                x = layer(x, memory)
            return self.out(x)

    return Transformer()
