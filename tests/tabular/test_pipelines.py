"""Estimators in the company they keep."""

import numpy as np
from sklearn import config_context
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tests.tabular.sample_tables import FRAME, LABELS, classifier


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
        weights = np.where(LABELS == "yes", 9.0, 1.0)
        said = pipe.fit(FRAME, LABELS, sample_weight=weights).predict_proba(FRAME)
    plain, weighted = (
        classifier(max_epochs=1).fit(FRAME, LABELS, sample_weight=each).predict_proba(FRAME)
        for each in (None, weights)
    )
    np.testing.assert_array_equal(said, weighted)
    assert not np.allclose(said, plain)


def test_row_embeddings_as_pandas():
    made = classifier(max_epochs=1).fit(FRAME, LABELS).set_output(transform="pandas")
    out = made.transform(FRAME)
    assert list(out)[:2] == ["tabulartransformerclassifier0", "tabulartransformerclassifier1"]
