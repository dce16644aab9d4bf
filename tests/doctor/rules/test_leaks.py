"""Leaks in unusual layouts and tasks."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import DIM, HandNorm, Model, PreBlock, ids, stack, vectors

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def rules(model, example):
    torch.manual_seed(0)
    return {finding.rule for finding in addnorm.doctor(model, example).findings}


def sequence_first(fault=False, causal=False):
    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            norm = (lambda d: HandNorm(d, axis=1)) if fault else nn.LayerNorm
            self.body = nn.Sequential(*stack(PreBlock, causal=causal, norm=norm), nn.LayerNorm(DIM))

        def forward(self, x):  # (tokens, batch, features)
            return self.body(x.transpose(0, 1)).transpose(0, 1)

    return SequenceFirst()


def test_sequence_first_inputs():
    x = torch.randn(7, 3, DIM)
    assert rules(sequence_first(), x) == set()
    assert rules(sequence_first(causal=True), x) == set()
    assert "future_leak" in rules(sequence_first(causal=True, fault=True), x)


def test_sequence_first_torch_transformer_does_not_leak():
    torch.manual_seed(0)
    model = nn.Transformer(DIM, 3, 1, 1, 32, norm_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    example = {"src": torch.randn(4, 2, DIM), "tgt": torch.randn(5, 2, DIM), "tgt_mask": mask}
    assert rules(model, example) == set()


@pytest.mark.parametrize("masked", [True, False])
def test_only_decoder_self_attention_must_be_causal(masked):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = nn.Transformer(DIM, 3, 1, 2, 32, norm_first=True, batch_first=True)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            memory = self.pair.encoder(source)
            y = self.pair.decoder.layers[0](target, memory, tgt_mask=mask)
            y = self.pair.decoder.layers[1](y, memory, tgt_mask=mask if masked else None)
            return self.pair.decoder.norm(y)

    example = (torch.randn(2, 6, DIM), torch.randn(2, 5, DIM))
    torch.manual_seed(0)
    assert ("future_leak" in rules(Pair(), example)) is not masked


def test_attention_between_table_rows_is_found():
    class Rows(nn.Module):
        def __init__(self, axis):
            super().__init__()
            self.norm, self.axis = HandNorm(DIM), axis
            self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

        def forward(self, x):
            centered = x - x.mean(self.axis, keepdim=True)
            h = centered / (centered.pow(2).mean(self.axis, keepdim=True) + 1e-5).sqrt()
            return self.norm(x + self.down(torch.relu(self.up(h))))

    x = torch.randn(6, DIM)
    assert {"batch_leak", "wrong_axis"} <= rules(Rows(0), x)
    assert "batch_leak" not in rules(Rows(-1), x)


def test_batch_norm_in_eval_mode_does_not_leak():
    convolution = nn.Sequential(
        nn.Conv1d(DIM, DIM, 3, padding=1), nn.BatchNorm1d(DIM), nn.ReLU(),
        nn.Conv1d(DIM, DIM, 3, padding=1), nn.BatchNorm1d(DIM),
    )  # fmt: skip

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = convolution

        def forward(self, x):
            return (x.mT + self.body(x.mT)).mT

    assert "batch_leak" not in rules(Net(), vectors())


def test_single_example_does_not_fail():
    assert rules(Model(stack(PreBlock), nn.LayerNorm(DIM)), ids()[:1]) == set()


class Long(nn.Module):
    """Accepts any number of tokens or a fixed one, and records the lengths of its calls."""

    def __init__(self, ignores_mask, only=None):
        super().__init__()
        self.blocks, self.last = nn.ModuleList(stack(PreBlock, 1)), nn.LayerNorm(DIM)
        self.ignores_mask, self.only, self.lengths = ignores_mask, only, []

    def forward(self, x, mask):
        self.lengths.append(x.shape[1])
        assert self.only in (None, x.shape[1])
        for block in self.blocks:
            x = block(x) if self.ignores_mask else block(x, mask)
        return self.last(x)


@pytest.mark.parametrize("ignores_mask", [False, True])
@pytest.mark.parametrize("only", [None, 80])
def test_long_padding_is_probed_with_fewer_tokens_if_possible(ignores_mask, only):
    mask = torch.ones(2, 80)
    mask[0, 60:] = 0  # beyond the shortened input
    model = Long(ignores_mask, only)
    found = rules(model, {"x": torch.randn(2, 80, DIM), "mask": mask})
    assert found == ({"padding_leak"} if ignores_mask else set())
    # The trace, and the probe of `scrambled_heads`, which runs on the given inputs once.
    assert (model.lengths.count(80) == 2) is (only is None)


class Classed(nn.Module):
    """Prepends learned tokens, so that the output is longer than the input."""

    def __init__(self, ignores_mask, more):
        super().__init__()
        torch.manual_seed(0)
        self.own, self.more, self.ignores_mask = (
            nn.Parameter(torch.randn(1, more, DIM)),
            more,
            ignores_mask,
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x, mask):
        x = torch.cat((self.own.expand(len(x), -1, -1), x), 1)
        keep = nn.functional.pad(mask, (self.more, 0), value=True)[:, None]
        for layer in range(2):
            h = self.norms[layer](x)
            scores = self.maps[2 * layer](h) @ self.maps[2 * layer + 1](h).mT / DIM**0.5
            if not (self.ignores_mask and layer):
                scores = scores.masked_fill(~keep, -torch.inf)
            x = x + scores.softmax(-1) @ h
        return self.norms[2](x)


@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("ignores_mask", [False, True])
def test_tokens_added_by_the_model_are_not_padding(ignores_mask, more):
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 6:] = mask[2, 4:] = False
    found = rules(Classed(ignores_mask, more), (torch.randn(3, 9, DIM), mask))
    assert found == ({"padding_leak"} if ignores_mask else set())


class EncoderDecoder(nn.Module):
    """Encoder and causal decoder, of the same tokens or of others."""

    def __init__(self, leaks=False):
        super().__init__()
        self.body, self.leaks = nn.Transformer(DIM, 3, 2, 2, 48, batch_first=True), leaks

    def forward(self, source, target=None):
        target = source if target is None else target
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = self.body(source, target, tgt_mask=mask)
        return y - y.mean(1, keepdim=True) if self.leaks else y


def test_encoder_of_the_same_tokens_is_not_a_leak():
    report = addnorm.doctor(EncoderDecoder(), vectors(), rules=["future_leak"])
    assert report.findings == ()
    assert any("an encoder of the same input sees all tokens" in note for note in report.notes)


@pytest.mark.parametrize("leaks", [False, True])
def test_decoder_is_checked_beside_an_encoder_of_other_tokens(leaks):
    example = (vectors(), vectors().flip(1))
    report = addnorm.doctor(EncoderDecoder(leaks), example, rules=["future_leak"])
    assert bool(report.findings) is leaks
