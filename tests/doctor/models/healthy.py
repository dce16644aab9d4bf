"""Unusual but correct models, each of which resembles a mistake that a rule looks for.

HEALTHY maps a name to a function that returns a model and its inputs. No rule may report any of
them, not even as a remark.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.broken import DIM, HEADS, LENGTH, VOCAB, Broken, Mlp, SelfAttention, ids

HEALTHY = {}


def healthy(name):
    """Return a decorator that adds a function from no arguments to (model, inputs)."""

    def add(build):
        HEALTHY[name] = build
        return build

    return add


def vectors(length=LENGTH):
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(1))


def heads(x, count=HEADS):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


class Attend(nn.Module):
    """Attention whose scores a function of queries and keys returns."""

    def __init__(self, scores, **parameters):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.scores = scores
        for name, value in parameters.items():
            setattr(self, name, value)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        q, k, v = heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory))
        return self.o(merge(self.scores(self, q, k).softmax(-1) @ v))


def scaled(module, q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def hide(scores, hidden):
    return scores.masked_fill(hidden, -math.inf)


def later(length, offset=1):
    return torch.ones(length, length, dtype=torch.bool).triu(offset)


def causal(module, q, k):
    return hide(scaled(module, q, k), later(q.shape[-2]))


class PreLN(nn.Module):
    """x = x + f(norm(x)) for some sub-layers, with an embedding, a final norm and a head."""

    def __init__(self, *sublayers, norm=nn.LayerNorm, embed=True, head=True):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM) if embed else nn.Linear(DIM, DIM)
        self.subs = nn.ModuleList(sublayers)
        self.norms = nn.ModuleList(norm(DIM) for _ in sublayers)
        self.last, self.head = norm(DIM), nn.Linear(DIM, VOCAB) if head else nn.Identity()

    def forward(self, x):
        x = self.embed(x)
        for norm, f in zip(self.norms, self.subs, strict=True):
            x = x + f(norm(x))
        return self.head(self.last(x))


def transformer(attention, depth=2, **options):
    return PreLN(*(m for _ in range(depth) for m in (attention(), Mlp())), **options)


# Attention scores


def _t5_attention():
    attention = Attend(lambda m, q, k: hide(q @ k.mT, later(q.shape[-2])))
    for matrix in (attention.q, attention.k, attention.v, attention.o):
        nn.init.normal_(matrix.weight, std=DIM**-0.5)
    nn.init.normal_(attention.q.weight, std=(DIM * DIM // HEADS) ** -0.5)
    return attention


@healthy("T5: the scale is part of the initial queries")
def t5():
    return transformer(_t5_attention, norm=nn.RMSNorm), ids()


@healthy("query-key norm instead of a scale")
def query_key_norm():
    def scores(m, q, k):
        return hide(m.one(q) @ m.two(k).mT, later(q.shape[-2]))

    size = DIM // HEADS
    return transformer(lambda: Attend(scores, one=nn.RMSNorm(size), two=nn.RMSNorm(size))), ids()


@healthy("cosine attention with a learned temperature")
def cosine():
    def scores(m, q, k):
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * m.temperature.exp()

    return transformer(
        lambda: Attend(scores, temperature=nn.Parameter(torch.full((HEADS, 1, 1), 2.3)))
    ), ids()


@healthy("muP: scores divided by d, readout starts at zero")
def mup():
    model = transformer(lambda: Attend(lambda m, q, k: q @ k.mT / q.shape[-1]))
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model, ids()


@healthy("the scale is applied to the queries")
def scaled_queries():
    def scores(m, q, k):
        return hide((q * q.shape[-1] ** -0.5) @ k.mT, later(q.shape[-2]))

    return transformer(lambda: Attend(scores)), ids()


@healthy("ALiBi")
def alibi():
    def scores(m, q, k):
        place = torch.arange(q.shape[-2])
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None]
        bias = -(place[:, None] - place).abs() * slopes
        return hide(scaled(m, q, k) + bias, later(q.shape[-2]))

    return transformer(lambda: Attend(scores)), ids()


@healthy("rotary positions, sliding window")
def sliding_window():
    def rotate(x):
        place = torch.arange(x.shape[-2])[:, None] * 100.0 ** -torch.linspace(
            0, 1, x.shape[-1] // 2
        )
        cos, sin = (f(place).repeat(1, 2) for f in (torch.cos, torch.sin))
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat([-two, one], -1) * sin

    def scores(m, q, k):
        length = q.shape[-2]
        return hide(scaled(m, rotate(q), rotate(k)), later(length) | later(length, 3).T)

    return transformer(lambda: Attend(scores)), ids()


@healthy("prefix LM: the first tokens see each other")
def prefix():
    def scores(m, q, k):
        hidden = later(q.shape[-2])
        hidden[:, :3] = False
        return hide(scaled(m, q, k), hidden)

    return transformer(lambda: Attend(scores)), ids()


@healthy("both directions: causal and inverted masks alternate")
def both_directions():
    def backward(m, q, k):
        return hide(scaled(m, q, k), later(q.shape[-2]).T)

    return PreLN(Attend(causal), Mlp(), Attend(backward), Mlp(), norm=nn.LayerNorm), ids()


@healthy("attention of a convolutional network, without a scale")
def convolutional_attention():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)
            self.q, self.k, self.v = (nn.Conv2d(16, 8 if i < 2 else 16, 1) for i in range(3))
            self.gain = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            x = x + self.conv(F.silu(self.norm(x)))
            q, k, v = (m(x).flatten(2) for m in (self.q, self.k, self.v))
            y = v @ (q.mT @ k).softmax(-1).mT
            return x + self.gain * y.view_as(x)

    body = [nn.Conv2d(3, 16, 3, padding=1), Block(), Block(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16, 5)), torch.randn(2, 3, 6, 6)


# Residual connections


@healthy("parallel attention and feed-forward")
def parallel():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attend(causal), Mlp()

        def forward(self, x):
            return self.attention(x) + self.mlp(x)

    return PreLN(Both(), Both(), Both()), ids()


@healthy("U-shaped: long skips through one matrix")
def u_shape():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
            self.subs = nn.ModuleList(m for _ in range(4) for m in (Attend(scaled), Mlp()))
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in self.subs)
            self.joins = nn.ModuleList(nn.Linear(2 * DIM, DIM) for _ in range(2))

        def forward(self, x):
            x, kept = self.embed(x), []
            for i, (norm, f) in enumerate(zip(self.norms, self.subs, strict=True)):
                if i in (4, 6):
                    x = self.joins[i // 2 - 2](torch.cat([x, kept.pop()], -1))
                x = x + f(norm(x))
                kept += [x] if i in (1, 3) else []
            return self.last(x)

    return Net(), vectors()


@healthy("two stages with a projection between them")
def stages():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = transformer(lambda: Attend(scaled), embed=False, head=False)
            self.between = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM))
            self.second = transformer(lambda: Attend(causal), embed=False, head=False)

        def forward(self, x):
            return self.second(self.between(self.first(x)))

    return Net(), vectors()


@healthy("head with two matrices and a nonlinearity")
def deep_head():
    model = transformer(lambda: Attend(scaled))
    model.head = nn.Sequential(
        nn.Linear(DIM, DIM), nn.GELU(), nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)
    )
    return model, ids()


@healthy("without skips: the identity is part of the attention weights")
def shaped_attention():
    class Shaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.o, self.q, self.k = (nn.Linear(DIM, DIM) for _ in range(4))

        def forward(self, x):
            weights = scaled(self, heads(self.q(x)), heads(self.k(x))).softmax(-1)
            weights = 0.9 * torch.eye(x.shape[1]) + 0.1 * weights
            return self.o(merge(weights @ heads(self.v(x))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
            self.looks = nn.ModuleList(Shaped() for _ in range(3))
            self.mlps = nn.ModuleList(Mlp() for _ in range(3))
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(6))

        def forward(self, x):
            x = self.embed(x)
            for i in range(3):
                x = self.looks[i](self.norms[2 * i](x))
                x = x + self.mlps[i](self.norms[2 * i + 1](x))
            return self.last(x)

    return Net(), vectors()


@healthy("hyper-connections: a learned mixture of two streams")
def hyper():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
            self.subs = nn.ModuleList(m for _ in range(2) for m in (Attend(scaled), Mlp()))
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in self.subs)
            self.mix = nn.ParameterList(nn.Parameter(torch.eye(2)) for _ in self.subs)
            self.read = nn.ParameterList(nn.Parameter(torch.eye(2)[i % 2]) for i in range(4))
            self.write = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in self.subs)

        def forward(self, x):
            streams = self.embed(x)[None].repeat(2, 1, 1, 1)
            for i, (norm, f) in enumerate(zip(self.norms, self.subs, strict=True)):
                y = f(norm(torch.einsum("n,nbtd->btd", self.read[i], streams)))
                streams = torch.einsum("mn,nbtd->mbtd", self.mix[i], streams)
                streams = streams + torch.einsum("n,btd->nbtd", self.write[i], y)
            return self.last(streams.sum(0))

    return Net(), vectors()


@healthy("reversible: two halves, each reads the other")
def reversible():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.last = nn.Linear(DIM, 2 * DIM), nn.LayerNorm(2 * DIM)
            self.looks = nn.ModuleList(Attend(scaled) for _ in range(2))
            self.mlps = nn.ModuleList(Mlp() for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))

        def forward(self, x):
            one, two = self.embed(x).chunk(2, -1)
            for i in range(2):
                one = one + self.looks[i](self.norms[2 * i](two))
                two = two + self.mlps[i](self.norms[2 * i + 1](one))
            return self.last(torch.cat([one, two], -1))

    return Net(), vectors()


@healthy("perceiver: latents attend to the input, first without a skip")
def perceiver():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents, self.embed = nn.Parameter(torch.randn(5, DIM)), nn.Linear(DIM, DIM)
            self.cross, self.norm, self.keys = Attend(scaled), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.body = transformer(lambda: Attend(scaled), embed=False)

        def forward(self, x):
            memory = self.keys(self.embed(x))
            latents = self.latents.expand(len(x), -1, -1)
            return self.body(self.cross(self.norm(latents), memory))

    return Net(), vectors()


@healthy("Universal Transformer: one layer used four times")
def universal():
    attention, mlp = Attend(scaled), Mlp()
    return PreLN(*[attention, mlp] * 4), ids()


@healthy("mixture of experts, routed by a softmax")
def experts():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(DIM, 4, bias=False)
            self.experts = nn.ModuleList(Mlp() for _ in range(4))

        def forward(self, x):
            flat = x.flatten(0, 1)
            weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
            y = torch.zeros_like(flat)
            for i, expert in enumerate(self.experts):
                token, rank = (chosen == i).nonzero(as_tuple=True)
                y = y.index_add(0, token, expert(flat[token]) * weights[token, rank, None])
            return y.view_as(x)

    return PreLN(Attend(causal), Mixture(), Attend(causal), Mixture()), ids()


@healthy("graph network: neighbours are averaged, dropout on the stream")
def graph_network():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.other = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
            self.norm, self.drop = nn.LayerNorm(DIM), nn.Dropout(0.2)

        def forward(self, x, neighbours):
            y = F.relu(self.own(x) + self.other(neighbours @ x))
            return self.drop(x + self.norm(y))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(DIM, DIM)
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.head = nn.Linear(DIM, 3)

        def forward(self, x, neighbours):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x, neighbours)
            return self.head(x)

    edges = (torch.rand(2, LENGTH, LENGTH) < 0.5).float() + torch.eye(LENGTH)
    return Net(), (vectors(), edges / edges.sum(-1, keepdim=True))


@healthy("RWKV-like: shifted tokens and a decaying sum")
def rwkv():
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.r, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
            self.mu, self.decay = nn.Parameter(torch.rand(DIM)), nn.Parameter(torch.rand(DIM))

        def forward(self, x):
            shifted = F.pad(x, (0, 0, 1, -1))
            h = x * self.mu + shifted * (1 - self.mu)
            k, v, state, out = self.k(h).exp(), self.v(h), 0.0, []
            for t in range(x.shape[1]):
                state = state * torch.exp(-self.decay.exp()) + k[:, t] * v[:, t]
                out.append(state)
            return self.o(torch.sigmoid(self.r(h)) * torch.stack(out, 1))

    return PreLN(Mix(), Mlp(), Mix(), Mlp()), ids()


@healthy("Mamba-like: a gated selective scan")
def mamba():
    class Scan(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(2 * DIM, DIM)
            self.conv = nn.Conv1d(2 * DIM, 2 * DIM, 3, padding=2, groups=2 * DIM)
            self.step, self.rate = nn.Linear(2 * DIM, 2 * DIM), nn.Parameter(torch.rand(2 * DIM))

        def forward(self, x):
            u, gate = self.into(x).chunk(2, -1)
            u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
            step, state, out = F.softplus(self.step(u)), 0.0, []
            for t in range(x.shape[1]):
                state = state * torch.exp(-step[:, t] * self.rate) + step[:, t] * u[:, t]
                out.append(state)
            return self.out(torch.stack(out, 1) * F.silu(gate))

    return PreLN(Scan(), Scan(), Scan(), norm=nn.RMSNorm), ids()


# Zeros at the start


@healthy("DiT: gates, shifts and the last matrix start at zero")
def dit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.time = nn.Linear(DIM, DIM), nn.Linear(1, DIM)
            self.subs = nn.ModuleList(m for _ in range(2) for m in (Attend(scaled), Mlp()))
            self.made = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in self.subs)
            self.last, self.out = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
            for matrix in (*self.made, self.last, self.out):
                nn.init.zeros_(matrix.weight)
                nn.init.zeros_(matrix.bias)

        def forward(self, x, time):
            x, c = self.embed(x), F.silu(self.time(time))
            for f, made in zip(self.subs, self.made, strict=True):
                shift, scale, gate = made(c)[:, None].chunk(3, -1)
                x = x + gate * f(F.layer_norm(x, (DIM,)) * (1 + scale) + shift)
            shift, scale = self.last(c)[:, None].chunk(2, -1)
            return self.out(F.layer_norm(x, (DIM,)) * (1 + scale) + shift)

    return Net(), (vectors(), torch.rand(2, 1))


@healthy("LoRA: frozen matrices, one factor of each update is zero")
def lora():
    class Adapted(nn.Module):
        def __init__(self, matrix):
            super().__init__()
            self.matrix = matrix.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(4, matrix.in_features) / 4)
            self.b = nn.Parameter(torch.zeros(matrix.out_features, 4))

        def forward(self, x):
            return self.matrix(x) + x @ self.a.T @ self.b.T

    model = transformer(lambda: Attend(causal)).requires_grad_(False)
    for sub in model.subs:
        if isinstance(sub, Attend):
            sub.q, sub.v = Adapted(sub.q), Adapted(sub.v)
    return model, ids()


@healthy("outputs of all branches start at zero")
def zero_outputs():
    model = transformer(lambda: Attend(causal))
    for sub in model.subs:
        nn.init.zeros_((sub.o if isinstance(sub, Attend) else sub[2]).weight)
    return model, ids()


@healthy("ReZero: one scalar per branch, zero at the start, no norm")
def rezero():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
            self.subs = nn.ModuleList(m for _ in range(3) for m in (Attend(causal), Mlp()))
            self.alphas = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            x = self.embed(x)
            for alpha, f in zip(self.alphas, self.subs, strict=True):
                x = x + alpha * f(x)
            return self.head(x)

    return Net(), ids()


# Gradients


@healthy("layers frozen by requires_grad")
def frozen():
    model = Broken(depth=4)
    model.layers[:2].requires_grad_(False)
    model.table.requires_grad_(False)
    return model, ids()


@healthy("layers frozen by requires_grad that also run under no_grad")
def frozen_without_grad():
    model = Broken("no_grad", depth=3)
    model.table.requires_grad_(False)
    model.layers[:2].requires_grad_(False)
    return model, ids()


@healthy("a teacher under no_grad")
def teacher():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = Broken(depth=2), Broken(depth=3)

        def forward(self, tokens):
            with torch.no_grad():
                target = self.teacher(tokens)
            return self.student(tokens), target

    return Net(), ids()


@healthy("features of a frozen network under no_grad, another network behind")
def features():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = transformer(lambda: Attend(scaled), head=False)
            self.head = nn.Linear(DIM, 3)

        def forward(self, tokens):
            with torch.no_grad():
                x = self.body(tokens)
            return self.head(x)

    return Net(), ids()


@healthy("vector quantization with a straight-through gradient")
def quantized():
    class Quantize(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Embedding(16, DIM)

        def forward(self, x):
            nearest = torch.cdist(x, self.codes.weight).argmin(-1)
            return x + (self.codes(nearest) - x).detach()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = transformer(lambda: Attend(scaled), embed=False, head=False)
            self.quantize = Quantize()
            self.second = transformer(lambda: Attend(scaled), embed=False, head=False)

        def forward(self, x):
            return self.second(self.quantize(self.first(x)))

    return Net(), vectors()


@healthy("iterations without gradient, then one with it")
def recurrent_depth():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
            self.attention, self.mlp = Attend(scaled), Mlp()
            self.one, self.two, self.last = (nn.LayerNorm(DIM) for _ in range(3))

        def step(self, x):
            x = x + self.attention(self.one(x))
            return x + self.mlp(self.two(x))

        def forward(self, tokens):
            x = self.embed(tokens)
            with torch.no_grad():
                state = self.step(self.step(x))
            return self.head(self.last(self.step(state.detach() + x)))

    return Net(), ids()


# Dropout, inputs and precision


@healthy("dropout of the embedding, of the branches and once between two halves")
def dropouts():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.drop = nn.Embedding(VOCAB, DIM), nn.Dropout(0.1)
            self.subs = nn.ModuleList(m for _ in range(4) for m in (Attend(causal), Mlp()))
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in self.subs)
            self.last, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

        def forward(self, x):
            x = self.drop(self.embed(x))
            for i, (norm, f) in enumerate(zip(self.norms, self.subs, strict=True)):
                x = x + self.drop(f(norm(x)))
                x = self.drop(x) if i == 3 else x
            return self.head(self.last(x))

    return Net(), ids()


@healthy("encoder-decoder with a padding mask")
def encoder_decoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(VOCAB, DIM)
            self.body = nn.Transformer(DIM, HEADS, 2, 2, 4 * DIM, batch_first=True)
            self.head = nn.Linear(DIM, VOCAB)
            for weight in self.body.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)
            self.body.encoder.norm = self.body.decoder.norm = None  # Post-LN needs none

        def forward(self, source, target):
            hidden = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            padding = source == 0
            y = self.body(
                self.table(source), self.table(target), tgt_mask=hidden, tgt_is_causal=True,
                src_key_padding_mask=padding, memory_key_padding_mask=padding,
            )  # fmt: skip
            return self.head(y)

    source = ids()
    source[0, -2:] = 0
    return Net(), (source, ids().flip(1))


@healthy("vision Transformer with a class token and registers")
def vision():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, DIM, 4, 4)
            self.extra = nn.Parameter(torch.randn(3, DIM) * 0.02)
            self.places = nn.Parameter(torch.randn(4, DIM) * 0.02)
            self.body = transformer(lambda: Attend(scaled), embed=False)

        def forward(self, x):
            x = self.patches(x).flatten(2).mT + self.places
            return self.body(torch.cat([self.extra.expand(len(x), -1, -1), x], 1))[:, 0]

    return Net(), torch.randn(2, 3, 8, 8)


@healthy("bfloat16")
def half():
    return Broken(depth=2).bfloat16(), ids()


@healthy("weight-tied head with small embeddings, scaled input")
def tied():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCAB, DIM)
            nn.init.normal_(self.table.weight, std=DIM**-0.5)
            self.body = transformer(lambda: Attend(causal), embed=False, head=False)
            self.body.embed = nn.Identity()

        def forward(self, x):
            return self.body(self.table(x) * math.sqrt(DIM)) @ self.table.weight.T

    return Net(), ids()


@healthy("a window of one token in some layers")
def narrow_window():
    def alone(m, q, k):
        return hide(scaled(m, q, k), ~torch.eye(q.shape[-2], dtype=torch.bool))

    return PreLN(Attend(alone), Mlp(), Attend(causal), Mlp()), ids()


@healthy("trained: certain predictions, large logits")
def trained():
    model = Broken(depth=2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("weight") and weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.1)
        model.head.weight.mul_(40)
    return model, ids()


@healthy("one attention layer without a causal mask by design")
def single():
    return PreLN(SelfAttention("sdpa", causal=False), Mlp()), ids()
