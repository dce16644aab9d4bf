"""Repairs after the fifth batch: each with the model that shows it and healthy look-alikes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import addnorm
from tests.doctor.models.fifth_batch.parts import (
    DIM,
    Attention,
    Decoder,
    FeedForward,
    PostBlock,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    split_heads,
)


def find(model, inputs, rule):
    return [f for f in addnorm.doctor(model, inputs).findings if f.rule == rule]


def alarms(model, inputs):
    findings = addnorm.doctor(model, inputs).findings
    return [f.rule for f in findings if f.severity != "info"]


class Gated(nn.Module):
    """Attention whose result is reshaped by view_as and gated."""

    def __init__(self):
        super().__init__()
        self.qkv, self.gate, self.norm = (
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
            nn.LayerNorm(DIM),
        )

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (split_heads(p) for p in self.qkv(y).chunk(3, -1))
        z = merge_heads(F.scaled_dot_product_attention(q, k, v)).flatten(0, 1)
        return x + F.silu(self.gate(y)) * F.rms_norm(z, (DIM,)).view_as(x)


def test_view_as_holds_nothing_of_the_tensor_that_lends_its_shape():
    torch.manual_seed(0)
    model = nn.Sequential(Gated(), Gated(), nn.LayerNorm(DIM))
    assert find(model, features(3, 12, DIM), "scrambled_heads") == []


class Tokens(nn.Module):
    """Post-LN blocks on small embeddings; the positions are added or forgotten."""

    def __init__(self, add):
        super().__init__()
        self.add = add
        self.token, self.position = nn.Embedding(50, DIM), nn.Embedding(40, DIM)
        self.blocks = nn.Sequential(PostBlock(), PostBlock())
        initialize(self, 0.02)

    def forward(self, input_ids):
        x = self.token(input_ids)
        if self.add:
            x = x + self.position(torch.arange(input_ids.shape[1]))
        return self.blocks(x)


@pytest.mark.parametrize("add", [True, False])
def test_positions_in_the_stream_are_not_ignored(add):
    torch.manual_seed(0)
    assert bool(find(Tokens(add), ids(), "ignored_positions")) is not add


class Heads(nn.Module):
    """A residual head behind the final norm, with or without a plain head beside it."""

    def __init__(self, plain):
        super().__init__()
        self.trunk, self.norm = nn.Sequential(PreBlock(), PreBlock()), RMSNorm()
        self.plain = nn.Linear(DIM, 9) if plain else None
        self.deep, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, 9)

    def forward(self, x):
        x = self.norm(self.trunk(x))
        y = self.out(x + F.silu(self.deep(x)))
        return y if self.plain is None else (self.plain(x), y)


def test_a_residual_head_beside_another_head_is_no_normalized_skip():
    torch.manual_seed(0)
    findings = find(Heads(plain=True), features(2, 12, DIM), "skip_after_norm")
    assert [f.severity for f in findings if f.severity != "info"] == []


class Discarding(nn.Module):
    """Pre-LN block that computes an extra sub-layer and drops its result in some layers."""

    def __init__(self, use):
        super().__init__()
        self.use, self.norm, self.extra = use, nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
        self.block = PreBlock()

    def forward(self, x):
        y = F.relu(self.extra(self.norm(x)))
        return self.block(x + y if self.use else x)


def test_a_matrix_whose_result_every_layer_discards_is_reported():
    torch.manual_seed(0)
    model = nn.Sequential(Discarding(False), Discarding(False), nn.LayerNorm(DIM))
    (finding,) = find(model, features(2, 12, DIM), "unused_weights")
    assert finding.severity == "warning"
    assert "0.extra.weight" in finding.message


def test_a_result_that_only_the_last_layer_discards_is_not():
    torch.manual_seed(0)
    model = nn.Sequential(Discarding(True), Discarding(False), nn.LayerNorm(DIM))
    assert find(model, features(2, 12, DIM), "unused_weights") == []


def fill_gains(model, values):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.data = values.clone()
    return model


def test_gains_of_memory_that_was_never_filled_are_reported():
    torch.manual_seed(0)
    model = fill_gains(
        Decoder(PreBlock(causal=True), PreBlock(causal=True)), torch.logspace(-9, 9, DIM)
    )
    (finding,) = find(model, ids(), "random_gains")
    assert "never filled" in finding.message


@pytest.mark.parametrize("values", [torch.linspace(0.2, 3.0, DIM), torch.zeros(DIM)])
def test_trained_gains_with_an_outlier_and_zero_gains_are_not(values):
    torch.manual_seed(0)
    values = values.clone()
    values[0] = 40.0 * bool(values.any())  # outlier features of trained models
    model = fill_gains(Decoder(PreBlock(causal=True), PreBlock(causal=True)), values)
    assert find(model, ids(), "random_gains") == []


class Doubling(nn.Module):
    """Post-LN layer whose feed-forward is added to itself, to its input, or scaled by two."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.attention, self.ff = kind, Attention(), FeedForward()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        y = self.ff(x)
        if self.kind == "self":
            return self.norm2(y + y)
        return self.norm2(x + y if self.kind == "input" else x + 2 * y)


@pytest.mark.parametrize("kind", ["self", "input", "scaled"])
def test_an_output_that_is_added_to_itself_lacks_its_skip(kind):
    torch.manual_seed(0)
    model = nn.Sequential(Doubling(kind), Doubling(kind), nn.Linear(DIM, 3))
    found = [f for f in find(model, features(2, 12, DIM), "missing_residual")]
    assert any("y + y" in f.message for f in found) is (kind == "self")


class Spectrogram(nn.Module):
    """A convolution whose axes are exchanged around its batch norm."""

    def __init__(self, order):
        super().__init__()
        self.order, self.conv, self.norm = order, nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.project, self.block = nn.Linear(12 * 12, DIM), PostBlock()

    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x.permute(*self.order)).permute(*map(self.order.index, range(4)))
        return self.block(self.project(F.relu(x).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("order", [(0, 3, 2, 1), (0, 2, 1, 3), (0, 1, 3, 2)])
def test_a_batch_norm_must_find_the_channels_of_the_convolution(order):
    torch.manual_seed(0)
    found = find(Spectrogram(order), features(2, 2, 12, 12), "wrong_axis")
    assert bool(found) is (order[1] != 1)


class Routed(nn.Module):
    """Causal block with routed experts; the weights of the chosen ones are normalized."""

    def __init__(self, chosen, normalize):
        super().__init__()
        self.chosen, self.normalize = chosen, normalize
        self.norm1, self.norm2, self.attn = RMSNorm(), RMSNorm(), Attention(causal=True)
        self.router = nn.Linear(DIM, 4)
        self.experts = nn.ModuleList([FeedForward() for _ in range(4)])

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        weights, index = self.router(y).softmax(-1).topk(self.chosen, -1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
        gates = torch.zeros(*y.shape[:-1], 4).scatter(-1, index, weights)
        return x + sum(gates[..., i : i + 1] * expert(y) for i, expert in enumerate(self.experts))


@pytest.mark.parametrize(("chosen", "normalize"), [(1, True), (1, False), (2, True)])
def test_the_weight_of_a_single_expert_must_not_be_normalized(chosen, normalize):
    torch.manual_seed(0)
    model = Decoder(*(Routed(chosen, normalize) for _ in range(2)), final=RMSNorm())
    found = find(model, ids(), "wrong_softmax_axis")
    assert bool(found) is (chosen == 1 and normalize)


@pytest.mark.parametrize("scale", [6.0, 1.0])
def test_attention_that_starts_saturated_is_remarked(scale):
    torch.manual_seed(0)
    model = Decoder(PreBlock(causal=True), PreBlock(causal=True))
    for block in model.blocks:
        for linear in (block.attn.q, block.attn.k):
            nn.init.normal_(linear.weight, std=scale * DIM**-0.5)
    found = find(model, ids(), "large_initial_logits")
    assert [f.severity for f in found] == ["info"] * (scale > 1)


class FrameAttention(nn.Module):
    """Attention within each frame of a video (batch, channels, time, height, width)."""

    def __init__(self, permute):
        super().__init__()
        self.permute, self.norm = permute, nn.GroupNorm(2, 12)
        self.qkv, self.out = nn.Conv3d(12, 36, 1), nn.Conv3d(12, 12, 1)

    def forward(self, x):
        b, c, t, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, 1)
        if self.permute:
            q, k, v = (p.transpose(1, 2) for p in (q, k, v))
        q, k, v = (p.reshape(b * t, c, h * w).mT for p in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).mT
        y = y.reshape(b, t, c, h, w).transpose(1, 2) if self.permute else y.reshape(x.shape)
        return x + self.out(y)


@pytest.mark.parametrize("permute", [True, False])
def test_frames_behind_the_channels_are_not_merged_with_the_examples(permute):
    torch.manual_seed(0)
    model = nn.Sequential(FrameAttention(permute), FrameAttention(permute), nn.GroupNorm(2, 12))
    found = find(model, features(2, 12, 5, 3, 4), "scrambled_heads")
    assert bool(found) is not permute


class Windows(nn.Module):
    """Attention within windows; the number of windows is that of the rows of a window."""

    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), Attention(16, 2)

    def forward(self, x):
        b, h, w, c = x.shape
        y = self.norm(x).view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3)
        y = self.attn(y.reshape(-1, 16, c)).view(b, h // 4, w // 4, 4, 4, c)
        return x + y.transpose(2, 3).reshape(x.shape)


def test_windows_that_are_merged_with_the_examples_are_not_scrambled():
    torch.manual_seed(0)
    model = nn.Sequential(Windows(), Windows(), nn.LayerNorm(16))
    assert find(model, features(2, 16, 16, 16), "scrambled_heads") == []
