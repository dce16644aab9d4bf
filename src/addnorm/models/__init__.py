"""Models: language models, encoder-decoders, classifiers, and presets of published ones."""

from addnorm.models.base import Model
from addnorm.models.build import build, load
from addnorm.models.classifier import Classifier
from addnorm.models.config import Config
from addnorm.models.language import LanguageModel, MaskedLM, PrefixLM
from addnorm.models.output import ModelOutput
from addnorm.models.presets import PRESETS, Preset
from addnorm.models.scale_groups import scale_groups
from addnorm.models.seq2seq import Seq2Seq

__all__ = [
    "PRESETS",
    "Classifier",
    "Config",
    "LanguageModel",
    "MaskedLM",
    "Model",
    "ModelOutput",
    "PrefixLM",
    "Preset",
    "Seq2Seq",
    "build",
    "load",
    "scale_groups",
]
