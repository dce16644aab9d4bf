"""Third batch: healthy language and sequence models."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import healthy, ids, padded, pairs, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    SelfAttention,
    earlier,
    feed_forward,
    merge_heads,
    softmax_attention,
    split_heads,
)


def causal(make, depth=3, **options):
    """Return a causal language model of layers."""
    return LanguageModel([make() for _ in range(depth)], causal=True, **options)


@healthy(ids())
def alibi_bidirectional():
    def attend(q, k, v):
        place = torch.arange(q.size(2))
        slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])[:, None, None]
        return softmax_attention(q, k, v, bias=-slopes * (place[:, None] - place[None]).abs())

    class Model(LanguageModel):
        def embed(self, ids):
            return self.tokens(ids)

    model = Model([PreLayer(SelfAttention(64, 4, attend)) for _ in range(3)])
    del model.positions
    return model


@healthy(ids())
def palm_parallel_fused():
    class Parallel(nn.Module):
        def __init__(self, dim=64, heads=4, inner=128):
            super().__init__()
            self.size = dim // heads
            self.splits, self.heads = (dim, self.size, self.size, 2 * inner), heads
            self.norm, self.fused = nn.LayerNorm(dim), nn.Linear(dim, sum(self.splits), bias=False)
            self.attention_out, self.ff_out = nn.Linear(dim, dim), nn.Linear(inner, dim)

        def forward(self, x, visible=None):
            q, k, v, ff = self.fused(self.norm(x)).split(self.splits, -1)
            q = split_heads(q, self.heads)
            out = merge_heads(softmax_attention(q, k[:, None], v[:, None], visible=visible))
            gate, value = ff.chunk(2, -1)
            return x + self.attention_out(out) + self.ff_out(F.silu(gate) * value)

    return causal(Parallel)


@healthy(ids())
def sandwich_norms():
    class Sandwich(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norms = nn.ModuleList([nn.RMSNorm(dim) for _ in range(4)])
            self.attention, self.mlp = SelfAttention(dim), feed_forward(dim)

        def forward(self, x, visible=None):
            x = x + self.norms[1](self.attention(self.norms[0](x), visible=visible))
            return x + self.norms[3](self.mlp(self.norms[2](x)))

    return causal(Sandwich)


@healthy(ids())
def gated_attention_output():
    class Gated(SelfAttention):
        def __init__(self, dim=64):
            super().__init__(dim)
            self.gate = nn.Linear(dim, dim)

        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), 4) for p in (self.q_proj, self.k_proj, self.v_proj))
            out = merge_heads(softmax_attention(q, k, v, visible=visible))
            return self.o_proj(out * self.gate(x).sigmoid())

    return causal(lambda: PreLayer(Gated()))


@healthy(ids())
def universal_transformer():
    class Universal(LanguageModel):
        def __init__(self):
            super().__init__([PreLayer(SelfAttention())])
            self.steps = nn.Embedding(4, 64)

        def forward(self, ids):
            x = self.embed(ids)
            for step in range(4):
                x = self.layers[0](x + self.steps.weight[step])
            return self.head(self.norm(x))

    return Universal()


@healthy(ids())
def linear_attention():
    class Linear(SelfAttention):
        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), 4) for p in (self.q_proj, self.k_proj, self.v_proj))
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
            total = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)).unsqueeze(-1)
            out = torch.einsum("bhtd,bhtde->bhte", q, state) / (total + 1e-6)
            return self.o_proj(merge_heads(out))

    return causal(lambda: PreLayer(Linear()))


@healthy(ids(2, 16))
def long_convolution():
    class Hyena(nn.Module):
        def __init__(self, dim=64, length=32):
            super().__init__()
            self.inputs, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.filter = nn.Parameter(torch.randn(dim, length) * 0.1)

        def forward(self, x, visible=None):
            a, b, v = self.inputs(x).transpose(1, 2).chunk(3, 1)
            n = x.size(1)
            spectrum = torch.fft.rfft(b * v, n=2 * n) * torch.fft.rfft(self.filter[:, :n], n=2 * n)
            return self.out((a * torch.fft.irfft(spectrum, n=2 * n)[..., :n]).transpose(1, 2))

    return causal(lambda: PreLayer(Hyena()))


@healthy(ids())
def selective_state_space():
    class Mamba(nn.Module):
        def __init__(self, dim=64, inner=64, state=8):
            super().__init__()
            self.norm, self.inputs = nn.RMSNorm(dim), nn.Linear(dim, 2 * inner, bias=False)
            self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
            self.rates, self.bc = nn.Linear(inner, inner), nn.Linear(inner, 2 * state, bias=False)
            self.a_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
            self.d, self.out = nn.Parameter(torch.ones(inner)), nn.Linear(inner, dim, bias=False)

        def forward(self, residual, visible=None):
            x, gate = self.inputs(self.norm(residual)).chunk(2, -1)
            x = F.silu(self.conv(x.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
            rate, (b, c) = F.softplus(self.rates(x)), self.bc(x).chunk(2, -1)
            decay = torch.exp(rate.unsqueeze(-1) * -self.a_log.exp())
            update, h, outputs = rate.unsqueeze(-1) * b.unsqueeze(2) * x.unsqueeze(-1), 0, []
            for t in range(x.size(1)):
                h = decay[:, t] * h + update[:, t]
                outputs.append((h * c[:, t].unsqueeze(1)).sum(-1))
            return residual + self.out((torch.stack(outputs, 1) + x * self.d) * F.silu(gate))

    model = causal(Mamba)
    model.norm = nn.RMSNorm(64)
    return model


@healthy(ids())
def token_shift():
    class Shifted(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.mix = nn.Parameter(torch.rand(dim))
            self.key, self.value = nn.Linear(dim, 128, bias=False), nn.Linear(128, dim, bias=False)
            self.receptance = nn.Linear(dim, dim, bias=False)

        def forward(self, x):
            before = F.pad(x, (0, 0, 1, -1))
            mixed = x * self.mix + before * (1 - self.mix)
            return self.receptance(mixed).sigmoid() * self.value(F.relu(self.key(mixed)).square())

    def layer():
        made = PreLayer(SelfAttention())
        made.mlp = Shifted()
        return made

    return causal(layer)


@healthy(padded)
def sequence_first_with_key_padding():
    class Bert(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.tokens, self.places = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(32, dim)
            self.norm = nn.LayerNorm(dim)
            self.layers = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, activation="gelu") for _ in range(3)]
            )
            self.out = nn.Linear(dim, 50)

        def forward(self, tokens):
            x = self.norm(self.tokens(tokens) + self.places.weight[: tokens.size(1)]).transpose(
                0, 1
            )
            for layer in self.layers:
                x = layer(x, src_key_padding_mask=tokens == 0)
            return self.out(x.transpose(0, 1))

    return Bert()


@healthy(ids())
def scale_inside_the_weights():
    """T5 and Mesh TensorFlow: queries start small instead of being divided."""

    class Unscaled(SelfAttention):
        def __init__(self, dim=64, heads=4):
            super().__init__(
                dim, heads, lambda q, k, v, bias: softmax_attention(q, k, v, scale=1.0, bias=bias)
            )
            for layer, deviation in (
                (self.q_proj, (dim * dim / heads) ** -0.5),
                (self.k_proj, dim**-0.5),
            ):
                nn.init.normal_(layer.weight, std=deviation)
                nn.init.zeros_(layer.bias)

    class Model(LanguageModel):
        def __init__(self):
            super().__init__([PreLayer(Unscaled()) for _ in range(3)])
            self.positions, self.bias = None, nn.Embedding(63, 4)

        def embed(self, ids):
            return self.tokens(ids)

        def masks(self, ids):
            place = torch.arange(ids.size(1))
            return {"bias": self.bias(place[None] - place[:, None] + 31).permute(2, 0, 1)}

    return Model()


@healthy(ids())
def cosine_attention():
    class Cosine(SelfAttention):
        def __init__(self, dim=64):
            super().__init__(dim)
            self.scale = nn.Parameter(torch.full((4, 1, 1), math.log(10.0)))

        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), 4) for p in (self.q_proj, self.k_proj, self.v_proj))
            scale = self.scale.clamp(max=math.log(100.0)).exp()
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            scores = q @ k.transpose(-2, -1) * scale
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            return self.o_proj(merge_heads(weights @ v))

    return causal(lambda: PreLayer(Cosine()))


@healthy(ids())
def two_of_four_experts():
    class Experts(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.router = nn.Linear(dim, 4, bias=False)
            self.experts = nn.ModuleList([feed_forward(dim, 64) for _ in range(4)])

        def forward(self, x):
            weights, chosen = self.router(x).softmax(-1).topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            share = torch.zeros(*x.shape[:2], 4).scatter(-1, chosen, weights)
            return sum(share[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))

    def layer():
        made = PreLayer(SelfAttention())
        made.mlp = Experts()
        return made

    return causal(layer)


@healthy(ids(2, 16))
def hourglass():
    class Hourglass(LanguageModel):
        def __init__(self):
            super().__init__([PreLayer(SelfAttention()) for _ in range(4)])
            self.middle_norm = nn.LayerNorm(64)

        def forward(self, ids):
            x = self.layers[0](self.embed(ids))
            short = x.unflatten(1, (-1, 2)).mean(2)
            for layer in list(self.layers)[1:3]:
                short = layer(short)
            x = x + self.middle_norm(short).repeat_interleave(2, 1)
            return self.head(self.norm(self.layers[3](x)))

    return Hourglass()


@healthy(stream(2, 20, 8))
def fourier_mixing():
    class Fourier(nn.Module):
        def forward(self, x):
            return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real

    layers = [PostLayer(Fourier()) for _ in range(3)]
    return nn.Sequential(nn.Linear(8, 64), *layers, nn.Linear(64, 3))


@healthy(stream(2, 16, 64))
def spatial_gating():
    class Gmlp(nn.Module):
        def __init__(self, dim=64, length=16):
            super().__init__()
            self.norm, self.gate_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.inputs, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
            self.spatial = nn.Conv1d(length, length, 1)
            nn.init.zeros_(self.spatial.weight)
            nn.init.ones_(self.spatial.bias)

        def forward(self, x):
            u, v = F.gelu(self.inputs(self.norm(x))).chunk(2, -1)
            return x + self.out(u * self.spatial(self.gate_norm(v)))

    return nn.Sequential(*(Gmlp() for _ in range(3)), nn.LayerNorm(64), nn.Linear(64, 5))


@healthy(ids())
def differential_attention():
    class Differential(nn.Module):
        def __init__(self, dim=64, heads=2):
            super().__init__()
            self.heads, self.size = heads, dim // heads // 2
            self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
            self.pairs = nn.ParameterList(
                [nn.Parameter(torch.randn(self.size) * 0.1) for _ in range(4)]
            )
            self.norm = nn.RMSNorm(2 * self.size)

        def forward(self, x, visible=None):
            (q1, q2), (k1, k2) = (
                split_heads(p(x), self.heads).chunk(2, -1) for p in (self.q, self.k)
            )
            v = split_heads(self.v(x), self.heads)
            a, b, c, d = self.pairs
            share = (a * b).sum().exp() - (c * d).sum().exp() + 0.8
            first = softmax_attention(q1, k1, v, visible=visible)
            out = first - share * softmax_attention(q2, k2, v, visible=visible)
            return self.o(merge_heads(self.norm(out) * 0.2))

    return causal(lambda: PreLayer(Differential()))


@healthy(ids())
def attention_with_sink():
    class Sink(SelfAttention):
        def __init__(self, dim=64):
            super().__init__(dim)
            self.sink = nn.Parameter(torch.zeros(4))

        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), 4) for p in (self.q_proj, self.k_proj, self.v_proj))
            scores = (q @ k.transpose(-2, -1) / 4.0).masked_fill(~visible, float("-inf"))
            sink = self.sink[None, :, None, None].expand(len(x), -1, x.size(1), 1)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
            return self.o_proj(merge_heads(weights @ v))

    return causal(lambda: PreLayer(Sink()))


@healthy(ids())
def sigmoid_attention():
    class Sigmoid(SelfAttention):
        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), 4) for p in (self.q_proj, self.k_proj, self.v_proj))
            scores = q @ k.transpose(-2, -1) / 4.0 - math.log(x.size(1))
            return self.o_proj(merge_heads(scores.sigmoid().masked_fill(~visible, 0.0) @ v))

    return causal(lambda: PreLayer(Sigmoid()))


@healthy(ids())
def tied_head_with_scaled_embedding():
    class Tied(LanguageModel):
        def __init__(self):
            super().__init__([PostLayer(SelfAttention()) for _ in range(3)], final_norm=False)
            nn.init.normal_(self.tokens.weight, std=64**-0.5)
            self.head.weight = self.tokens.weight

        def embed(self, ids):
            return self.tokens(ids) * 8.0 + self.positions.weight[: ids.size(1)]

    return Tied()


@healthy(lambda: (torch.randint(1, 50, (2, 8)), torch.randn(2, 6, 64)))
def memory_of_the_previous_segment():
    class Recurrent(LanguageModel):
        def forward(self, ids, memory):
            x = torch.cat([memory.detach(), self.embed(ids)], 1)
            n = x.size(1)
            for layer in self.layers:
                x = layer(x, visible=earlier(n))
            return self.head(self.norm(x[:, memory.size(1) :]))

    return Recurrent([PreLayer(SelfAttention()) for _ in range(3)])


@healthy(pairs)
def translation_with_shared_embeddings():
    class Cross(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.layer, self.norm = PreLayer(SelfAttention(dim)), nn.LayerNorm(dim)
            self.cross = nn.MultiheadAttention(dim, 4, batch_first=True)

        def forward(self, x, memory, hidden):
            x = self.layer(x, visible=earlier(x.size(1)))
            return x + self.cross(self.norm(x), memory, memory, key_padding_mask=hidden)[0]

    class Translator(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.tokens, self.places = nn.Embedding(50, dim), nn.Embedding(32, dim)
            self.encoder = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(2)])
            self.decoder = nn.ModuleList([Cross(dim) for _ in range(2)])
            self.encoder_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)

        def forward(self, source, target):
            place, hidden = self.places.weight[: source.size(1)], source == 0
            memory, x = self.tokens(source) + place, self.tokens(target) + place
            for layer in self.encoder:
                memory = layer(memory, visible=~hidden[:, None, None])
            memory = self.encoder_norm(memory)
            for layer in self.decoder:
                x = layer(x, memory, hidden)
            return self.norm(x) @ self.tokens.weight.T

    return Translator()
