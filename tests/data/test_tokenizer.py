"""Tokenizers: round trips, special tokens, arbitrary text and invalid arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data import write_corpus
from addnorm.data.tokenizer import END, KINDS, PAD, SPECIALS, START, UNKNOWN, Tokenizer

TEXTS = ["the cat sat on the mat", "die Katze saß auf der Matte", "12 cats, 3 mats"] * 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    pairs = [{"source": text, "target": text[::-1]} for text in TEXTS]
    return write_corpus(tmp_path_factory.mktemp("c"), "translate", splits={"train": pairs})


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, corpus):
    return Tokenizer.train(corpus, request.param, vocab=300)


def test_special_tokens_have_fixed_ids(tokenizer):
    assert [tokenizer.engine.token_to_id(name) for name in SPECIALS] == [PAD, START, END, UNKNOWN]


def test_training_texts_round_trip(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXTS)) == TEXTS
    assert tokenizer.decode([[START, *tokenizer.encode(TEXTS[:1])[0], END, PAD]]) == TEXTS[:1]


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=4))
def test_byte_level_bpe_round_trips_any_text(corpus, texts):
    tokenizer = Tokenizer.train(corpus, "bpe", vocab=270)
    encoded = tokenizer.encode(texts)
    assert tokenizer.decode(encoded) == [text.strip(" ") for text in texts]
    assert all(UNKNOWN not in ids and PAD not in ids for ids in encoded)


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_text_can_be_encoded(tokenizer, texts):
    encoded = tokenizer.encode(texts)
    assert len(tokenizer.decode(encoded)) == len(texts)
    assert all(0 <= number < tokenizer.vocab for ids in encoded for number in ids)
    assert PAD not in [number for ids in encoded for number in ids]


def test_special_tokens_in_text_are_encoded_as_text(tokenizer):
    (ids,) = tokenizer.encode(["a <pad> </s> b"])
    assert not {PAD, START, END} & set(ids)


def test_save_and_load_round_trip(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.digest == tokenizer.digest
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)


def test_ids_to_tokens_returns_readable_tokens(tokenizer):
    (ids,) = tokenizer.encode(["the cat"])
    space = "" if " " in "".join(tokenizer.ids_to_tokens(ids)) else " "  # words have none
    assert space.join(tokenizer.ids_to_tokens(ids)).strip() == "the cat"
    assert tokenizer.ids_to_tokens([START, END]) == ["<s>", "</s>"]


def test_word_tokens_are_words_between_spaces_in_any_order(corpus):
    tokenizer = Tokenizer.train(corpus, "word", vocab=300, special_tokens=("<mask>",))
    assert tokenizer.decode(tokenizer.encode([" cats,\tthe  cat\n"])) == ["cats, the cat"]
    assert tokenizer.encode(["ca ts </s> <mask>"]) == [[UNKNOWN] * 4]


def test_continuations_join_to_the_tokens_of_the_whole_text(tokenizer):
    whole, start, rest = "the cat sat on the mat", "the cat sat", " on the mat"
    [first], [second] = tokenizer.encode([start]), tokenizer.encode_continuations([rest])
    assert [first + second] == tokenizer.encode([whole])


def test_vocabulary_size_is_bounded(corpus):
    assert Tokenizer.train(corpus, "bpe", vocab=280).vocab <= 280


@pytest.mark.parametrize(
    ("kind", "vocab", "message"),
    [
        ("bpee", 300, "unknown tokenizer 'bpee'; did you mean 'bpe'?"),
        ("bpe", 100, "vocab: expected at least 260 for tokenizer 'bpe', got 100"),
        ("char", 4, "vocab: expected at least 5 for tokenizer 'char', got 4; try vocab=5 or"),
    ],
)
def test_invalid_arguments_are_rejected(corpus, kind, vocab, message):
    with pytest.raises(UserError, match=message):
        Tokenizer.train(corpus, kind, vocab=vocab)


def test_invalid_tokenizer_files_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer: expected the path of a tokenizer.json, got "):
        Tokenizer.load(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"expected a tokenizer.json, got .*, which is not one"):
        Tokenizer.load(tmp_path / "tokenizer.json")
