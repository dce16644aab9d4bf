"""Second batch: healthy models."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import healthy, ids, padded, stream
from tests.doctor.models.review.healthy.designs import Block, Model
from tests.doctor.models.review.healthy.libraries import tiny


@healthy(ids())
def hf_roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    return RobertaForMaskedLM(tiny(RobertaConfig, max_position_embeddings=40, pad_token_id=1))


@healthy(ids())
def hf_opt():
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(
        OPTConfig(
            vocab_size=50,
            hidden_size=64,
            num_hidden_layers=3,
            ffn_dim=128,
            num_attention_heads=4,
            max_position_embeddings=32,
            word_embed_proj_dim=64,
        )
    )


@healthy(ids())
def hf_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(tiny(MixtralConfig, num_key_value_heads=2, num_local_experts=4))


@healthy(lambda: torch.randn(2, 3, 32, 32))
def hf_clip_vision():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            image_size=32,
            patch_size=8,
        )
    )


@healthy(ids())
def flamingo_tanh_gates():
    class Gated(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.block, self.gate = Block(dim), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.gate.tanh() * (self.block(x) - x)

    return Model([Block(), Gated(), Block(), Gated()])


@healthy(stream(2, 12, 64))
def lora_adapters():
    class Lora(nn.Module):
        def __init__(self, dim, out):
            super().__init__()
            self.base = nn.Linear(dim, out).requires_grad_(False)
            self.a, self.b = nn.Linear(dim, 4, bias=False), nn.Linear(4, out, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    blocks = [Block() for _ in range(3)]
    for block in blocks:
        block.qkv = Lora(64, 192)
    return nn.Sequential(*blocks, nn.LayerNorm(64), nn.Linear(64, 8))


@healthy(ids())
def multi_query_folded_heads():
    class MultiQuery(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.q, self.kv, self.o = (
                nn.Linear(dim, dim),
                nn.Linear(dim, 2 * dim // heads),
                nn.Linear(dim, dim),
            )
            self.ff = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))

        def attend(self, x):
            b, t, c = x.shape
            d = c // self.heads
            q, (k, v) = self.q(x).reshape(b, t * self.heads, d), self.kv(x).chunk(2, -1)
            scores = (q @ k.transpose(1, 2) * d**-0.5).view(b, t, self.heads, t)
            later = torch.ones(t, t, dtype=torch.bool).triu(1)[None, :, None]
            weights = scores.masked_fill(later, float("-inf")).softmax(-1)
            return self.o((weights.view(b, t * self.heads, t) @ v).view(b, t, c))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.ff(self.norm2(x))

    return Model([MultiQuery() for _ in range(3)])


@healthy(lambda: (torch.randint(1, 50, (2, 12)), torch.tensor([3, 7])))
def language_embedding_for_all_tokens():
    class Multilingual(Model):
        def __init__(self):
            super().__init__([Block() for _ in range(3)])
            self.languages = nn.Embedding(100, 64)

        def forward(self, idx, language):
            x = self.emb(idx) + self.pos.weight + self.languages(language)[:, None]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Multilingual()


@healthy(ids())
def factorized_embedding():
    model = Model([Block() for _ in range(3)])
    model.emb = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 64))
    return model


@healthy(lambda: torch.randn(2, 3, 32, 32))
def detr_learned_queries():
    class Detr(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.patch, self.pos = nn.Conv2d(3, dim, 8, 8), nn.Parameter(torch.randn(16, dim))
            self.encoder = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.queries = nn.Parameter(torch.randn(6, dim))
            self.decoder = nn.ModuleList(
                [nn.TransformerDecoderLayer(dim, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.head = nn.Linear(dim, 5)

        def forward(self, image):
            memory = self.patch(image).flatten(2).transpose(1, 2) + self.pos
            for layer in self.encoder:
                memory = layer(memory)
            x = self.queries.expand(len(image), -1, -1)
            for layer in self.decoder:
                x = layer(x, memory)
            return self.head(x)

    return Detr()


@healthy(padded)
def masked_mean_pooling():
    class Pooled(Model):
        def mask(self, idx):
            return (idx != 0)[:, None, None, :]

        def forward(self, idx):
            x, mask = self.emb(idx) + self.pos.weight, self.mask(idx)
            for block in self.blocks:
                x = block(x, mask)
            real = (idx != 0).float().unsqueeze(-1)
            return self.head((self.norm(x) * real).sum(1) / real.sum(1))

    return Pooled([Block() for _ in range(3)])


@healthy(stream(2, 12, 64))
def gated_linear_unit_blocks():
    class Glu(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
            self.qkv, self.out = (
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim, bias=False),
            )
            self.w1, self.w2, self.w3 = nn.Linear(dim, 96), nn.Linear(96, dim), nn.Linear(dim, 96)
            self.gate = nn.Linear(dim, dim)

        def forward(self, x):
            y = self.norm1(x)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
            attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.out(attended * self.gate(y).sigmoid())
            y = self.norm2(x)
            return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    return nn.Sequential(*[Glu() for _ in range(3)], nn.RMSNorm(64), nn.Linear(64, 8))
