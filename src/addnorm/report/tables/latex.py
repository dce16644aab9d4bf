"""The summary of a comparison as a LaTeX table with intervals, for a paper."""

from pathlib import Path

from addnorm.comparison.analysis.arm_summary import ArmSummary
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.statistics import Estimate
from addnorm.report.output import write_bytes

SPECIAL = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip
FILE_NAME = "summary.tex"


def write_latex(study: Study, folder: str | Path) -> Path:
    """Write `summary.tex` with one row for each arm and depth; return its path.

    The table needs the package `booktabs`.
    """
    return write_bytes(Path(folder) / FILE_NAME, render_latex(study).encode())


def render_latex(study: Study) -> str:
    """Return the table of arms: depth, best setting, mean and interval, gap to the best arm."""
    objective = study.task.objective
    score = study.score if any(line.score for line in study.summary) else None
    head = ["arm", "depth", "best setting", objective.label, *([score.label] if score else [])]
    head += ["gap to best", "trained"]
    lines = []
    for line in study.summary:
        cells = [
            escape_latex(line.arm.name),
            str(line.depth),
            escape_latex(line.format_best()),
            format_estimate(line.value, bold=line.leads),
            *([format_estimate(line.score, digits=score.digits)] if score else []),
            "best" if line.leads else format_estimate(line.gap, signed=True),
            _count_trained(line),
        ]
        lines.append("    " + " & ".join(cells) + r" \\")
    columns = "lrl" + "r" * (len(head) - 3)
    level = f"{100 * study.spec.confidence_level:.4g}"
    waiting = sum(each.state == "waiting" for each in study.cells)
    preliminary = [f"% Preliminary: {waiting} of {len(study.cells)} cells are not finished."]
    return "\n".join(
        [
            f"% Made by addnorm from study {study.spec.digest}; needs \\usepackage{{booktabs}}.",
            f"% Intervals: {level} % by Student's t over seeds; gaps are paired by seed.",
            *(preliminary if waiting else []),
            f"\\begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            "    " + " & ".join(map(escape_latex, head)) + r" \\",
            r"    \midrule",
            *lines,
            r"    \bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def format_estimate(
    estimate: Estimate | None, *, digits: int = 3, bold: bool = False, signed: bool = False
) -> str:
    r"""Return a mean with the half width of its interval, in math mode.

    >>> print(format_estimate(Estimate(2.0, 0.5, 3), bold=True))
    $\mathbf{2.000} \pm 0.500$
    """
    if estimate is None:
        return "--"
    mean = f"{estimate.mean:{'+' if signed else ''}.{digits}f}"
    mean = rf"\mathbf{{{mean}}}" if bold else mean
    return f"${mean}$" if estimate.half is None else rf"${mean} \pm {estimate.half:.{digits}f}$"


def escape_latex(text: str) -> str:
    r"""Escape the characters that LaTeX treats specially.

    >>> print(escape_latex("pre_ln 50 %"))
    pre\_ln 50 \%
    """
    return "".join(SPECIAL.get(character, character) for character in text)


def _count_trained(line: ArmSummary) -> str:
    return f"{line.states.get('trained', 0)}/{sum(line.states.values())}"
