"""Rules of the review about norms, initial values and sharing, with healthy look-alikes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.rules.test_review_rules import DIM, HEADS, Block, Model, rules, split, stack


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# Norms


def rms(formula):
    class Norm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return formula(x, x.square().mean(-1, keepdim=True) + 1e-6) * self.gain

    return Norm


@pytest.mark.parametrize(
    ("formula", "found"),
    [
        (lambda x, s: x / s.rsqrt(), True),
        (lambda x, s: x * s.sqrt(), True),
        (lambda x, s: x / s.pow(-0.5), True),
        (lambda x, s: x * s.rsqrt(), False),
        (lambda x, s: x / s.sqrt(), False),
        (lambda x, s: x * (1 / s.sqrt()), False),
        (lambda x, s: x * s.pow(-0.5), False),
    ],
)
def test_inverted_norm(formula, found):
    norm = rms(formula)
    model = Model(*[Block(norm=norm) for _ in range(3)], norm=norm)
    with torch.no_grad():
        model.table.weight.mul_(0.1)
    assert ("inverted_norm" in rules(model)) is found


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_random_gains(mean):
    model = Model()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean, 0.02)
    assert ("random_gains" in rules(model)) is (mean == 0)


def test_gains_of_zero_plus_one_are_not_random():
    class OnePlus(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gain = nn.Parameter(torch.randn(dim) * 0.02)

        def forward(self, x):
            return F.rms_norm(x, (DIM,)) * (1 + self.gain)

    model = Model(*[Block(norm=OnePlus) for _ in range(3)], norm=OnePlus)
    assert "random_gains" not in rules(model)


# Initial values


@pytest.mark.parametrize("first", [True, False])
def test_both_factors_of_an_adapter_are_zero(first):
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(DIM, 3 * DIM)
            self.a, self.b = nn.Linear(DIM, 4, bias=False), nn.Linear(4, 3 * DIM, bias=False)
            nn.init.zeros_(self.b.weight)
            if first:
                nn.init.zeros_(self.a.weight)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    model = Model()
    for block in model.blocks:
        block.qkv = Adapter()
    assert rules(model) == ({"zero_factors": "error"} if first else {})


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_branches_behind_a_constant_zero(scale):
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(scale))

        def forward(self, x):
            x = x + self.out(self.attend(self, self.norm1(x) * self.scale))
            return x + self.ff(self.norm2(x) * self.scale)

    assert ("constant_weights" in rules(Model(*[Scaled() for _ in range(3)]))) is (scale == 0)


class Adaptive(nn.Module):
    """Block with adaLN-Zero: shift, scale and gate from a condition."""

    def __init__(self):
        super().__init__()
        self.modulation, self.inner = nn.Linear(DIM, 6 * DIM), Block()

    def forward(self, x, condition):
        values = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = values
        inner = self.inner
        y = inner.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * inner.out(inner.attend(inner, y))
        return x + gate2 * inner.ff(inner.norm2(x) * (1 + scale2) + shift2)


@pytest.mark.parametrize("state", ["random", "zero", "trained"])
def test_adaptive_gates(state):
    class Diffusion(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Adaptive() for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 8)

        def forward(self, x, condition):
            for block in self.blocks:
                x = block(x, condition)
            return self.head(self.norm(x))

    model = Diffusion()
    with torch.no_grad():
        for block in model.blocks:
            if state != "random":
                block.modulation.weight.zero_()
                block.modulation.bias.zero_()
            if state == "trained":
                parts = block.modulation.weight.chunk(6, 0)
                for number, part in enumerate(parts):
                    part.normal_(0, 0.02 * (1 + number % 3))
    found = rules(model, (torch.randn(2, 10, DIM), torch.randn(2, DIM)))
    assert ("adaptive_gates" in found) is (state == "random")


# Sharing and wiring


def test_shared_feed_forward():
    def feed_forward():
        return nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    shared = feed_forward()
    assert rules(stack(feed_forward=shared)) == {"shared_matrices": "warning"}
    assert rules(stack()) == {}
    assert rules(Model(*[Block()] * 4)) == {}  # shared as a whole
    pair = feed_forward()
    model = Model(*[Block(feed_forward=pair if i < 2 else None) for i in range(4)])
    assert rules(model) == {}  # some layers only


class Decoder(nn.Module):
    def __init__(self, skip):
        super().__init__()
        self.skip, self.encoder, self.first = skip, nn.ModuleList([Block(), Block()]), Block()
        self.q, self.kv, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.norm1, self.norm2, self.last, self.norm = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Block(),
            nn.LayerNorm(DIM),
        )
        self.head = nn.Linear(DIM, 8)

    def forward(self, source, target):
        for block in self.encoder:
            source = block(source)
        memory, x = self.norm1(source), self.first(target)
        q, k, v = (split(t) for t in (self.q(self.norm2(x)), *self.kv(memory).chunk(2, -1)))
        out = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = (memory if self.skip == "memory" else x) + out
        return self.head(self.norm(self.last(x)))


@pytest.mark.parametrize("skip", ["memory", "stream"])
def test_skip_of_the_keys(skip):
    found = rules(Decoder(skip), (torch.randn(2, 10, DIM), torch.randn(2, 10, DIM)))
    assert ("foreign_skip" in found) is (skip == "memory")


@pytest.mark.parametrize("inner", [64, 4])
def test_matrices_without_activation(inner):
    model = Model()
    model.head = nn.Sequential(nn.Linear(DIM, inner), nn.Dropout(0.1), nn.Linear(inner, 40))
    assert rules(model) == ({"linear_chain": "warning"} if inner == 64 else {})


def test_prototype_of_a_list():
    def build(keep):
        model = Model()
        if keep:
            model.prototype = Block()
        return model

    assert rules(build(True)) == {"unused_prototype": "warning"}
    frozen = build(True)
    frozen.prototype.requires_grad_(False)  # a teacher
    assert rules(build(False)) == rules(frozen) == {}


# Dropout


def sdpa(rate):
    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        p = rate if rate is not None else 0.1 * self.training
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p).transpose(1, 2).flatten(2)

    return attend


@pytest.mark.parametrize(("rate", "found"), [(0.1, True), (None, False), (0.0, False)])
def test_attention_that_drops_in_eval_mode(rate, found):
    assert rules(stack(attend=sdpa(rate))) == ({"dropout_in_eval": "warning"} if found else {})


@pytest.mark.parametrize("dropout", ["function", "module", "training"])
def test_dropout_in_eval_mode(dropout):
    class Dropped(Block):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            y = self.out(self.attend(self, self.norm1(x)))
            if dropout == "module":
                y = self.dropout(y)
            else:
                y = F.dropout(
                    y, 0.1, **({"training": self.training} if dropout != "function" else {})
                )
            x = x + y
            return x + self.ff(self.norm2(x))

    found = rules(Model(*[Dropped() for _ in range(3)]))
    assert found == ({"dropout_in_eval": "warning"} if dropout == "function" else {})


# Masks, padding and NaN


@pytest.mark.parametrize("after", [True, False])
def test_first_nan_is_explained(after):
    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        scores, hidden = q @ k.mT * (DIM // HEADS) ** -0.5, torch.arange(x.shape[1]) > 6
        if after:
            weights = scores.softmax(-1).masked_fill(hidden, -torch.inf)
        else:
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    report = addnorm.doctor(stack(attend=attend), torch.randint(1, 40, (3, 10)))
    found = [f for f in report.findings if f.rule == "nan_output"]
    assert len(found) == after
    if found:
        assert "masked by -inf after the softmax" in found[0].message
        assert found[0].path == "blocks.0"


class Padded(Model):
    """Model with a padding index, a mask or none, and positions of a fixed number of tokens."""

    def __init__(self, is_masked):
        super().__init__()
        self.table, self.rows = (
            nn.Embedding(40, DIM, padding_idx=0),
            nn.Parameter(torch.randn(10, DIM)),
        )
        self.is_masked = is_masked

    def forward(self, tokens):
        x = self.table(tokens) + self.rows
        hidden = (
            (tokens == 0)[:, None, None] if self.is_masked else torch.zeros((), dtype=torch.bool)
        )
        for block in self.blocks:
            y = block.norm1(x)
            q, k, v = (split(t) for t in block.qkv(y).chunk(3, -1))
            scores = (q @ k.mT * (DIM // HEADS) ** -0.5).masked_fill(hidden, -1e9)
            x = x + block.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + block.ff(block.norm2(x))
        return self.head(self.norm(x))


def padded(*counts):
    tokens = torch.randint(1, 40, (len(counts), 10))
    for row, count in zip(tokens, counts, strict=True):
        row[10 - count :] = 0
    return tokens


def test_padding_index_without_mask():
    assert rules(Padded(False), padded(0, 3, 4)) == {"padding_leak": "error"}
    assert rules(Padded(True), padded(0, 3, 4)) == {}
    assert rules(Padded(False), padded(0, 0, 0)) == {}  # nothing is padded
    assert rules(Padded(False), padded(3, 3, 3)) == {}  # perhaps a prompt to complete


def test_option_that_counts_one_layer_too_few():
    def build(depth, first):
        return Model(*[Block() for _ in range(max(depth - (depth >= first), 1))])

    def find(first):
        config = {"depth": 3, "first": first}
        report = addnorm.doctor(
            build(**config), torch.randint(1, 40, (3, 10)), config=config, build=build
        )
        return [f.path for f in report.findings if f.severity != "info"]

    assert find(3) == ["depth"]
    assert find(9) == []
