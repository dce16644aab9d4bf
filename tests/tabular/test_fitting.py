"""Ways to train."""

import pickle

import numpy as np
import pytest
import torch

from addnorm.core.errors import UserError
from tests.tabular.tables import FRAME, LABELS, NUMBERS, SUMS, classifier, mixed, regressor


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
    before = made.history_[-1]["train"]
    made.fit(NUMBERS, SUMS)
    assert made.history_[0]["train"] < before
    with pytest.raises(UserError, match="warm_start goes on with the model of the last fit"):
        made.set_params(dim=16).fit(NUMBERS, SUMS)


def test_a_time_budget_ends_the_training_in_time():
    made = regressor(max_epochs=10_000, max_seconds=0.5).fit(NUMBERS, SUMS)
    assert len(made.history_) < 10_000
    assert made.history_[-1]["lr"] < 1e-4


def test_early_stopping_keeps_the_best_epoch_and_calibrates():
    X, y = mixed(700)
    made = classifier(max_epochs=6, patience=1, lr=1e-2, validation_fraction=0.2).fit(X, y)
    assert all("valid" in row for row in made.history_)
    assert made.temperature_ != 1
    assert "valid" not in classifier(max_epochs=1).fit(FRAME, LABELS).history_[0]
    plain = classifier(max_epochs=1, calibration="none", validation_fraction=0.2).fit(X, y)
    assert plain.temperature_ == 1


def test_bfloat16_trains():
    made = regressor(precision="bfloat16", max_epochs=1).fit(NUMBERS, SUMS)
    assert np.isfinite(made.predict(NUMBERS)).all()


def test_verbose_tells_of_epochs(capsys):
    regressor(verbose=True, max_epochs=2).fit(NUMBERS, SUMS)
    assert "epoch 1/2: loss" in capsys.readouterr().err
