"""Why an estimator says what it says."""

import numpy as np
import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.models.tabular import TableBatch
from addnorm.sublayers import SelfAttention
from addnorm.tabular.inspection import importance
from addnorm.tabular.inspection.importance import attention_rollout
from addnorm.tabular.training.loop import WeightedBatch
from tests.tabular.sample_tables import FRAME, LABELS, NUMBERS, classifier, regressor


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


@pytest.mark.parametrize("model", ["ft_transformer", "saint"])
def test_rollout_is_the_product_of_layers_whatever_is_looked_at_at_once(model, monkeypatch):
    made = classifier(model=model, depth=2).fit(FRAME, LABELS)
    cells, reference = made.encoder_.encode(FRAME), made.reference_
    seen = []
    attentions = [
        each for each in made.module_.stacks[0].sublayers if isinstance(each, SelfAttention)
    ]
    hooks = [
        each.probabilities_tap.register_forward_hook(lambda _tap, _in, p: seen.append(p.mean(1)))
        for each in attentions
    ]
    with torch.no_grad():
        memory = made.module_.encode_reference(reference)
        seen.clear()
        made.module_.embed(cells, memory)
    for hook in hooks:
        hook.remove()
    one = torch.eye(seen[0].shape[-1], dtype=torch.float64)
    wanted = (seen[1] + one[: seen[1].shape[1]]) / 2 @ ((seen[0] + one) / 2)
    whole = attention_rollout(made.module_, cells, reference)
    torch.testing.assert_close(whole, wanted[:, 0, 1:])
    monkeypatch.setattr(importance, "MAX_MAP_ELEMENTS", 1)  # a row at a time
    torch.testing.assert_close(attention_rollout(made.module_, cells, reference), whole)


def test_rollout_holds_few_maps_of_a_wide_table_at_once(monkeypatch):
    X = np.random.default_rng(0).normal(size=(40, 60))
    made = regressor(max_epochs=1).fit(X, X[:, 0])
    widest = []
    tap = made.module_.stacks[0].sublayers[0].probabilities_tap
    hook = tap.register_forward_hook(lambda _tap, _in, p: widest.append(len(p)))
    monkeypatch.setattr(importance, "MAX_MAP_ELEMENTS", 5 * 2 * 61**2)
    assert attention_rollout(made.module_, made.encoder_.encode(X), made.reference_).shape == (
        40,
        60,
    )
    hook.remove()
    assert max(widest) == 5


def test_what_is_looked_at_is_spread_over_all_rows():
    cells = TableBatch(*(torch.zeros(1000, 1) for _ in range(3)), torch.zeros(1000, 1, 1))
    sample = WeightedBatch(cells, torch.arange(1000), torch.ones(1000))
    assert sample.subsample(4).targets.tolist() == [0, 250, 500, 750]
    assert torch.equal(sample.subsample(2000).targets, sample.targets)
