"""Removal of norms in fine-tuning, one at a time; callbacks for three trainers."""

from addnorm.rewiring.removal.schedule import NormRemoval

__all__ = ["NormRemoval"]
