"""Norms after each sum, for the same arithmetic in different modules."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import (
    DEPTH,
    DIM,
    FeedForward,
    Model,
    PostBlock,
    PreBlock,
    ids,
    stack,
    vectors,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class OneSkip(PreBlock):
    """Only the skip of the attention carries the normalized stream."""

    def forward(self, x, mask=None):
        h = self.one(x)
        x = h + self.attention(h)
        return x + self.ffn(self.two(x))


@pytest.mark.parametrize("final", [True, False])
def test_one_false_pre_norm_keeps_final_norm(final):
    report = addnorm.doctor(Model(stack(OneSkip), nn.LayerNorm(DIM) if final else None), ids())
    assert [b.wiring for b in report.blocks] == ["false_pre_ln", "pre_ln"] * DEPTH
    (line,) = report.stacks
    assert ("no final norm" not in line) is final
    assert line.startswith("3 x [self-attention, feed-forward], false Pre-LN and Pre-LN with Layer")
    expected = {("skip_after_norm", f"blocks.{i}") for i in range(DEPTH)}
    expected |= set() if final else {("missing_final_norm", "blocks.2")}
    assert {(f.rule, f.path) for f in report.findings} == expected


@pytest.mark.parametrize(("block", "wiring"), [(PreBlock, "pre_ln"), (PostBlock, "post_ln")])
def test_branch_fed_by_another_is_not_parallel(block, wiring):
    final = nn.LayerNorm(DIM) if block is PreBlock else None
    report = addnorm.doctor(Model(stack(block, fault="unadded"), final), ids())
    assert [b.kind for b in report.blocks] == ["self-attention", "feed-forward"] * DEPTH
    assert {(b.wiring, b.tags) for b in report.blocks} == {(wiring, ())}


# the same arithmetic, flat and nested


class Wrapper(nn.Module):
    """A module inside another one."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x)


class Flat(nn.Module):
    """All layers in one forward, with or without nested modules."""

    def __init__(self, way, nested, depth=3):
        super().__init__()
        wrap = Wrapper if nested else lambda part: part
        self.way, self.first, self.last = way, nn.Linear(DIM, DIM), wrap(nn.LayerNorm(DIM))
        self.norms = nn.ModuleList(wrap(nn.LayerNorm(DIM)) for _ in range(2 * depth))
        self.subs = nn.ModuleList(wrap(wrap(FeedForward())) for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for i, f in enumerate(self.subs):
            x = step(self.way, x, f, self.norms[2 * i], self.norms[2 * i + 1])
        return self.last(x) if self.way in ENDS else x


def step(way, x, f, one, two):
    if way == "pre_ln":
        return x + f(one(x))
    if way == "post_ln":
        return one(x + f(x))
    if way == "res_post":
        return x + one(f(x))
    if way == "sandwich":
        return x + two(f(one(x)))
    if way == "pre_post":
        return two(x + f(one(x)))
    h = one(x)
    return h + f(h)


class Layer(nn.Module):
    """The same step as a module; its norm belongs to it or to the one before."""

    def __init__(self, way):
        super().__init__()
        self.way, self.f, self.one = way, FeedForward(), nn.LayerNorm(DIM)
        self.two = nn.LayerNorm(DIM) if way in ("sandwich", "pre_post") else None

    def forward(self, x):
        return step(self.way, x, self.f, self.one, self.two)


ENDS = ("pre_ln", "res_post", "sandwich")
WAYS = ("pre_ln", "post_ln", "res_post", "sandwich", "pre_post", "false_pre_ln")


@pytest.mark.parametrize("way", WAYS)
def test_wiring_does_not_depend_on_module_nesting(way):
    last = [nn.LayerNorm(DIM)] if way in ENDS else []
    layers = nn.Sequential(nn.Linear(DIM, DIM), *[Layer(way) for _ in range(3)], *last)
    for model in (Flat(way, False), Flat(way, True), layers, Wrapper(Wrapper(layers))):
        report = addnorm.doctor(model, vectors())
        assert [b.wiring for b in report.blocks] == [way] * 3
        assert ("no final norm" in report.stacks[0]) is (way not in ENDS)


class Activated(nn.Module):
    """A pre-activation block, whose projection reads what the branch reads; or one whose branch
    ends with its norm."""

    def __init__(self, way, wide):
        super().__init__()
        self.way = way
        self.norm, self.shape = nn.BatchNorm2d(8), nn.Conv2d(8, wide, 1)
        self.body = nn.Sequential(
            nn.Conv2d(8, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1)
        )
        self.end = nn.BatchNorm2d(wide)

    def forward(self, x):
        if self.way == "pre_ln":
            h = torch.relu(self.norm(x))
            return self.shape(h) + self.body(h)
        return torch.relu(self.shape(x) + self.end(self.body(x)))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("way", ["pre_ln", "res_post"])
def test_norm_before_branch_and_projection_is_entry_norm(way, nested):
    block = Activated(way, 16)
    if nested:
        block.norm, block.end = Wrapper(Wrapper(block.norm)), Wrapper(block.end)
    stem = [nn.Conv2d(3, 8, 3, padding=1)]
    stem += [nn.BatchNorm2d(8), nn.ReLU()] if way == "res_post" else []
    report = addnorm.doctor(nn.Sequential(*stem, block), torch.randn(2, 3, 8, 8), rules=())
    assert [(b.wiring, b.tags[0]) for b in report.blocks] == [(way, "projection-shortcut")]
