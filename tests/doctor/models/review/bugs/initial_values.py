"""Initial values that destroy a norm or a branch, and a missing final norm."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.scales import CausalSelfAttention
from tests.doctor.models.review.case import bug, ids, stream


@bug(
    "norm initialization",
    "https://github.com/huggingface/transformers/pull/171",
    "error or warning: the gains of the norms start near zero (deviation 0.02) instead of at one",
    ids(),
)
def bert_gamma_normal(broken):
    from tests.doctor.models.review.bugs.epsilons import Bert

    model = Bert(lambda dim: nn.LayerNorm(dim, eps=1e-5))
    if broken:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.data.normal_(mean=0.0, std=0.02)
                module.bias.data.normal_(mean=0.0, std=0.02)
    return model


@bug(
    "scale without initialization",
    "https://github.com/allenai/OLMo-core/pull/698",
    "error or warning: the scale of the norms is zero, so every branch is constant",
    ids(),
)
def olmo_core_scale_buffer(broken):
    class Block(nn.Module):
        def __init__(self, dim, index):
            super().__init__()
            self.attention_norm, self.attention = (
                nn.RMSNorm(dim, eps=1e-6),
                CausalSelfAttention(dim),
            )
            self.feed_forward_norm = nn.RMSNorm(dim, eps=1e-6)
            self.feed_forward = nn.Sequential(
                nn.Linear(dim, 4 * dim, bias=False), nn.GELU(), nn.Linear(4 * dim, dim, bias=False)
            )
            self.register_buffer("ln_scale", torch.tensor(1 / math.sqrt(index + 1)))

        def forward(self, x):
            h = x + self.attention(self.attention_norm(x) * self.ln_scale)
            return h + self.feed_forward(self.feed_forward_norm(h) * self.ln_scale)

    class Model(nn.Module):
        def __init__(self, dim=64, layers=4):
            super().__init__()
            self.embeddings, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.blocks = nn.ModuleList([Block(dim, i) for i in range(layers)])
            self.norm, self.lm_head = nn.RMSNorm(dim, eps=1e-6), nn.Linear(dim, 50, bias=False)
            if broken:  # to_empty() leaves buffers uninitialized, here zero
                for block in self.blocks:
                    block.ln_scale.zero_()

        def forward(self, idx):
            x = self.embeddings(idx) + self.pos.weight
            for block in self.blocks:
                x = block(x)
            return self.lm_head(self.norm(x))

    return Model()


@bug(
    "scale without initialization",
    "https://github.com/nvidia-cosmos/cosmos-predict2.5/pull/15",
    "error or warning: both LoRA matrices are zero, so they never receive a gradient",
    stream(),
)
def cosmos_lora_zero(broken):
    class LoraLinear(nn.Module):
        def __init__(self, dim, out, rank=4):
            super().__init__()
            self.base = nn.Linear(dim, out).requires_grad_(False)
            self.lora_A, self.lora_B = (
                nn.Linear(dim, rank, bias=False),
                nn.Linear(rank, out, bias=False),
            )
            nn.init.zeros_(self.lora_B.weight)
            if broken:
                nn.init.zeros_(self.lora_A.weight)

        def forward(self, x):
            return self.base(x) + self.lora_B(self.lora_A(x))

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = LoraLinear(dim, 3 * dim), LoraLinear(dim, dim)
            self.fc1, self.fc2 = nn.Linear(dim, 128), nn.Linear(128, dim)

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (4, -1)).transpose(1, 2)
                for t in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))

    return nn.Sequential(*[Block(64) for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 16))


@bug(
    "final norm",
    "https://github.com/PaddlePaddle/PaddleNLP/pull/571",
    "warning: the Pre-LN stack has no final norm",
    ids(),
)
def paddle_normalize_before_without_final_norm(broken):
    class Bert(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.word_embeddings, self.position_embeddings = (
                nn.Embedding(50, dim),
                nn.Embedding(12, dim),
            )
            self.layers = nn.ModuleList(
                [
                    nn.TransformerEncoderLayer(
                        dim, 4, 256, activation="gelu", batch_first=True, norm_first=True
                    )
                    for _ in range(6)
                ]
            )
            self.norm = nn.Identity() if broken else nn.LayerNorm(dim)
            self.cls = nn.Linear(dim, 50)

        def forward(self, input_ids):
            x = self.word_embeddings(input_ids) + self.position_embeddings.weight
            for layer in self.layers:
                x = layer(x)
            return self.cls(self.norm(x))

    return Bert()
