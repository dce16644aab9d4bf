"""Conversion of Hugging Face models to addnorm models and back."""

from addnorm.interop.family import FAMILIES, Family
from addnorm.interop.hf import HFModel, convert_config, from_hf
from addnorm.interop.output import Output

__all__ = ["FAMILIES", "Family", "HFModel", "Output", "convert_config", "from_hf"]
