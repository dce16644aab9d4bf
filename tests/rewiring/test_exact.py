"""LayerNorm to RMSNorm: the same function, on other inputs and shapes, in float64."""

import copy

import pytest
import torch
from torch import nn

import addnorm
from addnorm.norms.rms import RMSNorm
from tests.rewiring.models import (
    DIM,
    AnnotatedNorm,
    Block,
    Model,
    build,
    far_from_neutral,
    fingerprint,
    ids,
)


def difference(original, result, *inputs, **options):
    """Return the largest difference in float64, computed without the package's own proof."""
    one, other = (copy.deepcopy(each).double().eval() for each in (original, result))
    with torch.no_grad():
        expected, got = one(*inputs, **options), other(*inputs, **options)
    expected, got = (getattr(each, "logits", each) for each in (expected, got))
    return float((expected - got).abs().max())


def rewire_exactly(model, batch=None, **options):
    batch = ids() if batch is None else batch
    before = fingerprint(model)
    double = copy.deepcopy(model).double()
    result, report = addnorm.rewire(double, norm="rms", example_inputs=batch, **options)
    assert fingerprint(model) == before
    assert report.grade == "exact"
    assert report.max_error < 1e-10
    assert report.loss_after == pytest.approx(report.loss_before, abs=1e-6)
    return result, report


@pytest.mark.parametrize("tied", [False, True])
def test_model_written_by_hand(tied):
    model = far_from_neutral(Model(tied=tied))
    result, report = rewire_exactly(model)
    for seed, shape in ((5, (3, 11)), (6, (1, 2)), (7, (4, 32))):
        assert difference(model, result, ids(*shape, seed=seed)) < 1e-10
    assert isinstance(result.last, RMSNorm)
    assert not any(isinstance(each, nn.LayerNorm) for each in result.modules())
    assert any("tied" in note for note in report.notes) == tied


def test_replacing_the_norms_alone_is_another_function():
    """The centering is what makes it exact; without it the test above must fail."""
    model = far_from_neutral(Model())
    result, _ = rewire_exactly(model)
    naive = copy.deepcopy(model).double()
    for path in ("blocks.0.norm", "blocks.1.norm", "last"):
        parent, _, name = path.rpartition(".")
        setattr(naive.get_submodule(parent), name, result.get_submodule(path))
    assert difference(model, naive, ids()) > 0.01


def test_norms_are_found_by_what_they_compute():
    model = far_from_neutral(Model([Block(AnnotatedNorm()), Block()]))
    result, _ = rewire_exactly(model)
    assert isinstance(result.blocks[0].norm, RMSNorm)
    assert result.blocks[0].norm.eps_mode == "outside"
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10


class Scaled(Block):
    """A block with LayerScale."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        return x + self.gamma * self.second(torch.tanh(self.first(self.norm(x))))


def test_gains_of_a_branch_go_into_its_matrix():
    model = far_from_neutral(Model([Scaled(), Scaled()]))
    result, _ = rewire_exactly(model)
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10
    assert torch.equal(result.blocks[0].gamma, torch.ones(DIM, dtype=torch.float64))


class Reader(Model):
    """Something besides the norms reads the raw stream."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, 1)

    def forward(self, tokens):
        x = self.stream(tokens)
        return self.head(self.last(x)) * self.gate(x)


class Gated(Block):
    """The branch is scaled feature by feature with activations."""

    def forward(self, x):
        h = self.norm(x)
        return x + self.second(torch.tanh(self.first(h))) * h


class Overwriting(Model):
    """A part of the stream is overwritten in place."""

    def stream(self, tokens):
        x = super().stream(tokens).clone()
        x[:, 0] = x[:, 0].exp()
        return x


@pytest.mark.parametrize(
    "make", [Reader, lambda: Model([Gated(), Block()]), Overwriting], ids=["read", "gated", "write"]
)
def test_nothing_is_called_exact_that_is_not(make):
    model = far_from_neutral(make())
    before = fingerprint(model)
    result, report = addnorm.rewire(model, norm="rms", example_inputs=ids())
    assert report.grade == "fitted"
    assert report.max_error > 1e-6
    assert difference(model, result, ids()) == pytest.approx(report.max_error, rel=1) or (
        report.max_error > difference(model, result, ids())
    )
    assert fingerprint(model) == before
    with pytest.raises(addnorm.UserError, match=r"^require: expected a change that is exact"):
        addnorm.rewire(model, norm="rms", example_inputs=ids(), require="exact")


WIRINGS = ("pre_ln", "parallel", "ln_scaling", "layer_scale", "denseformer", "hyper", "gpas")


@pytest.mark.parametrize("wiring", WIRINGS)
def test_own_models(wiring):
    call = "gpas(inner=pre_ln())" if wiring == "gpas" else wiring
    model = build(wiring=call)
    result, _ = rewire_exactly(model)
    assert result.config.norm.startswith("rms(eps=1e-05")
    assert difference(model, result, ids(3, 12, seed=2)) < 1e-10


@pytest.mark.parametrize("wiring", ["post_ln", "deepnorm", "sandwich"])
def test_wirings_with_a_mean_are_fitted(wiring):
    model = build(wiring=wiring)
    result, report = addnorm.rewire(model, norm="rms", calibrate=ids(4, 16))
    assert report.grade == "fitted"
    assert report.loss_naive is not None
    assert result.config.norm.startswith("rms")


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"kind": "seq2seq"}, (ids(), ids(2, 5))),
        ({"kind": "classifier", "classes": 3}, (ids(),)),
        ({"kind": "masked_lm", "types": 2}, (ids(),)),
        ({"kind": "prefix_lm"}, (ids(), 2)),
        ({"positions": "rotary", "kv_heads": 1}, (ids(),)),
        ({"kind": "classifier", "vocab": None, "image": 8, "patch": 4, "classes": 3}, None),
    ],
    ids=["seq2seq", "classifier", "masked", "prefix", "rotary", "image"],
)
def test_kinds_of_models(options, inputs, tmp_path):
    inputs = (torch.randn(2, 3, 8, 8),) if inputs is None else inputs
    if "image" in options:
        options = options | {"positions": "learned(length=8)"}
    model = build(**options)
    result, report = addnorm.rewire(model, norm="rms", example_inputs=inputs)
    assert report.grade == "exact"
    result.save(tmp_path)
    with torch.no_grad():
        assert torch.equal(addnorm.load(tmp_path).eval()(*inputs), result(*inputs))


def test_half_precision_is_rounded_once():
    model = build().bfloat16()
    result, report = addnorm.rewire(model, norm="rms", example_inputs=ids())
    assert report.grade == "exact"
    assert {each.dtype for each in result.parameters()} == {torch.bfloat16}
    assert report.rounding_error < 0.2 * report.output_scale


def test_mode_and_frozen_weights_are_kept():
    model = build().train()
    model.embed.table.requires_grad_(False)
    result, _ = model.rewire(norm="rms", example_inputs=ids())
    assert result.training
    assert not result.embed.table.requires_grad
    assert result.head.table.requires_grad


def test_encoder_layer_of_torch_has_no_fast_path():
    layer = nn.TransformerEncoderLayer(DIM, 2, 48, batch_first=True, norm_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(DIM), enable_nested_tensor=False)
    model = far_from_neutral(
        nn.Sequential(nn.Embedding(50, DIM), encoder, nn.Linear(DIM, 5)).eval()
    )
    result, _ = rewire_exactly(model)
    assert difference(model, result, ids(3, 9)) < 1e-10
    dyt, report = addnorm.rewire(model, norm="dyt", calibrate=ids(4, 16))
    assert report.grade == "fitted"
    with torch.no_grad():
        dyt.eval()(ids())  # reads no weights of a LayerNorm that is gone


@pytest.mark.parametrize("norm", ["layer(affine=False)", "rms(affine=False)"])
def test_gains_and_biases_go_into_readers(norm):
    model = far_from_neutral(Model())
    double = copy.deepcopy(model).double()
    result, report = addnorm.rewire(double, norm=norm, example_inputs=ids())
    assert report.grade == "exact"
    assert not list(result.last.parameters())
    assert result.head.bias is not None  # the head took up the bias of the last norm
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10
    back, report = addnorm.rewire(result, norm=norm.replace("False", "True"), example_inputs=ids())
    assert report.grade == "exact"  # unfolding
    assert float((back.last.weight - 1).detach().abs().max()) < 1e-9
    assert difference(model, back, ids(3, 9, seed=4)) < 1e-10


class HeadFirst(Model):
    """The head is registered before the table that it shares, so that the weight has its name."""

    def __init__(self):
        super().__init__(tied=True)
        table = self.table
        del self.table
        self.table = table


@pytest.mark.parametrize("norm", ["layer(affine=False)", "rms(affine=False)"])
@pytest.mark.parametrize("make", [lambda: Model(tied=True), HeadFirst], ids=["tied", "head first"])
def test_a_tied_head_takes_up_gains_in_a_copy(make, norm):
    model = far_from_neutral(make()).double()
    before = fingerprint(model)
    result, report = addnorm.rewire(model, norm=norm, example_inputs=ids())
    assert fingerprint(model) == before
    assert report.grade == "exact"
    assert result.head.weight is not result.table.weight
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10


@pytest.mark.parametrize("norm", ["layer(affine=False)", "rms(affine=False)"])
def test_attention_of_torch_takes_up_gains(norm):
    layer = nn.TransformerEncoderLayer(DIM, 2, 48, batch_first=True, norm_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(DIM), enable_nested_tensor=False)
    model = far_from_neutral(nn.Sequential(nn.Embedding(50, DIM), encoder, nn.Linear(DIM, 5)))
    result, report = addnorm.rewire(model.double(), norm=norm, example_inputs=ids())
    assert report.grade == "exact"
    assert not list(result[1].layers[0].norm1.parameters())
    assert difference(model, result, ids(3, 9, seed=4)) < 1e-10


def test_gains_stay_where_others_read_them():
    class Gate(Model):
        def forward(self, tokens):
            h = self.last(self.stream(tokens))
            return self.head(h) * torch.sigmoid(h.sum(-1, keepdim=True))

    _, report = addnorm.rewire(
        far_from_neutral(Gate()), norm="layer(affine=False)", example_inputs=ids()
    )
    assert report.grade == "fitted"
