"""`partial_fit`: what the first part fixes, and what later parts do."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from addnorm import UserError
from addnorm.core.errors import TableWarning
from addnorm.tabular import load
from tests.tabular.sample_tables import NUMBERS, SUMS, classifier, mixed, regressor

FRAME, LABELS = mixed(240)
PARTS = [slice(start, start + 80) for start in (0, 80, 160)]


def stream(model, passes=1, **options):
    for _ in range(passes):
        for part in PARTS:
            model.partial_fit(FRAME[part], LABELS[part], **options)
    return model


@pytest.mark.parametrize("model", ["mlp", "ft_transformer", "saint", "tab_transformer"])
def test_every_model_learns_from_parts(model):
    fitted = stream(classifier(model=model))
    assert fitted.predict_proba(FRAME).shape == (240, 2)
    assert [sorted(row) for row in fitted.history_[:2]] == [
        ["epoch", "lr", "seconds", "train"],
        ["epoch", "lr", "seconds", "train", "valid"],
    ]
    assert fitted.feature_names_in_.tolist() == list(FRAME.columns)


def test_loss_before_training_falls():
    fitted = stream(classifier(model="mlp", dim=32, lr=5e-3), passes=12)
    losses = [row["valid"] for row in fitted.history_[1:]]
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    assert fitted.score(FRAME, LABELS) > 0.8


def test_first_part_fixes_types_categories_and_target():
    first = classifier(model="mlp").partial_fit(FRAME[:80], LABELS[:80])
    encoder = first.encoder_
    later = FRAME[80:160].assign(colour="purple")
    assert first.partial_fit(later, LABELS[80:160]).encoder_ is encoder
    with pytest.raises(UserError, match="datetime"):
        first.partial_fit(FRAME[:5].assign(number=FRAME["day"][:5]), LABELS[:5])


def test_weights_of_the_network_equal_those_of_a_repeated_stream():
    one, two = (stream(classifier(model="mlp"), passes=2) for _ in range(2))
    assert np.array_equal(one.predict_proba(FRAME), two.predict_proba(FRAME))


def test_classes_of_the_whole_stream_are_declared_in_the_first_call():
    model = classifier(model="mlp").partial_fit(
        FRAME[:40], np.repeat(["a", "b"], 20), classes=["c", "a", "b"]
    )
    assert model.classes_.tolist() == ["a", "b", "c"]
    model.partial_fit(FRAME[:40], ["c"] * 40)  # one class is enough in a later part
    with pytest.raises(UserError, match="got 'd'; pass all of them as classes in the first call"):
        model.partial_fit(FRAME[:2], ["d", "a"])
    with pytest.raises(UserError, match="classes: expected those of the first call"):
        model.partial_fit(FRAME[:2], ["a", "b"], classes=["a", "b"])
    with pytest.raises(UserError, match="needs samples of at least 2 classes"):
        classifier().partial_fit(FRAME[:2], ["a", "a"])


def test_a_failed_part_leaves_the_model_as_it_was():
    model = stream(classifier(model="mlp"))
    before, rows = model.predict_proba(FRAME), len(model.history_)
    with pytest.raises(ValueError):
        model.partial_fit(FRAME[:3].drop(columns="flag"), LABELS[:3])
    assert np.array_equal(model.predict_proba(FRAME), before) and len(model.history_) == rows
    model.partial_fit(FRAME[:80], LABELS[:80])


def test_regressor_continues_after_fit_pickle_and_load(tmp_path):
    model = regressor(model="mlp").fit(NUMBERS, SUMS)
    for copy in (pickle.loads(pickle.dumps(model)), model):
        before = copy.predict(NUMBERS)
        copy.partial_fit(NUMBERS, SUMS)
        assert not np.array_equal(copy.predict(NUMBERS), before)
    model.save(tmp_path)
    assert load(tmp_path).partial_fit(NUMBERS, SUMS).predict(NUMBERS).shape == SUMS.shape
    streamed = regressor(model="mlp").partial_fit(NUMBERS, SUMS)
    with pytest.raises(UserError, match="expected a fit with validation rows"):
        streamed.predict_interval(NUMBERS)
    assert streamed.feature_importances_.shape == (3,)


def test_sparse_parts_and_weights():
    table = scipy.sparse.csr_array(np.where(np.abs(NUMBERS) > 0.5, NUMBERS, 0.0))
    model = regressor(model="mlp")
    for _ in range(2):
        model.partial_fit(table, SUMS, sample_weight=np.r_[np.zeros(10), np.ones(30)])
    assert np.array_equal(model.predict(table), model.predict(table.toarray()))
    with pytest.raises(ValueError, match="at least one non-zero"):
        model.partial_fit(table, SUMS, sample_weight=np.zeros(40))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bagging": 3}, "bagging: expected None for partial_fit"),
        ({"class_weight": "balanced"}, "class_weight: expected a dict or None for partial_fit"),
        ({"lr": 1e30}, "lr: expected a finite training loss"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", f"ignore::{TableWarning.__module__}.TableWarning"
)
def test_settings_that_a_stream_cannot_have_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        stream(classifier(model="mlp", **changes), passes=3)


def test_ordered_classes_keep_their_order():
    labels = pd.Categorical(
        np.resize(["low", "mid", "high"], 80), ["low", "mid", "high"], ordered=True
    )
    model = classifier(model="mlp", loss="ordinal").partial_fit(FRAME[:80], labels)
    assert model.classes_[list(model.target_.order)].tolist() == ["low", "mid", "high"]
