"""Evaluation beside sums over single records."""

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
from tests.tasks.sample_runs import run_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        task: run_of(task, tmp_path_factory.mktemp(task))
        for task in ("translate", "lm", "classify")
    }


def records(run, split="test"):
    return list(Corpus.open(run.folder).records(split))


@torch.no_grad()
def test_translation(runs):
    run, options = runs["translate"], DecodingOptions(beam=2, max_new=8)
    done = []
    found = evaluate(
        run, options=options, on_progress=lambda count, total: done.append((count, total))
    )
    pairs = records(run)
    written = [each[0].text for each in translate_texts(run, [p["source"] for p in pairs], options)]
    assert found.items() >= translation_scores(written, [p["target"] for p in pairs]).items()
    nll = count = 0
    for pair in pairs:
        [source, target] = run.tokenizer.encode([pair["source"], pair["target"]])
        logits = run.model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        rows = logits[0].log_softmax(-1)
        nll -= sum(rows[place, token].item() for place, token in enumerate([*target, 2]))
        count += len(target) + 1
    assert found["predicted"] == count
    assert found["loss"] == pytest.approx(nll / count)
    assert found["perplexity"] == pytest.approx(math.exp(nll / count))
    assert (found["beam"], found["records"], found["split"]) == (2, 23, "test")
    assert done == [(1, 23)] * 23


@torch.no_grad()
def test_language_model(runs):
    run = runs["lm"]
    found = evaluate(run, "valid")
    texts = [record["text"] for record in records(run, "valid")]
    stream = [token for ids in run.tokenizer.encode(texts) for token in (1, *ids)]
    nll, longest = 0.0, run.recipe.max_length
    for start in range(0, len(stream) - 1, longest):
        block = stream[start : start + longest + 1]
        rows = run.model(torch.tensor([block[:-1]]))[0].log_softmax(-1)
        nll -= sum(rows[place, token].item() for place, token in enumerate(block[1:]))
    assert found["predicted"] == len(stream) - 1
    assert found["perplexity"] == pytest.approx(math.exp(nll / (len(stream) - 1)))
    assert found["characters"] == sum(map(len, texts))
    assert found["bits_per_character"] == pytest.approx(nll / math.log(2) / found["characters"])
    size = sum(len(text.encode()) for text in texts)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / size)
    words = sum(len(text.split()) for text in texts)
    assert found["word_perplexity"] == pytest.approx(math.exp(nll / words))


def test_labels(runs):
    run = runs["classify"]
    found = evaluate(run)
    verdicts = list(classify_texts(run, [record["text"] for record in records(run)]))
    p = np.array([verdict.probabilities for verdict in verdicts])
    truth = np.array([run.labels.index(record["label"]) for record in records(run)])
    wanted = label_scores(p, truth, run.labels)
    for name in ("accuracy", "macro_f1", "log_loss", "calibration_error", "f1"):
        assert found[name] == pytest.approx(wanted[name])
    assert list(found["f1"]) == list(run.labels)


def test_labels_of_another_corpus_keep_their_meaning(runs, tmp_path):
    """One that lacks a label numbers the others differently."""
    run = runs["classify"]
    some = [record for record in records(run) if record["label"] != "dull"]
    write_corpus(tmp_path, "classify", splits={"train": some, "test": some})
    found = evaluate(run, data=tmp_path)
    labels = [next(classify_texts(run, [record["text"]])).label for record in some]
    right = [label == record["label"] for label, record in zip(labels, some, strict=True)]
    assert found["accuracy"] == pytest.approx(sum(right) / len(right))


def test_what_was_left_out_is_told(runs, tmp_path):
    run = runs["translate"]
    pairs = [{"source": "ab", "target": "ba"}, {"source": "ab" * 40, "target": "b"}]
    write_corpus(tmp_path, "translate", splits={"train": pairs, "test": pairs})
    found = evaluate(run, data=tmp_path, options=DecodingOptions(max_new=3, max_source=50))
    assert found["left_out"] == "1 longer than 40 tokens left out"
    assert (found["records"], found["cut"]) == (2, 1)


def test_mistakes_are_told(runs, tmp_path):
    run = runs["classify"]
    strange = [{"text": "ab", "label": "odd"}]
    write_corpus(tmp_path / "odd", "classify", splits={"train": strange, "test": []})
    with pytest.raises(UserError, match=r"the 'test' part of .*odd is empty; nothing to evaluate"):
        evaluate(run, data=tmp_path / "odd")
    with pytest.raises(UserError, match=r"expected the labels of the run .*, got 'odd'"):
        evaluate(run, "train", data=tmp_path / "odd")
    with pytest.raises(UserError, match="has no 'dev' part; it has train, valid, test"):
        evaluate(run, "dev")
    with pytest.raises(UserError, match="expected a corpus for 'classify', got one for 'lm'"):
        evaluate(run, data=runs["lm"].folder)
    with pytest.raises(UserError, match="expected none for task 'classify', which decodes nothing"):
        evaluate(run, options=DecodingOptions(beam=2))
    write_corpus(tmp_path / "short", "lm", splits={"train": [{"text": ""}]})
    with pytest.raises(UserError, match=r"has nothing to predict: it is too short"):
        evaluate(runs["lm"], "train", data=tmp_path / "short")


def test_a_corpus_that_is_gone_is_asked_for(tmp_path):
    run = run_of("lm", tmp_path / "corpus")
    shutil.move(tmp_path / "corpus", tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"corpus of this run, .*, does not exist any more; pass"):
        evaluate(run)
    assert evaluate(run, data=tmp_path / "elsewhere")["perplexity"] > 1
