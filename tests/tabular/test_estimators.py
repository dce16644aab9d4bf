"""Estimators on tables as they are, in the company they keep, and what they refuse."""

import copy
import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from addnorm.core.errors import UserError
from addnorm.models.tabular import MODELS
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor, load
from tests.tabular.tables import QUICK, mixed

FRAME, LABELS = mixed()
NUMBERS = np.random.default_rng(0).normal(size=(40, 3))
SUMS = NUMBERS.sum(1)


def classifier(**changes):
    return TabularTransformerClassifier(**QUICK | changes)


def regressor(**changes):
    return TabularTransformerRegressor(**QUICK | changes)


# Tables as they are


@pytest.mark.parametrize("model", MODELS)
def test_every_model_reads_a_mixed_table_with_holes(model):
    made = classifier(model=model).fit(FRAME, LABELS)
    said = made.predict_proba(FRAME)
    assert said.shape == (60, 2) and np.isfinite(said).all()
    np.testing.assert_allclose(said.sum(1), 1)
    assert set(made.predict(FRAME)) <= {"yes", "no"}
    assert list(made.classes_) == ["no", "yes"]
    assert list(made.feature_names_in_) == list(FRAME)
    assert made.feature_importances_.shape == (6,)
    assert made.transform(FRAME).shape == (60, made.module_.width)


def test_polars_and_pandas_give_the_same_answers():
    made = classifier().fit(FRAME, LABELS)
    other = classifier().fit(pl.from_pandas(FRAME), pl.Series(LABELS))
    np.testing.assert_array_equal(
        made.predict_proba(FRAME), other.predict_proba(pl.from_pandas(FRAME))
    )


def test_holes_infinities_and_new_categories_at_prediction():
    made = classifier().fit(FRAME, LABELS)
    strange = FRAME.head(4).copy()
    strange["colour"] = ["violet", None, "red", ""]
    strange["number"] = [np.nan, np.inf, -np.inf, 1e300]
    strange["note"] = None
    strange["day"] = pd.NaT
    assert np.isfinite(made.predict_proba(strange)).all()
    assert len(made.predict(FRAME.iloc[[3]])) == 1


def test_an_absent_number_is_no_number_of_the_column():
    """Never a silent fill: no value gives the answer that absence gives."""
    x = np.linspace(-1, 1, 40)[:, None]
    x[::4] = np.nan
    y = np.where(np.isnan(x[:, 0]), 5.0, 0.0)
    made = regressor(lr=1e-2, max_epochs=40).fit(x, y)
    assert made.predict([[np.nan]])[0] > 3
    assert (made.predict(np.linspace(-1, 1, 9)[:, None]) < 2).all()


@pytest.mark.parametrize(
    "X",
    [
        NUMBERS[:, :1],
        np.hstack([NUMBERS, np.full((40, 1), 7.0)]),
        np.random.default_rng(1).normal(size=(40, 200)),
        np.array([["a"], ["b"]] * 20, dtype=object),
    ],
    ids=["one column", "a constant column", "200 columns", "categories alone"],
)
def test_narrow_wide_and_constant_tables(X):
    assert np.isfinite(regressor(max_epochs=1).fit(X, SUMS).predict(X)).all()


def test_one_row_is_enough_for_a_number():
    assert abs(regressor().fit([[1.0, 2.0]], [5.0]).predict([[1.0, 2.0]])[0] - 5) < 1


@pytest.mark.parametrize(
    "y",
    [
        np.array([True, False] * 20),
        np.array(["a", "b"] * 20, dtype=object),
        np.arange(40) % 20,
        np.array([0] * 39 + [1]),
        pd.Series(["x", "y"] * 20, dtype="category"),
    ],
    ids=["booleans", "objects", "20 classes", "39 to 1", "categorical"],
)
def test_targets_of_all_sorts(y):
    made = classifier(max_epochs=1).fit(NUMBERS, y)
    assert set(made.predict(NUMBERS)) <= set(np.asarray(y))
    assert made.predict_proba(NUMBERS).shape == (40, len(set(y)))


def test_outliers_in_the_target_switch_to_quantiles():
    y = SUMS.copy()
    y[:2] = 1e6, -1e6
    assert regressor(max_epochs=1).fit(NUMBERS, SUMS).target_.curve is None
    made = regressor(lr=1e-2, max_epochs=40).fit(NUMBERS, y)
    assert made.target_.curve is not None
    assert np.corrcoef(made.predict(NUMBERS)[2:], SUMS[2:])[0, 1] > 0.5
    assert regressor(max_epochs=1, target_scaling="standard").fit(NUMBERS, y).target_.curve is None


def test_it_learns():
    X, y = mixed(300)
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    made = classifier(dim=16, lr=1e-2, max_epochs=25, early_stopping=False, **plain).fit(X, y)
    assert made.score(X, y) > 0.85
    assert made.history_[-1]["train"] < made.history_[0]["train"] / 2


# Weights, seeds, order


def test_weights_are_repetitions_and_order_does_not_matter():
    weights = np.arange(40) % 3
    one = regressor().fit(NUMBERS, SUMS, sample_weight=weights)
    order = np.random.default_rng(0).permutation(weights.sum())
    X, y = np.repeat(NUMBERS, weights, 0)[order], np.repeat(SUMS, weights)[order]
    np.testing.assert_array_equal(one.predict(NUMBERS), regressor().fit(X, y).predict(NUMBERS))


def test_a_table_of_few_different_rows_is_learned_as_often_as_they_stand_there():
    x = np.array([0, 1] * 500)[:, None]
    y = np.r_[np.array([0, 1] * 350), np.array([1, 0] * 150)]  # agrees in 70 of 100 rows
    made = classifier(lr=1e-2, max_epochs=10, dropout=0).fit(x, y)
    np.testing.assert_allclose(made.predict_proba([[0], [1]])[:, 1], [0.3, 0.7], atol=0.08)


def test_noisy_targets_of_few_different_rows_are_learned_with_early_stopping():
    """Rows of one store with one label were held out whole, so training knew only the other."""
    chance = np.random.default_rng(0)
    true = chance.uniform(0.1, 0.9, 400)
    store = chance.integers(0, 400, 12_000)
    y = (chance.random(12_000) < true[store]).astype(int)
    made = classifier(max_epochs=8, lr=2e-2, batch_size=128, dropout=0, early_stopping=True)
    made.fit(pd.DataFrame({"store": [f"s{each}" for each in store]}), y)
    said = made.predict_proba(pd.DataFrame({"store": [f"s{each}" for each in range(400)]}))[:, 1]
    assert np.corrcoef(said, true)[0, 1] > 0.8
    assert np.abs(said - true).mean() < 0.15
    assert made.history_[-1]["valid"] < 0.66


def test_rows_held_out_teach_neither_encoder_nor_target():
    X = pd.DataFrame({"c": [f"v{index}" for index in range(400)], "x": np.arange(400.0)})
    kinds = {"c": "categorical"}
    made = regressor(max_epochs=1, early_stopping=True, column_types=kinds).fit(X, X["x"])
    assert len(made.encoder_.categories[0].values) == 360
    codes = made.encoder_.encode(X).codes[:, 0].numpy()
    met = X["x"][codes != 1]
    assert len(met) == 360 and made.target_.center == pytest.approx(met.mean())
    assert made.target_.center != pytest.approx(X["x"].mean(), abs=1e-3)
    X = pd.DataFrame({"x": np.arange(400.0), "y": [np.nan] * 399 + [1.0]})
    for seed in range(12):  # the only value of a column may be among them
        made = regressor(max_epochs=1, early_stopping=True, random_state=seed, dim=2, heads=1)
        assert np.isfinite(made.fit(X, X["x"]).predict(X)).all()


def test_the_same_seed_gives_the_same_bits_and_another_others():
    said = [regressor(random_state=seed).fit(NUMBERS, SUMS).predict(NUMBERS) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(said[0], said[1])
    assert not np.array_equal(said[0], said[2])


def test_torchs_own_generator_and_threads_stay_as_they_were():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    regressor(n_jobs=2).fit(NUMBERS, SUMS).predict(NUMBERS)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_class_weights_move_the_answers():
    y = np.array([0] * 30 + [1] * 10)
    heavy = classifier(class_weight={0: 1e-3, 1: 1e3}).fit(NUMBERS, y)
    assert (heavy.predict(NUMBERS) == 1).all()
    plain, balanced = (
        classifier(class_weight=weight).fit(NUMBERS, y).predict_proba(NUMBERS)[:, 1].mean()
        for weight in (None, "balanced")
    )
    assert balanced > plain + 0.05


def test_class_weights_count_only_rows_that_exist():
    y = np.array([0] * 30 + [1] * 10)
    weights = np.r_[np.ones(15), np.zeros(15), np.ones(10)]
    made = classifier(class_weight="balanced").fit(NUMBERS, y, sample_weight=weights)
    some = weights > 0
    other = classifier(class_weight="balanced").fit(NUMBERS[some], y[some])
    np.testing.assert_array_equal(made.predict_proba(NUMBERS), other.predict_proba(NUMBERS))
    for wrong in ({0: 0, 1: 0}, {0: -1, 1: 2}):
        with pytest.raises(ValueError, match="class_weight has weights from 0, one of them above"):
            classifier(class_weight=wrong).fit(NUMBERS, y)


@pytest.mark.parametrize("model", MODELS)
def test_an_answer_does_not_depend_on_its_neighbours(model):
    made = classifier(model=model).fit(FRAME, LABELS)
    np.testing.assert_allclose(
        made.predict_proba(FRAME)[5:6], made.predict_proba(FRAME.iloc[5:6]), rtol=1e-9
    )


# Company


def test_in_a_pipeline_a_grid_search_and_cross_validation():
    pipe = make_pipeline(FunctionTransformer(), classifier(max_epochs=1))
    search = GridSearchCV(pipe, {"tabulartransformerclassifier__wiring": ["pre_ln", "b2t"]}, cv=2)
    search.fit(FRAME, LABELS)
    assert set(search.cv_results_["param_tabulartransformerclassifier__wiring"]) == {
        "pre_ln",
        "b2t",
    }
    assert len(cross_val_score(classifier(max_epochs=1), FRAME, LABELS, cv=2)) == 2


def test_with_calibration_and_permutation_importance():
    made = CalibratedClassifierCV(classifier(max_epochs=1), cv=2).fit(FRAME, LABELS)
    assert made.predict_proba(FRAME).shape == (60, 2)
    fitted = classifier(max_epochs=1).fit(FRAME, LABELS)
    found = permutation_importance(fitted, FRAME, LABELS, n_repeats=1, random_state=0)
    assert found.importances_mean.shape == (6,)


def test_metadata_routing_hands_on_weights():
    with config_context(enable_metadata_routing=True):
        made = classifier(max_epochs=1).set_fit_request(sample_weight=True)
        pipe = make_pipeline(FunctionTransformer(), made)
        assert pipe.fit(FRAME, LABELS, sample_weight=np.ones(60)).predict(FRAME).shape == (60,)


def test_row_embeddings_as_pandas():
    made = classifier(max_epochs=1).fit(FRAME, LABELS).set_output(transform="pandas")
    out = made.transform(FRAME)
    assert list(out)[:2] == ["tabulartransformerclassifier0", "tabulartransformerclassifier1"]


# Files


def fitted(kind):
    if kind == "classifier":
        return classifier(model="saint", class_weight={"yes": 2, "no": 1}).fit(FRAME, LABELS), FRAME
    return regressor(target_scaling="quantile", column_types={0: "categorical"}).fit(
        NUMBERS.round(), SUMS
    ), NUMBERS.round()


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
@pytest.mark.parametrize("way", ["pickle", "copy", "folder"])
def test_an_estimator_comes_back_with_the_same_answers(kind, way, tmp_path):
    made, X = fitted(kind)
    if way == "folder":
        made.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert type(made).load(tmp_path / "m").get_params() == made.get_params()
        assert {path.name for path in (tmp_path / "m").iterdir()} == {
            "estimator.json",
            "model.safetensors",
        }
    else:
        again = copy.deepcopy(made) if way == "copy" else pickle.loads(pickle.dumps(made))
    assert again.get_params() == made.get_params()
    np.testing.assert_array_equal(again.predict(X), made.predict(X))
    np.testing.assert_array_equal(again.feature_importances_, made.feature_importances_)
    assert not hasattr(clone(made), "module_")


def test_a_pickle_holds_safetensors_and_no_torch_storage():
    data = pickle.dumps(fitted("regressor")[0])
    assert b"__metadata__" in data or b'"dtype":"F32"' in data
    assert b"_rebuild_tensor" not in data


def change(folder, **fields):
    path = folder / "estimator.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, **fields}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"format": "other"}, "is no addnorm tabular estimator"),
        ({"version": 99}, "has version 99; this addnorm knows version 1"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"estimator": "Evil"}, "unknown estimator 'Evil'"),
        ({"params": {"dimm": 3}}, "unknown parameter 'dimm'; did you mean 'dim'"),
        ({"encoder": {}}, "is damaged: KeyError"),
    ],
)
def test_what_it_does_not_know_is_refused(fields, words, tmp_path):
    fitted("regressor")[0].save(tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(UserError, match=words):
        load(tmp_path)


def test_files_that_are_missing_or_broken(tmp_path):
    with pytest.raises(UserError, match=r"no estimator at .*: wanted a folder with estimator.json"):
        load(tmp_path / "nothing")
    fitted("regressor")[0].save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="the weights are damaged"):
        load(tmp_path)
    (tmp_path / "estimator.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load(tmp_path)
    made = regressor(random_state=np.random.RandomState(0)).fit(NUMBERS, SUMS)
    with pytest.raises(UserError, match=r"random_state=.* cannot be saved"):
        made.save(tmp_path / "other")


# Ways to train


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


# Why


@pytest.mark.parametrize("kind", ["rollout", "permutation"])
def test_importances_sum_to_one(kind):
    made = classifier(importance=kind).fit(FRAME, LABELS)
    assert made.feature_importances_.min() >= 0
    assert made.feature_importances_.sum() == pytest.approx(1)


def test_the_column_that_matters_is_found(tmp_path):
    made = regressor(lr=1e-2, max_epochs=40, importance="permutation")
    made.fit(NUMBERS, NUMBERS[:, 1])
    assert made.feature_importances_.argmax() == 1
    found = made.explain(NUMBERS[:2])
    assert (np.abs(found.effects).argmax(1) == 1).all()
    assert (np.sign(found.effects[:, 1]) == np.sign(found.answers)).all()
    assert "x1 = " in found.save(tmp_path / "why.svg").read_text()
    with pytest.raises(UserError, match="the name does not tell the format"):
        found.save(tmp_path / "why.doc")
    with pytest.raises(UserError, match="row 7 is not among the 2"):
        found.chart(7)


def test_explanations_of_a_class_and_the_reliability_plot(tmp_path):
    made = classifier().fit(FRAME, LABELS)
    found = made.explain(FRAME.head(2))
    assert found.effects.shape == (2, 6) and set(found.of) <= {"yes", "no"}
    plot = made.reliability(FRAME, LABELS)
    assert plot.rows.sum() == 60 and 0 <= plot.error <= 1
    assert plot.save(tmp_path / "plot.svg").stat().st_size > 1000


# What is refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": "fttransformer"},
            "unknown model 'fttransformer'; did you mean 'ft_transformer'",
        ),
        ({"wiring": "postln"}, "unknown wiring 'postln'"),
        ({"norm": "layr"}, "unknown norm 'layr'"),
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'"),
        ({"schedule": "cos"}, "unknown schedule 'cos'"),
        ({"batch_size": 0}, "batch_size is 'auto' or a whole number from 1, got 0"),
        ({"max_epochs": 0}, "max_epochs is 'auto' or a whole number from 1, got 0"),
        ({"patience": 1.5}, "patience is a whole number from 1, got 1.5"),
        ({"lr": -1}, "lr must be a positive number"),
        ({"early_stopping": "yes"}, "early_stopping is True, False or 'auto', got 'yes'"),
        ({"early_stopping": True, "validation_fraction": 0.001}, "too few to hold out 0.001"),
        ({"validation_fraction": 1.0}, "validation_fraction is a share between 0 and 1, got 1.0"),
        ({"max_seconds": 0}, "max_seconds is a positive number, got 0"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"n_jobs": 0}, "n_jobs is a number of threads, or -1 for all, got 0"),
        ({"device": "tpux"}, "device 'tpux'"),
        ({"importance": "shap"}, "unknown importance 'shap'"),
        ({"model": "mlp", "importance": "rollout"}, "and mlp has none; wanted 'permutation'"),
        ({"target_scaling": "log"}, "unknown target_scaling 'log'"),
        ({"lr": 1e30, "wiring": "none"}, "the loss is not a finite number in the first epoch"),
    ],
)
def test_settings_that_make_no_sense(changes, words):
    with pytest.raises(ValueError, match=words):
        regressor(**changes).fit(NUMBERS, SUMS)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (FRAME, None, "requires y to be passed, but the target y is None"),
        (FRAME, ["yes"] * 60, "needs samples of at least 2 classes in the data"),
        (FRAME, LABELS[:9], "inconsistent numbers of samples"),
        (FRAME, [np.nan] * 60, "Input y contains NaN"),
        (FRAME.head(0), [], "0 sample"),
        (FRAME[[]], LABELS, "0 feature"),
        (FRAME.assign(empty=np.nan), LABELS, "columns without any value: 'empty'"),
        (NUMBERS[0], [0, 1, 0], "Expected 2D array, got 1D array instead"),
    ],
)
def test_tables_that_make_no_sense(X, y, words):
    with pytest.raises(ValueError, match=words):
        classifier(max_epochs=1).fit(X, y)


def test_more_tables_that_make_no_sense():
    with pytest.raises(ValueError, match="needs a target that varies, but every row has 3"):
        regressor().fit(NUMBERS, np.full(40, 3.0))
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero"):
        regressor().fit(NUMBERS, SUMS, sample_weight=np.zeros(40))
    with pytest.raises(ValueError, match="unknown calibration 'platt'"):
        classifier(calibration="platt").fit(FRAME, LABELS)
    made = classifier(max_epochs=1).fit(FRAME, LABELS)
    with pytest.raises(
        ValueError, match="Feature names seen at fit time, yet now missing:\n- flag"
    ):
        made.predict(FRAME.drop(columns="flag"))
    with pytest.raises(ValueError, match="column 'number' is numeric"):
        made.predict(FRAME.assign(number="many"))
