"""Subword, character and word tokenizers, trained on a corpus and stored as `tokenizer.json`."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import atomic_write
from addnorm.data.corpus import LABEL, Corpus

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
MASK = "<mask>"
"""Fifth special token, only in tokenizers that are trained with it."""
KINDS = ("bpe", "unigram", "char", "word")
BYTE_KINDS = ("bpe", "unigram")

MAX_TRAINING_CHARACTERS = 50_000_000
"""Characters of a corpus that a tokenizer is trained on at most; more would not fit into memory."""
MAX_TEXT_CHARACTERS = 10_000
"""Characters per training text; longer texts are split."""
BYTE_ALPHABET = pre_tokenizers.ByteLevel.alphabet()


class Tokenizer:
    """Conversion between text and token ids; ids 0 to 3 are pad, start, end and unknown.

    `bpe` and `unigram` work on bytes and have no unknown text. `char` and `word` map characters, or
    words between white space, that were not in the training text to unknown. `word` is for text
    that is already split into tokens; it does not keep white space. With a mask token, id 4 is
    `<mask>`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        engine.encode_special_tokens = True  # `</s>` in a text is text and does not end it
        for number, name in enumerate(SPECIALS):
            if engine.token_to_id(name) != number:
                raise UserError(
                    f"tokenizer: expected {name} to have id {number}, got "
                    f"{engine.token_to_id(name)}; train one with tokenizer=bpe"
                )

    @classmethod
    def train(
        cls,
        corpus: Corpus,
        kind: str = "bpe",
        *,
        vocab: int = 4000,
        special_tokens: Sequence[str] = (),
    ) -> "Tokenizer":
        """Train a tokenizer on the text columns of the training split.

        Args:
            corpus: the corpus
            kind: bpe, unigram, char or word
            vocab: upper bound of the vocabulary size
            special_tokens: special tokens after the four that every tokenizer has
        """
        if kind not in KINDS:
            raise UserError(unknown_name_message("tokenizer", kind, KINDS))
        specials = [*SPECIALS, *special_tokens]
        floor = len(specials) + (len(BYTE_ALPHABET) if kind in BYTE_KINDS else 1)
        if vocab < floor:
            raise UserError(
                f"vocab: expected at least {floor} for tokenizer {kind!r}, got {vocab}; "
                f"try vocab={floor} or more"
            )
        engine = _build_engine(kind)
        common: dict[str, Any] = {
            "special_tokens": specials,
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
        # Return what a reader of the file gets: scores are rounded there.
        return cls(Engine.from_str(engine.to_str()))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"tokenizer: expected the path of a tokenizer.json, got {path}")
        try:
            engine = Engine.from_str(path.read_text(encoding="utf-8"))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # a bare Exception, or a panic of the Rust code
            reason = " ".join(str(problem).split())
            raise UserError(
                f"tokenizer: expected a tokenizer.json, got {path}, which is not one ({reason})"
            ) from None
        return cls(engine)

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json`."""
        with atomic_write(path) as name:
            name.write_text(self.engine.to_str(pretty=True), encoding="utf-8")

    @property
    def vocab(self) -> int:
        """Vocabulary size, special tokens included."""
        return self.engine.get_vocab_size()

    @cached_property
    def digest(self) -> str:
        """Hash of the tokenizer."""
        return hashlib.sha256(self.engine.to_str().encode()).hexdigest()

    @cached_property
    def mask_id(self) -> int | None:
        """Id of the mask token; None without one."""
        number = self.engine.token_to_id(MASK)
        return number if number == len(SPECIALS) else None  # else ordinary text, not special

    @cached_property
    def specials(self) -> list[str]:
        """Special tokens, in the order of their ids."""
        return SPECIALS if self.mask_id is None else [*SPECIALS, MASK]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        return self._encode(self.engine, texts)

    def encode_continuations(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts that continue other texts, without special tokens."""
        return self._encode(self._continuation_engine, texts)

    def encode_masked(self, text: str) -> list[int]:
        """Return the token ids of a text in which `<mask>` is the mask token.

        A token of `bpe` and `unigram` begins with the space before the word. The mask stands for
        such a token, so spaces before `<mask>` are dropped: `a <mask>.` is `a`, mask, `.`.
        """
        if self.mask_id is None:
            raise UserError("this tokenizer has no mask token; expected one trained for mlm")
        pieces = text.split(MASK)
        if self.has_prefix_space:
            pieces[:-1] = [piece.rstrip(" ") for piece in pieces[:-1]]
        ids = self._encode(self.engine, pieces[:1])[0] if pieces[0] else []
        for piece in self._encode(self._continuation_engine, pieces[1:]):
            ids += [self.mask_id, *piece]
        return ids

    @cached_property
    def has_prefix_space(self) -> bool:
        """Whether a token begins with the space before a word; the first word gets one, too."""
        return isinstance(self.engine.pre_tokenizer, pre_tokenizers.ByteLevel)

    @cached_property
    def _continuation_engine(self) -> Engine:
        """The engine for text inside a sentence, which gets no space in front."""
        engine = Engine.from_str(self.engine.to_str())
        engine.encode_special_tokens = True
        if self.has_prefix_space:
            engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return engine

    def _encode(self, engine: Engine, texts: list[str]) -> list[list[int]]:
        clean = [text.encode("utf-8", errors="replace").decode() for text in texts]
        ids = [encoding.ids for encoding in engine.encode_batch_fast(clean)]
        if not isinstance(engine.pre_tokenizer, pre_tokenizers.WhitespaceSplit):
            return ids
        # A word such as `</s>` has the id of the special token; as text it is unknown.
        count = len(self.specials)
        return [[UNKNOWN if number < count else number for number in each] for each in ids]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return the texts of lists of token ids; special tokens are dropped."""
        return [text.strip(" ") for text in self.engine.decode_batch(ids)]

    def ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Return each token as text; special tokens by their names."""
        return [
            self.specials[number] if number < len(self.specials) else self.engine.decode([number])
            for number in ids
        ]


def _build_engine(kind: str) -> Engine:
    if kind in ("char", "word"):
        engine = Engine(models.WordLevel({}, unk_token=SPECIALS[UNKNOWN]))
        if kind == "char":
            engine.pre_tokenizer = pre_tokenizers.Split("", "isolated")
            engine.decoder = decoders.Fuse()
        else:  # without a decoder, words are joined by spaces
            engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return engine
    engine = Engine(models.BPE() if kind == "bpe" else models.Unigram())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def _iter_training_texts(corpus: Corpus) -> Iterator[str]:
    """Yield training texts, evenly spread over a large corpus."""
    stride = max(1, corpus.size("train") // MAX_TRAINING_CHARACTERS)
    columns = [column for column in corpus.columns if column != LABEL]
    for number, record in enumerate(corpus.records("train")):
        if number % stride == 0:
            for column in columns:
                text = record[column]
                yield from (
                    text[start : start + MAX_TEXT_CHARACTERS]
                    for start in range(0, len(text), MAX_TEXT_CHARACTERS)
                )
