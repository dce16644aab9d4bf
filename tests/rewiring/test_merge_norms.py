"""Merging of norms: in a row, and of the same input."""

import copy

import pytest
import torch
from torch import nn

import addnorm
from addnorm.rewiring.changes.merge_norms import merge_laws
from addnorm.rewiring.norm_laws import read_law
from tests.rewiring.models import DIM, Block, Model, build, far_from_neutral, fingerprint, ids


def difference(original, result, *inputs):
    one, other = (copy.deepcopy(each).double().eval() for each in (original, result))
    with torch.no_grad():
        return float((one(*inputs) - other(*inputs)).abs().max())


def in_a_row(first):
    """A model with two norms before the first block."""
    norms = nn.Sequential(nn.Identity(), nn.LayerNorm(DIM))
    model = far_from_neutral(Model([Block(norms), Block()]))
    norms[0] = first
    return model


def constant_norm(gain=0.3, bias=0.2, eps=1e-2):
    norm = nn.LayerNorm(DIM, eps=eps)
    nn.init.constant_(norm.weight, gain)
    nn.init.constant_(norm.bias, bias)
    return norm


@pytest.mark.parametrize("gain", [0.3, -2.0])
def test_two_in_a_row_are_one(gain):
    """With an eps that counts, so that the law of the merged eps is tested, too."""
    model = in_a_row(constant_norm(gain))
    before = fingerprint(model)
    result, report = addnorm.rewire(model, merge_norms=True, example_inputs=ids())
    assert fingerprint(model) == before
    assert report.grade == "exact"
    assert isinstance(result.blocks[0].norm[0], nn.Identity)
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-5  # float32 weights of the result
    double, report = addnorm.rewire(model.double(), merge_norms=True, example_inputs=ids())
    assert difference(model, double, ids(3, 9, seed=4)) < 1e-12
    assert report.tensors.removed == ("blocks.0.norm.0.bias", "blocks.0.norm.0.weight")


def test_gains_that_differ_do_not_merge():
    first = constant_norm()
    first.weight.data[3] = 1.0
    with pytest.raises(addnorm.UserError, match="its gains differ between features"):
        addnorm.rewire(in_a_row(first), merge_norms=True, example_inputs=ids())


def test_an_output_that_others_read_stays():
    class Reading(Model):
        def forward(self, tokens):
            h = self.before(self.stream(tokens))
            return self.head(self.last(h)) + h.sum(-1, keepdim=True)

    model = far_from_neutral(Reading())
    model.before = constant_norm()
    with pytest.raises(addnorm.UserError, match="the output of before is used elsewhere"):
        addnorm.rewire(model, merge_norms=True, example_inputs=ids())


@pytest.mark.parametrize(
    ("first", "second", "merges"),
    [
        (nn.RMSNorm(DIM, eps=1e-2), nn.RMSNorm(DIM, eps=1e-3), True),
        (nn.LayerNorm(DIM, eps=1e-2), nn.RMSNorm(DIM, eps=1e-3), True),
        (nn.RMSNorm(DIM, eps=1e-2), nn.LayerNorm(DIM, eps=1e-3), False),
    ],
    ids=["rms rms", "layer rms", "rms layer"],
)
def test_laws(first, second, merges):
    far_from_neutral(second)
    law = merge_laws(read_law(first, DIM), read_law(second, DIM))
    assert isinstance(law, str) != merges
    if merges:
        x = torch.randn(5, DIM, dtype=torch.float64) + 0.4
        expected = second.double()(first.double()(x))
        assert torch.allclose(law(x), expected, atol=1e-9)


@pytest.mark.parametrize("changes", [{"merge_norms": True}, {"wiring": "parallel"}])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_of_one_input_are_shared(changes, norm):
    model = build(wiring="parallel(norms=own)", norm=norm).double()
    result, report = addnorm.rewire(model, calibrate=ids(), **changes)
    assert report.grade == "exact"
    assert str(result.config.wiring) == "parallel"
    assert len(result.decoder.wiring.norms) == 2
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-11
    back, report = addnorm.rewire(result, wiring="parallel(norms=own)", calibrate=ids())
    assert report.grade == "exact"  # unfolding
    assert difference(model, back, ids(3, 9, seed=4)) < 1e-11


def test_shared_norms_of_a_translation_model():
    model = build(kind="seq2seq", wiring="parallel(norms=own)", encoder_wiring="pre_ln").double()
    inputs = (ids(), ids(2, 5, seed=1))
    result, report = addnorm.rewire(model, merge_norms=True, calibrate=inputs)
    assert report.grade == "exact"
    assert (result.config.wiring, result.config.encoder_wiring) == ("parallel", "pre_ln")
    assert difference(model, result, ids(3, 9, seed=4), ids(3, 4, seed=5)) < 1e-11


def test_biases_without_a_reader_are_not_exact():
    model = build(wiring="parallel(norms=own)", bias=False)
    with pytest.raises(addnorm.UserError, match="without a bias that could take up"):
        addnorm.rewire(model, merge_norms=True, calibrate=ids())
    _, report = addnorm.rewire(model, wiring="parallel", calibrate=ids())
    assert report.grade == "fitted"


def test_models_without_such_norms():
    with pytest.raises(addnorm.UserError, match="got pre_ln, which has no norms of the same input"):
        addnorm.rewire(build(wiring="pre_ln"), merge_norms=True, calibrate=ids())
    with pytest.raises(addnorm.UserError, match="merge_norms: expected two norms in a row"):
        addnorm.rewire(Model(), merge_norms=True, example_inputs=ids())
