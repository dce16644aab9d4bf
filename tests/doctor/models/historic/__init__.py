"""Mistakes reported in public repositories, in six kinds, each with its fixed form.

Every case is written from the description of an issue, not from its code. The rule that should
find it was written down before the doctor ran on it. In every kind the third, sixth, ninth, ...
case was set aside: the rules were developed on the others, and the ones set aside ran once.
"""

from tests.doctor.models.historic import (
    double_norms,
    missing_init,
    options,
    padding,
    small_eps,
    wrong_axes,
)
from tests.doctor.models.historic.cases import HistoricBug

KINDS = {
    "double norm": double_norms.CASES,
    "padding": padding.CASES,
    "option": options.CASES,
    "epsilon": small_eps.CASES,
    "axis": wrong_axes.CASES,
    "initialization": missing_init.CASES,
}

__all__ = ["KINDS", "HistoricBug", "iter_cases"]


def iter_cases(*, held_out):
    """Iterate over (kind, case), either those held out or those used for development."""
    for kind, cases in KINDS.items():
        for number, case in enumerate(cases, 1):
            if (number % 3 == 0) is held_out:
                yield kind, case
