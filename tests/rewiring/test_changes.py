"""Changes that start equal, and changes that are fitted."""

import copy

import pytest
import torch

import addnorm
from addnorm.core.errors import ArrangementMismatchError
from addnorm.rewiring import carry_optimizer_state
from addnorm.rewiring.changes.depth import spread_layers
from tests.rewiring.models import Model, build, far_from_neutral, fingerprint, ids


def run(model, *inputs):
    with torch.no_grad():
        return copy.deepcopy(model).double().eval()(*inputs)


def rewire_and_check(model, **changes):
    before = fingerprint(model)
    result, report = addnorm.rewire(model, calibrate=ids(4, 12), **changes)
    assert fingerprint(model) == before
    return result, report


@pytest.mark.parametrize("wiring", ["layer_scale", "denseformer", "gpas(inner=pre_ln())"])
def test_wirings_that_start_equal(wiring):
    model = build()
    result, report = rewire_and_check(model.double(), wiring=wiring)
    assert report.grade == "equal_at_start"
    assert report.max_error < 1e-12
    assert torch.allclose(run(model, ids(3, 9)), run(result, ids(3, 9)), atol=1e-12)
    assert report.tensors.new


def test_wiring_and_depth_together():
    model = build(wiring="pre_ln")
    result, report = rewire_and_check(model.double(), wiring="layer_scale", depth=5)
    assert report.grade == "equal_at_start"
    assert (result.config.depth, result.config.wiring) == (5, "layer_scale")
    assert torch.allclose(run(model, ids(3, 9)), run(result, ids(3, 9)), atol=1e-12)
    assert bool((result.decoder.wiring.gamma == 1).all())


@pytest.mark.parametrize(("wiring", "gate"), [("rezero", "alpha"), ("skip_init", "a")])
def test_new_layers_behind_gates(wiring, gate):
    """Either the gate is 0 or the matrix is; with both, no gradient ever arrives."""
    model = build(wiring=wiring)
    result, report = rewire_and_check(model, depth=3)
    assert report.grade == "equal_at_start"
    values = getattr(result.decoder.wiring, gate)
    assert int((values == 0).sum()) == values.numel() // 3
    assert float(result.decoder.sublayers[5].down_proj.weight.detach().abs().max()) > 0


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_new_layers_learn(kind):
    model = build(kind=kind)
    inputs = (ids(), ids()) if kind == "seq2seq" else (ids(),)
    result, report = addnorm.rewire(model, depth=4, example_inputs=inputs)
    assert report.grade == "equal_at_start"
    loss = result.train()(*inputs).square().mean()
    loss.backward()
    for stack in result.stacks:
        for sublayer in stack.sublayers:
            writer = getattr(sublayer, "out_proj", None) or sublayer.down_proj
            assert float(writer.weight.grad.abs().max()) > 0


def test_layers_are_spread():
    assert [layer for layer, _ in spread_layers(4, 6)] == [0, 1, 1, 2, 3, 3]
    assert sum(copy for _, copy in spread_layers(12, 24)) == 12


def test_gates_go_into_matrices_exactly():
    model = build(wiring="layer_scale")
    result, report = rewire_and_check(model.double(), wiring="pre_ln")
    assert report.grade == "exact"
    assert torch.allclose(run(model, ids(3, 9)), run(result, ids(3, 9)), atol=1e-10)


@pytest.mark.parametrize("norm", ["dyt", "derf", "rms(eps=0.1)", "scale"])
def test_fitted_norms_come_closer_than_naive_ones(norm):
    model = far_from_neutral(Model())
    _, report = rewire_and_check(model, norm=norm)
    assert report.grade == "fitted"
    assert report.loss_name == "relative difference of outputs"
    assert 0 < report.loss_after < report.loss_naive
    assert {change.grade for change in report.changes} == {"fitted"}


@pytest.mark.parametrize("qk_norm", ["rms", "rms_head", "l2", "cosine"])
def test_query_key_norms_keep_the_size_of_logits(qk_norm):
    model = build(kind="classifier", classes=3)
    result, report = rewire_and_check(model, qk_norm=qk_norm)
    assert report.grade == "fitted"
    assert report.loss_after < report.loss_naive
    assert str(result.config.qk_norm).startswith(qk_norm)


def test_fitted_wirings(tmp_path):
    model = build()
    result, report = rewire_and_check(model, wiring="sandwich")
    assert report.grade == "fitted"
    result.save(tmp_path)
    assert addnorm.load(tmp_path).config.wiring == "sandwich"


def test_forms_of_data():
    model = build()
    batch = ids()
    forms = [batch, (batch,), {"input_ids": batch, "labels": batch}, [batch, batch], iter([batch])]
    for form in forms:
        _, report = addnorm.rewire(model, norm="rms", calibrate=form)
        assert report.grade == "exact"
        assert report.loss_before == pytest.approx(report.loss_after, abs=1e-4)
    labels = {"input_ids": batch, "labels": batch}
    expected = float(model(**labels)["loss"].detach())
    _, report = addnorm.rewire(model, norm="rms", calibrate=labels)
    assert report.loss_before == pytest.approx(expected, rel=1e-5)


def test_loss_of_the_caller():
    model = far_from_neutral(Model())

    def loss(module, batch):
        return module(batch).square().mean()

    _, report = addnorm.rewire(model, norm="dyt", calibrate=ids(), loss=loss)
    assert report.loss_before == pytest.approx(
        float(model(ids()).detach().square().mean()), rel=1e-5
    )


def test_tensors_and_optimizer_state():
    model = build().train()
    optimizer = torch.optim.AdamW(model.parameters())
    model(ids()).square().mean().backward()
    optimizer.step()
    result, report = addnorm.rewire(model, depth=3, calibrate=ids())
    assert "decoder.sublayers.2.q_proj.weight" in report.tensors.kept
    total = {*report.tensors.kept, *report.tensors.transformed, *report.tensors.new}
    assert total == {n for n in result.state_dict() if not n.endswith("_extra_state")}
    new_optimizer = torch.optim.AdamW(result.parameters())
    carried = carry_optimizer_state(optimizer, model, new_optimizer, result, report)
    assert "embed.table" in carried
    ours, theirs = new_optimizer.state[result.embed.table], optimizer.state[model.embed.table]
    assert torch.equal(ours["exp_avg"], theirs["exp_avg"])
    assert not set(carried) & {*report.tensors.new, *report.tensors.transformed}
    step = new_optimizer.state[result.embed.table]["step"]
    assert float(step) == 1
    assert step is not optimizer.state[model.embed.table]["step"]
    new = dict(result.named_parameters())
    assert {new[name] for name in carried} == set(new_optimizer.state)
    with pytest.raises(addnorm.UserError, match="new_optimizer: expected AdamW"):
        other = torch.optim.SGD(result.parameters(), lr=0.1)
        carry_optimizer_state(optimizer, model, other, result, report)


def test_loading_weights_of_another_arrangement_names_rewire():
    with pytest.raises(ArrangementMismatchError, match=r"addnorm\.rewire"):
        build(norm="rms").load_state_dict(build().state_dict())
