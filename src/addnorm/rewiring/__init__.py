"""Changes of the arrangement of models that already exist; `addnorm.rewire` is a function."""

from addnorm.rewiring.apply_changes import change_naively
from addnorm.rewiring.report import Change, RewireReport, TensorChanges
from addnorm.rewiring.rewire_model import rewire
from addnorm.rewiring.tensor_changes import carry_optimizer_state

__all__ = [
    "Change",
    "RewireReport",
    "TensorChanges",
    "carry_optimizer_state",
    "change_naively",
    "rewire",
]
