"""Evaluation against sums over single records."""

import math
import shutil

import numpy as np
import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.decode import DecodingOptions
from addnorm.decode.metrics import label_scores, translation_scores
from addnorm.tasks import classify_texts, evaluate, translate_texts
from tests.tasks.sample_runs import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        task: make_run(task, tmp_path_factory.mktemp(task))
        for task in ("translate", "lm", "classify")
    }


def records(run, split="test"):
    return list(Corpus.open(run.folder).records(split))


@torch.no_grad()
def test_translation_metrics(runs):
    run, options = runs["translate"], DecodingOptions(beam=2, max_new=8)
    progress = []
    metrics = evaluate(
        run, options=options, on_progress=lambda count, total: progress.append((count, total))
    )
    pairs = records(run)
    translations = [
        each[0].text for each in translate_texts(run, [p["source"] for p in pairs], options)
    ]
    assert metrics.items() >= translation_scores(translations, [p["target"] for p in pairs]).items()
    nll = count = 0
    for pair in pairs:
        [source, target] = run.tokenizer.encode([pair["source"], pair["target"]])
        logits = run.model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        rows = logits[0].log_softmax(-1)
        nll -= sum(rows[index, token].item() for index, token in enumerate([*target, 2]))
        count += len(target) + 1
    assert metrics["predicted"] == count
    assert metrics["loss"] == pytest.approx(nll / count)
    assert metrics["perplexity"] == pytest.approx(math.exp(nll / count))
    assert (metrics["beam"], metrics["records"], metrics["split"]) == (2, 23, "test")
    assert progress == [(1, 23)] * 23


@torch.no_grad()
def test_language_model_metrics(runs):
    run = runs["lm"]
    metrics = evaluate(run, "valid")
    texts = [record["text"] for record in records(run, "valid")]
    stream = [token for ids in run.tokenizer.encode(texts) for token in (1, *ids)]
    nll, longest = 0.0, run.recipe.max_length
    for start in range(0, len(stream) - 1, longest):
        block = stream[start : start + longest + 1]
        rows = run.model(torch.tensor([block[:-1]]))[0].log_softmax(-1)
        nll -= sum(rows[index, token].item() for index, token in enumerate(block[1:]))
    assert metrics["predicted"] == len(stream) - 1
    assert metrics["perplexity"] == pytest.approx(math.exp(nll / (len(stream) - 1)))
    assert metrics["characters"] == sum(map(len, texts))
    assert metrics["bits_per_character"] == pytest.approx(nll / math.log(2) / metrics["characters"])
    size = sum(len(text.encode()) for text in texts)
    assert metrics["bits_per_byte"] == pytest.approx(nll / math.log(2) / size)
    words = sum(len(text.split()) for text in texts)
    assert metrics["word_perplexity"] == pytest.approx(math.exp(nll / words))


@torch.no_grad()
def test_language_model_metrics_of_a_document_in_pieces(runs, tmp_path):
    run, text = runs["lm"], "ab\n\nba cab\n" * 30
    pieces = [{"text": text[:101]}, {"text": text[101:], "continues": "previous"}]
    splits = {"train": pieces, "test": [*pieces, {"text": "dad"}]}
    write_corpus(tmp_path, "lm", splits=splits)
    metrics = evaluate(run, data=tmp_path)
    [first, last] = run.tokenizer.encode([text, "dad"])
    stream = [1, *first, 1, *last]
    nll, longest = 0.0, run.recipe.max_length
    for start in range(0, len(stream) - 1, longest):
        block = stream[start : start + longest + 1]
        rows = run.model(torch.tensor([block[:-1]]))[0].log_softmax(-1)
        nll -= sum(rows[index, token].item() for index, token in enumerate(block[1:]))
    assert metrics["loss"] == pytest.approx(nll / (len(stream) - 1))
    assert metrics["characters"] == len(text) + 3
    assert metrics["predicted"] == metrics["characters"] + 1  # START of the second document


def test_label_metrics(runs):
    run = runs["classify"]
    metrics = evaluate(run)
    predictions = list(classify_texts(run, [record["text"] for record in records(run)]))
    p = np.array([prediction.probabilities for prediction in predictions])
    truth = np.array([run.labels.index(record["label"]) for record in records(run)])
    expected = label_scores(p, truth, run.labels)
    for name in ("accuracy", "macro_f1", "log_loss", "calibration_error", "f1"):
        assert metrics[name] == pytest.approx(expected[name])
    assert list(metrics["f1"]) == list(run.labels)


def test_labels_are_matched_by_name_in_another_corpus(runs, tmp_path):
    """A corpus that lacks a label numbers the other labels differently."""
    run = runs["classify"]
    subset = [record for record in records(run) if record["label"] != "dull"]
    write_corpus(tmp_path, "classify", splits={"train": subset, "test": subset})
    metrics = evaluate(run, data=tmp_path)
    labels = [next(classify_texts(run, [record["text"]])).label for record in subset]
    correct = [label == record["label"] for label, record in zip(labels, subset, strict=True)]
    assert metrics["accuracy"] == pytest.approx(sum(correct) / len(correct))


def test_skipped_records_are_reported(runs, tmp_path):
    run = runs["translate"]
    pairs = [{"source": "ab", "target": "ba"}, {"source": "ab" * 40, "target": "b"}]
    write_corpus(tmp_path, "translate", splits={"train": pairs, "test": pairs})
    metrics = evaluate(run, data=tmp_path, options=DecodingOptions(max_new=3, max_source=50))
    assert metrics["left_out"] == "1 longer than 40 tokens left out"
    assert (metrics["records"], metrics["cut"]) == (2, 1)


def test_invalid_calls_are_rejected(runs, tmp_path):
    run = runs["classify"]
    unknown_label = [{"text": "ab", "label": "odd"}]
    write_corpus(tmp_path / "odd", "classify", splits={"train": unknown_label, "test": []})
    with pytest.raises(UserError, match=r"the 'test' split of .*odd is empty; nothing to evaluate"):
        evaluate(run, data=tmp_path / "odd")
    with pytest.raises(UserError, match=r"expected the labels of the run .*, got 'odd'"):
        evaluate(run, "train", data=tmp_path / "odd")
    with pytest.raises(UserError, match="has no 'dev' split; it has train, valid, test"):
        evaluate(run, "dev")
    with pytest.raises(UserError, match="expected a corpus for 'classify', got one for 'lm'"):
        evaluate(run, data=runs["lm"].folder)
    with pytest.raises(UserError, match="expected none for task 'classify', which decodes nothing"):
        evaluate(run, options=DecodingOptions(beam=2))
    write_corpus(tmp_path / "short", "lm", splits={"train": [{"text": ""}]})
    with pytest.raises(UserError, match=r"has nothing to predict: it is too short"):
        evaluate(runs["lm"], "train", data=tmp_path / "short")


def test_missing_corpus_is_rejected(tmp_path):
    run = make_run("lm", tmp_path / "corpus")
    shutil.move(tmp_path / "corpus", tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"corpus of this run, .*, no longer exists; pass"):
        evaluate(run)
    assert evaluate(run, data=tmp_path / "elsewhere")["perplexity"] > 1
