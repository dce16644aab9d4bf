"""Saved, loaded and pickled estimators."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

from addnorm.core.errors import UserError
from addnorm.tabular import load
from addnorm.tabular.io.store import module_bytes, module_from_bytes
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, SUMS, classifier, regressor


def fit_estimator(kind):
    if kind == "classifier":
        return classifier(model="saint", class_weight={"yes": 2, "no": 1}).fit(FRAME, LABELS), FRAME
    return regressor(target_scaling="quantile", column_types={0: "categorical"}).fit(
        NUMBERS.round(), SUMS
    ), NUMBERS.round()


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
@pytest.mark.parametrize("method", ["pickle", "copy", "folder"])
def test_round_trip_keeps_predictions(kind, method, tmp_path):
    estimator, X = fit_estimator(kind)
    if method == "folder":
        estimator.save(tmp_path / "m")
        again = load(tmp_path / "m")
        assert type(estimator).load(tmp_path / "m").get_params() == estimator.get_params()
        assert {path.name for path in (tmp_path / "m").iterdir()} == {
            "estimator.json",
            "model.safetensors",
        }
    else:
        again = (
            copy.deepcopy(estimator) if method == "copy" else pickle.loads(pickle.dumps(estimator))
        )
    assert again.get_params() == estimator.get_params()
    np.testing.assert_array_equal(again.predict(X), estimator.predict(X))
    np.testing.assert_array_equal(again.feature_importances_, estimator.feature_importances_)
    assert not hasattr(clone(estimator), "module_")


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bool", "U3"])
def test_round_trip_keeps_the_dtype_of_classes(dtype, tmp_path):
    y = (SUMS > 0).astype(dtype)
    estimator = classifier(max_epochs=1).fit(NUMBERS, y)
    estimator.save(tmp_path)
    again = load(tmp_path)
    assert again.classes_.dtype == estimator.classes_.dtype
    np.testing.assert_array_equal(again.predict(NUMBERS), estimator.predict(NUMBERS))


def test_pickle_contains_safetensors_and_no_torch_storage():
    data = pickle.dumps(fit_estimator("regressor")[0])
    assert b"__metadata__" in data or b'"dtype":"F32"' in data
    assert b"_rebuild_tensor" not in data


def edit_json(folder, **fields):
    path = folder / "estimator.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "other"}, "expected the format 'addnorm tabular estimator', got another file"),
        ({"version": 99}, "expected version 2 or 3, got 99"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"estimator": "Evil"}, "unknown estimator 'Evil'"),
        ({"params": {"dimm": 3}}, "unknown parameter 'dimm'; did you mean 'dim'"),
        ({"params": [1]}, "is damaged: params: Input should be a valid dictionary"),
        ({"params": {"column_types": [1]}}, "column_types: expected pairs, got .1."),
        ({"importances": "abc"}, "is damaged: importances"),
        ({"names": ["a"]}, "expected the column names of the encoder, got others"),
        ({"features": 9}, "expected 3 features and importances, as many as columns"),
        ({"classes": {"dtype": "int64", "values": ["a", "b"]}}, "expected classes of type 'int64'"),
        ({"temperature": 1.0}, "expected both classes and a temperature, or neither"),
        ({"target": None}, "expected either classes or a target, got both or neither"),
        ({"weights": "0"}, "belongs to another estimator.json: the checksum differs"),
        ({"estimator": "TabularTransformerClassifier"}, "with the target of another"),
        (
            {"config": {"model": "mlp", "outputs": 1, "numbers": 1}},
            "config does not match the columns and the target",
        ),
        ({"encoder": {}}, "is damaged: encoder.names: Field required"),
        ({"params": {"wiring": "pre_nl"}}, "unknown wiring 'pre_nl'; did you mean 'pre_ln'"),
        ({"params": {"n_jobs": "x"}}, "n_jobs: expected a number of threads"),
        ({"params": {"patience": 0}}, "patience: expected an integer >= 1, got 0"),
        (
            {"target": {"center": float("nan"), "scale": 1, "curve": None}},
            "target.number.center: .*finite",
        ),
        ({"importances": [float("inf"), 0, 0]}, "importances.0: .*finite"),
    ],
)
def test_invalid_fields_are_rejected(fields, message, tmp_path):
    fit_estimator("regressor")[0].save(tmp_path)
    edit_json(tmp_path, **fields)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_missing_and_damaged_files_are_rejected(tmp_path):
    with pytest.raises(
        UserError, match=r"expected a folder with estimator.json, as written by save"
    ):
        load(tmp_path / "nothing")
    fit_estimator("regressor")[0].save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"is damaged or belongs to another estimator\.json"):
        load(tmp_path)
    (tmp_path / "estimator.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"cannot write to .*estimator.json \("):
        fit_estimator("regressor")[0].save(tmp_path / "estimator.json")
    estimator = regressor(random_state=np.random.RandomState(0)).fit(NUMBERS, SUMS)
    with pytest.raises(
        UserError, match=r"random_state: expected a number, a string or None to save"
    ):
        estimator.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kinds", 0), "audio"),
        (("kinds", 1), "categorical"),
        (("colour",), 1),
        (("numbers", 0, "colour"), 1),
        (("numbers", 0, "part"), "week"),
        (("numbers", 0, "column"), 7),
        (("numbers", 0, "curve", "values"), []),
        (("numbers", 0, "curve", "values", 0), 1e9),
        (("categories", 0, "values", 0), 3),
        (("categories", 0, "values"), ["1", "2", "1"]),
        (("numbers", 0, "part"), "hour"),
        (("numbers", 1, "column"), 1),
        (("numbers", 0, "curve", "scores", 0), float("nan")),
        (("numbers", 0, "curve", "scores", 0), 9.0),
        (("names", 1), "x0"),
    ],
)
def test_invalid_encoder_is_rejected(path, value, tmp_path):
    fit_estimator("regressor")[0].save(tmp_path)
    plain = json.loads((tmp_path / "estimator.json").read_text())["encoder"]
    part = plain
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    edit_json(tmp_path, encoder=plain)
    with pytest.raises(UserError, match=r"is damaged: encoder"):
        load(tmp_path)


def test_unpickling_does_not_advance_the_global_generator():
    data = pickle.dumps(fit_estimator("regressor")[0])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    pickle.loads(data)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["yes", "no"], r"expected sorted, unique classes, got \['yes', 'no'\]"),
        (["no", "no"], r"expected sorted, unique classes, got \['no', 'no'\]"),
    ],
)
def test_unsorted_or_duplicate_classes_are_rejected(values, message, tmp_path):
    fit_estimator("classifier")[0].save(tmp_path)
    edit_json(tmp_path, classes={"dtype": "object", "values": values})
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 10**5, "heads": 1}, r"do not match the model config: .*\[100000.*got \[8"),
        ({"dim": 10**12, "heads": 1}, "dim: expected a number less than or equal to"),
        ({"depth": 10**4}, "do not match the model config: expected 10000 layers"),
        ({"depth": 10**9}, "depth: expected a number less than or equal to"),
        ({"ffn_dim": 10**6}, "do not match the model config"),
        ({"ffn_dim": 10**9}, "ffn_dim: expected a number less than or equal to"),
        ({"norm": "none"}, "do not match the model config: expected .* of shape None"),
        ({"wiring": "pre_nl"}, "unknown wiring 'pre_nl'"),
    ],
)
def test_weights_of_another_size_are_rejected_before_a_model_is_built(fields, message, tmp_path):
    fit_estimator("regressor")[0].save(tmp_path)
    config = json.loads((tmp_path / "estimator.json").read_text())["config"]
    edit_json(tmp_path, config=config | fields)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_deeply_nested_json_is_rejected(tmp_path):
    (tmp_path / "estimator.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        load(tmp_path)


def test_reference_rows_of_other_columns_are_rejected():
    estimator, _ = fit_estimator("regressor")
    reference = estimator.reference_
    for numbers in (reference.numbers[:, :1], reference.numbers[:3], torch.tensor(1.0)):
        data = module_bytes(estimator.module_, reference._replace(numbers=numbers))
        with pytest.raises(
            UserError, match="expected reference rows with the columns of the model"
        ):
            module_from_bytes(data, estimator.module_.config)
