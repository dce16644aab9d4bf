"""Variants of real bugs in other notations, by the author of the rules that find them.

Each variant is a function from `broken` to a model, with the rule that must report the broken form;
nothing above a remark may be reported for the other form. `LOOKALIKES` are further healthy models
that resemble a bug. Unlike `tests/doctor/models/review`, these cases say nothing about unseen bugs.
"""

from importlib import import_module

from tests.doctor.models.variants.case import LOOKALIKES, VARIANTS, Variant

for _name in ("attention", "positions", "masks", "norms", "parts", "lookalikes"):
    import_module(f"{__name__}.{_name}")

__all__ = ["LOOKALIKES", "VARIANTS", "Variant"]
