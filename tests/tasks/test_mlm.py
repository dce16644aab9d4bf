"""Masked language modeling: batches, loss, resume, training and mask filling."""

import math
import random
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from addnorm.core.errors import UserError
from addnorm.data import write_corpus
from addnorm.data.batches import DataPosition
from addnorm.data.tokenizer import END, MASK, PAD, SPECIALS, START, Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.models import MaskedLM
from addnorm.tasks import InputWarnings, Objective, evaluate, fill_mask, get_task
from addnorm.train import Recipe, TrainedRun, train
from tests.tasks.sample_runs import make_run
from tests.train.cases import SMALL, digest

SENTENCES = [("cat", "sees", "dog"), ("dog", "hears", "cow"), ("cow", "eats", "hay")]


def write_sentences(folder, task="lm"):
    """Write a corpus of sentences in which one noun determines the verb and the other noun."""
    rng = random.Random(0)
    texts = ["the {} {} the {}".format(*rng.choice(SENTENCES)) for _ in range(300)]
    records = [{"text": text} for text in texts]
    splits = {"train": records[:240], "valid": records[240:270], "test": records[270:]}
    return write_corpus(folder, task, splits=splits)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_sentences(tmp_path_factory.mktemp("mlm"))


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return Tokenizer.train(corpus, "bpe", vocab=300, special_tokens=(MASK,))


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    keys = {
        "dim": 32, "depth": 2, "heads": 2, "vocab": 300, "steps": 120, "lr": 3e-3, "dropout": 0.0,
        "batch_tokens": 256, "max_length": 32, "valid_every": 40, "save_every": 40,
        "monitor_every": 40, "device": "cpu",
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("run")
    recipe = Recipe.from_dict({"task": "mlm", "data": str(corpus.folder), **keys})
    assert train(recipe, folder).ending == "done"
    return TrainedRun.open(folder, device="cpu")


def make_batches(corpus, tokenizer, task="mlm", **options):
    sizes = {"batch_tokens": 64, "max_length": 16}
    return get_task(task).make_batches(corpus, tokenizer, **sizes | options)


def test_mask_token_is_the_fifth_special_token(corpus, tokenizer):
    assert tokenizer.mask_id == len(SPECIALS)
    assert tokenizer.ids_to_tokens([4]) == [MASK]
    plain = Tokenizer.train(corpus, "bpe", vocab=300)
    assert plain.mask_id is None and plain.specials == SPECIALS
    (ids,) = tokenizer.encode(["a <mask> b"])
    assert tokenizer.mask_id not in ids, "a mask in ordinary text is text"


def test_rows_are_documents_with_start_and_end(corpus, tokenizer):
    for batch, _ in make_batches(corpus, tokenizer).epoch():
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            ids = torch.where(targets == IGNORE_INDEX, inputs, targets)
            ids = ids[ids != PAD].tolist()
            assert ids[0] == START and ids[-1] == END
            assert tokenizer.decode([ids])[0] in {r["text"] for r in corpus.records("train")}
        assert batch.count == int((batch.targets != IGNORE_INDEX).sum())
        assert batch.tokens == int((batch.inputs != PAD).sum())


def test_long_document_is_split_into_rows_completely(tmp_path):
    text = " ".join(f"word{number}" for number in range(60))
    corpus = write_corpus(tmp_path, "mlm", splits={"train": [{"text": text}, {"text": ""}]})
    tokenizer = Tokenizer.train(corpus, "char", vocab=100, special_tokens=(MASK,))
    batches = make_batches(corpus, tokenizer, batch_tokens=16)
    pieces = Counter()
    for batch, _ in batches.epoch():
        ids = torch.where(batch.targets == IGNORE_INDEX, batch.inputs, batch.targets)
        for row in ids:
            pieces[tuple(row[row != PAD].tolist()[1:-1])] += 1
    (document,) = tokenizer.encode([text])
    expected = Counter(tuple(document[start : start + 14]) for start in range(0, len(document), 14))
    assert pieces == expected
    assert batches.describe_skipped() == "1 empty left out"


def test_masks_depend_on_epoch_and_seed_only(corpus, tokenizer):
    def masked(batches, epoch=0):
        return sorted(
            (tuple(row.tolist()), tuple(target.tolist()))
            for batch, _ in batches.epoch(DataPosition(epoch))
            for row, target in zip(batch.inputs, batch.targets, strict=True)
        )

    first = make_batches(corpus, tokenizer, seed=3)
    assert masked(first) == masked(make_batches(corpus, tokenizer, seed=3))
    assert masked(first) != masked(first, epoch=1)
    assert masked(first) != masked(make_batches(corpus, tokenizer, seed=4))
    fixed = make_batches(corpus, tokenizer, split="valid")
    larger = make_batches(corpus, tokenizer, split="valid", batch_tokens=200)
    assert masked(fixed) == masked(larger), "masks do not depend on the batch"


def test_positions_and_shards_keep_the_masks(corpus, tokenizer):
    batches = make_batches(corpus, tokenizer, seed=3)
    stream = batches.stream()
    steps = [next(stream) for _ in range(6)]
    resumed, _ = next(batches.stream(steps[2][1]))
    assert resumed.inputs.equal(steps[3][0].inputs)
    assert resumed.targets.equal(steps[3][0].targets)
    shards = [resumed.shard(rank, 2) for rank in range(2)]
    assert sum(int((shard.targets != IGNORE_INDEX).sum()) for shard in shards) == resumed.count


def test_loss_equals_pytorch_cross_entropy(corpus, tokenizer):
    """The reference follows BertForMaskedLM: cross entropy of all logits with ignore_index."""
    model = make_run("mlm", corpus.folder.parent / "reference", kind="char").model
    batch, _ = next(make_batches(corpus, tokenizer, seed=1).stream())
    inputs = batch.inputs % model.config.vocab
    targets = torch.where(batch.targets < 0, batch.targets, batch.targets % model.config.vocab)
    loss, sums = Objective(model, get_task("mlm"))(inputs, targets)
    logits = model(inputs, mask=inputs != PAD)
    reference = nn.CrossEntropyLoss(reduction="sum", ignore_index=-100)
    expected = reference(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    assert loss.item() == pytest.approx(expected.item())
    chosen = targets != IGNORE_INDEX
    correct = (logits.argmax(-1)[chosen] == targets[chosen]).sum()
    assert sums.tolist() == pytest.approx([expected.item(), correct.item(), batch.count])


def test_training_learns_more_than_frequencies(trained, corpus):
    """The loss is far below the entropy of the tokens, which ignores the context."""
    texts = [record["text"] for record in corpus.records("train")]
    counts = Counter(token for ids in trained.tokenizer.encode(texts) for token in ids)
    entropy = -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values())
    metrics = evaluate(trained)
    assert isinstance(trained.model, MaskedLM)
    assert metrics["loss"] < 0.25 * entropy
    assert metrics["accuracy"] > 0.9
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert evaluate(trained) == metrics


def test_metrics_of_evaluate_by_hand(trained, corpus):
    batches = make_batches(corpus, trained.tokenizer, split="test", batch_tokens=256, max_length=32)
    nll = correct = count = 0
    with torch.no_grad():
        for batch, _ in batches.epoch():
            logits = trained.model(batch.inputs, mask=batch.inputs != PAD)
            chosen = batch.targets != IGNORE_INDEX
            nll += F.cross_entropy(logits[chosen], batch.targets[chosen], reduction="sum").item()
            correct += int((logits[chosen].argmax(-1) == batch.targets[chosen]).sum())
            count += int(chosen.sum())
    metrics = evaluate(trained)
    assert metrics["predicted"] == count
    assert metrics["loss"] == pytest.approx(nll / count, rel=1e-5)
    assert metrics["accuracy"] == correct / count


@pytest.mark.parametrize("stop", [3, 5])
def test_resume_reproduces_uninterrupted_run(corpus, tmp_path, stop):
    keys = SMALL | {"max_length": 24, "dropout": 0.1, "steps": 8, "device": "cpu"}
    recipe = Recipe.from_dict({"task": "mlm", "data": str(corpus.folder), **keys})
    train(recipe, tmp_path / "whole")
    assert train(recipe, tmp_path / "parts", until=stop).ending == "interrupted"
    assert train(recipe, tmp_path / "parts").ending == "done"
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    rows = [(tmp_path / name / "rows.jsonl").read_text() for name in ("whole", "parts")]
    for name in ("perplexity", "accuracy"):
        values = [[line for line in text.splitlines() if f'"{name}"' in line] for text in rows]
        assert values[0] == values[1] != []


def test_recipe_keys_of_the_task(tmp_path):
    recipe = Recipe.from_dict({"task": "mlm", "data": "corpus", "mask_rate": 0.3})
    assert recipe.make_task().mask_rate == 0.3
    assert recipe.to_flat_dict()["random_replace_rate"] == 0.1
    assert Recipe.from_dict(recipe.to_flat_dict()) == recipe
    assert "mask_rate" not in Recipe.from_dict({"task": "lm", "data": "corpus"}).to_flat_dict()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mask_rate": 0.0}, "option 'mask_rate' of task 'mlm': expected a number greater than 0"),
        ({"mask_rate": 1.0}, "option 'mask_rate' of task 'mlm': expected a number less than 1"),
        ({"mask_rate": "much"}, "option 'mask_rate' of task 'mlm': expected a valid number"),
        ({"mask_rat": 0.1}, "a recipe has no 'mask_rat'; did you mean 'mask_rate'"),
        ({"mask_replace_rate": 0.95}, "expected at most 1, got 0.95"),
        ({"task": "lm", "mask_rate": 0.1}, "mask_rate is a key of task 'mlm' only"),
        ({"preset": "gpt2"}, "preset: expected a masked_lm for this task, got 'gpt2'"),
    ],
)
def test_invalid_recipes_are_rejected(values, message):
    with pytest.raises(UserError, match=message):
        Recipe.from_dict({"task": "mlm", "data": "corpus"} | values)


def test_incompatible_corpora_and_tokenizers_are_rejected(corpus, tmp_path):
    pairs = [{"source": "a", "target": "b"}] * 3
    write_corpus(tmp_path / "pairs", "translate", splits={"train": pairs})
    with pytest.raises(UserError, match="expected a corpus for 'mlm' or 'lm', got one for 'trans"):
        train(Recipe.from_dict({"task": "mlm", "data": str(tmp_path / "pairs")}), tmp_path / "a")
    Tokenizer.train(corpus, "char").save(tmp_path / "tokenizer.json")
    keys = {"data": str(corpus.folder), "tokenizer": str(tmp_path / "tokenizer.json")}
    with pytest.raises(UserError, match="expected one with the special token <mask> for task 'mlm"):
        train(Recipe.from_dict({"task": "mlm"} | keys), tmp_path / "b")


def test_masks_are_filled_by_context(trained):
    lines = ["the cat <mask> the dog", "the cow eats the <mask>.", "the <mask> hears the cow"]
    results = list(fill_mask(trained, lines, top_k=3))
    assert [result.text for result in results] == [
        "the cat sees the dog",
        "the cow eats the hay.",
        "the dog hears the cow",
    ]
    for result in results:
        [fills] = result.fills
        probabilities = [fill.probability for fill in fills]
        assert len(fills) == 3 and probabilities == sorted(probabilities, reverse=True)
        assert 0 < sum(probabilities) <= 1


def test_masked_text_is_tokenized_as_in_training(trained):
    """`<mask>` takes the place of one token, with the space before it."""
    tokenizer = trained.tokenizer
    (ids,) = tokenizer.encode(["the cat sees the dog."])
    for index in range(len(ids)):
        masked = [*ids[:index], tokenizer.mask_id, *ids[index + 1 :]]
        pieces = [tokenizer.engine.decode([token]) for token in ids]
        pieces[index] = (" " if index else "") + MASK if pieces[index].startswith(" ") else MASK
        assert tokenizer.encode_masked("".join(pieces).strip(" ")) == masked


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_empty_long_and_unusual_lines(tmp_path, kind):
    run = make_run("mlm", tmp_path, kind=kind)
    warnings = InputWarnings()
    lines = [
        "a<mask>d",
        "",
        "dad",
        "<mask>",
        "<mask><mask>b",
        "  ",
        "€<mask>\u2028",
        "ab" * 60 + MASK,
    ]
    results = list(fill_mask(run, lines, top_k=2, chunk=3, warnings=warnings))
    assert [len(result.fills) for result in results] == [1, 0, 0, 1, 2, 0, 1, 0]
    assert [results[1].text, results[2].text, results[5].text] == ["", "dad", "  "]
    assert results[7].text == lines[7], "a mask beyond the length limit stays"
    assert (warnings.num_lines, warnings.num_truncated, warnings.num_unmasked) == (8, 1, 1)
    texts = [result.text for result in fill_mask(run, lines)]
    assert texts == [result.text for result in results]
    assert not any(special in texts[4] for special in SPECIALS)


def test_fill_probabilities_equal_model_softmax(tmp_path):
    run = make_run("mlm", tmp_path)
    [result] = fill_mask(run, ["a<mask>d"], top_k=1)
    ids = torch.tensor([[START, *run.tokenizer.encode_masked("a<mask>d"), END]])
    probabilities = run.model(ids).softmax(-1)[0, 2]
    assert result.fills[0][0].probability == pytest.approx(probabilities[5:].max().item())
    assert result.tokens == tuple(ids[0].tolist())


def test_invalid_calls_are_rejected(tmp_path):
    run = make_run("mlm", tmp_path / "mlm")
    with pytest.raises(UserError, match="top_k: expected a whole number from 1, got 0"):
        fill_mask(run, [], top_k=0)
    with pytest.raises(UserError, match=r"trained for 'mlm', got one .* 'lm'; try `addnorm gener"):
        fill_mask(make_run("lm", tmp_path / "lm"), [])
