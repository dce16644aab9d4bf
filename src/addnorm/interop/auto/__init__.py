"""Addnorm models as models of transformers, registered with its Auto classes on import.

addnorm model  ->  to_hf  ->  AddnormForCausalLM, ...  ->  save_pretrained, generate, Trainer
folder         ->  AutoModelForCausalLM.from_pretrained  ->  .model is the addnorm model
"""

import transformers

from addnorm.interop.auto.callback import AfterStepCallback
from addnorm.interop.auto.config import AddnormConfig
from addnorm.interop.auto.convert import run_to_hf, save_hf, to_hf
from addnorm.interop.auto.models import (
    MODEL_CLASSES,
    AddnormForCausalLM,
    AddnormForImageClassification,
    AddnormForMaskedLM,
    AddnormForSeq2SeqLM,
    AddnormForSequenceClassification,
)
from addnorm.interop.auto.tokenizer import to_hf_tokenizer

transformers.AutoConfig.register(AddnormConfig.model_type, AddnormConfig, exist_ok=True)
for _model_class in MODEL_CLASSES:
    _auto_class = getattr(transformers, _model_class.auto_class)
    _auto_class.register(AddnormConfig, _model_class, exist_ok=True)

__all__ = [
    "AddnormConfig",
    "AddnormForCausalLM",
    "AddnormForImageClassification",
    "AddnormForMaskedLM",
    "AddnormForSeq2SeqLM",
    "AddnormForSequenceClassification",
    "AfterStepCallback",
    "run_to_hf",
    "save_hf",
    "to_hf",
    "to_hf_tokenizer",
]
