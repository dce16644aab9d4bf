"""Norms applied twice: across stacks, at the end, and at the border between two parts."""

import torch
from torch import nn

from tests.doctor.models.historic.cases import (
    LAYERS,
    Attention,
    Classifier,
    D,
    PostLayer,
    PreLayer,
    Tokens,
    feed_forward,
    ids,
    register,
    vectors,
)

CASES = []
FINAL = "double_norm|doubled_final_norm"


class Stack(nn.Module):
    def __init__(self, final, layer=PreLayer, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.final = nn.LayerNorm(D) if final else nn.Identity()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.final(x)


@register(CASES, "Helsinki-NLP/mammoth#3", FINAL, ids)
def consecutive_stacks(bug):
    return Classifier([Stack(final=bug), Stack(final=True)])


class Decoder(nn.Module):
    """Post-LN decoder layers that read a memory, without a final norm."""

    def __init__(self, layer_norms=3):
        super().__init__()
        self.rows = nn.ModuleList(
            nn.ModuleList(
                [Attention(), Attention(), feed_forward()] + [nn.LayerNorm(D) for _ in range(3)]
            )
            for _ in range(2)
        )

    def forward(self, y, memory):
        for own, cross, ff, n1, n2, n3 in self.rows:
            y = n1(y + own(y))
            y = n2(y + cross(y, memory=memory))
            y = n3(y + ff(y))
        return y


@register(CASES, "Atten4Vis/ConditionalDETR#11", FINAL, vectors)
def detr_encoder_norm(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Stack(final=bug, layer=PostLayer)
            self.queries = nn.Parameter(torch.randn(5, D))
            self.decoder = Decoder()
            self.boxes = nn.Linear(D, 4)

        def forward(self, x):
            memory = self.encoder(x)
            return self.boxes(self.decoder(self.queries.expand(x.shape[0], -1, -1), memory))

    return Model()


@register(CASES, "open-mmlab/mmpretrain#1842", FINAL, vectors)
def norm_before_and_after_pooling(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*[PreLayer() for _ in range(LAYERS)])
            self.ln1 = nn.LayerNorm(D) if bug else nn.Identity()
            self.ln2 = nn.LayerNorm(D)
            self.head = nn.Linear(D, 10)

        def forward(self, x):
            return self.head(self.ln2(self.ln1(self.body(x)).mean(1)))

    return Model()


@register(CASES, "facebookresearch/detr#94", FINAL, vectors)
def intermediate_outputs_normed_again(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = PostLayer if bug else PreLayer
            self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(D)
            self.head = nn.Linear(D, 5)

        def forward(self, x):
            outputs = []
            for layer in self.layers:
                x = layer(x)
                outputs.append(self.norm(x))
            return self.head(torch.stack(outputs))

    return Model()


class ConformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff1, self.ff2, self.attention = feed_forward(), feed_forward(), Attention()
        self.conv = nn.Conv1d(D, D, 3, padding=1, groups=D)
        self.point = nn.Conv1d(D, D, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(5))

    def forward(self, x):
        n = self.norms
        x = x + 0.5 * self.ff1(n[0](x))
        x = x + self.attention(n[1](x))
        y = self.point(nn.functional.silu(self.conv(n[2](x).mT)))
        x = x + y.mT
        return n[4](x + 0.5 * self.ff2(n[3](x)))


@register(CASES, "k2-fsa/snowfall#184", FINAL, vectors)
def conformer_after_norm(bug):
    layers = [ConformerLayer() for _ in range(2)]
    return nn.Sequential(*layers, *([nn.LayerNorm(D)] if bug else []), nn.Linear(D, 8))


@register(CASES, "purnasai/Dino_V2#2", FINAL, vectors)
def backbone_norm_called_by_classifier(bug):
    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, D))
            self.blocks = nn.ModuleList(PreLayer() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(D)

        def forward(self, x):
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            for block in self.blocks:
                x = block(x)
            return self.norm(x)[:, 0]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = Backbone()
            self.classifier = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 2))

        def forward(self, x):
            x = self.transformer(x)
            return self.classifier(self.transformer.norm(x) if bug else x)

    return Model()


@register(CASES, "lucidrains/vit-pytorch#287", FINAL, lambda: (ids(), ids()[:, :5]))
def context_normed_again(bug):
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(D)
            self.context_norm = nn.LayerNorm(D) if bug else nn.Identity()
            self.attention = Attention()

        def forward(self, y, memory):
            return y + self.attention(self.norm(y), memory=self.context_norm(memory))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.source, self.target = Tokens(), Tokens()
            self.encoder = Stack(final=True)
            self.own = nn.ModuleList(PreLayer() for _ in range(2))
            self.cross = nn.ModuleList(Cross() for _ in range(2))
            self.final, self.head = nn.LayerNorm(D), nn.Linear(D, 9)

        def forward(self, source, target):
            memory, y = self.encoder(self.source(source)), self.target(target)
            for own, cross in zip(self.own, self.cross, strict=True):
                y = cross(own(y), memory)
            return self.head(self.final(y))

    return Model()


class TutorialNorm(nn.Module):
    """Mean and standard deviation written out, epsilon outside of the root."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.alpha, self.eps = nn.Parameter(torch.ones(features)), eps
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return self.alpha * centered / (x.std(-1, keepdim=True) + self.eps) + self.bias


@register(CASES, "Hoper-J/AI-Guide-and-Demos-zh_CN#20", FINAL, ids)
def tutorial_encoder_norm(bug):
    class SublayerConnection(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.norm, self.drop, self.inner = TutorialNorm(D), nn.Dropout(0.1), inner

        def forward(self, x):
            return self.norm(x + self.drop(self.inner(x)))

    parts = [f() for _ in range(LAYERS) for f in (Attention, feed_forward)]
    return Classifier([SublayerConnection(p) for p in parts], TutorialNorm(D) if bug else None)


@register(CASES, "lucidrains/vit-pytorch#317", FINAL, vectors)
def head_starts_with_norm(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, D))
            self.transformer = Stack(final=True)
            first = [nn.LayerNorm(D)] if bug else []
            self.mlp = nn.Sequential(*first, nn.Linear(D, 10))

        def forward(self, x):
            x = self.transformer(torch.cat([x, self.token.expand(len(x), -1, -1)], 1))
            _, distilled = x[:, :-1], x[:, -1]
            return self.mlp(distilled)

    return Model()
