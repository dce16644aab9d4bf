"""Diagnosis of any PyTorch model: which norms and residual connections it has, and what is wrong.

    report = addnorm.doctor(model, example_inputs)

The package is callable: `addnorm.doctor` is both this package and its main function. The passes
are trace, analysis, rules and report; see docs/architecture/doctor.md.
"""

import sys
from types import ModuleType
from typing import Any

from addnorm.doctor.diagnose import doctor
from addnorm.doctor.report import Block, Finding, NormUse, Report
from addnorm.doctor.rules import RULES

__all__ = ["RULES", "Block", "Finding", "NormUse", "Report", "doctor"]


class _CallableModule(ModuleType):
    """Module type that calls the function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        return doctor(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
