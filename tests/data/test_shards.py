"""Splits in several files: written, verified, and streamed with bounded memory."""

import tracemalloc

import pytest

from addnorm.cli.main import main
from addnorm.core.errors import UserError
from addnorm.data import Corpus, batches, write_corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.tasks import get_task


def make_records(count=500):
    return [{"text": f"number {index} and its square {index * index}"} for index in range(count)]


def write_shards(folder, records, *, shard_bytes=3000):
    splits = {"train": records, "valid": records[:5]}
    return write_corpus(folder, "lm", splits=splits, shard_bytes=shard_bytes)


def make_iterator(corpus, *, task="mlm", max_length=16):
    tokenizer = Tokenizer.train(
        corpus, "char", vocab=100, special_tokens=get_task(task).special_tokens
    )
    options = {"batch_tokens": 200, "max_length": max_length, "seed": 3}
    return get_task(task).make_batches(corpus, tokenizer, **options)


def test_shards_hold_the_records_in_order(tmp_path):
    records = make_records()
    write_shards(tmp_path, records)
    corpus = Corpus.open(tmp_path)
    names = [path.name for path in corpus.paths("train")]
    assert names == [f"train-{number:05d}.jsonl" for number in range(1, len(names) + 1)]
    assert len(names) > 5
    assert all(3000 <= path.stat().st_size < 3200 for path in corpus.paths("train")[:-1])
    assert [path.name for path in corpus.paths("valid")] == ["valid-00001.jsonl"]
    assert list(corpus.records("train")) == records
    corpus.verify()


def test_sharding_leaves_no_file_of_the_corpus_that_it_replaces(tmp_path):
    records = make_records()
    for shard_bytes in (None, 3000, 9000, None):
        written = write_shards(tmp_path, records, shard_bytes=shard_bytes)
        found = {path.name for path in tmp_path.glob("*.jsonl")}
        assert found == written.checksums.keys()
        assert list(Corpus.open(tmp_path).records("train")) == records


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_changed_shard_is_refused(tmp_path, change):
    corpus = write_shards(tmp_path, make_records())
    shard = corpus.paths("train")[2]
    if change == "edit":
        shard.write_bytes(shard.read_bytes()[::-1])
    else:
        shard.unlink()
    message = f"{shard.name} {'has changed' if change == 'edit' else 'is missing'}"
    with pytest.raises(UserError, match=message):
        Corpus.open(tmp_path).verify()


def test_shards_and_a_single_file_are_refused_in_a_corpus_written_by_hand(tmp_path):
    write_shards(tmp_path, make_records())
    (tmp_path / "corpus.json").write_text('{"task": "lm", "counts": {"train": 500}}')
    (tmp_path / "train.jsonl").write_text('{"text": "more"}\n')
    with pytest.raises(UserError, match="expected either train\\.jsonl or shards"):
        Corpus.open(tmp_path).paths("train")


@pytest.mark.parametrize("task", ["mlm", "lm"])
def test_stream_of_shards_resumes_exactly_at_every_batch(tmp_path, monkeypatch, task):
    monkeypatch.setattr(batches, "POOL_BYTES", 1000)
    corpus = write_shards(tmp_path, make_records(200))
    iterator = make_iterator(corpus, task=task)
    assert len(iterator.pools) > 2 * len(corpus.paths("train")) > 4
    whole = list(iterator.epoch())
    for number, (_, position) in enumerate(whole):
        if number % 9:
            continue
        rest = make_iterator(corpus, task=task).epoch(position)
        pairs = zip(rest, whole[number + 1 :], strict=True)
        for (found, after), (expected, expected_after) in pairs:
            assert after == expected_after
            assert found.inputs.equal(expected.inputs) and found.targets.equal(expected.targets)


def test_one_pool_is_in_memory_at_a_time(tmp_path, monkeypatch):
    """The peak does not grow with the corpus, and is far below its size."""
    monkeypatch.setattr(batches, "POOL_BYTES", 5_000)
    peaks = []
    for factor in (1, 4):
        records = make_records() * (8 * factor)
        corpus = write_shards(tmp_path / str(factor), records, shard_bytes=100_000)
        iterator = make_iterator(corpus, max_length=64)
        size = corpus.size("train")
        del records
        tracemalloc.start()
        for _ in iterator.epoch():
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(corpus.paths("train")) > 4
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < size / 2, (peaks, size)


def test_command_writes_shards(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"a sentence with the number {n} in it\n" * 2 for n in range(20_000)))
    out = tmp_path / "corpus"
    arguments = ["data", "files", "--text", str(text), "--lines", "--shard-megabytes", "1"]
    assert main([*arguments, "-o", str(out)]) == 0
    corpus = Corpus.open(out)
    assert len(corpus.paths("train")) == 2
    assert sum(corpus.counts.values()) == 40_000
