"""What charts say of themselves: what is drawn, what is left out."""

from collections.abc import Mapping

from addnorm.report.downsample import Points
from addnorm.report.html.page import Note

SMOOTHED_LABEL = "training, smoothed"
"""Name of a curve that is the smooth one of another."""


def empty_chart_note(title: str, count: int) -> Note:
    """In place of a chart."""
    if count:
        return Note(f"{title}: none of the {count:,} measured values is a finite number.")
    return Note(f"{title}: not measured.")


def smoothing_note(curves: Mapping[str, Points]) -> str:
    """Which line is which, where one is smoothed."""
    return "Thin: as measured. Thick: smoothed." if SMOOTHED_LABEL in curves else ""


def downsampling_note(count: int, points: Points) -> str:
    """How many values are drawn, where not all are."""
    if len(points) == count:
        return ""
    return f"{len(points):,} of {count:,} values are drawn, the lowest and highest of each stretch."


def nonfinite_note(count: int) -> str:
    """How many values are no numbers."""
    if not count:
        return ""
    return f"{count:,} value{'s are' if count > 1 else ' is'} not finite and left out."


def nonpositive_note(count: int) -> str:
    """How many values a log axis has no place for."""
    if not count:
        return ""
    are = "s are" if count > 1 else " is"
    return f"{count:,} value{are} not above 0 and left out: the axis is log."
