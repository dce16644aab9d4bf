"""Conversion of Hugging Face models to addnorm models and back.

Importing this package registers the addnorm classes with the Auto classes of transformers, if it is
installed.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from addnorm.interop.family import FAMILIES, Family
from addnorm.interop.hf import convert_config, from_hf, load_hf
from addnorm.interop.hf_model import HFModel
from addnorm.interop.transformers_compat import transformers_library
from addnorm.models import ModelOutput as Output

if TYPE_CHECKING or find_spec("transformers") is not None:
    from addnorm.interop.auto import (
        AddnormConfig,
        AddnormForCausalLM,
        AddnormForImageClassification,
        AddnormForMaskedLM,
        AddnormForSeq2SeqLM,
        AddnormForSequenceClassification,
        AfterStepCallback,
        run_to_hf,
        save_hf,
        to_hf,
        to_hf_tokenizer,
    )

__all__ = [
    "FAMILIES",
    "AddnormConfig",
    "AddnormForCausalLM",
    "AddnormForImageClassification",
    "AddnormForMaskedLM",
    "AddnormForSeq2SeqLM",
    "AddnormForSequenceClassification",
    "AfterStepCallback",
    "Family",
    "HFModel",
    "Output",
    "convert_config",
    "from_hf",
    "load_hf",
    "run_to_hf",
    "save_hf",
    "to_hf",
    "to_hf_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        transformers_library()  # raises: the name is missing because transformers is
    raise AttributeError(f"module 'addnorm.interop' has no attribute {name!r}")
