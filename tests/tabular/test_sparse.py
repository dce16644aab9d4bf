"""Sparse matrices as tables."""

import numpy as np
import pytest
import scipy.sparse

from addnorm import UserError
from addnorm.tabular.columns import sparse
from tests.tabular.sample_tables import classifier, regressor

DENSE = np.where(np.random.default_rng(0).random((60, 5)) < 0.3, 1.5, 0.0)
DENSE[0, 0] = np.nan
LABELS = np.where(DENSE[:, 1] > 0, "yes", "no")
FORMATS = ["csr", "csc", "coo", "lil", "dok"]


@pytest.mark.parametrize("kind", FORMATS)
def test_sparse_and_dense_tables_are_the_same(kind):
    table = scipy.sparse.coo_array(DENSE).asformat(kind)
    ours, dense = (classifier(model="mlp").fit(each, LABELS) for each in (table, DENSE))
    expected = dense.predict_proba(DENSE)
    assert np.array_equal(ours.predict_proba(table), expected)
    assert np.array_equal(ours.predict_proba(DENSE), expected)
    assert np.array_equal(ours.transform(table), dense.transform(DENSE))


def test_inspection_of_sparse_tables():
    table = scipy.sparse.csr_matrix(DENSE)
    model = regressor(model="mlp").fit(table, DENSE[:, 1] + 1)
    assert model.explain(table[:2]).effects.shape == (2, 5)
    assert model.partial_dependence(table, 1).individual.shape[1] == 60
    assert model.permutation_importances(X=table, y=DENSE[:, 1]).mean.shape == (5,)


def test_tables_that_cannot_be_dense_are_refused(monkeypatch):
    wide = scipy.sparse.csr_array((1000, 10**8))
    with pytest.raises(UserError, match=r"got 1,000 x 100,000,000 cells.*TruncatedSVD"):
        classifier().fit(wide, np.resize([0, 1], 1000))
    with pytest.raises(ValueError, match="omplex"):
        classifier().fit(scipy.sparse.csr_array(np.full((4, 2), 1j)), [0, 1, 0, 1])
    # Predictions are made in chunks, so that more rows than a fit could have are no problem.
    model = classifier(model="mlp").fit(DENSE, LABELS)
    monkeypatch.setattr("addnorm.tabular.estimator.ROWS_PER_CHUNK", 4)
    monkeypatch.setattr(sparse.os, "sysconf", lambda name: 40 if name == "SC_PAGE_SIZE" else 20)
    assert model.predict(scipy.sparse.csr_array(DENSE)).shape == (60,)
    with pytest.raises(UserError, match="expected a sparse matrix that fits into"):
        classifier(model="mlp").fit(scipy.sparse.csr_array(DENSE), LABELS)
