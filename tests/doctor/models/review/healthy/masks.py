"""Healthy masks."""

import torch

from tests.doctor.models.review.case import healthy, ids, padded
from tests.doctor.models.review.healthy.designs import Block, Model


@healthy(padded)
def esm_padding_attends_padding():
    class Esm(Model):
        def mask(self, idx):
            real = idx != 0
            return (real.unsqueeze(-1) == real.unsqueeze(-2)).unsqueeze(1)

    return Esm([Block() for _ in range(3)])


@healthy(padded)
def causal_and_padding():
    class CausalLM(Model):
        def mask(self, idx):
            n = idx.size(1)
            return (idx != 0)[:, None, None, :] & torch.ones(n, n, dtype=torch.bool).tril()

    return CausalLM([Block() for _ in range(3)])


@healthy(padded)
def causal_without_padding_mask():
    return Model([Block(causal=True) for _ in range(3)])


@healthy(ids())
def prefix_lm():
    class Prefix(Model):
        def mask(self, idx):
            n = idx.size(1)
            allowed = torch.ones(n, n, dtype=torch.bool).tril()
            allowed[:, :4] = True
            return allowed

    return Prefix([Block() for _ in range(3)])


@healthy(ids(2, 24))
def sliding_window():
    class Window(Model):
        def mask(self, idx):
            n = idx.size(1)
            ones = torch.ones(n, n, dtype=torch.bool)
            return ones.tril() & ones.triu(-5)

    return Window([Block() for _ in range(3)], length=24)


@healthy(ids())
def no_positions_alibi():
    class Alibi(Model):
        def mask(self, idx):
            n = idx.size(1)
            distance = torch.arange(n)[None] - torch.arange(n)[:, None]
            slopes = 2.0 ** -torch.arange(1, 5)
            bias = slopes[:, None, None] * distance
            return bias.masked_fill(distance > 0, float("-inf"))

    return Alibi([Block() for _ in range(3)])
