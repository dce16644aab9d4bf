"""Feature importances, explanations and reliability diagrams."""

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
    estimator = classifier(importance=kind).fit(FRAME, LABELS)
    assert estimator.feature_importances_.min() >= 0
    assert estimator.feature_importances_.sum() == pytest.approx(1)


def test_importances_of_wide_tables_use_fewer_rows(monkeypatch):
    rows, original = [], importance.predict

    def predict(model, cells, reference):
        rows.append(cells.num_rows)
        return original(model, cells, reference)

    monkeypatch.setattr(importance, "predict", predict)
    monkeypatch.setattr(importance, "MAX_PREDICTIONS", 5 * 6 * 20)
    monkeypatch.setattr(importance, "MIN_ROWS", 10)
    estimator = classifier(max_epochs=1).fit(FRAME, LABELS)
    assert estimator.feature_importances_.shape == (6,)
    assert rows == [20] * (1 + 5 * 6)


def test_importances_and_explanations_find_the_relevant_column(tmp_path):
    estimator = regressor(lr=1e-2, max_epochs=40, importance="permutation")
    estimator.fit(NUMBERS, NUMBERS[:, 1])
    assert estimator.feature_importances_.argmax() == 1
    explanation = estimator.explain(NUMBERS[:2])
    assert (np.abs(explanation.effects).argmax(1) == 1).all()
    assert (np.sign(explanation.effects[:, 1]) == np.sign(explanation.answers)).all()
    assert "x1 = " in explanation.save(tmp_path / "why.svg").read_text()
    with pytest.raises(UserError, match=r"path: expected a file name that ends in .svg"):
        explanation.save(tmp_path / "why.doc")
    with pytest.raises(UserError, match=r"row: expected an index below 2, .*, got 7"):
        explanation.chart(7)


def test_explanation_of_a_class_and_reliability_diagram(tmp_path):
    estimator = classifier().fit(FRAME, LABELS)
    explanation = estimator.explain(FRAME.head(2))
    assert explanation.effects.shape == (2, 6) and set(explanation.of) <= {"yes", "no"}
    plot = estimator.reliability(FRAME, LABELS)
    assert plot.rows.sum() == 60 and 0 <= plot.error <= 1
    assert plot.save(tmp_path / "plot.svg").stat().st_size > 1000


@pytest.mark.parametrize("model", ["ft_transformer", "saint"])
def test_rollout_is_the_product_of_layers_for_any_batch_size(model, monkeypatch):
    estimator = classifier(model=model, depth=2).fit(FRAME, LABELS)
    cells, reference = estimator.encoder_.encode(FRAME).to("cpu"), estimator.reference_.to("cpu")
    maps = []
    attentions = [
        each for each in estimator.module_.stacks[0].sublayers if isinstance(each, SelfAttention)
    ]
    hooks = [
        each.probabilities_tap.register_forward_hook(lambda _tap, _in, p: maps.append(p.mean(1)))
        for each in attentions
    ]
    with torch.no_grad():
        memory = estimator.module_.encode_reference(reference)
        maps.clear()
        estimator.module_.embed(cells, memory)
    for hook in hooks:
        hook.remove()
    identity = torch.eye(maps[0].shape[-1])
    expected = (maps[1] + identity[: maps[1].shape[1]]) / 2 @ ((maps[0] + identity) / 2)
    rollout = attention_rollout(estimator.module_, cells, reference)
    torch.testing.assert_close(rollout, expected[:, 0, 1:])
    monkeypatch.setattr(importance, "MAX_MAP_ELEMENTS", 1)  # one row per batch
    torch.testing.assert_close(attention_rollout(estimator.module_, cells, reference), rollout)


def test_rollout_bounds_the_attention_maps_of_wide_tables(monkeypatch):
    X = np.random.default_rng(0).normal(size=(40, 60))
    estimator = regressor(max_epochs=1).fit(X, X[:, 0])
    batch_sizes = []
    tap = estimator.module_.stacks[0].sublayers[0].probabilities_tap
    hook = tap.register_forward_hook(lambda _tap, _in, p: batch_sizes.append(len(p)))
    monkeypatch.setattr(importance, "MAX_MAP_ELEMENTS", 5 * 2 * 61**2)
    assert attention_rollout(
        estimator.module_, estimator.encoder_.encode(X), estimator.reference_
    ).shape == (
        40,
        60,
    )
    hook.remove()
    assert max(batch_sizes) == 5


def test_subsample_is_evenly_spaced():
    cells = TableBatch(*(torch.zeros(1000, 1) for _ in range(3)), torch.zeros(1000, 1, 1))
    sample = WeightedBatch(cells, torch.arange(1000), torch.ones(1000))
    assert sample.subsample(4).targets.tolist() == [0, 250, 500, 750]
    assert torch.equal(sample.subsample(2000).targets, sample.targets)
