"""The summary of a comparison: its verdict, and a table row for each arm at each depth."""

import math

from markupsafe import Markup

from addnorm.comparison.analysis.arm_summary import ArmSummary, StableRange, warmup_label
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.statistics import Estimate
from addnorm.report.comparison.stability import OutcomeCounts
from addnorm.report.format import MISSING
from addnorm.report.html.page import Headline, Note, Part, Table
from addnorm.report.theme import ArmStyle


def build_summary_section(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Return the verdict and the table of arms."""
    large, small = study.verdict[:2], study.verdict[2:]
    reference = study.summary[0].reference
    head = (
        *("arm", "depth", "cells", "stable learning rates", "best setting"),
        study.task.objective.label,
        *([study.score.label] if study.has_scores else []),
        *("gap to best", f"speed, {reference} = 1", "peak memory"),
    )
    rows = [_row(line, styles, study) for line in study.summary]
    table = Table("Arms by depth", head, rows, wide=True, stacked=True)
    return [Headline(large, small), table, Note(_explain_columns(study))]


def _row(line: ArmSummary, styles: dict[str, ArmStyle], study: Study) -> list[object]:
    score = [_format_estimate(line.score, digits=study.score.digits)] if study.has_scores else []
    return [
        styles[line.arm.name],
        str(line.depth),
        OutcomeCounts(line.states),
        _format_ranges(line.stable),
        _format_setting(line.format_best()),
        _format_estimate(line.value),
        *score,
        "best" if line.leads else _format_gap(line),
        f"{line.speed:.2f}" if math.isfinite(line.speed) else MISSING,
        f"{line.memory / 2**20:,.0f} MB" if math.isfinite(line.memory) else MISSING,
    ]


def _format_ranges(stable: tuple[StableRange, ...]) -> Markup:
    """Return the learning rates at which every seed trained, one line for each warm-up."""
    lines = [
        (f"{warmup_label(each.warmup)}: " if len(stable) > 1 else "") + each.format()
        for each in stable
    ]
    return Markup("<br>").join(map(_no_wrap, lines))


def _format_setting(text: str) -> Markup:
    """Return a setting that breaks between its parts only; notes in parentheses break anywhere."""
    setting, parenthesis, notes = text.partition(" (")
    return Markup(", ").join(map(_no_wrap, setting.split(", "))) + parenthesis + notes


def _format_gap(line: ArmSummary) -> str:
    if line.loss is None:
        return MISSING
    gap = line.gap
    if gap is None:
        return "no common seed"
    if gap.half is None:
        return f"{gap.mean:+.3f}"
    if not gap.excludes_zero:
        return f"within noise ({gap.mean:+.3f})"
    return _use_nonbreaking_spaces(f"{gap.mean:+.3f} ± {gap.half:.3f}")


def _format_estimate(estimate: Estimate | None, digits: int = 3) -> str:
    return MISSING if estimate is None else _use_nonbreaking_spaces(estimate.format(digits))


def _no_wrap(text: str) -> Markup:
    """Prevent line breaks, including those at hyphens."""
    return Markup('<span class="nowrap">{}</span>').format(text)


def _use_nonbreaking_spaces(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _explain_columns(study: Study) -> str:
    """Explain the columns; sentences that do not apply to this comparison are left out."""
    seeds = max((line.loss.count for line in study.summary if line.loss), default=0)
    objective = study.task.objective
    best = "highest" if objective.maximize else "lowest"
    level = f"{100 * study.spec.confidence_level:.4g} %"
    is_loss = objective.column == "loss"
    looks = []
    if study.spec.num_looks:
        looks.append(
            f"Seeds were added {study.spec.num_looks} times after looking at the results; the "
            "intervals are wider to allow for that."
        )
    sentences = [
        "Cells: number of training runs by outcome; the stability map explains the symbols.",
        "Stable learning rates: those at which every seed trained.",
        f"Best setting: of the settings at which the most seeds trained, the one with the {best} "
        f"mean {objective.label}. Highest or lowest lr tried: a better one may lie outside.",
    ]
    if seeds > 1:
        sentences += [
            f"± is the half-width of the {level} interval (Student's t) over the seeds that "
            f"trained, at most {seeds}.",
            f"Gap to best: difference in {'loss' if is_loss else objective.label} from the best "
            "arm at this depth, paired by seed; "
            f"within noise means that its {level} interval contains zero.",
            *looks,
        ]
    elif seeds == 1:
        sentences.append("With one seed, the noise between seeds is unknown and no ± is given.")
    sentences += [
        *([study.score.note] if study.has_scores and study.score.note else []),
        f"Speed: {study.task.unit} per second of CPU time (wall time on a GPU), relative to the "
        "reference arm. Peak memory: maximum of a cell beyond that of an idle process.",
    ]
    return " ".join(sentences)
