"""Text on disk, and its way into batches of tokens."""

from addnorm.data.corpus import COLUMNS, TASKS, Corpus, write_corpus

__all__ = ["COLUMNS", "TASKS", "Corpus", "write_corpus"]
