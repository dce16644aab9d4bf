"""Rules for what the review missed: planted mistakes, and healthy models that resemble them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm

DIM, HEADS, LENGTH, VOCAB = 32, 4, 10, 40


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rules(model, inputs=None):
    """Return the severity of each finding above a remark, by rule."""
    torch.manual_seed(0)
    example = torch.randint(1, VOCAB, (3, LENGTH)) if inputs is None else inputs
    report = addnorm.doctor(model, example)
    assert not [note for note in report.notes if "could not be applied" in note]
    return {f.rule: f.severity for f in report.findings if f.severity != "info"}


def split(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def plain(self, x):
    q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
    return merge((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v)


class Block(nn.Module):
    """Pre-LN block; `attend` computes the heads, `norm` and `feed_forward` can be exchanged."""

    def __init__(self, attend=plain, norm=nn.LayerNorm, feed_forward=None):
        super().__init__()
        self.attend, self.norm1, self.norm2 = attend, norm(DIM), norm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = feed_forward or nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x):
        x = x + self.out(self.attend(self, self.norm1(x)))
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self, *blocks, norm=nn.LayerNorm, position=None):
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCAB, DIM), nn.Embedding(64, DIM)
        self.blocks = nn.ModuleList(blocks or [Block() for _ in range(3)])
        self.norm, self.head, self.position = norm(DIM), nn.Linear(DIM, VOCAB), position

    def forward(self, tokens):
        index = torch.arange(tokens.shape[1])
        x = self.table(tokens)
        x = x + (self.positions(index) if self.position is None else self.position(self, tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def stack(**options):
    return Model(*[Block(**options) for _ in range(3)])


def test_model_without_mistake_is_silent():
    assert rules(Model()) == {}


# Attention


def scaled(factor):
    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        return merge((q @ k.mT * factor).softmax(-1) @ v)

    return attend


def scaled_queries(factor):
    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        return merge(((q * factor) @ k.mT).softmax(-1) @ v)

    return attend


@pytest.mark.parametrize("attend", [scaled, scaled_queries])
@pytest.mark.parametrize(
    ("factor", "found"), [(DIM**-0.5, True), ((DIM // HEADS) ** -0.5, False), (HEADS / DIM, False)]
)
def test_scale_of_all_heads(attend, factor, found):
    assert rules(stack(attend=attend(factor))) == (
        {"wrong_attention_scale": "warning"} if found else {}
    )


def test_each_single_head_is_checked():
    class Heads(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(DIM, 3 * DIM // HEADS) for _ in range(HEADS)])
            self.factor = factor

        def forward(self, x):
            out = []
            for part in self.parts:
                q, k, v = part(x).chunk(3, -1)
                out.append((q @ k.mT * self.factor).softmax(-1) @ v)
            return torch.cat(out, -1)

    def model(factor):
        made = Model()
        for block in made.blocks:
            block.qkv, block.attend = Heads(factor), lambda self, x: self.qkv(x)
        return made

    assert rules(model(1.0)) == {"unscaled_attention": "warning"}
    assert rules(model((DIM // HEADS) ** -0.5)) == {}


def merge_without_transpose(self, x):
    q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).reshape(x.shape)


def split_without_transpose(self, x):
    b, t, c = x.shape
    q, k, v = (y.reshape(b * HEADS, t, c // HEADS) for y in self.qkv(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).reshape(b, t, c)


def windows(self, x):
    b, t, c = x.shape
    y = x.view(b * 2, t // 2, c)  # two windows of half the tokens
    q, k, v = (split(part) for part in self.qkv(y).chunk(3, -1))
    return merge(F.scaled_dot_product_attention(q, k, v)).view(b, t, c)


def multi_query(self, x):
    b, t, c = x.shape
    d = c // HEADS
    q, k, v = self.qkv(x).split([c, d, 2 * c - d], -1)
    weights = (q.reshape(b, t * HEADS, d) @ k.mT / math.sqrt(d)).softmax(-1)
    return (weights @ v[..., :d]).reshape(b, t, c)


@pytest.mark.parametrize("length", [10, 12, 7])
@pytest.mark.parametrize("attend", [merge_without_transpose, split_without_transpose])
def test_scrambled_heads(attend, length):
    tokens = torch.randint(1, VOCAB, (3, length))
    assert rules(stack(attend=attend), tokens) == {"scrambled_heads": "error"}


@pytest.mark.parametrize("attend", [plain, windows, multi_query])
def test_other_reshapes_are_silent(attend):
    assert "scrambled_heads" not in rules(stack(attend=attend))


def softmax_over(axes):
    def attend(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bqhk", q * (DIM // HEADS) ** -0.5, k)
        weights = scores.flatten(axes).softmax(-1).view(scores.shape)
        return torch.einsum("bqhk,bkhd->bqhd", weights, v).flatten(2)

    return attend


def test_softmax_over_heads_and_keys():
    assert rules(stack(attend=softmax_over(2))) == {"wrong_softmax_axis": "error"}
    assert rules(stack(attend=softmax_over(3))) == {}


def masked(visible, hidden):
    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + torch.where(allowed, visible, hidden)
        return merge(scores.softmax(-1) @ v)

    return attend


def test_mask_that_swallows_scores():
    assert rules(stack(attend=masked(-1e9, -math.inf))) == {"swallowed_scores": "error"}
    assert rules(stack(attend=masked(0.0, -1e9))) == {}


def test_rows_of_padding_swallow_nothing_else():
    """The first queries are padding: some of their scores are the smallest number, some -inf."""

    def attend(self, x):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, -1))
        low = torch.finfo(x.dtype).min
        later = torch.full((x.shape[1], x.shape[1]), low).triu(1)
        padding = torch.zeros(x.shape[1]).masked_fill(torch.arange(x.shape[1]) < 2, low)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + (later + padding)
        return merge(scores.softmax(-1) @ v)

    assert "swallowed_scores" not in rules(stack(attend=attend))


# Positions


def same_row(self, tokens):
    return self.positions(torch.arange(len(tokens)))[:, None]


def fixed_row(self, tokens):
    return self.positions.weight[tokens.shape[1]]


def row_of_the_example(self, tokens):
    return self.positions(tokens[:, 0] % 64)[:, None]


@pytest.mark.parametrize("position", [same_row, fixed_row])
def test_one_row_of_positions_for_all_tokens(position):
    assert rules(Model(position=position)) == {"constant_positions": "warning"}


def test_row_chosen_by_an_input_is_silent():
    assert "constant_positions" not in rules(Model(position=row_of_the_example))


def test_constant_row_beside_positions_is_silent():
    class Language(Model):
        def __init__(self):
            super().__init__(position=lambda self, tokens: self.languages(torch.tensor([3])) + 0)
            self.languages, self.rows = (
                nn.Embedding(99, DIM),
                nn.Parameter(torch.randn(LENGTH, DIM)),
            )

        def forward(self, tokens):
            x = self.table(tokens) + self.rows
            return self.head(self.norm(self.blocks[0](x + self.languages(torch.tensor([3])))))

    assert "constant_positions" not in rules(Language())


def rotary(axis):
    def rotate(x):
        angles = torch.outer(torch.arange(x.shape[axis]), 10.0 ** -torch.arange(DIM // HEADS // 2))
        shape = [1, 1, 1, DIM // HEADS]
        shape[axis] = x.shape[axis]
        angles = torch.cat((angles, angles), -1).view(shape)
        one, two = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-two, one), -1) * angles.sin()

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(x).chunk(3, -1))
        parts = (t.transpose(1, 2) for t in (rotate(q), rotate(k), v))
        return merge(F.scaled_dot_product_attention(*parts))

    return attend


def test_rotary_over_heads():
    assert rules(stack(attend=rotary(2))) == {"rotary_over_heads": "error"}
    assert rules(stack(attend=rotary(1))) == {}
