"""Training loop, pre-training, warm starts and early stopping."""

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
def test_fit_starts_from_pretrained_weights(model, objective):
    estimator = classifier(model=model).pretrain(FRAME, objective=objective, epochs=2)
    assert all(np.isfinite(row["train"]) for row in estimator.pretraining_)
    fresh = classifier(model=model, lr=1e-9).fit(FRAME.head(30), LABELS[:30])
    started = estimator.set_params(lr=1e-9).fit(FRAME.head(30), LABELS[:30])
    assert started.encoder_ is estimator.pretrained_.encoder
    assert not torch.equal(
        fresh.module_.state_dict()["tokens.table"][0],
        estimator.module_.state_dict()["tokens.table"][0],
    )
    assert b"_rebuild_tensor" not in pickle.dumps(estimator)


def test_pretraining_learns_dependent_columns():
    x = np.random.default_rng(0).normal(size=200)
    X = np.stack([x, 2 * x, -x], 1)
    estimator = regressor(dim=16, lr=1e-2).pretrain(X, objective="masked", epochs=30)
    assert estimator.pretraining_[-1]["train"] < 0.6 * estimator.pretraining_[0]["train"]


def test_fit_rejects_other_columns_and_settings_than_pretraining():
    estimator = regressor().pretrain(NUMBERS, epochs=1)
    with pytest.raises(UserError, match="X: expected the columns of the pre-training"):
        estimator.fit(NUMBERS[:, :2], SUMS)
    with pytest.raises(
        UserError, match="expected the settings of the pre-training, got others for dim"
    ):
        estimator.set_params(dim=16).fit(NUMBERS, SUMS)
    with pytest.raises(UserError, match="unknown objective 'mask'; did you mean 'masked'"):
        regressor().pretrain(NUMBERS, objective="mask")
    with pytest.raises(UserError, match="expected columns that tab_transformer attends to"):
        regressor(model="tab_transformer").pretrain(NUMBERS)


def test_warm_start_continues_training():
    estimator = regressor(warm_start=True, lr=1e-2).fit(NUMBERS, SUMS)
    before = estimator.history_[0]["train"]
    estimator.fit(NUMBERS, SUMS)
    assert estimator.history_[0]["train"] < 0.9 * before
    with pytest.raises(UserError, match=r"warm_start=True requires .*: expected dim=8, got dim=16"):
        estimator.set_params(dim=16).fit(NUMBERS, SUMS)


@pytest.mark.parametrize("warm", [True, False])
def test_interrupted_fit_leaves_the_estimator_unchanged(warm, monkeypatch):
    estimator = classifier(warm_start=warm).fit(FRAME, LABELS)
    probabilities, history, state = (
        estimator.predict_proba(FRAME),
        estimator.history_,
        dict(vars(estimator)),
    )

    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("addnorm.train.ema.EMA.update", interrupt)
    other = FRAME if warm else FRAME.iloc[:, :3]
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(other, LABELS)
    assert vars(estimator) == state and estimator.history_ is history
    np.testing.assert_array_equal(estimator.predict_proba(FRAME), probabilities)


def test_predictions_use_no_dropout():
    estimator = classifier(dropout=0.5).fit(FRAME, LABELS)
    probabilities = estimator.predict_proba(FRAME)
    estimator.module_.train()
    np.testing.assert_array_equal(estimator.predict_proba(FRAME), probabilities)
    assert estimator.module_.training


@pytest.mark.parametrize("wiring", ["layer_drop", "drop_path"])
def test_stochastic_wirings_train(wiring):
    assert classifier(wiring=wiring).fit(FRAME, LABELS).score(FRAME, LABELS) > 0


def test_time_limit_stops_training():
    estimator = regressor(max_epochs=10_000, max_seconds=0.5).fit(NUMBERS, SUMS)
    assert len(estimator.history_) < 10_000
    assert estimator.history_[-1]["lr"] < 1e-4


def test_early_stopping_validates_and_calibrates():
    X, y = mixed(700)
    options = {"lr": 1e-2, "validation_fraction": 0.2, "calibration": "temperature"}
    estimator = classifier(max_epochs=6, patience=1, **options).fit(X, y)
    assert all("valid" in row for row in estimator.history_)
    assert estimator.temperature_ != 1
    assert "valid" not in classifier(max_epochs=1).fit(FRAME, LABELS).history_[0]
    plain = classifier(max_epochs=1, calibration="none", validation_fraction=0.2).fit(X, y)
    assert plain.temperature_ == 1


CONFIG = TrainingConfig(
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


def train_small_model(
    validate=None, *, loss=lambda outputs, epoch: outputs.square().mean(), **changes
):
    """Train a small model with a custom loss; return the model and its history."""
    config = TableConfig(model="mlp", numbers=2, outputs=1, dim=4, depth=1)
    model, generator = build_table_model(config, seed=0), torch.Generator().manual_seed(0)
    numbers = torch.randn(32, 2, generator=generator)
    none = torch.zeros(32, 0, dtype=torch.int64)
    cells = TableBatch(numbers, torch.zeros(32, 2, dtype=torch.bool), none, none[:, :, None])
    steps = []

    def compute_loss(batch):
        steps.append(1)
        weight = batch.weights.sum()
        return loss(model(batch.cells), 1 + (len(steps) - 1) // 4) * weight, weight

    sample = WeightedBatch(cells, torch.zeros(32), torch.full((32,), 3.0))
    history = train_epochs(
        model,
        sample,
        compute_loss=compute_loss,
        validate=None if validate is None else lambda: validate(model),
        config=replace(CONFIG, **changes),
    )
    return model, history


def test_model_keeps_the_averaged_weights_of_the_best_epoch():
    losses, states = iter([3.0, 1.0, 2.0, 4.0]), []

    def validate(model):
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(losses)

    model, history = train_small_model(validate)
    assert [row["valid"] for row in history] == [3, 1, 2, 4]  # patience 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, states[1][name])
    assert any(not torch.equal(states[1][name], states[3][name]) for name in states[1])


def test_interrupted_epoch_reports_the_loss_of_its_rows():
    def loss(outputs, _epoch):
        return 1 + 0 * outputs.sum()

    _, history = train_small_model(loss=loss, max_seconds=1e-9)
    assert len(history) == 1 and history[0]["train"] == pytest.approx(1)


def test_nonfinite_loss_warns_and_keeps_the_previous_epoch():
    def loss(outputs, epoch):
        return outputs.square().mean() * (float("nan") if epoch == 3 else 1.0)

    with pytest.warns(RuntimeWarning, match="not finite in epoch 3 at lr=0.01; keeping the last"):
        model, history = train_small_model(loss=loss)
    assert len(history) == 2
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_warm_start_continues_from_a_later_pretraining():
    estimator = regressor(warm_start=True).fit(NUMBERS, SUMS)
    estimator.pretrain(NUMBERS, epochs=1)
    with pytest.raises(NotFittedError):
        estimator.predict(NUMBERS)
    estimator.set_params(lr=1e-9).fit(NUMBERS, SUMS)
    before = load_tensors(estimator.pretrained_.weights)
    after = estimator.module_.state_dict()
    torch.testing.assert_close(after["tokens.cls"].float(), before["tokens.cls"], rtol=0, atol=1e-6)


def test_bfloat16_trains():
    estimator = regressor(precision="bfloat16", max_epochs=1).fit(NUMBERS, SUMS)
    assert np.isfinite(estimator.predict(NUMBERS)).all()


def test_verbose_prints_epochs(capsys):
    regressor(verbose=True, max_epochs=2).fit(NUMBERS, SUMS)
    assert "epoch 1/2: loss" in capsys.readouterr().err
