"""Metrics of outputs: BLEU, chrF, accuracy, F1 and calibration."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

NUM_BINS = 15
Array = np.ndarray[Any, Any]


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU and chrF of untokenized texts, with the sacreBLEU signatures.

    Post, A Call for Clarity in Reporting BLEU Scores, 2018, arXiv 1804.08771: tokenizer 13a, mixed
    case. Popović, chrF, 2015: six characters, no words, beta 2.
    """
    bleu, chrf = BLEU(), CHRF()
    scores = bleu.corpus_score(list(hypotheses), [list(references)])
    characters = chrf.corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": float(scores.score),
        "chrf": float(characters.score),
        "signature": f"BLEU|{bleu.get_signature()} chrF2|{chrf.get_signature()}",
        "brevity_penalty": float(scores.bp),
        "length_ratio": scores.sys_len / max(scores.ref_len, 1),
    }


def label_scores(p: Array, truth: Array, labels: Sequence[str]) -> dict[str, Any]:
    """Return the metrics of probabilities p, (N, classes), given the true label indices, (N).

    accuracy: fraction of correct predictions
    f1: by label, 2 tp / (2 tp + fp + fn), 0 where it is undefined; macro_f1: unweighted mean
    log_loss: mean of -log p of the true label
    calibration_error: sum over 15 bins of equal width of the confidence, of the bin's fraction of
        predictions times |its accuracy - its mean confidence| (Guo et al., On Calibration of Modern
        Neural Networks, 2017, arXiv 1706.04599, eq. 3)
    """
    predictions = p.argmax(1)
    is_correct = predictions == truth
    f1 = []
    for number in range(len(labels)):
        hits = int((is_correct & (truth == number)).sum())
        total = int((predictions == number).sum()) + int((truth == number).sum())
        f1.append(2 * hits / total if total else 0.0)
    likelihood = p[np.arange(len(truth)), truth]
    return {
        "accuracy": float(is_correct.mean()),
        "macro_f1": float(np.mean(f1)),
        "f1": dict(zip(labels, f1, strict=True)),
        "log_loss": float(-np.log(np.maximum(likelihood, np.finfo(np.float64).tiny)).mean()),
        "calibration_error": calibration_error(p.max(1), is_correct),
    }


def calibration_error(confidence: Array, is_correct: Array, *, bins: int = NUM_BINS) -> float:
    """Return the expected calibration error; bins include their upper edge.

    Args:
        confidence: (N) probability of the predicted class
        is_correct: (N) whether the prediction is correct
        bins: number of bins of equal width
    """
    number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    confident = np.bincount(number, weights=confidence, minlength=bins)
    correct = np.bincount(number, weights=is_correct.astype(np.float64), minlength=bins)
    return float(np.abs(correct - confident).sum() / len(confidence))
