"""Arrangements of Transformers by name: built, trained, measured, diagnosed, compared."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.comparison import Comparison, Study
    from addnorm.comparison.tasks.function_cell import Cell
    from addnorm.comparison.tasks.function_registry import task
    from addnorm.core import Card, UserError
    from addnorm.core.registry import register
    from addnorm.exporters import export, fold
    from addnorm.interop import (
        AddnormConfig,
        AddnormForCausalLM,
        AddnormForMaskedLM,
        AddnormForSeq2SeqLM,
        AddnormForSequenceClassification,
        from_hf,
        save_hf,
        to_hf,
    )
    from addnorm.loading import load
    from addnorm.models import (
        Classifier,
        Config,
        LanguageModel,
        MaskedLM,
        PrefixLM,
        Seq2Seq,
    )
    from addnorm.models.build import build
    from addnorm.models.scale_groups import scale_groups
    from addnorm.monitor import Monitor
    from addnorm.norms import Norm, make_norm
    from addnorm.planning.plan import plan
    from addnorm.report.comparison.run_and_report import compare
    from addnorm.rewiring import rewire
    from addnorm.stacks import Decoder, Encoder, Stack
    from addnorm.sublayers import (
        CrossAttention,
        FeedForward,
        KVCache,
        MixtureOfExperts,
        SelfAttention,
        Sublayer,
    )
    from addnorm.tabular import (
        TabularSearch,
        TabularTransformerClassifier,
        TabularTransformerRegressor,
    )
    from addnorm.transfer.coordcheck import coordcheck
    from addnorm.wirings import Wiring

__version__ = "0.1.0"

# Where each public name lives. They are imported on first use, so that `import addnorm` and
# `addnorm --help` do not wait for torch.
_HOME = {
    "AddnormConfig": "addnorm.interop",
    "AddnormForCausalLM": "addnorm.interop",
    "AddnormForMaskedLM": "addnorm.interop",
    "AddnormForSeq2SeqLM": "addnorm.interop",
    "AddnormForSequenceClassification": "addnorm.interop",
    "Cell": "addnorm.comparison.tasks.function_cell",
    "Classifier": "addnorm.models",
    "Comparison": "addnorm.comparison",
    "Config": "addnorm.models",
    "CrossAttention": "addnorm.sublayers",
    "Decoder": "addnorm.stacks",
    "Encoder": "addnorm.stacks",
    "FeedForward": "addnorm.sublayers",
    "KVCache": "addnorm.sublayers",
    "LanguageModel": "addnorm.models",
    "MaskedLM": "addnorm.models",
    "MixtureOfExperts": "addnorm.sublayers",
    "Monitor": "addnorm.monitor",
    "Norm": "addnorm.norms",
    "PrefixLM": "addnorm.models",
    "SelfAttention": "addnorm.sublayers",
    "Seq2Seq": "addnorm.models",
    "Stack": "addnorm.stacks",
    "Study": "addnorm.comparison",
    "Sublayer": "addnorm.sublayers",
    "TabularSearch": "addnorm.tabular",
    "TabularTransformerClassifier": "addnorm.tabular",
    "TabularTransformerRegressor": "addnorm.tabular",
    "Card": "addnorm.core",
    "UserError": "addnorm.core",
    "plan": "addnorm.planning",
    "register": "addnorm.core.registry",
    "Wiring": "addnorm.wirings",
    "build": "addnorm.models",
    "compare": "addnorm.report.comparison.run_and_report",
    "coordcheck": "addnorm.transfer",
    "export": "addnorm.exporters",
    "fold": "addnorm.exporters",
    "from_hf": "addnorm.interop",
    "load": "addnorm.loading",
    "rewire": "addnorm.rewiring",
    "save_hf": "addnorm.interop",
    "scale_groups": "addnorm.models",
    "to_hf": "addnorm.interop",
    "make_norm": "addnorm.norms",
    "task": "addnorm.comparison.tasks.function_registry",
}
_PACKAGES = (
    *("core", "norms", "wirings", "sublayers", "scales", "stacks", "models", "data", "measure"),
    *("doctor", "monitor", "transfer", "decode", "tasks", "train", "planning", "tabular"),
    *("comparison", "claims", "report", "interop", "exporters", "rewiring", "bench"),
)

__all__ = [
    "AddnormConfig",
    "AddnormForCausalLM",
    "AddnormForMaskedLM",
    "AddnormForSeq2SeqLM",
    "AddnormForSequenceClassification",
    "Card",
    "Cell",
    "Classifier",
    "Comparison",
    "Config",
    "CrossAttention",
    "Decoder",
    "Encoder",
    "FeedForward",
    "KVCache",
    "LanguageModel",
    "MaskedLM",
    "MixtureOfExperts",
    "Monitor",
    "Norm",
    "PrefixLM",
    "SelfAttention",
    "Seq2Seq",
    "Stack",
    "Study",
    "Sublayer",
    "TabularSearch",
    "TabularTransformerClassifier",
    "TabularTransformerRegressor",
    "UserError",
    "Wiring",
    "__version__",
    "build",
    "compare",
    "coordcheck",
    "export",
    "fold",
    "from_hf",
    "load",
    "make_norm",
    "plan",
    "register",
    "rewire",
    "save_hf",
    "scale_groups",
    "task",
    "to_hf",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"addnorm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'addnorm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
