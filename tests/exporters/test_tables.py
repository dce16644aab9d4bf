"""Exported estimators predict as the originals, from encoded cells and from raw columns."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import addnorm
from addnorm.core.errors import ExportRefusedError, UserError
from addnorm.exporters import TARGETS, open_exported_estimator
from addnorm.exporters.source import open_source
from addnorm.exporters.table_graph import make_odd_columns
from addnorm.exporters.targets.base import ExportOptions
from addnorm.tabular import TabularTransformerRegressor
from tests.tabular.sample_tables import FRAME, LABELS, classifier, regressor

ODD = FRAME.iloc[:9].copy()
ODD["number"] = [np.nan, np.inf, -np.inf, 1e9, -1e9, 0.0, 0.3, -0.3, 1.0]
ODD["colour"] = ["red", "green", "?", "purple", None, "", "  ", "Red", " N/A"]
DAYS = [None, "1969-12-31T23:59:59", "2024-02-29T12:30:00", "2100-03-01T00:00:00"]
DAYS += ["1600-02-29T00:00:00", "2026-01-01T00:00:00", "2026-12-31T01:00:00", "1970-01-01T00:00:00"]
DAYS += ["2027-07-15T06:00:00"]
ODD["day"] = np.array(DAYS, dtype="datetime64[s]")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a classifier of a table with columns of every type, and its export to ONNX."""
    estimator = classifier(column_types={"note": "string"}).fit(FRAME, LABELS)
    folder = tmp_path_factory.mktemp("table") / "out"
    return estimator, folder, addnorm.export(estimator, to="onnx", out=folder)


def to_inputs(estimator, frame):
    """Return the inputs of table.onnx for rows, without the code that writes the graph."""
    encoder = estimator.encoder_
    inputs = {
        "number": frame["number"].to_numpy(float),
        "count": frame["count"].to_numpy(float),
        "flag": np.array([str(flag) for flag in frame["flag"]], dtype=object),
        "colour": np.array(["" if pd.isna(each) else each for each in frame["colour"]], object),
        "day": [np.nan if pd.isna(day) else day.timestamp() for day in frame["day"]],
    }
    inputs["day"] = np.array(inputs["day"])
    [text] = encoder.texts
    inputs["note"] = text.codes(frame["note"].to_numpy(object))
    return inputs


def run_graph(folder, inputs):
    session = onnxruntime.InferenceSession(folder / "table.onnx")
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("rows", [FRAME, FRAME.iloc[:1], ODD], ids=["all", "one", "odd"])
def test_graph_of_raw_columns_predicts_equally(exported, rows):
    estimator, folder, _ = exported
    outputs = run_graph(folder, to_inputs(estimator, rows))
    expected = estimator.predict_proba(rows)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    assert outputs["label"].tolist() == estimator.predict(rows).tolist()


@pytest.mark.parametrize(("dim", "grade"), [(12, "exact"), (8, "rounding")])
def test_grade_tells_whether_the_estimator_predicts_in_float64(dim, grade):
    """Widths that are no multiples of four, as the 10 of a feed-forward of 8, need float64."""
    estimator = classifier(dim=dim, heads=1).fit(FRAME, LABELS)
    prepared = TARGETS["torch"].prepare(open_source(estimator), ExportOptions())
    assert prepared.grade == grade
    assert any("float64" in note for note in prepared.notes) == (grade == "rounding")


def test_estimator_of_the_folder_predicts_equally(exported):
    estimator, folder, report = exported
    assert report.kind == "table" and report.max_error < 1e-4
    _, opened = open_exported_estimator(folder)
    np.testing.assert_allclose(opened.predict_proba(ODD), estimator.predict_proba(ODD), atol=1e-5)
    with pytest.raises(UserError, match="transform: expected a fitted estimator"):
        opened.transform(ODD)


@pytest.mark.parametrize(
    "options",
    [{"quantiles": [0.1, 0.5, 0.9]}, {"loss": "poisson"}, {"loss": "huber"}, {"targets": 2}],
    ids=str,
)
def test_all_targets_of_regressors_are_in_the_graph(options, tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    y = np.exp(X["a"].to_numpy())
    several = options == {"targets": 2}
    estimator = TabularTransformerRegressor(
        model="mlp", dim=8, depth=1, max_epochs=2, random_state=0, **{} if several else options
    )
    model = estimator.fit(X, np.stack([y, 100 * y], 1) if several else y)
    addnorm.export(model, to="onnx", out=tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "table.onnx")
    [prediction] = session.run(["prediction"], {name: X[name].to_numpy() for name in X})
    assert prediction.shape == model.predict(X).shape
    np.testing.assert_allclose(prediction, model.predict(X), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_regressors_return_the_scale_of_the_target(scaling, tmp_path):
    X = FRAME[["number", "count"]]
    y = np.exp(3 * np.nan_to_num(X["number"].replace(np.inf, 0)))
    estimator = regressor(target_scaling=scaling).fit(X, y)
    addnorm.export(estimator, to="onnx", out=tmp_path / "out")
    inputs = {name: ODD[name].to_numpy(float) for name in X}
    expected = estimator.predict(ODD[list(X)])
    got = run_graph(tmp_path / "out", inputs)["prediction"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [[3, 5], [True, False], [1.0, 2.0]], ids=str)
def test_classes_keep_their_type(labels, tmp_path):
    y = np.where(LABELS == "yes", labels[0], labels[1])
    estimator = classifier().fit(FRAME[["number"]], y)
    addnorm.export(estimator, to="onnx", out=tmp_path / "out")
    got = run_graph(tmp_path / "out", {"number": ODD["number"].to_numpy(float)})["label"]
    expected = estimator.predict(ODD[["number"]])
    assert got.dtype.kind == expected.dtype.kind and got.tolist() == expected.tolist()


@pytest.mark.slow
def test_members_are_averaged_in_the_graph(tmp_path):
    estimator = classifier(model="mlp", members=3, column_types={"note": "string"})
    estimator.fit(FRAME, LABELS)
    addnorm.export(estimator, to="onnx", out=tmp_path / "out")
    outputs = run_graph(tmp_path / "out", to_inputs(estimator, ODD))
    np.testing.assert_allclose(outputs["probabilities"], estimator.predict_proba(ODD), atol=1e-5)


def test_several_networks_are_refused(tmp_path):
    estimator = classifier(max_epochs=1, bagging=2).fit(FRAME, LABELS)
    with pytest.raises(ExportRefusedError, match="got several; fit it with bagging=None"):
        addnorm.export(estimator, to="onnx", out=tmp_path / "out")


def test_a_graph_with_a_wrong_encoding_is_not_written(tmp_path, monkeypatch):
    estimator = classifier().fit(FRAME[["number"]], LABELS)

    def shift(encoder):
        columns, feeds = make_odd_columns(encoder)
        return columns, {name: values + 0.1 for name, values in feeds.items()}

    monkeypatch.setattr("addnorm.exporters.table_graph.make_odd_columns", shift)
    with pytest.raises(UserError, match="nothing was written"):
        addnorm.export(estimator, to="onnx", out=tmp_path / "out", tolerance=1e-5)
    assert not (tmp_path / "out").exists()
