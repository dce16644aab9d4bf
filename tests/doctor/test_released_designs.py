"""Designs of released models that resemble a mistake, each with the mistake as a control."""

import pytest
import torch
from torch import nn

from tests.doctor.models.tiny import DIM, VOCAB, FeedForward, Model, PreBlock, findings, stack


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def severities(model, rule):
    return {f.severity for f in findings(model) if f.rule == rule}


def alarms(model):
    return {f.rule for f in findings(model) if f.severity != "info"}


# missing_final_norm: Mimi and BEiT have LayerScale


class Scaled(PreBlock):
    """x = x + gain * f(norm(x)), with a learned gain per feature."""

    def __init__(self, start):
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.full((DIM,), start)) for _ in range(2))

    def forward(self, x, mask=None):
        x = x + self.gains[0] * self.attention(self.one(x))
        return x + self.gains[1] * self.ffn(self.two(x))


def test_returned_stream_without_final_norm_says_that_the_reader_may_have_one():
    (found,) = findings(Model(stack(PreBlock), head=False))
    assert (found.rule, found.severity) == ("missing_final_norm", "warning")
    assert "unless the reader normalizes it" in found.message
    (found,) = findings(Model(stack(PreBlock)))
    assert found.severity == "warning" and "unless" not in found.message


def test_stream_that_is_returned_and_read_without_norm_is_found():
    class Both(Model):
        def forward(self, tokens):
            x = self.table(tokens)
            for block in self.blocks:
                x = block(x)
            return x, self.head(x)

    assert severities(Both(stack(PreBlock)), "missing_final_norm") == {"warning"}


@pytest.mark.parametrize(("start", "severity"), [(0.01, "info"), (1.0, "warning")])
def test_stream_of_small_branches_without_final_norm(start, severity):
    model = Model(stack(Scaled, start=start))
    assert severities(model, "missing_final_norm") == {severity}


def test_one_unscaled_layer_makes_the_stream_grow():
    blocks = [*stack(Scaled, start=0.01), PreBlock()]
    assert severities(Model(blocks), "missing_final_norm") == {"warning"}


# skip_after_norm: MiniMax writes each norm of Post-LN before the sub-layer


class Weighted(PreBlock):
    """x = a * norm(x) + b * f(norm(x)), with factors from the config."""

    def __init__(self, a=1.0, b=1.0):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x, mask=None):
        x = self.one(x)
        x = self.a * x + self.b * self.attention(x)
        x = self.two(x)
        return self.a * x + self.b * self.ffn(x)


@pytest.mark.parametrize("a", [1.0, 3.5])
def test_weighted_post_norm_written_before_the_sublayer_is_a_remark(a):
    model = Model(stack(Weighted, a=a), nn.LayerNorm(DIM))
    assert severities(model, "skip_after_norm") == {"info"}


def test_weighted_post_norm_without_final_norm_is_found():
    assert severities(Model(stack(Weighted)), "skip_after_norm") == {"error"}


def test_plain_sum_among_weighted_ones_is_found():
    blocks = [*stack(Weighted), PreBlock(fault="skip")]
    model = Model(blocks, nn.LayerNorm(DIM))
    assert severities(model, "skip_after_norm") == {"error"}


# skip_after_norm: GroupViT's groups attend to the image after a module that ends with a norm


class Refine(nn.Module):
    """Cross-attention and feed-forward; a module may end with a norm."""

    def __init__(self, end):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 3, batch_first=True)
        self.ffn, self.norm, self.end = FeedForward(), nn.LayerNorm(DIM), end

    def forward(self, x, memory):
        x = x + self.attention(x, memory, memory)[0]
        return self.end(x + self.ffn(self.norm(x)))


class Grouping(nn.Module):
    """Group tokens that attend twice; the norm between is the end of the first module or not."""

    def __init__(self, closed):
        super().__init__()
        self.table, self.groups = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.randn(1, 3, DIM))
        self.blocks = nn.ModuleList(stack(PreBlock))
        self.final, self.last = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.start = nn.Sequential(FeedForward(), nn.LayerNorm(DIM))
        self.between = nn.Identity() if closed else nn.LayerNorm(DIM)
        self.first = Refine(nn.LayerNorm(DIM) if closed else nn.Identity())
        self.second = Refine(nn.Identity())
        self.head = nn.Linear(DIM, 5)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.final(x)
        g = self.first(self.start(self.groups).expand(len(x), -1, -1), x)
        g = self.second(self.between(g), x)
        return self.head(self.last(g).mean(1))


@pytest.mark.parametrize(("closed", "severity"), [(True, "info"), (False, "error")])
def test_cross_attention_after_a_module_that_ends_with_a_norm(closed, severity):
    assert severities(Grouping(closed), "skip_after_norm") == {severity}


# unused_in_layer: PP-LCNet builds an affine activation that layers with a stride do not use


class Downsampling(nn.Module):
    """A convolution whose learned scale applies only without a stride."""

    def __init__(self, channels, out_channels, stride, fault=False):
        super().__init__()
        self.stride, self.fault = stride, fault
        self.convolution = nn.Conv1d(channels, out_channels, 3, stride, padding=1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.convolution(x)
        return x if self.stride == 2 or self.fault else torch.relu(x) * self.scale


class Pyramid(nn.Module):
    """A stage whose first layer halves the length and doubles the channels."""

    def __init__(self, faulty=None):
        super().__init__()
        sizes = [(DIM, 2 * DIM, 2), *[(2 * DIM, 2 * DIM, 1)] * 3]
        self.layers = nn.ModuleList(Downsampling(*s, i == faulty) for i, s in enumerate(sizes))
        self.table, self.head = nn.Embedding(50, DIM), nn.Linear(2 * DIM, 5)

    def forward(self, tokens):
        x = self.table(tokens).mT
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mT)


def test_part_that_a_layer_of_other_sizes_does_not_use_is_a_remark():
    assert severities(Pyramid(), "unused_in_layer") == {"info"}
    assert severities(Pyramid(faulty=2), "unused_in_layer") == {"info", "warning"}
