"""What is really wired in any PyTorch model: `addnorm.doctor(model, example_inputs)`.

record -> graph -> classify -> measure -> advise. The package itself can be called.
"""

import sys
from types import ModuleType
from typing import Any

from addnorm.doctor.diagnose import doctor
from addnorm.doctor.report import Block, Finding, NormUse, Report
from addnorm.doctor.rules import RULES

__all__ = ["RULES", "Block", "Finding", "NormUse", "Report", "doctor"]


class _CallableModule(ModuleType):
    """A package that is also its main function: both are called `addnorm.doctor`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        return doctor(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
