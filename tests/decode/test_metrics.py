"""Scores beside scikit-learn and sacreBLEU's own functions."""

import numpy as np
import pytest
import sacrebleu
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.decode.metrics import calibration_error, label_scores, translation_scores

LABELS = ("a", "b", "c", "d")


@pytest.mark.peer
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_labels_are_scored_as_by_scikit_learn(seed, count):
    chance = np.random.default_rng(seed)
    p = chance.dirichlet([0.5] * 4, size=count)
    truth = chance.integers(0, 3, count)  # the last label never comes
    found = label_scores(p, truth, LABELS)
    answers = p.argmax(1)
    f1 = sklearn.metrics.f1_score(truth, answers, labels=range(4), average=None, zero_division=0)
    assert list(found["f1"].values()) == pytest.approx(f1.tolist())
    assert found["macro_f1"] == pytest.approx(f1.mean())
    assert found["accuracy"] == sklearn.metrics.accuracy_score(truth, answers)
    assert found["log_loss"] == pytest.approx(
        sklearn.metrics.log_loss(truth, p, labels=range(4)), rel=1e-6
    )


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 0.6])
    right = np.array([True, True, True, False, False, True])
    assert calibration_error(confidence, right) == pytest.approx((4 * 0.15 + 2 * 0.1) / 6)
    assert calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert calibration_error(np.ones(3), np.zeros(3, bool)) == 1


@given(st.integers(0, 1000))
def test_calibration_is_the_sum_over_bins(seed):
    chance = np.random.default_rng(seed)
    confidence, right = chance.uniform(0.2, 1, 50), chance.random(50) < 0.5
    total = 0.0
    for place in range(15):
        inside = (confidence > place / 15) & (confidence <= (place + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            total += inside.mean() * gap
    assert calibration_error(confidence, right) == pytest.approx(total)


def test_a_probability_of_zero_is_no_crash():
    found = label_scores(np.array([[1.0, 0.0]]), np.array([1]), ("a", "b"))
    assert np.isfinite(found["log_loss"]) and found["log_loss"] > 700


@pytest.mark.peer
def test_bleu_and_chrf_are_sacrebleus():
    written = ["The cat sat on the mat .", "It rains, heavily.", "a"]
    wanted = ["The cat is on the mat.", "It rains heavily.", "b c"]
    found = translation_scores(written, wanted)
    assert found["bleu"] == sacrebleu.corpus_bleu(written, [wanted]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(written, [wanted]).score
    assert translation_scores(wanted, wanted)["bleu"] == pytest.approx(100)
    bleu, chrf = found["signature"].split(" ")
    assert bleu.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert chrf.startswith("chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
