"""Partial dependence, importances of groups, and the adapter for shap."""

import numpy as np
import pandas as pd
import pytest
from sklearn.inspection import partial_dependence

from addnorm import UserError
from addnorm.tabular import load
from tests.tabular.sample_tables import classifier, regressor


def make_table(rows=600):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": rng.permutation(rows),
            "strong": rng.normal(size=rows),
            "city": rng.choice(["Rome", "Oslo", "Bern"], rows),
            "weak": rng.normal(size=rows),
            "noise": rng.normal(size=rows),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
        }
    )
    frame.loc[::9, "weak"] = np.nan
    score = 3 * frame["strong"] + 3 * (frame["city"] == "Rome") + 0.8 * frame["weak"].fillna(0)
    return frame, score + 0.3 * rng.normal(size=rows)


FRAME, SCORES = make_table()
LABELS = np.where(SCORES > 1, "yes", "no")


@pytest.fixture(scope="module")
def model():
    return classifier(model="mlp", dim=32, max_epochs=15, lr=5e-3).fit(FRAME, LABELS)


@pytest.fixture(scope="module")
def numbers_model():
    return regressor(model="mlp", dim=32, max_epochs=15, lr=5e-3).fit(FRAME, SCORES)


def test_importances_find_the_true_order_and_none_for_an_id(model):
    importances = dict(zip(FRAME.columns, model.feature_importances_, strict=True))
    order = sorted(importances, key=lambda name: -importances[name])
    assert order[:3] == ["strong", "city", "weak"]
    assert importances["id"] < 0.02 and importances["noise"] < 0.02
    measured = model.permutation_importances(X=FRAME, y=LABELS)
    assert [measured.names[each] for each in measured.order[:3]] == ["strong", "city", "weak"]


def test_a_group_of_copies_is_important_together():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=500), "other": rng.normal(size=500)})
    y = np.where(frame["a"] + 0.5 * frame["other"] > 0, 1, 0)
    for number in range(3):
        frame[f"copy{number}"] = frame["a"] + 0.01 * rng.normal(size=500)
    fitted = classifier(model="mlp", dim=32, max_epochs=12, lr=5e-3).fit(frame, y)
    copies = ["a", "copy0", "copy1", "copy2"]
    groups = fitted.permutation_importances({"copies": copies, "other": "other"}, frame, y)
    alone = fitted.permutation_importances(None, frame, y)
    parts = [alone.mean[alone.names.index(name)] for name in copies]
    assert groups.names == ["copies", "other"]
    assert groups.mean[0] > sum(parts) and groups.mean[0] > groups.mean[1]


def test_groups_that_do_not_exist_are_refused(model):
    for groups, message in (
        ({"place": ["strong", "citi"]}, "did you mean 'city'"),
        ({"place": []}, "expected columns in group 'place', got none"),
        (["strong"], "groups: expected a dict"),
    ):
        with pytest.raises(UserError, match=message):
            model.permutation_importances(groups)
    with pytest.raises(UserError, match="repeats: expected an integer >= 1, got 0"):
        model.permutation_importances(repeats=0)
    with pytest.raises(UserError, match="expected X and y, or neither"):
        model.permutation_importances(X=FRAME)
    with pytest.raises(UserError, match="y: expected classes of the fit"):
        model.permutation_importances(X=FRAME, y=["maybe"] * len(FRAME))


def test_a_loaded_estimator_measures_on_given_rows(model, tmp_path):
    model.save(tmp_path)
    loaded = load(tmp_path)
    with pytest.raises(UserError, match="X: expected rows to measure on"):
        loaded.permutation_importances()
    expected = model.permutation_importances(X=FRAME, y=LABELS)
    assert np.array_equal(loaded.permutation_importances(X=FRAME, y=LABELS).mean, expected.mean)


def test_partial_dependence_is_the_mean_of_changed_rows(model):
    result = model.partial_dependence(FRAME, "city", max_rows=50)
    rows = FRAME.iloc[::12]
    for index, city in enumerate(result.values):
        expected = model.predict_proba(rows.assign(city=city))
        assert np.allclose(result.individual[:, :, index], expected.T, atol=1e-12)
    yes = dict(zip(result.values, result.average[1], strict=True))
    assert yes["Rome"] > max(yes["Oslo"], yes["Bern"]) + 0.2
    assert result.outputs == ["no", "yes"] and result.kind == "categorical"


def test_partial_dependence_of_numbers_and_days(numbers_model):
    result = numbers_model.partial_dependence(FRAME, "strong", max_values=8, max_rows=60)
    assert (np.diff(result.values) > 0).all() and (np.diff(result.average[0]) > 0).all()
    slope = np.ptp(result.average[0]) / np.ptp(result.values)
    assert 2 < slope < 4  # the true one is 3
    days = numbers_model.partial_dependence(FRAME, "day", max_values=4, max_rows=30)
    assert days.values == sorted(days.values) and days.kind == "datetime"
    assert np.ptp(days.average[0]) < 1


def test_partial_dependence_equals_that_of_scikit_learn(numbers_model):
    theirs = partial_dependence(numbers_model, FRAME, ["weak"], grid_resolution=5)
    ours = [
        numbers_model.predict(FRAME.assign(weak=value)).mean() for value in theirs["grid_values"][0]
    ]
    assert np.allclose(theirs["average"][0], ours, atol=1e-6)


def test_display_of_scikit_learn_draws_numbers_and_categories(model):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from sklearn.inspection import PartialDependenceDisplay

    display = PartialDependenceDisplay.from_estimator(
        model, FRAME[:60], ["strong", "city"], categorical_features=["city"], grid_resolution=4
    )
    assert display.axes_.shape == (1, 2)
    matplotlib.pyplot.close("all")


def test_arrays_and_wrong_columns(tmp_path):
    table = np.random.default_rng(0).normal(size=(60, 2))
    fitted = regressor(model="mlp").fit(table, table.sum(1))
    result = fitted.partial_dependence(table, 1, max_values=3)
    assert (result.column, len(result.values), result.individual.shape) == ("x1", 3, (1, 60, 3))
    for column in (2, "x9", -1):
        with pytest.raises(UserError, match="unknown column"):
            fitted.partial_dependence(table, column)
    with pytest.raises(UserError, match="max_values: expected an integer >= 1"):
        fitted.partial_dependence(table, 0, max_values=0)
    with pytest.raises(UserError, match="output: expected an index of 1 outputs, got 1"):
        result.chart(1)


def test_charts_are_saved(model, tmp_path):
    for column in ("strong", "city", "day"):
        path = model.partial_dependence(FRAME, column, max_rows=20).save(tmp_path / f"{column}.svg")
        assert "<svg" in path.read_text()
    path = model.permutation_importances().save(tmp_path / "importances.svg")
    assert "strong" in path.read_text()


def test_shap_values_add_up(model):
    shap = pytest.importorskip("shap")
    frame = FRAME.assign(city=FRAME["city"].where(FRAME.index % 5 != 0, None))
    adapter = model.shap_adapter(frame, max_rows=6)
    rows = frame[:2]
    encoded = adapter.encode(rows)
    assert np.array_equal(adapter.predict(encoded), model.predict_proba(rows))
    explainer = shap.PermutationExplainer(
        adapter.predict, adapter.background, feature_names=adapter.feature_names, seed=0
    )
    values = explainer(encoded, silent=True, max_evals=15)
    total = values.base_values + values.values.sum(1)
    assert np.allclose(total, model.predict_proba(rows), atol=1e-6)
    assert values.values.shape == (2, 6, 2)
    assert np.abs(values.values[:, 1]).max() > np.abs(values.values[:, 4]).max()  # strong, noise


def test_adapter_refuses_other_shapes(numbers_model):
    adapter = numbers_model.shap_adapter(FRAME)
    assert adapter.background.shape == (100, 6)
    assert np.array_equal(adapter.predict(adapter.encode(FRAME)), numbers_model.predict(FRAME))
    with pytest.raises(UserError, match="expected rows of 6 numbers"):
        adapter.predict(np.zeros((2, 5)))
    with pytest.raises(UserError, match="max_rows: expected an integer >= 1"):
        numbers_model.shap_adapter(FRAME, max_rows=0)
