"""Bad input: one clear line each, and the original is untouched."""

import copy

import pytest
import torch
from torch import nn

import addnorm
from tests.rewiring.models import (
    DIM,
    Block,
    FunctionalBlock,
    HandWrittenBlock,
    Model,
    build,
    far_from_neutral,
    fingerprint,
    ids,
)


def shared_module():
    norm = nn.LayerNorm(DIM)
    return Model([Block(norm), Block(norm)])


def shared_gain():
    model = Model()
    model.blocks[1].norm.weight = model.blocks[0].norm.weight
    return model


def quantized():
    return torch.ao.quantization.quantize_dynamic(Model(), {nn.Linear}, dtype=torch.qint8)


def compiled_in_place():
    model = Model()
    model.blocks[1].compile()
    return model


def with_integers():
    model = Model()
    weight = torch.zeros(DIM, DIM, dtype=torch.int8)
    model.extra = nn.Parameter(weight, requires_grad=False)
    return model


def not_finite():
    model = Model()
    model.head.weight.data[0, 0] = float("nan")
    return model


MODELS = {
    "shared norm": (shared_module, r"^blocks\.0\.norm: expected a norm of one site, got 2 calls"),
    "shared gain": (shared_gain, r"^blocks\.1\.norm: expected a norm of one site"),
    "quantized": (quantized, r"^model: expected floating-point weights, got .* quantized"),
    "integers": (with_integers, r"^model: expected floating-point weights, got extra quantized"),
    "compiled": (lambda: torch.compile(Model()), r"^model: expected a module that is not compiled"),
    "compiled in place": (compiled_in_place, r"not compiled, got blocks\.1 compiled"),
    "meta": (lambda: Model().to("meta"), r"^model: expected weights with values, got places"),
    "by hand": (
        lambda: Model([Block(), HandWrittenBlock()]),
        r"^blocks\.1: expected every layer norm as a module of its own, got one computed by hand",
    ),
    "functional": (lambda: Model([FunctionalBlock(), Block()]), r"^blocks\.0: expected every"),
    "not finite": (not_finite, r"^model: expected finite outputs on the batch, got NaN"),
    "two features": (
        lambda: nn.Sequential(nn.Embedding(50, 2), nn.LayerNorm(2), nn.Linear(2, 3)),
        r"^1: expected a norm over at least 3 features, got 2",
    ),
    "no norm": (
        lambda: nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 3)),
        r"^norm: expected a model with LayerNorm or RMSNorm, got Sequential without",
    ),
    "parallel": (lambda: nn.DataParallel(Model()), r"^model: expected the module itself"),
    "no module": (lambda: 3, r"^model: expected a torch.nn.Module, got int"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    make, message = MODELS[name]
    model = make()
    before = fingerprint(model) if isinstance(model, nn.Module) and name != "quantized" else None
    with pytest.raises(addnorm.UserError, match=message) as caught:
        addnorm.rewire(model, norm="rms", example_inputs=ids())
    assert "\n" not in str(caught.value)
    if before is not None:
        assert fingerprint(model) == before


ARGUMENTS = {
    "no change": ({}, r"^rewire: expected one of norm, qk_norm, wiring, depth"),
    "norm": ({"norm": "rmss"}, r"unknown norm 'rmss'; did you mean 'rms'"),
    "norm of a batch": ({"norm": "batch"}, r"^norm: expected one of single tokens"),
    "condition": ({"norm": "ada_ln"}, r"^norm: expected one without a condition"),
    "wiring": ({"wiring": "preln"}, r"unknown wiring 'preln'"),
    "qk_norm": ({"qk_norm": "rns"}, r"unknown query-key norm"),
    "fewer layers": ({"depth": 1}, r"^depth: expected a whole number from 2"),
    "no number": ({"depth": 2.5}, r"^depth: expected a whole number"),
    "loss": ({"norm": "rms", "loss": 3}, r"^loss: expected a function of model and batch, got 3"),
    "fit_steps": ({"norm": "dyt", "fit_steps": "a"}, r"^fit_steps: expected a whole number from 0"),
    "max_length": ({"norm": "rms", "max_length": 0}, r"^max_length: expected"),
    "merge_norms": ({"merge_norms": "yes"}, r"^merge_norms: expected"),
    "require": ({"norm": "rms", "require": "good"}, r"^require: expected one of exact"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name):
    options, message = ARGUMENTS[name]
    model = build()
    before = fingerprint(model)
    with pytest.raises(addnorm.UserError, match=message):
        addnorm.rewire(model, calibrate=ids(), **options)
    assert fingerprint(model) == before


DATA = {
    "NaN": (torch.full((2, 3, 8, 8), float("nan")), r"^calibrate: expected numbers, got 384 NaN"),
    "empty": (torch.zeros(0, 3, 8, 8), r"^calibrate: expected at least one token, got shape"),
    "meta": (torch.zeros(2, 3, 8, 8, device="meta"), r"^calibrate: expected values"),
    "number": (3, r"^calibrate: expected a tensor, a tuple of inputs, a dict"),
    "nothing": ([], r"^calibrate: expected at least one batch, got none"),
    "no tensor": ({"a": 1}, r"^calibrate: expected tensors"),
    "other shape": (torch.zeros(2, 5), r"."),
    "nested NaN": ({"pixels": torch.tensor([float("nan")])}, r"^calibrate\[pixels\]: expected num"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name):
    data, message = DATA[name]
    positions = "learned(length=8)"
    model = build(kind="classifier", vocab=None, image=8, patch=4, classes=3, positions=positions)
    before = fingerprint(model)
    with pytest.raises(addnorm.UserError, match=message):
        addnorm.rewire(model, norm="rms", calibrate=data)
    assert fingerprint(model) == before


@pytest.mark.parametrize("option", [{"qk_norm": "rms"}, {"wiring": "b2t"}, {"depth": 3}])
def test_any_module_has_norms_only(option):
    with pytest.raises(addnorm.UserError, match="expected a model whose sites are known"):
        addnorm.rewire(Model(), calibrate=ids(), **option)


def test_inputs_are_required():
    with pytest.raises(addnorm.UserError, match=r"^example_inputs: expected inputs"):
        addnorm.rewire(Model(), norm="rms")


def test_a_tied_table_that_one_module_holds_is_not_exact():
    class Tied(Model):
        def forward(self, tokens):
            return self.last(self.stream(tokens)) @ self.table.weight.T

    model = far_from_neutral(Tied())
    _, report = addnorm.rewire(model, norm="rms", example_inputs=ids())
    assert report.grade == "fitted"
    assert "tied weight table.weight" in report.changes[0].text


def test_an_iterable_without_end():
    def forever():
        while True:
            yield ids()

    _, report = addnorm.rewire(build(), norm="rms", calibrate=forever())
    assert report.grade == "exact"


def test_original_survives_an_error_in_the_middle(monkeypatch):
    model = build()
    before = fingerprint(copy.deepcopy(model))[0]

    def fail(*args, **kwargs):
        raise RuntimeError("in the middle")

    monkeypatch.setattr("addnorm.rewiring.rewire_model.prove", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        addnorm.rewire(model, norm="rms", calibrate=ids())
    assert fingerprint(model)[0] == before
