"""The answer of a comparison: its sentences, and a line for each arm at each depth."""

import math

from markupsafe import Markup

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.summary import ArmSummary, StableRange
from addnorm.comparison.statistics import Estimate
from addnorm.report.comparison.stability import OutcomeCounts, warmup_label
from addnorm.report.html.page import Headline, Note, Part, Table
from addnorm.report.theme import ArmStyle

SCORE_LABELS = {
    "chrf": "chrF",
    "bits_per_character": "bits a character",
    "accuracy": "accuracy",
    "r2": "R²",
}
SCORE_DIGITS = {"chrf": 1}
SCORE_NOTES = {
    "chrf": "chrF, from 0 to 100, counts the runs of characters that an answer shares with the "
    "wanted text: higher is better.",
    "bits_per_character": "Bits a character: lower is better.",
    "accuracy": "Accuracy is the share of right labels: higher is better.",
    "r2": "R² is the share of the target's variance that is explained: higher is better.",
}


def summary_section(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Sentences and table."""
    large, small = study.verdict[:2], study.verdict[2:]
    reference = study.summary[0].reference
    head = (
        *("arm", "depth", "cells", "stable learning rates", "best setting", "validation loss"),
        *(score_label(study), "behind the best", f"speed, {reference} = 1", "memory"),
    )
    rows = [_row(line, styles, study.score) for line in study.summary]
    table = Table("Each arm at each depth", head, rows, wide=True, stacked=True)
    return [Headline(large, small), table, Note(_explain_columns(study))]


def score_label(study: Study) -> str:
    """The name of the score, as one writes it."""
    return SCORE_LABELS.get(study.score, study.score.replace("_", " "))


def _row(line: ArmSummary, styles: dict[str, ArmStyle], score: str) -> list[object]:
    at = "none trained" if line.best is None else line.best.format()
    if line.best is not None and not line.whole:
        at += " (not every seed)"
    return [
        styles[line.arm.name],
        str(line.depth),
        OutcomeCounts(line.states),
        _format_ranges(line.stable),
        Markup(", ").join(map(_no_wrap, at.split(", "))),
        _format_estimate(line.loss),
        _format_estimate(line.score, digits=SCORE_DIGITS.get(score, 3)),
        "the best" if line.leads else _format_gap(line),
        f"{line.speed:.2f}" if math.isfinite(line.speed) else "—",
        f"{line.memory / 2**20:,.0f} MB" if math.isfinite(line.memory) else "—",
    ]


def _format_ranges(stable: tuple[StableRange, ...]) -> Markup:
    """Learning rates at which every seed trained, a line for each warm-up."""
    lines = [
        (f"{warmup_label(each.warmup)}: " if len(stable) > 1 else "") + each.format()
        for each in stable
    ]
    return Markup("<br>").join(map(_no_wrap, lines))


def _format_gap(line: ArmSummary) -> str:
    if line.loss is None:
        return "—"
    if line.behind is None:
        return "no seed in common"
    if line.behind.half is None:
        return f"{line.behind.mean:+.3f}"
    if not line.behind.excludes_zero:
        return f"within noise ({line.behind.mean:+.3f})"
    return _use_nonbreaking_spaces(f"{line.behind.mean:+.3f} ± {line.behind.half:.3f}")


def _format_estimate(estimate: Estimate | None, digits: int = 3) -> str:
    return "—" if estimate is None else _use_nonbreaking_spaces(estimate.format(digits))


def _no_wrap(text: str) -> Markup:
    """Not broken into lines, not even at a hyphen."""
    return Markup('<span class="keep">{}</span>').format(text)


def _use_nonbreaking_spaces(text: str) -> str:
    """Numbers with their signs on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _explain_columns(study: Study) -> str:
    """What the columns mean; plain, and only what is true of this comparison."""
    seeds = study.spec.seeds
    told = [
        "Cells are trainings, by what became of them; the signs are explained at the map.",
        "Stable learning rates are those at which every seed trained.",
        "The best setting is the one with the lowest mean validation loss among those where the "
        "most seeds trained.",
    ]
    if seeds > 1:
        told.append(
            f"± is half of the 95 % interval (Student's t) over those of the {seeds} seeds that "
            "trained: with few seeds it is wide, and that is honest."
        )
        told.append(
            "Behind the best: the loss minus that of the best arm at this depth, seed by seed; "
            "within noise means that its interval holds zero."
        )
    else:
        told.append("There is one seed, so nothing is known about noise, and no ± is given.")
    told += [SCORE_NOTES[study.score]] if study.score in SCORE_NOTES else []
    told.append(
        f"Speed is in {study.task.unit} a second of processor time (on a GPU, of time); memory is "
        "what a cell took at most, beyond an idle process."
    )
    return " ".join(told)
