"""Documents: text kept as it is, consecutive splits, and blocks across pieces."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.batches import RowContext
from addnorm.data.corpus import CONTINUES, Corpus, parse_records
from addnorm.data.corpus_builder import SplitPlan, build_corpus
from addnorm.data.readers import documents, text_lines
from addnorm.data.readers.documents import cut_document, read_document
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import HoldoutSize
from addnorm.data.tokenizer import START, Tokenizer
from addnorm.tasks import get_task

NONE = HoldoutSize(count=0)
PROSE = "It was a dark\nand stormy night;\n\n\n  the rain fell\tin torrents...\n" * 12


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 50)


def read(folder, data, **options):
    path = folder / "text"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    counts = RecordCounts()
    records = list(read_document(path, counts=counts, **{"errors": "drop", **options}))
    return records, counts


def build(folder, *texts, valid=NONE, test=NONE):
    counts = RecordCounts()
    records = []
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(text, newline="")
        records += read_document(folder / str(number), errors="drop", counts=counts)
    return build_corpus(
        folder / "corpus",
        "lm",
        records_by_split={"train": records},
        counts=counts,
        plan=SplitPlan(valid=valid, test=test, is_stream=True),
        about={},
    )


def join_documents(records):
    """Return the documents that the pieces of a split make up."""
    texts = []
    for record in records:
        if CONTINUES in record:
            texts[-1] += record["text"]
        else:
            texts.append(record["text"])
    return texts


@pytest.mark.parametrize(
    "text",
    [
        "no line break",
        "one\n",
        "\n\n  leading blank lines\n\n",
        "tabs\t and \x0c, \x0b, \x85, \u2028 and a lone \r stay\n",
        "nul \x00 and emoji \U0001f600\n" * 20,
        "ends with a lone carriage return\r",
        PROSE,
        PROSE + "no final line break",
        "x" * 1000,
        "word " * 300,
        "\n" * 500 + "text" + "\n" * 500,
    ],
)
def test_the_pieces_of_a_document_are_its_text(tmp_path, text):
    records, counts = read(tmp_path, text)
    assert join_documents(records) == [text]
    assert all(0 < len(record["text"]) <= 100 for record in records)
    assert counts.notes == {"documents": 1} and not counts.dropped


def test_only_line_breaks_of_windows_change(tmp_path):
    records, counts = read(tmp_path, "\ufeffone\r\n\r\ntwo\rthree\nfour\r\n")
    assert join_documents(records) == ["one\n\ntwo\rthree\nfour\n"]
    assert counts.notes == {"documents": 1, r"line breaks \r\n, now \n": 3}


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n" * 100])
def test_blank_documents_are_dropped(tmp_path, text):
    records, counts = read(tmp_path, text)
    assert not records and counts.dropped == {"empty": 1} and counts.read == 1


def test_invalid_lines_are_dropped_replaced_or_refused(tmp_path):
    data = b"one\nb\xffd\ntwo\n"
    records, counts = read(tmp_path, data)
    assert join_documents(records) == ["one\ntwo\n"] and counts.dropped == {"invalid UTF-8": 1}
    records, counts = read(tmp_path, data, errors="replace")
    assert join_documents(records) == ["one\nb\ufffdd\ntwo\n"]
    with pytest.raises(UserError, match="line 2: expected UTF-8"):
        read(tmp_path, data, errors="strict")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
def test_giant_lines_lose_no_character(tmp_path, monkeypatch, end):
    monkeypatch.setattr(text_lines, "MAX_CHARACTERS", 10)
    monkeypatch.setattr(text_lines, "MAX_BYTES", 40)
    rng = random.Random(0)
    for length in range(30, 60):  # some reads end inside a character, or between \r and \n
        line = "".join(rng.choices("aä€\U0001f600 \r", k=length)) + "x"
        records, _ = read(tmp_path, line + end)
        assert join_documents(records) == [line + end.replace("\r\n", "\n")]


@given(st.lists(st.text(st.sampled_from("ab \n\t"), max_size=80), max_size=20))
def test_cutting_keeps_the_text(texts):
    pieces = list(cut_document(texts))
    assert "".join(pieces) == "".join(texts)


@pytest.mark.parametrize("kind", ["bpe", "char", "unigram"])
def test_pieces_have_the_tokens_of_the_whole_text(tmp_path, kind):
    corpus = build(tmp_path, PROSE)
    assert corpus.counts["train"] > 5
    tokenizer = Tokenizer.train(corpus, kind, vocab=300)
    context = RowContext(corpus, tokenizer, corpus.path("train"), 64, Counter())
    pieces = context.encode_pieces(list(corpus.records("train")))
    assert np.concatenate(pieces).tolist() == tokenizer.encode([PROSE])[0]


def test_blocks_continue_across_pieces_and_documents_begin_with_start(tmp_path):
    corpus = build(tmp_path, PROSE, "Second.\n" * 20)
    tokenizer = Tokenizer.train(corpus, "char", vocab=300)
    context = RowContext(corpus, tokenizer, corpus.path("train"), 7, Counter())
    rows = list(get_task("lm").encode_rows(corpus.records("train"), context))
    targets = np.concatenate([target for _, target in rows]).tolist()
    one, two = tokenizer.encode([PROSE, "Second.\n" * 20])
    assert targets == [*one, START, *two]
    assert [START, *targets[:-1]] == np.concatenate([inputs for inputs, _ in rows]).tolist()
    assert {len(inputs) for inputs, _ in rows[:-1]} == {7}


def test_a_pool_that_begins_inside_a_document_predicts_its_first_token(tmp_path):
    corpus = build(tmp_path, PROSE)
    tokenizer = Tokenizer.train(corpus, "char", vocab=300)
    context = RowContext(corpus, tokenizer, corpus.path("train"), 1000, Counter())
    lines = corpus.path("train").read_bytes().splitlines()[2:]
    records = list(parse_records(lines, corpus.path("train"), corpus.columns))
    assert CONTINUES in records[0]
    (row,) = get_task("lm").encode_rows(iter(records), context)
    assert row[0][0] == START
    assert len(row[1]) == sum(len(record["text"]) for record in records)


@pytest.mark.parametrize(
    ("valid", "test", "sizes"),
    [
        (HoldoutSize(fraction=0.1), NONE, (0.1, 0)),
        (HoldoutSize(count=33), HoldoutSize(fraction=0.2), (33, 0.2)),
        (HoldoutSize(), HoldoutSize(), (0.05, 0.05)),
        (NONE, NONE, (0, 0)),
    ],
)
def test_splits_are_consecutive(tmp_path, valid, test, sizes):
    corpus = build(tmp_path, PROSE, valid=valid, test=test)
    texts = {split: join_documents(corpus.records(split)) for split in corpus.counts}
    assert all(len(documents) == 1 for documents in texts.values())
    assert "".join(text for documents in texts.values() for text in documents) == PROSE
    for split, size in zip(("valid", "test"), sizes, strict=True):
        expected = size if isinstance(size, int) else size * len(PROSE)
        assert len("".join(texts.get(split, ""))) == pytest.approx(expected, abs=1)


def test_given_splits_stay_whole(tmp_path):
    records = {split: [{"text": f"{split}\n"}] for split in ("train", "valid", "test")}
    corpus = build_corpus(
        tmp_path,
        "lm",
        records_by_split=records,
        counts=RecordCounts(),
        plan=SplitPlan(is_stream=True),
        about={},
    )
    assert {split: list(corpus.records(split)) for split in corpus.counts} == records
    assert Corpus.open(tmp_path).digest == corpus.digest


def test_a_large_document_is_read_in_bounded_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 10_000)
    corpus = build(tmp_path, PROSE * 3000, valid=HoldoutSize(fraction=0.1))
    assert corpus.counts["train"] > 200
    assert max(len(record["text"]) for record in corpus.records("train")) <= 20_000
    assert len("".join(join_documents(corpus.records("valid")))) == len(PROSE) * 300
