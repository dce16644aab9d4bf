"""Small models with gains, biases and means far from neutral: wrong algebra shows in them."""

import hashlib

import torch
from torch import nn

import addnorm

DIM, VOCAB = 24, 50


def far_from_neutral(model, seed=3):
    """Change every weight; a gain of 1 and a bias of 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            spread = float(weight.std()) if weight.ndim > 1 and weight.std() > 0 else 0.5
            weight += 0.3 * spread * torch.randn(weight.shape, generator=generator) + 0.05
    return model.eval()


def ids(batch=2, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def build(**options):
    defaults = {"kind": "lm", "vocab": VOCAB, "dim": DIM, "depth": 2, "heads": 2, "bias": True}
    return far_from_neutral(addnorm.build(**defaults | options, seed=0))


class Block(nn.Module):
    """Pre-LN block with one branch."""

    def __init__(self, norm=None):
        super().__init__()
        self.norm = nn.LayerNorm(DIM) if norm is None else norm
        self.first, self.second = nn.Linear(DIM, 40), nn.Linear(40, DIM)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(self.normalize(x))))

    def normalize(self, x):
        return self.norm(x)


class HandWrittenBlock(Block):
    def normalize(self, x):
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()


class FunctionalBlock(Block):
    def normalize(self, x):
        return nn.functional.layer_norm(x, (DIM,), self.norm.weight, self.norm.bias)


class Model(nn.Module):
    """Language model written by hand."""

    def __init__(self, blocks=None, *, tied=False):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        self.places = nn.Parameter(torch.randn(32, DIM))
        self.blocks = nn.ModuleList([Block(), Block()] if blocks is None else blocks)
        self.last = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def stream(self, tokens):
        x = self.table(tokens) * 2 + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens):
        return self.head(self.last(self.stream(tokens)))


class AnnotatedNorm(nn.Module):
    """LayerNorm of The Annotated Transformer: unbiased deviation, eps outside of the root."""

    def __init__(self, dim=DIM, eps=1e-3):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


def fingerprint(model):
    """Return what must not change: modules, parameters, modes, values."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, torch.Tensor) and not value.is_meta and not value.is_quantized:
            digest.update(value.detach().double().cpu().numpy().tobytes())
    modules = [(name, id(each), each.training) for name, each in model.named_modules()]
    weights = [(name, id(each), each.requires_grad) for name, each in model.named_parameters()]
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()]
    return digest.hexdigest(), modules, weights, hooks
