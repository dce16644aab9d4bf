"""Weights to and from other projects: Hugging Face."""

from addnorm.interop.family import FAMILIES, Family
from addnorm.interop.hf import HFModel, config_of, from_hf
from addnorm.interop.output import Output

__all__ = ["FAMILIES", "Family", "HFModel", "Output", "config_of", "from_hf"]
