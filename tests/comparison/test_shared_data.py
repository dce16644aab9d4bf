"""Data and baselines that all cells share."""

import math
from collections import Counter

import pytest

from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.text_data import unigram_loss
from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.demo.dates import make_dates
from addnorm.data.tokenizer import Tokenizer


def prepare(spec, folder):
    return get_task(spec.task).prepare(spec, folder)


def recipe_of(spec, data):
    return get_task(spec.task).recipe(spec, spec.cells()[0], data=data, tokenizer="char")


def test_text_baseline_is_unigram_loss(tmp_path):
    records = {
        "train": [{"source": "x", "target": "aab"}, {"source": "y", "target": "a"}],
        "valid": [{"source": "z", "target": "ab"}],
    }
    corpus = write_corpus(tmp_path, "translate", splits=records)
    tokenizer = Tokenizer.train(corpus, "char", vocab=50)
    recipe = recipe_of(Comparison(), tmp_path)
    counts, total = Counter({"a": 3, "b": 1, "end": 2}), 6 + tokenizer.vocab
    expected = -sum(math.log((counts[t] + 1) / total) for t in ("a", "b", "end")) / 3
    assert unigram_loss(corpus, tokenizer, recipe) == pytest.approx(expected)


def test_label_baseline_is_class_frequency(tmp_path):
    records = {
        "train": [{"text": str(n), "label": "yes" if n < 7 else "no"} for n in range(10)],
        "valid": [{"text": "a", "label": "yes"}],
    }
    corpus = write_corpus(tmp_path, "classify", splits=records)
    spec = Comparison(task="classify")
    recipe = recipe_of(spec, tmp_path)
    loss = unigram_loss(corpus, Tokenizer.train(corpus, "char", vocab=50), recipe)
    assert loss == pytest.approx(-math.log(8 / 12))


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_demo_data_can_be_prepared(task, tmp_path):
    spec = parse_comparison({"task": task, "wiring": "pre_ln", "lr": 1e-3, "score": 7})
    shared_data = prepare(spec, tmp_path)
    assert 0.5 < shared_data.baseline < 6
    assert Corpus.open(shared_data.data).counts["valid"] <= 100
    assert 1 <= Corpus.open(tmp_path / "score").counts["test"] <= 7
    assert SharedData.read(tmp_path) == shared_data == prepare(spec, tmp_path)


def test_changed_corpus_is_rejected(tmp_path):
    splits, about = make_dates()
    write_corpus(tmp_path / "mine", "translate", splits=splits, about=about)
    spec = parse_comparison(
        {"data": str(tmp_path / "mine"), "wiring": "pre_ln", "tokenizer": "char"}
    )
    prepare(spec, tmp_path / "runs")
    write_corpus(tmp_path / "mine", "translate", splits=splits, about=about | {"more": 1})
    with pytest.raises(UserError, match="has changed since the comparison started"):
        prepare(spec, tmp_path / "runs")


def test_corpus_without_validation_split_is_rejected(tmp_path):
    write_corpus(tmp_path / "mine", "lm", splits={"train": [{"text": "a b c"}]})
    with pytest.raises(UserError, match="has no valid split"):
        prepare(Comparison(task="lm", data=str(tmp_path / "mine")), tmp_path / "runs")


def test_dates_are_deterministic_and_splits_disjoint():
    splits, _ = make_dates(3)
    assert splits == make_dates(3)[0] != make_dates(4)[0]
    sources = [record["source"] for part in splits.values() for record in part]
    assert len(set(sources)) == len(sources) == 5400


def test_locales_with_equal_dates_are_rejected():
    with pytest.raises(UserError, match="expected locales with different dates"):
        make_dates(0, ("en_US", "en"))
