"""Ways to train."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from sklearn.exceptions import NotFittedError

from addnorm.core.errors import UserError
from addnorm.models.tabular import TableBatch, TableConfig, build_table_model
from addnorm.tabular.training.loop import TrainingConfig, WeightedBatch, train_epochs
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, mixed, regressor


@pytest.mark.parametrize("objective", ["masked", "replaced", "contrastive"])
@pytest.mark.parametrize("model", ["ft_transformer", "saint", "mlp", "tab_transformer"])
def test_pretraining_on_rows_without_a_target(model, objective):
    made = classifier(model=model).pretrain(FRAME, objective=objective, epochs=2)
    assert all(np.isfinite(row["train"]) for row in made.pretraining_)
    fresh = classifier(model=model, lr=1e-9).fit(FRAME.head(30), LABELS[:30])
    started = made.set_params(lr=1e-9).fit(FRAME.head(30), LABELS[:30])
    assert started.encoder_ is made.pretrained_.encoder
    assert not torch.equal(
        fresh.module_.state_dict()["tokens.table"][0], made.module_.state_dict()["tokens.table"][0]
    )
    assert b"_rebuild_tensor" not in pickle.dumps(made)


def test_pretraining_learns_what_hangs_together():
    x = np.random.default_rng(0).normal(size=200)
    X = np.stack([x, 2 * x, -x], 1)
    made = regressor(dim=16, lr=1e-2).pretrain(X, objective="masked", epochs=30)
    assert made.pretraining_[-1]["train"] < 0.6 * made.pretraining_[0]["train"]


def test_pretraining_and_fit_must_agree():
    made = regressor().pretrain(NUMBERS, epochs=1)
    with pytest.raises(UserError, match="the columns are not those of the pre-training"):
        made.fit(NUMBERS[:, :2], SUMS)
    with pytest.raises(UserError, match="was pre-trained with other settings"):
        made.set_params(dim=16).fit(NUMBERS, SUMS)
    with pytest.raises(UserError, match="unknown objective 'mask'; did you mean 'masked'"):
        regressor().pretrain(NUMBERS, objective="mask")
    with pytest.raises(UserError, match="tab_transformer reads no column"):
        regressor(model="tab_transformer").pretrain(NUMBERS)


def test_a_warm_start_goes_on():
    made = regressor(warm_start=True, lr=1e-2).fit(NUMBERS, SUMS)
    before = made.history_[0]["train"]
    made.fit(NUMBERS, SUMS)
    assert made.history_[0]["train"] < 0.9 * before
    with pytest.raises(UserError, match="warm_start goes on with the model of the last fit"):
        made.set_params(dim=16).fit(NUMBERS, SUMS)


@pytest.mark.parametrize("warm", [True, False])
def test_a_fit_that_is_interrupted_leaves_the_estimator_as_it_was(warm, monkeypatch):
    made = classifier(warm_start=warm).fit(FRAME, LABELS)
    said, history, state = made.predict_proba(FRAME), made.history_, dict(vars(made))

    def interrupt(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("addnorm.train.ema.EMA.update", interrupt)
    other = FRAME if warm else FRAME.iloc[:, :3]
    with pytest.raises(KeyboardInterrupt):
        made.fit(other, LABELS)
    assert vars(made) == state and made.history_ is history
    np.testing.assert_array_equal(made.predict_proba(FRAME), said)


def test_answers_are_those_of_a_model_that_drops_nothing():
    made = classifier(dropout=0.5).fit(FRAME, LABELS)
    said = made.predict_proba(FRAME)
    made.module_.train()
    np.testing.assert_array_equal(made.predict_proba(FRAME), said)
    assert made.module_.training


@pytest.mark.parametrize("wiring", ["layer_drop", "drop_path"])
def test_wirings_that_toss_coins_in_training(wiring):
    assert classifier(wiring=wiring).fit(FRAME, LABELS).score(FRAME, LABELS) > 0


def test_a_time_budget_ends_the_training_in_time():
    made = regressor(max_epochs=10_000, max_seconds=0.5).fit(NUMBERS, SUMS)
    assert len(made.history_) < 10_000
    assert made.history_[-1]["lr"] < 1e-4


def test_early_stopping_holds_out_and_calibrates():
    X, y = mixed(700)
    made = classifier(max_epochs=6, patience=1, lr=1e-2, validation_fraction=0.2).fit(X, y)
    assert all("valid" in row for row in made.history_)
    assert made.temperature_ != 1
    assert "valid" not in classifier(max_epochs=1).fit(FRAME, LABELS).history_[0]
    plain = classifier(max_epochs=1, calibration="none", validation_fraction=0.2).fit(X, y)
    assert plain.temperature_ == 1


HOW = TrainingConfig(
    optimizer="adamw",
    lr=1e-2,
    weight_decay=0.0,
    schedule="constant",
    batch_size=8,
    max_epochs=6,
    patience=2,
    average=0.5,
    max_seconds=None,
    precision="float32",
    seed=0,
)


def descended(judge=None, *, loss=lambda said, epoch: said.square().mean(), **changes):
    """A small model after a descent, and its curve."""
    config = TableConfig.from_kwargs(model="mlp", numbers=2, outputs=1, dim=4, depth=1)
    model, rows = build_table_model(config, seed=0), torch.Generator().manual_seed(0)
    numbers = torch.randn(32, 2, generator=rows)
    none = torch.zeros(32, 0, dtype=torch.int64)
    cells = TableBatch(numbers, torch.zeros(32, 2, dtype=torch.bool), none, none[:, :, None])
    steps = []

    def loss_of(part):
        steps.append(1)
        weight = part.weights.sum()
        return loss(model(part.cells), 1 + (len(steps) - 1) // 4) * weight, weight

    sample = WeightedBatch(cells, torch.zeros(32), torch.full((32,), 3.0))
    ask = None if judge is None else lambda: judge(model)
    curve = train_epochs(
        model, sample, compute_loss=loss_of, validate=ask, config=replace(HOW, **changes)
    )
    return model, curve


def test_what_is_kept_are_the_averaged_weights_of_the_best_epoch():
    losses, met = iter([3.0, 1.0, 2.0, 4.0]), []

    def judge(model):
        met.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(losses)

    model, curve = descended(judge)
    assert [row["valid"] for row in curve] == [3, 1, 2, 4]  # patience 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, met[1][name])
    assert any(not torch.equal(met[1][name], met[3][name]) for name in met[1])


def test_an_epoch_that_is_cut_tells_the_loss_of_the_rows_it_saw():
    one = lambda said, _epoch: 1 + 0 * said.sum()  # noqa: E731
    _, curve = descended(loss=one, max_seconds=1e-9)
    assert len(curve) == 1 and curve[0]["train"] == pytest.approx(1)


def test_a_loss_that_is_lost_later_is_told_and_what_was_before_is_kept():
    def loss(said, epoch):
        return said.square().mean() * (float("nan") if epoch == 3 else 1.0)

    with pytest.warns(RuntimeWarning, match="not a finite number in epoch 3 at lr=0.01; the last"):
        model, curve = descended(loss=loss)
    assert len(curve) == 2
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_warm_start_goes_on_from_a_later_pretraining():
    made = regressor(warm_start=True).fit(NUMBERS, SUMS)
    made.pretrain(NUMBERS, epochs=1)
    with pytest.raises(NotFittedError):
        made.predict(NUMBERS)
    made.set_params(lr=1e-9).fit(NUMBERS, SUMS)
    before = load_tensors(made.pretrained_.weights)
    after = made.module_.state_dict()
    torch.testing.assert_close(after["tokens.cls"].float(), before["tokens.cls"], rtol=0, atol=1e-6)


def test_bfloat16_trains():
    made = regressor(precision="bfloat16", max_epochs=1).fit(NUMBERS, SUMS)
    assert np.isfinite(made.predict(NUMBERS)).all()


def test_verbose_tells_of_epochs(capsys):
    regressor(verbose=True, max_epochs=2).fit(NUMBERS, SUMS)
    assert "epoch 1/2: loss" in capsys.readouterr().err
