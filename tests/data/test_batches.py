"""Batches: epochs, padding, order, resume positions and memory-bounded pools."""

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data import batches as module
from addnorm.data import write_corpus
from addnorm.data.batches import DataPosition
from addnorm.data.tokenizer import END, PAD, START, Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.tasks import get_task

WORDS = ["a", "bb", "ccc", "dddd", "eeeee", "f", "gg", "hhh"]


def make_corpus(folder, task="translate", count=200):
    records = {
        "translate": lambda i: {
            "source": " ".join(WORDS[: 1 + i % 7]) + f" {i}",
            "target": f"{i} " + " ".join(WORDS[1 : 2 + i % 7]),
        },
        "lm": lambda i: {"text": f"line {i} " + " ".join(WORDS[: i % 8])},
        "classify": lambda i: {
            "text": " ".join(WORDS[: 1 + i % 7]),
            "label": "odd" * (i % 2) or "e",
        },
    }[task]
    return write_corpus(folder, task, splits={"train": map(records, range(count))})


@pytest.fixture(scope="module", params=["translate", "lm", "classify"])
def stream(request, tmp_path_factory):
    corpus = make_corpus(tmp_path_factory.mktemp("c"), request.param)
    tokenizer = Tokenizer.train(corpus, "char", vocab=100)
    return make_batches(corpus, tokenizer, batch_tokens=256, max_length=64, seed=3)


def make_batches(corpus, tokenizer, **options):
    return get_task(corpus.task).make_batches(corpus, tokenizer, **options)


def rows(batches):
    """Return (inputs, targets) of all rows without padding, sorted."""
    return sorted(
        (tuple(i[i != PAD].tolist()), tuple(t[t != IGNORE_INDEX].tolist()))
        for batch, _ in batches
        for i, t in zip(batch.inputs, batch.targets, strict=True)
    )


def test_every_sentence_occurs_once_per_epoch(stream):
    first, second = list(stream.epoch()), list(stream.epoch(DataPosition(1)))
    assert rows(first) == rows(second)
    if stream.corpus.task != "lm":
        assert len(rows(first)) == 200
    assert [b.inputs.tolist() for b, _ in first] != [b.inputs.tolist() for b, _ in second]


def test_language_model_blocks_cover_the_text_once(tmp_path):
    corpus = make_corpus(tmp_path, "lm", 30)
    tokenizer = Tokenizer.train(corpus, "char", vocab=100)
    stream = make_batches(
        corpus, tokenizer, batch_tokens=64, max_length=17
    )  # no seed: in order of length
    texts = [
        [START, *ids] for ids in tokenizer.encode([r["text"] for r in corpus.records("train")])
    ]
    tokens = [number for text in texts for number in text]
    pairs = rows(stream.epoch())
    assert sum(len(targets) for _, targets in pairs) == len(tokens) - 1
    pieces = {tuple(tokens[start : start + 17]) for start in range(0, len(tokens) - 1, 17)}
    assert {inputs for inputs, _ in pairs} <= pieces | {tuple(tokens[len(tokens) // 17 * 17 : -1])}


def test_batches_respect_size_limit_with_little_padding(stream):
    size = real = 0
    for batch, _ in stream.epoch():
        for side in batch.inputs_and_targets:
            assert side.numel() <= 256
        size += batch.inputs.numel()
        real += int((batch.inputs != PAD).sum())
    assert real > 0.85 * size


def test_count_equals_number_of_predicted_tokens(stream):
    for batch, _ in stream.epoch():
        num_start_tokens = len(batch.targets) if stream.corpus.task == "translate" else 0
        assert batch.count == int((batch.targets != IGNORE_INDEX).sum()) - num_start_tokens


def test_stream_resumes_at_position(stream):
    steps = list(islice(stream.stream(), 2 * sum(1 for _ in stream.epoch())))
    for number in range(len(steps) - 1):
        batch, after = next(stream.stream(steps[number][1]))
        assert batch.inputs.equal(steps[number + 1][0].inputs)
        assert after == steps[number + 1][1]


def test_seed_changes_order(stream):
    other = make_batches(stream.corpus, stream.tokenizer, batch_tokens=256, max_length=64, seed=4)
    assert rows(other.epoch()) == rows(stream.epoch())
    assert [p.inputs.tolist() for p, _ in other.epoch()] != [
        p.inputs.tolist() for p, _ in stream.epoch()
    ]


def test_translation_has_start_and_end(tmp_path):
    corpus = make_corpus(tmp_path, count=3)
    stream = make_batches(corpus, Tokenizer.train(corpus, "char"), batch_tokens=256, max_length=64)
    for inputs, targets in rows(stream.epoch()):
        assert inputs[-1] == END and START not in inputs
        assert targets[0] == START and targets[-1] == END


@pytest.mark.parametrize("world", [1, 2, 3, 300])
def test_shards_cover_the_batch(stream, world):
    batch, _ = next(stream.stream())
    shards = [batch.shard(rank, world) for rank in range(world)]
    nonempty = [(shard, None) for shard in shards if (shard.targets != IGNORE_INDEX).any()]
    assert rows(nonempty) == rows([(batch, None)])
    assert all(shard.count == batch.count and len(shard.inputs) for shard in shards)


@settings(max_examples=20)
@given(pool=st.integers(40, 4000), count=st.integers(1, 40))
def test_pool_size_does_not_change_records(tmp_path_factory, pool, count):
    corpus = make_corpus(tmp_path_factory.mktemp("c"), count=count)
    tokenizer = Tokenizer.train(corpus, "char", vocab=100)
    reference = make_batches(corpus, tokenizer, batch_tokens=256, max_length=64, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "POOL_BYTES", pool)
        pooled = make_batches(corpus, tokenizer, batch_tokens=256, max_length=64, seed=0)
        assert rows(pooled.epoch()) == rows(reference.epoch())
        assert rows(pooled.epoch(DataPosition(5))) == rows(reference.epoch())


def test_skipped_records_are_counted(tmp_path):
    pairs = [{"source": "a" * n, "target": "b"} for n in (0, 1, 5, 30, 31)]
    corpus = write_corpus(tmp_path, "translate", splits={"train": pairs})
    stream = make_batches(corpus, Tokenizer.train(corpus, "char"), batch_tokens=64, max_length=31)
    assert len(rows(stream.epoch())) == 3
    list(stream.epoch())
    assert (
        stream.describe_skipped()
        == "1 with an empty side left out, 1 longer than 31 tokens left out"
    )


def test_long_texts_are_truncated_and_counted(tmp_path):
    texts = [{"text": "x" * n, "label": str(n)} for n in (3, 9)]
    corpus = write_corpus(tmp_path, "classify", splits={"train": texts})
    stream = make_batches(corpus, Tokenizer.train(corpus, "char"), batch_tokens=64, max_length=5)
    assert sorted(len(inputs) for inputs, _ in rows(stream.epoch())) == [4, 5]
    assert stream.describe_skipped() == "1 cut to 5 tokens"


def test_corpus_without_usable_records_is_rejected(tmp_path):
    corpus = write_corpus(tmp_path, "translate", splits={"train": [{"source": "a", "target": ""}]})
    stream = make_batches(corpus, Tokenizer.train(corpus, "bpe"), batch_tokens=64, max_length=31)
    with pytest.raises(
        UserError, match=r"no usable record: 1 with an empty side left out; expected s"
    ):
        next(stream.stream())


def test_batch_smaller_than_max_length_is_rejected(stream):
    with pytest.raises(UserError, match=r"batch_tokens: expected at least max_length=9, got 8"):
        make_batches(stream.corpus, stream.tokenizer, batch_tokens=8, max_length=9)


def test_single_shard_is_the_batch(stream):
    batch, _ = next(stream.stream())
    assert batch.shard(0, 1) is batch
    assert batch.to(torch.device("cpu")).inputs.equal(batch.inputs)


def test_random_order_mixes_lengths_and_ignores_padding(stream):
    order = make_batches(
        stream.corpus, stream.tokenizer, batch_tokens=256, max_length=64, seed=3, order="random"
    )
    batches = list(order.epoch())
    assert rows(batches) == rows(stream.epoch())
    for batch, _ in batches:
        sides = int((batch.inputs != PAD).sum()), int((batch.targets != IGNORE_INDEX).sum())
        assert max(sides) <= 256
    repeated = [batch.inputs.tolist() for batch, _ in order.epoch()]
    assert repeated == [batch.inputs.tolist() for batch, _ in batches]
    if stream.corpus.task == "translate":
        spans = [(batch.inputs != PAD).sum(1) for batch, _ in batches[:-1]]
        assert all(int(span.max() - span.min()) > 5 for span in spans)
        assert len(batches) <= len(list(stream.epoch()))  # equally full: padding does not count
