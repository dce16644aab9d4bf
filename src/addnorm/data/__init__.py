"""Corpora on disk, tokenizers, and batches of tokens."""

from addnorm.data.corpus import Corpus, write_corpus

__all__ = ["Corpus", "write_corpus"]
