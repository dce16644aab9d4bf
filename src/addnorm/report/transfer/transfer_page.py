"""The page of `addnorm compare --transfer`: loss over learning rate for each size."""

import math
from pathlib import Path

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.transfer import TransferResult, analyze_transfer
from addnorm.report.charts.lines import plot_lines
from addnorm.report.html.page import Facts, Headline, Section, Table, render_page, write_page

PAGE_FILE = "transfer.html"
HEAD = ("size", "best learning rate", "between rates", "best loss", "cost of the smallest's rate")
ABOUT = (
    "Mean final loss over seeds; circles mark the best rate of each size. Where a scale carries "
    "the learning rate over, the circles are above each other."
)


def write_transfer_page(study: Study) -> Path:
    """Write `transfer.html` into the folder of a comparison and return its path."""
    return write_page(study.folder / PAGE_FILE, render_transfer_page(study))


def render_transfer_page(study: Study) -> str:
    """Return the page as HTML."""
    results = analyze_transfer(study.cells)
    sentences = [text for each in results for text in (each.sentence(), each.warning()) if text]
    sections = [Section("Answer", [Headline(sentences)], ABOUT)]
    sections += [_arm_section(each) for each in results]
    spec = study.spec
    settings = {"task": spec.task, "steps": spec.steps, "seeds": spec.seeds, "scale": "none"}
    settings |= {name: str(value) for name, value in spec.keys.items()}
    sections.append(Section("Settings", [Facts("Equal for all sizes", settings)]))
    about = f"Folder: {study.folder.resolve()}"
    return render_page("Transfer of the learning rate", sections=sections, about=about)


def _arm_section(result: TransferResult) -> Section:
    costs = {curve.name: cost for curve, cost in result.costs()}
    rows = []
    for curve in result.curves:
        cost, best = costs.get(curve.name), curve.best
        rows.append(
            (
                curve.name,
                "none" if best is None else f"{best[0]:g}",
                "" if curve.vertex is None else f"{curve.vertex:.3g}",
                "" if best is None else best[1].format(),
                "" if cost is None else "fails" if math.isinf(cost) else f"{cost:+.3f}",
            )
        )
    chart = plot_lines(
        [
            (curve.name, [(rate, loss.mean) for rate, loss in curve.losses])
            for curve in result.curves
        ],
        title="Loss over learning rate",
        x="learning rate",
        y="final loss",
        series="size",
        marks=[
            (curve.best[0], curve.best[1].mean) for curve in result.curves if curve.best is not None
        ],
        wide=True,
    )
    return Section(result.arm, [chart, Table("Sizes", HEAD, rows, wide=True, stacked=True)])
