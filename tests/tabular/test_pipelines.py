"""Estimators inside scikit-learn's meta-estimators."""

import numpy as np
from sklearn import config_context
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tests.tabular.sample_tables import FRAME, LABELS, classifier


def test_pipeline_grid_search_and_cross_validation():
    pipe = make_pipeline(FunctionTransformer(), classifier(max_epochs=1))
    search = GridSearchCV(pipe, {"tabulartransformerclassifier__wiring": ["pre_ln", "b2t"]}, cv=2)
    search.fit(FRAME, LABELS)
    assert set(search.cv_results_["param_tabulartransformerclassifier__wiring"]) == {
        "pre_ln",
        "b2t",
    }
    assert len(cross_val_score(classifier(max_epochs=1), FRAME, LABELS, cv=2)) == 2


def test_calibration_and_permutation_importance():
    calibrated = CalibratedClassifierCV(classifier(max_epochs=1), cv=2).fit(FRAME, LABELS)
    assert calibrated.predict_proba(FRAME).shape == (60, 2)
    estimator = classifier(max_epochs=1).fit(FRAME, LABELS)
    result = permutation_importance(estimator, FRAME, LABELS, n_repeats=1, random_state=0)
    assert result.importances_mean.shape == (6,)


def test_metadata_routing_passes_sample_weights():
    with config_context(enable_metadata_routing=True):
        estimator = classifier(max_epochs=1).set_fit_request(sample_weight=True)
        pipe = make_pipeline(FunctionTransformer(), estimator)
        weights = np.where(LABELS == "yes", 9.0, 1.0)
        routed = pipe.fit(FRAME, LABELS, sample_weight=weights).predict_proba(FRAME)
    plain, weighted = (
        classifier(max_epochs=1).fit(FRAME, LABELS, sample_weight=each).predict_proba(FRAME)
        for each in (None, weights)
    )
    np.testing.assert_array_equal(routed, weighted)
    assert not np.allclose(routed, plain)


def test_row_embeddings_as_pandas_frame():
    estimator = classifier(max_epochs=1).fit(FRAME, LABELS).set_output(transform="pandas")
    out = estimator.transform(FRAME)
    assert list(out)[:2] == ["tabulartransformerclassifier0", "tabulartransformerclassifier1"]
