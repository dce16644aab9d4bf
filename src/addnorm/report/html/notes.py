"""Notes below a chart: what is drawn and what is omitted."""

from collections.abc import Mapping

from addnorm.report.downsample import Points
from addnorm.report.html.page import Note

SMOOTHED_LABEL = "training, smoothed"
"""Name of the smoothed version of the training curve."""
NOT_MEASURED = ": not measured."
"""End of the note that replaces a chart without values."""


def empty_chart_note(title: str, count: int) -> Note:
    """Return the note that replaces a chart of `count` values, none of which is finite."""
    if count:
        return Note(f"{title}: none of the {count:,} measured values is finite.")
    return Note(f"{title}{NOT_MEASURED}")


def smoothing_note(curves: Mapping[str, Points]) -> str:
    """Explain thin and thick lines if a smoothed curve is drawn."""
    return "Thin line: raw values. Thick line: moving average." if SMOOTHED_LABEL in curves else ""


def downsampling_note(count: int, points: Points) -> str:
    """State how many of `count` values are drawn, unless all are."""
    return "" if len(points) == count else drawn_values_note(len(points), count)


def drawn_values_note(num_drawn: int, count: int) -> str:
    """State that `num_drawn` of `count` values are drawn, and which."""
    return f"{num_drawn:,} of {count:,} values are drawn: the minimum and maximum of each interval."


def nonfinite_note(count: int) -> str:
    """State how many values are omitted because they are not finite."""
    if not count:
        return ""
    return f"{_values_are(count)} not finite and omitted."


def nonpositive_note(count: int) -> str:
    """State how many values are omitted because a log axis cannot show them."""
    if not count:
        return ""
    return f"{_values_are(count)} not positive and omitted from the log axis."


def _values_are(count: int) -> str:
    return "1 value is" if count == 1 else f"{count:,} values are"
