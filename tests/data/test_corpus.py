"""Corpora on disk: whole or not there, streamed, refused in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data import Corpus, write_corpus

PAIR = {"source": "one", "target": "eins"}


def test_what_is_written_is_read_again(tmp_path):
    splits = {"train": [PAIR, {"source": "two\u2028", "target": "zwei\x00"}], "valid": [PAIR]}
    written = write_corpus(tmp_path / "c", "translate", splits=splits, about={"from": "en"})
    read = Corpus.open(tmp_path / "c", "translate")
    assert read == written
    assert list(read.records("train")) == splits["train"]
    assert read.counts == {"train": 2, "valid": 1}
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "corpus.json",
        "train.jsonl",
        "valid.jsonl",
    ]


@given(st.lists(st.text(), min_size=1))
def test_any_text_survives(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("c")
    corpus = write_corpus(folder, "lm", splits={"train": ({"text": text} for text in texts)})
    assert [record["text"] for record in corpus.records("train")] == texts


def test_labels_are_sorted_and_of_all_splits(tmp_path):
    splits = {
        "train": [{"text": "x", "label": "b"}, {"text": "y", "label": "a"}],
        "test": [{"text": "z", "label": "c"}],
    }
    assert write_corpus(tmp_path, "classify", splits=splits).labels == ("a", "b", "c")


def test_a_writer_that_fails_leaves_no_corpus(tmp_path):
    def broken():
        yield PAIR
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_corpus(tmp_path, "translate", splits={"train": broken()})
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"an empty corpus: no record is left for training"):
        write_corpus(tmp_path, "lm", splits={"train": [], "valid": [{"text": "a"}]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (None, "it has no corpus.json; make one with `addnorm data`"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"task": "lm"}', "cannot be read"),
        ('{"task": "sing", "counts": {}}', "expected a corpus for 'translate', got one for 'sing'"),
        (
            '{"task": "lm", "counts": {"train": 1}}',
            "a corpus for 'translate', got one for 'lm'; make",
        ),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path, card, message):
    if card is not None:
        (tmp_path / "corpus.json").write_text(card)
    with pytest.raises(UserError, match=message):
        Corpus.open(tmp_path, "translate")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no corpus at .*: there is no such folder; make one with"):
        Corpus.open(tmp_path / "nowhere")


def test_a_split_that_is_not_there_is_refused(tmp_path):
    corpus = write_corpus(tmp_path, "lm", splits={"train": [{"text": "a"}]})
    with pytest.raises(UserError, match=r"has no 'test' part; it has train"):
        list(corpus.records("test"))


@pytest.mark.parametrize("line", ["", "x", "[]", '{"source": "a"}', '{"source": 1, "target": ""}'])
def test_a_broken_record_is_named(tmp_path, line):
    corpus = write_corpus(tmp_path, "translate", splits={"train": [PAIR]})
    good = json.dumps(PAIR)
    (tmp_path / "train.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(UserError, match=r"record 2: expected .* with text for source and target"):
        list(corpus.records("train"))
