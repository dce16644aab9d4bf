"""Rewriting of arrangements into plainer ones that compute the same."""

from addnorm.exporters.folding.fold_model import FoldNote, fold

__all__ = ["FoldNote", "fold"]
