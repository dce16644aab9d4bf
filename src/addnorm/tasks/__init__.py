"""Text tasks: translation, language modeling, classification and masked language modeling.

A new task is a module with a registered `TextTask` and an import below.
"""

from addnorm.tasks.base import (
    Example,
    LossMeans,
    RunProtocol,
    Score,
    TextTask,
    find_task,
    get_run_task,
    get_task,
    make_token_mask,
    register,
    registry,
)
from addnorm.tasks.classify import Classify, LabelPrediction, classify_texts
from addnorm.tasks.evaluation import evaluate
from addnorm.tasks.line_inference import GeneratedText, InputWarnings
from addnorm.tasks.lm import LanguageModeling, generate_texts
from addnorm.tasks.mlm import Fill, FilledText, MaskedLanguageModeling, fill_mask
from addnorm.tasks.objective import Objective
from addnorm.tasks.translate import Translate, translate_texts

__all__ = [
    "Classify",
    "Example",
    "Fill",
    "FilledText",
    "GeneratedText",
    "InputWarnings",
    "LabelPrediction",
    "LanguageModeling",
    "LossMeans",
    "MaskedLanguageModeling",
    "Objective",
    "RunProtocol",
    "Score",
    "TextTask",
    "Translate",
    "classify_texts",
    "evaluate",
    "fill_mask",
    "find_task",
    "generate_texts",
    "get_run_task",
    "get_task",
    "make_token_mask",
    "register",
    "registry",
    "translate_texts",
]
