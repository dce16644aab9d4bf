"""Predictions do not depend on the rows that are predicted together, bit for bit."""

import numpy as np
import pytest
import torch

from addnorm.kernels import library
from addnorm.tabular.training.prediction import MEMBERS_CHUNK_ROWS as CHUNK_ROWS
from addnorm.tabular.training.prediction import has_exact_widths
from tests.tabular.sample_tables import classifier, mixed

X, y = mixed(2 * CHUNK_ROWS + 50)
# Sizes at which the native kernels and vectorized products are used.
SIZES = {"dim": 96, "depth": 2, "max_epochs": 1}


@pytest.fixture(scope="module", params=["mlp", "mlp members", "ft_transformer", "ft members"])
def fitted(request):
    name, _, members = request.param.partition(" ")
    model = "mlp" if name == "mlp" else "ft_transformer"
    heads = {} if model == "mlp" else {"heads": 8}
    count = 4 if members else None
    return classifier(model=model, members=count, **heads, **SIZES).fit(X[:100], y[:100])


@pytest.mark.parametrize("level", ["off", *library.list_levels()])
@pytest.mark.parametrize("threads", [1, 2])
def test_prediction_of_a_row_is_independent_of_other_rows(fitted, level, threads):
    order = np.random.default_rng(0).permutation(len(X))
    fitted.set_params(n_jobs=threads)
    with library.use_level(level):
        together = fitted.predict_proba(X)
        np.testing.assert_array_equal(fitted.predict_proba(X.iloc[order]), together[order])
        for rows in ([0], [CHUNK_ROWS + 1], [5, 5, 7], list(range(40, 40 + CHUNK_ROWS + 1))):
            np.testing.assert_array_equal(fitted.predict_proba(X.iloc[rows]), together[rows])


@pytest.mark.parametrize("options", [{"dim": 16, "ffn_dim": 21}, {"dim": 18}, {"heads": 4}])
def test_models_of_other_widths_predict_in_float64(options):
    estimator = classifier(max_epochs=1, **options).fit(X[:100], y[:100])
    assert not has_exact_widths(estimator.module_)
    assert has_exact_widths(classifier(max_epochs=1, dim=24).fit(X[:100], y[:100]).module_)
    together, rows = estimator.predict_proba(X), np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(estimator.predict_proba(X.iloc[rows]), together[rows])
    assert {value.dtype for value in estimator.module_.parameters()} == {torch.float32}


@pytest.mark.parametrize("model", ["saint", "tab_transformer"])
def test_prediction_of_a_row_is_independent_of_other_rows_in_other_models(model):
    estimator = classifier(model=model, max_epochs=1).fit(X[:100], y[:100])
    together = estimator.predict_proba(X)
    np.testing.assert_array_equal(estimator.predict_proba(X.iloc[7:20]), together[7:20])


def test_weights_are_float32_after_fit_and_load(fitted, tmp_path):
    fitted.save(tmp_path)
    loaded = type(fitted).load(tmp_path)
    for module in (fitted.module_, loaded.module_):
        assert {value.dtype for value in module.parameters()} == {torch.float32}
    np.testing.assert_array_equal(loaded.predict_proba(X[:3]), fitted.predict_proba(X[:3]))
