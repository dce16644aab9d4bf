"""Why an estimator says what it says."""

import numpy as np
import pytest

from addnorm.core.errors import UserError
from tests.tabular.tables import FRAME, LABELS, NUMBERS, classifier, regressor


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
