"""Third batch: healthy models of images, tables, time series and pairs."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import healthy, stream
from tests.doctor.models.review.third_bugs.common import (
    PreLayer,
    SelfAttention,
    VisionModel,
    feed_forward,
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)


@healthy(image())
def conv_mixer():
    class Residual(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.depthwise = nn.Sequential(
                nn.Conv2d(dim, dim, 5, groups=dim, padding="same"), nn.GELU(), nn.BatchNorm2d(dim)
            )
            self.pointwise = nn.Sequential(nn.Conv2d(dim, dim, 1), nn.GELU(), nn.BatchNorm2d(dim))

        def forward(self, x):
            return self.pointwise(x + self.depthwise(x))

    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4),
        nn.GELU(),
        nn.BatchNorm2d(32),
        *(Residual() for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


@healthy(image(16))
def residual_network_with_zero_gains():
    class Basic(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.conv1, self.conv2 = (
                nn.Conv2d(dim, dim, 3, padding=1, bias=False) for _ in range(2)
            )
            self.bn1, self.bn2 = nn.BatchNorm2d(dim), nn.BatchNorm2d(dim)
            nn.init.zeros_(self.bn2.weight)

        def forward(self, x):
            return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        *(Basic() for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


@healthy(image(16))
def residual_network_before_activation():
    class Bottleneck(nn.Module):
        def __init__(self, inputs, dim, stride):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, dim)
            self.conv1 = nn.Conv2d(inputs, dim, 3, stride, padding=1)
            self.conv2, self.skip = (
                nn.Conv2d(dim, dim, 3, padding=1),
                nn.Conv2d(inputs, dim, 1, stride),
            )

        def forward(self, x):
            y = F.relu(self.norm1(x))
            return self.skip(y) + self.conv2(F.relu(self.norm2(self.conv1(y))))

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        Bottleneck(32, 32, 1),
        Bottleneck(32, 64, 2),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


@healthy(lambda: (torch.randn(2, 3, 16, 16), torch.randn(2, 32)))
def diffusion_unet():
    class Block(nn.Module):
        def __init__(self, inputs, dim):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, dim)
            self.conv1, self.conv2 = (
                nn.Conv2d(inputs, dim, 3, padding=1),
                nn.Conv2d(dim, dim, 3, padding=1),
            )
            self.time, self.skip = nn.Linear(32, dim), nn.Conv2d(inputs, dim, 1)

        def forward(self, x, t):
            y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
            return self.skip(x) + self.conv2(F.silu(self.norm2(y)))

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.down, self.deep = (
                nn.Conv2d(3, 32, 3, padding=1),
                Block(32, 32),
                Block(32, 64),
            )
            self.up = Block(96, 32)
            self.norm, self.out = nn.GroupNorm(8, 32), nn.Conv2d(32, 3, 3, padding=1)
            nn.init.zeros_(self.out.weight)

        def forward(self, x, t):
            first = self.down(self.stem(x), t)
            second = self.deep(F.avg_pool2d(first, 2), t)
            x = self.up(torch.cat([first, F.interpolate(second, scale_factor=2)], 1), t)
            return self.out(F.silu(self.norm(x)))

    return Unet()


@healthy(image(16))
def shifted_windows():
    class Window(nn.Module):
        def __init__(self, dim=32, shift=0):
            super().__init__()
            self.shift, self.norm1, self.norm2 = shift, nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attention, self.mlp = SelfAttention(dim, 2), feed_forward(dim, 64)

        def forward(self, x):  # (batch, 16, 16, channels)
            b, c = x.size(0), x.size(-1)
            y = self.norm1(x).roll((-self.shift, -self.shift), (1, 2))
            y = y.view(b, 4, 4, 4, 4, c).transpose(2, 3).reshape(b * 16, 16, c)
            y = self.attention(y).view(b, 4, 4, 4, 4, c).transpose(2, 3).reshape(b, 16, 16, c)
            x = x + y.roll((self.shift, self.shift), (1, 2))
            return x + self.mlp(self.norm2(x))

    class Swin(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem = nn.Conv2d(3, dim, 3, padding=1)
            self.places = nn.Parameter(torch.randn(16, 16, dim) * 0.02)
            self.blocks = nn.Sequential(*(Window(dim, shift) for shift in (0, 2, 0, 2)))
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, x):
            x = self.blocks(self.stem(x).permute(0, 2, 3, 1) + self.places)
            return self.head(self.norm(x).mean((1, 2)))

    return Swin()


@healthy(image())
def einsum_vision_transformer():
    class Einsum(nn.Module):
        def __init__(self, dim=64, heads=4, size=16):
            super().__init__()
            self.qkv = nn.Parameter(torch.randn(3, heads, dim, size) * dim**-0.5)
            self.out = nn.Parameter(torch.randn(heads, size, dim) * dim**-0.5)

        def forward(self, x):
            q, k, v = torch.einsum("btd,ahdk->abhtk", x, self.qkv)
            weights = torch.einsum("bhtk,bhsk->bhts", q, k * k.size(-1) ** -0.5).softmax(-1)
            return torch.einsum("bhts,bhsk,hkd->btd", weights, v, self.out)

    return VisionModel([PreLayer(Einsum()) for _ in range(3)])


@healthy(image())
def class_attention():
    class ClassLayer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2, self.mlp = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                feed_forward(dim),
            )
            self.q, self.kv, self.o = (
                nn.Linear(dim, dim),
                nn.Linear(dim, 2 * dim),
                nn.Linear(dim, dim),
            )
            self.gamma1, self.gamma2 = (nn.Parameter(torch.full((dim,), 1e-4)) for _ in range(2))

        def forward(self, cls, x):
            y = self.norm1(torch.cat([cls, x], 1))
            q, (k, v) = self.q(y[:, :1]), self.kv(y).chunk(2, -1)
            out = merge_heads(softmax_attention(*(split_heads(t, 4) for t in (q, k, v))))
            cls = cls + self.gamma1 * self.o(out)
            return cls + self.gamma2 * self.mlp(self.norm2(cls))

    class Cait(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.patches, self.places = (
                nn.Conv2d(3, dim, 8, 8),
                nn.Parameter(torch.randn(16, dim) * 0.02),
            )
            self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(2)])
            self.last = nn.ModuleList([ClassLayer(dim) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

        def forward(self, picture):
            x = self.patches(picture).flatten(2).transpose(1, 2) + self.places
            for layer in self.layers:
                x = layer(x)
            cls = self.cls.expand(len(x), -1, -1)
            for layer in self.last:
                cls = layer(cls, x)
            return self.head(self.norm(torch.cat([cls, x], 1))[:, 0])

    return Cait()


@healthy(lambda: (torch.randn(2, 3, 32, 32), torch.randint(1, 50, (2, 9))))
def contrastive_pair():
    class Pair(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.image = VisionModel([PreLayer(SelfAttention(dim)) for _ in range(2)], classes=32)
            self.tokens, self.places = nn.Embedding(50, dim), nn.Embedding(16, dim)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(2)])
            self.norm, self.projection = nn.LayerNorm(dim), nn.Linear(dim, 32, bias=False)
            self.logit_scale = nn.Parameter(torch.tensor(2.66))

        def forward(self, picture, words):
            x = self.tokens(words) + self.places.weight[: words.size(1)]
            for layer in self.layers:
                x = layer(x)
            text = F.normalize(self.projection(self.norm(x)[:, -1]), dim=-1)
            return self.logit_scale.exp() * (F.normalize(self.image(picture), dim=-1) * text).sum(
                -1
            )

    return Pair()


@healthy(lambda: (torch.randn(4, 16), torch.randn(4, 16)))
def stop_gradient_of_the_target():
    """SimSiam: the other view is a target without gradient."""

    class Siamese(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Linear(16, dim), nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim)
            )
            self.predictor = nn.Sequential(
                nn.Linear(dim, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, dim)
            )

        def forward(self, a, b):
            x, y = self.encoder(a), self.encoder(b)
            first = F.cosine_similarity(self.predictor(x), y.detach(), -1)
            return -(first + F.cosine_similarity(self.predictor(y), x.detach(), -1)) / 2

    return Siamese()


@healthy(image(16))
def straight_through_codes():
    class Quantized(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(3, dim, 4, 4), nn.ReLU(), nn.Conv2d(dim, dim, 1))
            self.codes = nn.Embedding(16, dim)
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(dim, dim, 4, 4), nn.ReLU(), nn.Conv2d(dim, 3, 1)
            )

        def forward(self, x):
            z = self.encoder(x).permute(0, 2, 3, 1)
            nearest = torch.cdist(z.flatten(0, 2), self.codes.weight).argmin(-1).view(z.shape[:3])
            code = self.codes(nearest)
            loss = (code - z.detach()).square().mean() + 0.25 * (z - code.detach()).square().mean()
            return self.decoder((z + (code - z).detach()).permute(0, 3, 1, 2)), loss

    return Quantized()


@healthy(stream(4, 12, 1))
def feature_tokens_of_a_table():
    class Table(nn.Module):
        def __init__(self, columns=12, dim=64):
            super().__init__()
            self.weight, self.bias = (
                nn.Parameter(torch.randn(columns, dim) * 0.1) for _ in range(2)
            )
            self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(3)])
            self.layers[
                0
            ].norm1 = nn.Identity()  # FT-Transformer: no norm before the first attention
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1)

        def forward(self, columns):
            x = torch.cat(
                [self.cls.expand(len(columns), -1, -1), columns * self.weight + self.bias], 1
            )
            for layer in self.layers:
                x = layer(x)
            return self.head(F.relu(self.norm(x[:, 0])))

    return Table()


class Reversible(nn.Module):
    """RevIN: a time series is normalized over time, and its forecast gets the moments back."""

    def __init__(self, inner, channels=5):
        super().__init__()
        self.inner = inner
        self.gain, self.shift = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, series):  # (batch, time, channels)
        mean = series.mean(1, keepdim=True).detach()
        deviation = (series.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        out = self.inner((series - mean) / deviation * self.gain + self.shift)
        return (out - self.shift) / (self.gain + 1e-10) * deviation + mean


@healthy(stream(2, 24, 5))
def patches_of_each_channel():
    class PatchTST(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embed, self.places = nn.Linear(6, dim), nn.Parameter(torch.randn(4, dim) * 0.02)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(4 * dim, 8)

        def forward(self, series):
            b, _, c = series.shape
            x = self.embed(series.transpose(1, 2).reshape(b * c, 4, 6)) + self.places
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x).flatten(1)).view(b, c, 8).transpose(1, 2)

    return Reversible(PatchTST())


@healthy(stream(2, 24, 5))
def variates_as_tokens():
    class Inverted(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embed = nn.Linear(24, dim)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 8)

        def forward(self, series):
            x = self.embed(series.transpose(1, 2))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x)).transpose(1, 2)

    return Reversible(Inverted())


@healthy(stream(2, 10, 6))
def rows_of_a_table_in_context():
    """TabPFN: the rows of a data set are the tokens; test rows see only training rows."""

    class InContext(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embed = nn.Linear(6, dim)
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 3)

        def forward(self, rows):
            x, n = self.embed(rows), rows.size(1)
            visible = (torch.arange(n) < 6).expand(n, n) | torch.eye(n, dtype=torch.bool)
            for layer in self.layers:
                x = layer(x, visible=visible)
            return self.head(self.norm(x))

    return InContext()


@healthy(lambda: (torch.randn(2, 4, 9, 32), torch.randn(2, 9, 9, 16)))
def gated_rows_and_columns():
    class Axial(nn.Module):
        def __init__(self, dim=32, pair=16, heads=4):
            super().__init__()
            self.heads, self.norm, self.gate = heads, nn.LayerNorm(dim), nn.Linear(dim, dim)
            self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
            self.pair = nn.Linear(pair, heads, bias=False) if pair else None

        def forward(self, x, pair=None):
            y = self.norm(x)
            q, k, v = (
                t.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
                for t in self.qkv(y).chunk(3, -1)
            )
            bias = None if pair is None else self.pair(pair).permute(0, 3, 1, 2)[:, None]
            out = softmax_attention(q, k, v, bias=bias).transpose(-3, -2).flatten(-2)
            return x + self.o(self.gate(y).sigmoid() * out)

    class Evoformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair_norm = nn.LayerNorm(16)
            self.rows = nn.ModuleList([Axial() for _ in range(2)])
            self.columns = nn.ModuleList([Axial(pair=0) for _ in range(2)])
            self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
            self.transitions = nn.ModuleList([feed_forward(32, 64) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

        def forward(self, x, pair):
            pair = self.pair_norm(pair)
            for row, column, norm, transition in zip(
                self.rows, self.columns, self.norms, self.transitions, strict=True
            ):
                x = row(x, pair)
                x = column(x.transpose(1, 2)).transpose(1, 2)
                x = x + transition(norm(x))
            return self.head(self.norm(x))

    return Evoformer()


@healthy(stream(2, 16, 64))
def macaron_with_convolution():
    class Macaron(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(4)])
            self.first, self.last, self.attention = (
                feed_forward(dim),
                feed_forward(dim),
                SelfAttention(dim),
            )
            self.widen, self.narrow = nn.Conv1d(dim, 2 * dim, 1), nn.Conv1d(dim, dim, 1)
            self.depthwise, self.bn = (
                nn.Conv1d(dim, dim, 5, padding=2, groups=dim),
                nn.BatchNorm1d(dim),
            )

        def forward(self, x):
            x = x + 0.5 * self.first(self.norms[0](x))
            x = x + self.attention(self.norms[1](x))
            y = F.glu(self.widen(self.norms[2](x).transpose(1, 2)), 1)
            x = x + self.narrow(F.silu(self.bn(self.depthwise(y)))).transpose(1, 2)
            return x + 0.5 * self.last(self.norms[3](x))

    return nn.Sequential(*(Macaron() for _ in range(2)), nn.LayerNorm(64), nn.Linear(64, 7))


@healthy(stream(2, 12, 64))
def zero_started_adapters():
    class Adapted(PreLayer):
        def __init__(self, dim=64):
            super().__init__(SelfAttention(dim))
            self.requires_grad_(False)
            self.down, self.up = nn.Linear(dim, 8), nn.Linear(8, dim)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x):
            y = super().forward(x)
            return y + self.up(F.gelu(self.down(y)))

    return nn.Sequential(*(Adapted() for _ in range(3)), nn.LayerNorm(64), nn.Linear(64, 5))


@healthy(stream(2, 12, 64))
def values_of_the_first_layer():
    class Layer(nn.Module):
        def __init__(self, dim=64, first=False):
            super().__init__()
            self.norm1, self.norm2, self.mlp = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                feed_forward(dim),
            )
            self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.share = None if first else nn.Parameter(torch.tensor(0.5))

        def forward(self, x, first):
            q, k, v = (split_heads(t, 4) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            if first is not None:
                v = (1 - self.share) * v + self.share * first
            x = x + self.o(merge_heads(softmax_attention(q, k, v)))
            return x + self.mlp(self.norm2(x)), v if first is None else first

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(first=i == 0) for i in range(3)])
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 5)

        def forward(self, x):
            first = None
            for layer in self.layers:
                x, first = layer(x, first)
            return self.head(self.norm(x))

    return Model()


@healthy(stream(2, 14, 32))
def normalized_recurrent_network():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.ModuleList([nn.LSTM(32, 32, batch_first=True) for _ in range(3)])
            self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

        def forward(self, x):
            for cell, norm in zip(self.cells, self.norms, strict=True):
                x = x + cell(norm(x))[0]
            return self.head(self.norm(x))

    return Recurrent()


@healthy(
    lambda: (
        torch.randn(2, 10, 64),
        (torch.rand(2, 10, 10) > 0.4) | torch.eye(10, dtype=torch.bool),
    )
)
def graph_transformer():
    class Graph(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.layers = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 4)

        def forward(self, nodes, edges):
            for layer in self.layers:
                nodes = layer(nodes, visible=edges[:, None])
            return self.head(self.norm(nodes))

    return Graph()
