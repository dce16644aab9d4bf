"""Metrics against scikit-learn and sacreBLEU."""

import numpy as np
import pytest
import sacrebleu
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.decode.metrics import calibration_error, label_scores, translation_scores

LABELS = ("a", "b", "c", "d")


@pytest.mark.peer
@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_label_scores_match_scikit_learn(seed, count):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.5] * 4, size=count)
    truth = rng.integers(0, 3, count)  # the last label does not occur
    scores = label_scores(p, truth, LABELS)
    predictions = p.argmax(1)
    f1 = sklearn.metrics.f1_score(
        truth, predictions, labels=range(4), average=None, zero_division=0
    )
    assert list(scores["f1"].values()) == pytest.approx(f1.tolist())
    assert scores["macro_f1"] == pytest.approx(f1.mean())
    assert scores["accuracy"] == sklearn.metrics.accuracy_score(truth, predictions)
    assert scores["log_loss"] == pytest.approx(
        sklearn.metrics.log_loss(truth, p, labels=range(4)), rel=1e-6
    )


def test_calibration_error_is_gap_between_confidence_and_accuracy():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 0.6])
    correct = np.array([True, True, True, False, False, True])
    assert calibration_error(confidence, correct) == pytest.approx((4 * 0.15 + 2 * 0.1) / 6)
    assert calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert calibration_error(np.ones(3), np.zeros(3, bool)) == 1


@given(st.integers(0, 1000))
def test_calibration_error_is_sum_over_bins(seed):
    rng = np.random.default_rng(seed)
    confidence, correct = rng.uniform(0.2, 1, 50), rng.random(50) < 0.5
    total = 0.0
    for index in range(15):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        if inside.any():
            gap = abs(correct[inside].mean() - confidence[inside].mean())
            total += inside.mean() * gap
    assert calibration_error(confidence, correct) == pytest.approx(total)


def test_zero_probability_gives_finite_log_loss():
    scores = label_scores(np.array([[1.0, 0.0]]), np.array([1]), ("a", "b"))
    assert np.isfinite(scores["log_loss"]) and scores["log_loss"] > 700


@pytest.mark.peer
def test_bleu_and_chrf_match_sacrebleu():
    hypotheses = ["The cat sat on the mat .", "It rains, heavily.", "a"]
    references = ["The cat is on the mat.", "It rains heavily.", "b c"]
    scores = translation_scores(hypotheses, references)
    assert scores["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert translation_scores(references, references)["bleu"] == pytest.approx(100)
    bleu, chrf = scores["signature"].split(" ")
    assert bleu.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert chrf.startswith("chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
