"""Estimators as files and pickles."""

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


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bool", "U3"])
def test_classes_of_every_plain_type_come_back(dtype, tmp_path):
    y = (SUMS > 0).astype(dtype)
    made = classifier(max_epochs=1).fit(NUMBERS, y)
    made.save(tmp_path)
    again = load(tmp_path)
    assert again.classes_.dtype == made.classes_.dtype
    np.testing.assert_array_equal(again.predict(NUMBERS), made.predict(NUMBERS))


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
        ({"version": 99}, "has version 99; this addnorm knows version 2"),
        ({"colour": 1}, "unknown field 'colour'"),
        ({"estimator": "Evil"}, "unknown estimator 'Evil'"),
        ({"params": {"dimm": 3}}, "unknown parameter 'dimm'; did you mean 'dim'"),
        ({"params": [1]}, "is damaged: params: Input should be a valid dictionary"),
        ({"params": {"column_types": [1]}}, "column_types cannot be .1.; wanted pairs"),
        ({"importances": "abc"}, "is damaged: importances"),
        ({"names": ["a"]}, "the names of columns are not those of the encoder"),
        ({"features": 9}, "not as many features or importances as columns"),
        ({"classes": {"dtype": "int64", "values": ["a", "b"]}}, "are not of type 'int64'"),
        ({"temperature": 1.0}, "a classifier has classes and a temperature"),
        ({"target": None}, "has classes or a target, got both or neither"),
        ({"weights": "0"}, "belongs to another estimator.json: the checksum differs"),
        ({"estimator": "TabularTransformerClassifier"}, "with the target of another"),
        ({"config": {"model": "mlp", "outputs": 1, "numbers": 1}}, "not one of these columns"),
        ({"encoder": {}}, "is damaged: encoder.names: Field required"),
        ({"params": {"wiring": "pre_nl"}}, "unknown wiring 'pre_nl'; did you mean 'pre_ln'"),
        ({"params": {"n_jobs": "x"}}, "n_jobs is a number of threads"),
        ({"params": {"patience": 0}}, "patience is a whole number from 1, got 0"),
        (
            {"target": {"center": float("nan"), "scale": 1, "curve": None}},
            "target.center: .*finite",
        ),
        ({"importances": [float("inf"), 0, 0]}, "importances.0: .*finite"),
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
    with pytest.raises(UserError, match=r"is damaged, or belongs to another estimator\.json"):
        load(tmp_path)
    (tmp_path / "estimator.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"cannot write into .*estimator.json \("):
        fitted("regressor")[0].save(tmp_path / "estimator.json")
    made = regressor(random_state=np.random.RandomState(0)).fit(NUMBERS, SUMS)
    with pytest.raises(UserError, match=r"random_state=.* cannot be saved"):
        made.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("place", "value"),
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
def test_an_encoder_it_does_not_know_is_refused(place, value, tmp_path):
    fitted("regressor")[0].save(tmp_path)
    plain = json.loads((tmp_path / "estimator.json").read_text())["encoder"]
    part = plain
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    change(tmp_path, encoder=plain)
    with pytest.raises(UserError, match=r"is damaged: encoder"):
        load(tmp_path)


def test_coming_back_draws_nothing_from_torchs_own_generator():
    data = pickle.dumps(fitted("regressor")[0])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    pickle.loads(data)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["yes", "no"], r"classes \['yes', 'no'\] are not in order, each once"),
        (["no", "no"], r"classes \['no', 'no'\] are not in order, each once"),
    ],
)
def test_classes_stand_in_order_each_once(values, words, tmp_path):
    fitted("classifier")[0].save(tmp_path)
    change(tmp_path, classes={"dtype": "object", "values": values})
    with pytest.raises(UserError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dim": 10**7, "heads": 1}, r"do not fit their model: .* is \[8.*wanted \[10000000"),
        ({"dim": 10**12, "heads": 1}, "do not fit their model"),
        ({"depth": 10**9}, "do not fit their model: they have no 1000000000 layers"),
        ({"ffn_dim": 10**9}, "do not fit their model"),
        ({"norm": "none"}, "do not fit their model: .*, wanted None"),
        ({"wiring": "pre_nl"}, "unknown wiring 'pre_nl'"),
    ],
)
def test_a_model_of_another_size_is_refused_before_it_is_built(fields, words, tmp_path):
    fitted("regressor")[0].save(tmp_path)
    config = json.loads((tmp_path / "estimator.json").read_text())["config"]
    change(tmp_path, config=config | fields)
    with pytest.raises(UserError, match=words):
        load(tmp_path)


def test_json_that_is_too_deep(tmp_path):
    (tmp_path / "estimator.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        load(tmp_path)


def test_reference_rows_of_other_columns_are_refused():
    made, _ = fitted("regressor")
    kept = made.reference_
    for numbers in (kept.numbers[:, :1], kept.numbers[:3], torch.tensor(1.0)):
        data = module_bytes(made.module_, kept._replace(numbers=numbers))
        with pytest.raises(UserError, match="reference rows have other columns"):
            module_from_bytes(data, made.module_.config)
