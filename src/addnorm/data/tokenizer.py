"""Subwords: a tokenizer trained on a corpus, kept as `tokenizer.json`."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import atomic_write
from addnorm.data.corpus import COLUMNS, Corpus

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
KINDS = ("bpe", "unigram", "char")

MAX_TRAINING_CHARACTERS = 50_000_000
"""Characters of a corpus that a tokenizer is trained on at most; more would not fit the memory."""
MAX_TEXT_CHARACTERS = 10_000
"""Characters of one text that it is shown at most."""
BYTE_ALPHABET = pre_tokenizers.ByteLevel.alphabet()


class Tokenizer:
    """Text to token numbers and back; the first four numbers are pad, start, end and unknown.

    `bpe` and `unigram` work on bytes, so that nothing is unknown to them; `char` knows the
    characters it has seen, and all others as one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.encode_special_tokens = True  # `</s>` in a text is text, and ends nothing
        for number, name in enumerate(SPECIALS):
            if engine.token_to_id(name) != number:
                raise UserError(
                    f"this tokenizer has {name} as {engine.token_to_id(name)}, wanted {number}: it "
                    "was not made here; train one with tokenizer=bpe"
                )

    @classmethod
    def train(cls, corpus: Corpus, kind: str = "bpe", *, vocab: int = 4000) -> "Tokenizer":
        """Learn subwords from the training part of a corpus, both sides together."""
        if kind not in KINDS:
            raise UserError(unknown_name_message("tokenizer", kind, KINDS))
        floor = len(SPECIALS) + (len(BYTE_ALPHABET) if kind != "char" else 1)
        if vocab < floor:
            raise UserError(
                f"a tokenizer {kind!r} of {vocab} tokens cannot be: it needs {floor} for a start; "
                f"wanted vocab={floor} or more"
            )
        engine = _build_engine(kind)
        common: dict[str, Any] = {
            "special_tokens": SPECIALS,
            "vocab_size": vocab,
            "show_progress": False,
        }
        trainer: trainers.Trainer
        if kind == "bpe":
            trainer = trainers.BpeTrainer(initial_alphabet=BYTE_ALPHABET, **common)
        elif kind == "unigram":
            trainer = trainers.UnigramTrainer(
                initial_alphabet=BYTE_ALPHABET, unk_token=SPECIALS[UNKNOWN], **common
            )
        else:
            trainer = trainers.WordLevelTrainer(**common)
        engine.train_from_iterator(_iter_training_texts(corpus), trainer)
        return cls(Engine.from_str(engine.to_str()))  # as it will be read: scores are rounded there

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"no tokenizer at {path}; wanted a tokenizer.json")
        try:
            engine = Engine.from_str(path.read_text(encoding="utf-8"))
        except Exception as problem:  # the library raises a bare Exception
            raise UserError(
                f"{path} is no tokenizer ({problem}); wanted a tokenizer.json"
            ) from None
        return cls(engine)

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json`."""
        with atomic_write(path) as name:
            name.write_text(self.engine.to_str(pretty=True), encoding="utf-8")

    @property
    def vocab(self) -> int:
        """Tokens it knows."""
        return self.engine.get_vocab_size()

    @cached_property
    def digest(self) -> str:
        """What tells it from every other tokenizer."""
        return hashlib.sha256(self.engine.to_str().encode()).hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token numbers of each text, without start and end."""
        clean = [text.encode("utf-8", errors="replace").decode() for text in texts]
        return [found.ids for found in self.engine.encode_batch_fast(clean)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The texts; special tokens are left out."""
        return [text.strip(" ") for text in self.engine.decode_batch(ids)]

    def ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Each token in a form to read."""
        return [
            SPECIALS[number] if number < len(SPECIALS) else self.engine.decode([number])
            for number in ids
        ]


def _build_engine(kind: str) -> Engine:
    if kind == "char":
        engine = Engine(models.WordLevel({}, unk_token=SPECIALS[UNKNOWN]))
        engine.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        engine.decoder = decoders.Fuse()
        return engine
    engine = Engine(models.BPE() if kind == "bpe" else models.Unigram())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def _iter_training_texts(corpus: Corpus) -> Iterator[str]:
    """What a tokenizer learns from: a part that is evenly spread over a large corpus."""
    size = corpus.path("train").stat().st_size
    stride = max(1, size // MAX_TRAINING_CHARACTERS)
    columns = [column for column in COLUMNS[corpus.task] if column != "label"]
    for number, record in enumerate(corpus.records("train")):
        if number % stride == 0:
            for column in columns:
                text = record[column]
                yield from (
                    text[at : at + MAX_TEXT_CHARACTERS]
                    for at in range(0, len(text), MAX_TEXT_CHARACTERS)
                )
