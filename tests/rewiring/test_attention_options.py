"""Gates of heads and value residuals that start without an effect."""

import copy

import pytest
import torch

import addnorm
from tests.rewiring.models import build, fingerprint, ids


def run(model, *inputs):
    with torch.no_grad():
        return copy.deepcopy(model).double().eval()(*inputs)


@pytest.mark.parametrize("options", [{"kind": "lm"}, {"kind": "seq2seq"}, {"kind": "masked_lm"}])
@pytest.mark.parametrize(
    "changes",
    [{"gate": "head"}, {"gate": "element"}, {"value_residual": "scalar"}],
    ids=["head", "element", "scalar"],
)
def test_start_equal_and_learn(options, changes):
    model = build(depth=3, **options)
    inputs = (ids(), ids(2, 5, seed=1)) if options["kind"] == "seq2seq" else (ids(),)
    other = (ids(3, 9, seed=4), *((ids(3, 4, seed=5),) if len(inputs) > 1 else ()))
    before = fingerprint(model)
    result, report = addnorm.rewire(model, calibrate=inputs, **changes)
    assert fingerprint(model) == before
    assert report.grade == "equal_at_start"
    assert report.max_error < 1e-12
    assert torch.allclose(run(model, *other), run(result, *other), atol=1e-5)
    name, value = next(iter(changes.items()))
    assert getattr(result.config, name) == value
    result(*inputs).square().mean().backward()
    new = {n: p for n, p in result.named_parameters() if n in report.tensors.new}
    assert new
    for parameter in new.values():  # a gate that cannot open would be of no use
        assert float(parameter.grad.abs().max()) > 0


def test_gates_of_a_trained_gate_are_kept():
    model = build(gate="head")
    _, report = addnorm.rewire(model, gate="head", calibrate=ids())
    assert report.changes == ()
    with pytest.raises(addnorm.UserError, match="gate: expected a model without one, got 'head'"):
        addnorm.rewire(model, gate="element", calibrate=ids())


@pytest.mark.parametrize("kind", ["token", "half"])
def test_other_value_residuals_are_another_function(kind):
    _, report = addnorm.rewire(build(depth=3), value_residual=kind, calibrate=ids())
    assert report.grade == "fitted"
    assert report.max_error > 1e-4
    assert report.loss_naive is not None


@pytest.mark.parametrize("changes", [{"gate": "heads"}, {"value_residual": "scalr"}])
def test_unknown_kinds(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(addnorm.UserError, match=f"{name}.*{value}") as caught:
        addnorm.rewire(build(), calibrate=ids(), **changes)
    assert "\n" not in str(caught.value)


def test_all_changes_together():
    model = build(depth=2).double()
    result, report = addnorm.rewire(
        model,
        gate="head",
        value_residual="scalar",
        wiring="layer_scale",
        norm="rms",
        calibrate=ids(4, 12),
    )
    assert report.grade == "equal_at_start"
    assert torch.allclose(run(model, ids(3, 9)), run(result, ids(3, 9)), atol=1e-10)
