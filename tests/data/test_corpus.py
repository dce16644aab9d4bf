"""Corpora on disk: round trips, atomic writes and rejected folders."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data import Corpus, write_corpus

PAIR = {"source": "one", "target": "eins"}


def test_write_and_open_round_trip(tmp_path):
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
def test_any_text_round_trips(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("c")
    corpus = write_corpus(folder, "lm", splits={"train": ({"text": text} for text in texts)})
    assert [record["text"] for record in corpus.records("train")] == texts


def test_labels_are_sorted_over_all_splits(tmp_path):
    splits = {
        "train": [{"text": "x", "label": "b"}, {"text": "y", "label": "a"}],
        "test": [{"text": "z", "label": "c"}],
    }
    assert write_corpus(tmp_path, "classify", splits=splits).labels == ("a", "b", "c")


def test_failed_write_leaves_no_files(tmp_path):
    def broken():
        yield PAIR
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_corpus(tmp_path, "translate", splits={"train": broken()})
    assert list(tmp_path.iterdir()) == []


def test_empty_corpus_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"an empty corpus: no record is left for training"):
        write_corpus(tmp_path, "lm", splits={"train": [], "valid": [{"text": "a"}]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (None, "it has no corpus.json; make one with `addnorm data`"),
        ("{", "is not JSON"),
        ("[]", "cannot be read"),
        ('{"task": "lm"}', "cannot be read"),
        ('{"task": "sing", "counts": {}}', "expected a corpus for 'translate', got one for 'sing'"),
        (
            '{"task": "lm", "counts": {"train": 1}}',
            "a corpus for 'translate', got one for 'lm'; make",
        ),
    ],
)
def test_invalid_corpus_folders_are_rejected(tmp_path, card, message):
    if card is not None:
        (tmp_path / "corpus.json").write_text(card)
    with pytest.raises(UserError, match=message):
        Corpus.open(tmp_path, "translate")


def test_missing_folder_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"no corpus at .*: there is no such folder; make one with"):
        Corpus.open(tmp_path / "nowhere")


def test_missing_split_is_rejected(tmp_path):
    corpus = write_corpus(tmp_path, "lm", splits={"train": [{"text": "a"}]})
    with pytest.raises(UserError, match=r"has no 'test' split; it has train"):
        list(corpus.records("test"))


@pytest.mark.parametrize("line", ["", "x", "[]", '{"source": "a"}', '{"source": 1, "target": ""}'])
def test_invalid_record_is_reported_by_number(tmp_path, line):
    corpus = write_corpus(tmp_path, "translate", splits={"train": [PAIR]})
    good = json.dumps(PAIR)
    (tmp_path / "train.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(UserError, match=r"record 2: expected .* with text for source and target"):
        list(corpus.records("train"))


def test_changed_file_is_noticed_until_checksums_are_removed(tmp_path):
    corpus = write_corpus(tmp_path, "translate", splits={"train": [PAIR], "valid": [PAIR]})
    before = corpus.digest
    Corpus.open(tmp_path).verify()
    path = tmp_path / "valid.jsonl"
    path.write_text(path.read_text().replace(PAIR["source"], PAIR["source"][::-1]))
    Corpus.open(tmp_path).verify("train")
    with pytest.raises(UserError, match=r"valid.jsonl has changed since it was written: .*restore"):
        Corpus.open(tmp_path).verify()
    assert Corpus.open(tmp_path).digest != before
    card = json.loads((tmp_path / "corpus.json").read_text())
    (tmp_path / "corpus.json").write_text(json.dumps(card | {"task": "lm"}))
    with pytest.raises(UserError, match=r"corpus.json has changed since it was written"):
        Corpus.open(tmp_path)
    del card["checksum"], card["files"]
    (tmp_path / "corpus.json").write_text(json.dumps(card))
    Corpus.open(tmp_path).verify()


def test_split_name_is_not_a_path(tmp_path):
    (tmp_path / "corpus.json").write_text('{"task": "lm", "counts": {"../secret": 1}}')
    with pytest.raises(UserError, match=r"unknown split '../secret'"):
        Corpus.open(tmp_path)
